//! Fast path for consecutive SEND packets of a connection. Checks of one packet are not repeated for the
//! following ones whose headers have the same fields: link and transport version, addresses, partition, queue
//! pair, and the states of the port and the queue pair.
//!
//! This holds within one round of [`crate::ingress`], in which the host does not change the device, and until
//! a packet takes the slow path. A packet that is not the valid next one takes the slow path. The receive
//! checks for a first or last packet are shared by both paths ([`responder::follow`]).

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

/// LRH and BTH of a packet within the subnet, in bytes.
const HEAD: usize = 20;
/// Both CRCs, in bytes.
const TAIL: usize = 6;
/// Mask of the LRH bits that must be equal; only the length may differ.
const LRH_SAME: u64 = !(0x7ff << 16);
/// Mask of the first eight BTH bytes that must be equal. Opcode, solicited event and pad count may differ.
const BTH_SAME: u64 = !(0xff << 56 | 1 << 55 | 3 << 52);

/// Header fields common to the packets of a series, from a packet that a connection accepted.
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
    /// Starts a series behind a packet that the connection in `slot` accepted as the next one.
    #[inline]
    pub(crate) fn begin(bytes: &[u8], slot: u32) -> Option<Self> {
        let (lrh, bth) = words(bytes.first_chunk()?);
        (Lnh::from_bits((lrh >> 48) as u8) == Lnh::Local).then_some(Self { lrh, bth, slot })
    }

    /// Receives a packet if it continues the series. False if the packet must take the slow path. In that
    /// case nothing was done except that some of its bytes may already be written where the slow path writes
    /// them.
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

    /// `None` if the packet must take the slow path; false if it was refused, which ends the series.
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
            // The packet has only data. If the write fails, the slow path repeats it and reports the error.
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
