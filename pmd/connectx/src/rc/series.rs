//! Packets of SENDs that follow each other on a connection. What was checked of one is not checked again of those behind it whose headers
//! say the same: link and transport version, addresses, partition, queue pair, and the states of the port and the queue pair.
//!
//! That holds within one round of [`crate::ingress`], in which the host does nothing to the device, and as long as no packet comes between that goes the
//! long way. Whatever else is to be said of a packet than that it is the next one and is well is said by the long way, too; of a first or last one what both ways ask of the
//! receive ([`responder::follow`]).

use std::time::Instant;

use ib_wire::crc;
use ib_wire::packet::{Bth, Extended, Lnh, Lrh, Opcode, Transport};

use super::responder;
use crate::cable::Crcs;
use crate::connection::responder::Incoming;
use crate::counters::Activity;
use crate::device::Device;
use crate::frame::Arrived;
use crate::object::qp::QpKind;
use crate::object::table::QpTable;

/// LRH and BTH of a packet within the subnet.
const HEAD: usize = 20;
/// Both CRCs.
const TAIL: usize = 6;
/// What of the LRH may differ: the length.
const LRH_SAME: u64 = !(0x7ff << 16);
/// What of the first eight bytes of the BTH may differ: opcode, solicited event, pad count.
const BTH_SAME: u64 = !(0xff << 56 | 1 << 55 | 3 << 52);

/// What packets of the series have in common with one that a connection took in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Series {
    lrh: u64,
    bth: u64,
    slot: u32,
}

fn words(head: &[u8; HEAD]) -> (u64, u64) {
    let word = |at| head.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_be_bytes(*b));
    (word(0), word(8))
}

impl Series {
    /// A series that goes on behind a packet which the connection at `slot` has taken in as the next one.
    #[inline]
    pub(crate) fn begin(bytes: &[u8], slot: u32) -> Option<Self> {
        let (lrh, bth) = words(bytes.first_chunk()?);
        (Lnh::from_bits((lrh >> 48) as u8) == Lnh::Local).then_some(Self { lrh, bth, slot })
    }

    /// Takes a packet in, if it goes on with the series. False if it is to go the long way; nothing has been done with it then, but that some of it may
    /// lie already where the long way lays it.
    #[inline(always)]
    pub(crate) fn take_in(
        series: &mut Option<Self>,
        qps: &mut QpTable,
        dev: &mut Device,
        (bytes, crcs): (&[u8], Crcs),
        now: Instant,
    ) -> bool {
        let Some(this) = series else { return false };
        match this.goes_on(qps, dev, (bytes, crcs), now) {
            None => false,
            Some(true) => true,
            Some(false) => {
                *series = None;
                true
            }
        }
    }

    /// `None` if the packet goes the long way; false if it was refused, and the series ends.
    #[inline(always)]
    fn goes_on(
        &self,
        qps: &mut QpTable,
        dev: &mut Device,
        (bytes, crcs): (&[u8], Crcs),
        now: Instant,
    ) -> Option<bool> {
        let head: &[u8; HEAD] = bytes.first_chunk()?;
        let (lrh, bth) = words(head);
        if (lrh ^ self.lrh) & LRH_SAME != 0 || (bth ^ self.bth) & BTH_SAME != 0 {
            return None;
        }
        if (lrh >> 16 & 0x7ff) as usize * 4 + 2 != bytes.len() {
            return None;
        }
        let (opcode, first, last) = match (bth >> 56) as u8 {
            FIRST => (Opcode::RcSendFirst, true, false),
            MIDDLE => (Opcode::RcSendMiddle, false, false),
            LAST => (Opcode::RcSendLast, false, true),
            ONLY => (Opcode::RcSendOnly, true, true),
            _ => return None,
        };
        let body = bytes.get(HEAD..bytes.len().checked_sub(TAIL)?)?;
        let (payload, pad) = body.split_at_checked(body.len().checked_sub((bth >> 52) as usize & 3)?)?;
        let word = u32::from_be_bytes(*head.last_chunk()?);
        let qp = qps.at(self.slot).filter(|qp| qp.kind == QpKind::Rc)?;
        let rc = qp.rc.as_mut()?;
        let mtu = rc.mtu.bytes();
        let fits = match (first, last) {
            (_, false) => payload.len() == mtu,
            (false, true) => (1..=mtu).contains(&payload.len()),
            (true, true) => payload.len() <= mtu,
        };
        let continues = match rc.responder.incoming {
            None => first,
            Some(Incoming::Send { .. }) => !first,
            Some(Incoming::Write { .. }) => false,
        };
        if !fits || !continues || word & 0xff_ffff != rc.responder.epsn.get() {
            return None;
        }
        if crcs == Crcs::Present && !crc::verify(bytes) {
            return None;
        }
        if let (false, Some(Incoming::Send { counter, received, mut spot })) = (last, rc.responder.incoming) {
            // It brings bytes and nothing else. Where they do not go down the long way does it once more, and says so.
            dev.lay_down(&qp.receives, counter, received, &mut spot, payload).ok()?;
            let received = received + payload.len() as u64;
            rc.responder.incoming = Some(Incoming::Send { counter, received, spot });
            dev.counters.count(Activity::Received);
            if rc.responder.pass(word >> 31 != 0) {
                dev.schedule(qp);
            }
            return Some(true);
        }
        dev.counters.count(Activity::Received);
        let (lrh, ..) = Lrh::from_bytes(head.first_chunk()?);
        let (bth, ..) = Bth::from_bytes(head.last_chunk()?);
        let bth = Bth { opcode, ..bth };
        let transport = Transport { bth, extended: Extended::Bare, payload, pad };
        Some(responder::follow(qp, dev, &Arrived::plain(lrh, transport), last, now))
    }
}

const FIRST: u8 = Opcode::RcSendFirst.to_byte();
const MIDDLE: u8 = Opcode::RcSendMiddle.to_byte();
const LAST: u8 = Opcode::RcSendLast.to_byte();
const ONLY: u8 = Opcode::RcSendOnly.to_byte();
