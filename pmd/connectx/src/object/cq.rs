//! Completion queues.

use std::os::fd::OwnedFd;

use ib_wire::Qpn;
use zerocopy::IntoBytes;

use super::moderation::{Held, Moderation, Notify};
use crate::memory::{HostMemory, HostWord};
use crate::region::RegionMemory;
use prm::{CQE_SIZE, Cqe, CqeOpcode, DBREC_CONSUMER, ErrorCqe, Syndrome, cqe_owner};

/// Mask of the producer and consumer index bits that the two sides share.
const INDEX: u32 = 0xff_ffff;

/// The ring is full, or was at some time: an entry is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overrun {
    /// This is the first lost entry.
    pub(crate) first: bool,
}

/// Why a completion queue cannot move to another ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResizeError {
    /// There is no queue with this number.
    #[error("completion queue {0} does not exist")]
    NotFound(u32),
    /// The number of entries is not a power of two.
    #[error("invalid ring of {0} bytes: the number of {CQE_SIZE}-byte entries must be a power of two")]
    Ring(u64),
    /// Too many entries are unread: each ring must have room for one more than that.
    #[error(
        "{outstanding} completions are unread, but the smaller of the two rings has only {entries} entries"
    )]
    Outstanding {
        /// Unread entries.
        outstanding: u32,
        /// Entries of the smaller of the two rings.
        entries: u32,
    },
    /// The queue has overrun and accepts no more entries.
    #[error("the completion queue has overrun; it can only be destroyed")]
    Overrun,
}

/// The completions that raise an event of an armed queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arm {
    Any,
    /// Solicited completions and failures.
    Solicited,
}

/// A completion queue of 64-byte entries, CQE version 1.
#[derive(Debug)]
pub(crate) struct Cq {
    ring: RegionMemory,
    /// The host's consumer index.
    consumer: HostWord,
    entries: u32,
    producer: u32,
    /// Index behind the last solicited entry or failure.
    solicited: u32,
    armed: Option<Arm>,
    moderation: Option<Moderation>,
    held: Held,
    overrun: bool,
    /// Its event waits to be fetched.
    pub(crate) announced: bool,
    /// An eventfd that is signaled for its events instead.
    pub(crate) bell: Option<OwnedFd>,
}

/// Number of entries of a ring, if it is a valid ring.
fn entries_of(ring: &RegionMemory) -> Option<u32> {
    let entries = u32::try_from(ring.len() / CQE_SIZE as u64).ok()?;
    let fits = entries.is_power_of_two() && ring.len() == u64::from(entries) * CQE_SIZE as u64;
    (fits && entries <= 1 << 22).then_some(entries)
}

impl Cq {
    /// Creates a queue. `None` if the number of entries is not a power of two or the record is too short.
    pub(crate) fn new(ring: RegionMemory, dbrec: HostMemory) -> Option<Self> {
        let entries = entries_of(&ring)?;
        let consumer = dbrec.word_at(DBREC_CONSUMER * 4)?;
        Some(Self {
            ring,
            consumer,
            entries,
            producer: 0,
            solicited: 0,
            armed: None,
            moderation: None,
            held: Held::default(),
            overrun: false,
            announced: false,
            bell: None,
        })
    }

    /// Arms the queue for one event, for entries from index `consumer` (24 bits) on that match `arm`. Some
    /// may already be there.
    pub(crate) fn arm(&mut self, consumer: u32, arm: Arm) -> Notify {
        let last = match arm {
            Arm::Any => self.producer,
            Arm::Solicited => self.solicited,
        };
        let behind = last.wrapping_sub(consumer) & INDEX;
        self.held = Held::default();
        self.armed = Some(arm);
        if behind == 0 || behind > self.entries {
            return Notify::Nothing;
        }
        // How many of them are solicited is unknown: at least one.
        self.count(if arm == Arm::Any { behind } else { 1 })
    }

    /// Counts new entries that the queue is armed for.
    fn count(&mut self, came: u32) -> Notify {
        let notification = self.held.count(self.moderation, came);
        if notification == Notify::Event {
            self.armed = None;
        }
        notification
    }

    /// Sets the moderation of its events.
    pub(crate) fn moderate(&mut self, moderation: Option<Moderation>) {
        self.moderation = moderation;
    }

