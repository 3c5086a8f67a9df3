//! Completion queues.

use std::os::fd::OwnedFd;

use ib_wire::Qpn;
use zerocopy::IntoBytes;

use crate::memory::HostMemory;
use crate::region::RegionMemory;
use prm::{CQE_SIZE, Cqe, CqeOpcode, DBREC_CONSUMER, ErrorCqe, Syndrome, cqe_owner};

/// Bits of producer and consumer index that the two sides share.
const INDEX: u32 = 0xff_ffff;

/// The ring is full: an entry was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overrun;

/// Which completions an armed queue tells of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arm {
    Any,
    /// Solicited ones and failures.
    Solicited,
}

/// A completion queue of 64-byte entries, CQE version 1.
#[derive(Debug)]
pub(crate) struct Cq {
    ring: RegionMemory,
    dbrec: HostMemory,
    entries: u32,
    producer: u32,
    /// Index behind the last solicited entry or failure.
    solicited: u32,
    armed: Option<Arm>,
    overrun: bool,
    /// Its event waits to be fetched.
    pub(crate) announced: bool,
    /// An eventfd that is told of its events instead.
    pub(crate) bell: Option<OwnedFd>,
}

impl Cq {
    /// `None` if the ring is not a power of two of entries or the record too short.
    pub(crate) fn new(ring: RegionMemory, dbrec: HostMemory) -> Option<Self> {
        let entries = u32::try_from(ring.len() / CQE_SIZE as u64).ok()?;
        let fits = entries.is_power_of_two() && ring.len() == u64::from(entries) * CQE_SIZE as u64;
        (fits && entries <= 1 << 22 && dbrec.load(DBREC_CONSUMER * 4).is_some()).then_some(Self {
            ring,
            dbrec,
            entries,
            producer: 0,
            solicited: 0,
            armed: None,
            overrun: false,
            announced: false,
            bell: None,
        })
    }

    /// Asks for one event, at the first entry behind index `consumer` (24 bits) that `arm` means. True if it is there already.
    pub(crate) fn arm(&mut self, consumer: u32, arm: Arm) -> bool {
        let last = match arm {
            Arm::Any => self.producer,
            Arm::Solicited => self.solicited,
        };
        let behind = last.wrapping_sub(consumer) & INDEX;
        let there = behind > 0 && behind <= self.entries;
        self.armed = (!there).then_some(arm);
        there
    }

    /// True if it waits for an entry, and its bell would be rung.
    pub(crate) const fn would_ring(&self) -> bool {
        self.armed.is_some() && self.bell.is_some()
    }

    /// Writes an entry whose owner bit this sets. After an overrun, which is told once, nothing is written any more. True if
    /// the queue was armed for this entry.
    fn push(&mut self, bytes: &[u8; CQE_SIZE], solicited: bool) -> Result<bool, Overrun> {
        let consumer = self.dbrec.load(DBREC_CONSUMER * 4).unwrap_or(0);
        if self.overrun {
            return Ok(false);
        }
        if self.producer.wrapping_sub(consumer) & INDEX >= self.entries {
            self.overrun = true;
            return Err(Overrun);
        }
        let at = (self.producer & (self.entries - 1)) as usize * CQE_SIZE;
        let owner = u8::from(self.producer & self.entries != 0);
        let slot = self.ring.slot(at, CQE_SIZE).ok_or(Overrun)?;
        let (body, last) = bytes.split_at(CQE_SIZE - 1);
        slot.write(body);
        slot.publish(CQE_SIZE - 1, (last.first().copied().unwrap_or(0) & !cqe_owner::OWNER) | owner);
        self.producer = self.producer.wrapping_add(1);
        if solicited {
            self.solicited = self.producer;
        }
        let due = match self.armed {
            None => false,
            Some(Arm::Any) => true,
            Some(Arm::Solicited) => solicited,
        };
        if due {
            self.armed = None;
        }
        Ok(due)
    }

    /// Writes a success; `cqe` has every field but opcode and owner.
    pub(crate) fn complete(
        &mut self,
        mut cqe: Cqe,
        opcode: CqeOpcode,
        solicited: bool,
    ) -> Result<bool, Overrun> {
        cqe.op_own =
            (opcode as u8) << cqe_owner::OPCODE_SHIFT | if solicited { cqe_owner::SOLICITED } else { 0 };
        self.push(&zerocopy::transmute!(cqe), solicited)
    }

    /// Writes a failure. `wqe_opcode` is that of a send, 0 for a receive.
    pub(crate) fn fail(
        &mut self,
        opcode: CqeOpcode,
        qpn: Qpn,
        user_index: u32,
        wqe_opcode: u8,
        counter: u16,
        syndrome: Syndrome,
    ) -> Result<bool, Overrun> {
        let mut cqe = ErrorCqe {
            syndrome: syndrome.code(),
            op_own: (opcode as u8) << cqe_owner::OPCODE_SHIFT,
            ..ErrorCqe::default()
        };
        cqe.srqn_uidx.set(user_index);
        cqe.opcode_qpn.set(u32::from(wqe_opcode) << 24 | qpn.get());
        cqe.wqe_counter.set(counter);
        let mut bytes = [0; CQE_SIZE];
        bytes.copy_from_slice(cqe.as_bytes());
        self.push(&bytes, true)
    }
}