    /// The moderation of its events.
    pub(crate) const fn moderation(&self) -> Option<Moderation> {
        self.moderation
    }

    /// Releases a delayed event. Returns false if there is none.
    pub(crate) fn release(&mut self) -> bool {
        let held = std::mem::take(&mut self.held) != Held::default();
        if held {
            self.armed = None;
        }
        held
    }

    /// Moves to another ring. The last entry in the old ring announces the move and counts like any other
    /// entry.
    pub(crate) fn resize(&mut self, ring: RegionMemory) -> Result<(), ResizeError> {
        let entries = entries_of(&ring).ok_or(ResizeError::Ring(ring.len()))?;
        if self.overrun {
            return Err(ResizeError::Overrun);
        }
        let outstanding = self.outstanding();
        let entries_of_smaller = entries.min(self.entries);
        // The host moves unread entries to the new ring, where the slot of the last entry stays empty.
        if outstanding >= entries_of_smaller {
            return Err(ResizeError::Outstanding { outstanding, entries: entries_of_smaller });
        }
        let mut last = [0; CQE_SIZE];
        last[CQE_SIZE - 1] = (CqeOpcode::Resize as u8) << cqe_owner::OPCODE_SHIFT;
        self.put(&last).map_err(|_| ResizeError::Overrun)?;
        self.ring = ring;
        self.entries = entries;
        Ok(())
    }

    /// Number of entries, and the indices of the host and the device (24 bits).
    pub(crate) fn indices(&self) -> (u32, u32, u32) {
        (self.entries, self.consumer.load() & INDEX, self.producer & INDEX)
    }

    /// The completions that the queue is armed for, and whether it has overrun.
    pub(crate) const fn state(&self) -> (Option<Arm>, bool) {
        (self.armed, self.overrun)
    }

    /// Entries that the host has not read, according to its record.
    #[inline]
    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer.load()) & INDEX
    }

    /// True if the queue is armed and has an eventfd to signal.
    pub(crate) const fn would_ring(&self) -> bool {
        self.armed.is_some() && self.bell.is_some()
    }

    /// Writes an entry and sets its owner bit.
    #[inline]
    fn put(&mut self, bytes: &[u8; CQE_SIZE]) -> Result<(), Overrun> {
        let at = (self.producer & (self.entries - 1)) as usize * CQE_SIZE;
        let owner = u8::from(self.producer & self.entries != 0);
        let slot = self.ring.slot(at, CQE_SIZE).ok_or(Overrun { first: false })?;
        let (body, last) = bytes.split_at(CQE_SIZE - 1);
        slot.write(body);
        slot.publish(CQE_SIZE - 1, (last.first().copied().unwrap_or(0) & !cqe_owner::OWNER) | owner);
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// Writes an entry and returns its effect on waiters. After an overrun, which is reported once, no more
    /// entries are written.
    fn push(&mut self, bytes: &[u8; CQE_SIZE], solicited: bool) -> Result<Notify, Overrun> {
        if self.overrun || self.outstanding() >= self.entries {
            return Err(Overrun { first: !std::mem::replace(&mut self.overrun, true) });
        }
        self.put(bytes)?;
        if solicited {
            self.solicited = self.producer;
        }
        match self.armed {
            Some(Arm::Solicited) if !solicited => Ok(Notify::Nothing),
            Some(_) => Ok(self.count(1)),
            None => Ok(Notify::Nothing),
        }
    }

    /// Writes a success. `cqe` has every field except opcode and owner.
    pub(crate) fn complete(
        &mut self,
        mut cqe: Cqe,
        opcode: CqeOpcode,
        solicited: bool,
    ) -> Result<Notify, Overrun> {
        cqe.op_own =
            (opcode as u8) << cqe_owner::OPCODE_SHIFT | if solicited { cqe_owner::SOLICITED } else { 0 };
        self.push(&zerocopy::transmute!(cqe), solicited)
    }

    /// Writes a failure. `wqe_opcode` is the opcode of a send, 0 for a receive.
    pub(crate) fn fail(
        &mut self,
        opcode: CqeOpcode,
        qpn: Qpn,
        user_index: u32,
        wqe_opcode: u8,
        counter: u16,
        syndrome: Syndrome,
    ) -> Result<Notify, Overrun> {
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
