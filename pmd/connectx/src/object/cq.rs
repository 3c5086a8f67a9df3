//! Completion queues.

use std::os::fd::OwnedFd;

use ib_wire::Qpn;
use zerocopy::IntoBytes;

use super::moderation::{Held, Moderation, Told};
use crate::memory::{HostMemory, HostWord};
use crate::region::RegionMemory;
use prm::{CQE_SIZE, Cqe, CqeOpcode, DBREC_CONSUMER, ErrorCqe, Syndrome, cqe_owner};

/// Bits of producer and consumer index that the two sides share.
const INDEX: u32 = 0xff_ffff;

/// The ring is, or was, full: an entry is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overrun {
    /// It is the first one.
    pub(crate) first: bool,
}

/// Why a completion queue does not go on in another ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResizeError {
    /// There is no queue of the number.
    #[error("completion queue {0} does not exist")]
    NotFound(u32),
    /// The ring is not a power of two of entries.
    #[error("a ring of {0} bytes; a power of two of entries of {CQE_SIZE} bytes would do")]
    Ring(u64),
    /// The host has not read so many entries, and a ring is to have room for one more than that.
    #[error("{outstanding} completions are not read yet, and of the two rings the smaller holds {entries}")]
    Outstanding {
        /// Entries that are not read.
        outstanding: u32,
        /// Entries of the smaller of the two rings.
        entries: u32,
    },
    /// It has overrun and takes nothing any more.
    #[error("the completion queue has overrun; it can only be destroyed")]
    Overrun,
}

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
    /// How far the host has read.
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
    /// An eventfd that is told of its events instead.
    pub(crate) bell: Option<OwnedFd>,
}

/// Entries of a ring, if it can be one.
fn entries_of(ring: &RegionMemory) -> Option<u32> {
    let entries = u32::try_from(ring.len() / CQE_SIZE as u64).ok()?;
    let fits = entries.is_power_of_two() && ring.len() == u64::from(entries) * CQE_SIZE as u64;
    (fits && entries <= 1 << 22).then_some(entries)
}

impl Cq {
    /// `None` if the ring is not a power of two of entries or the record too short.
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

    /// Asks for one event, for the entries behind index `consumer` (24 bits) that `arm` means. Some may be there already.
    pub(crate) fn arm(&mut self, consumer: u32, arm: Arm) -> Told {
        let last = match arm {
            Arm::Any => self.producer,
            Arm::Solicited => self.solicited,
        };
        let behind = last.wrapping_sub(consumer) & INDEX;
        self.held = Held::default();
        self.armed = Some(arm);
        if behind == 0 || behind > self.entries {
            return Told::Nothing;
        }
        // How many of them are solicited is not known: one at least.
        self.count(if arm == Arm::Any { behind } else { 1 })
    }

    /// So many entries have come that it was armed for.
    fn count(&mut self, came: u32) -> Told {
        let told = self.held.count(self.moderation, came);
        if told == Told::Event {
            self.armed = None;
        }
        told
    }

    /// How its events are moderated from now on.
    pub(crate) fn moderate(&mut self, moderation: Option<Moderation>) {
        self.moderation = moderation;
    }

    /// How its events are moderated.
    pub(crate) const fn moderation(&self) -> Option<Moderation> {
        self.moderation
    }

    /// The event that was held back is told now. False if there is none.
    pub(crate) fn release(&mut self) -> bool {
        let held = std::mem::take(&mut self.held) != Held::default();
        if held {
            self.armed = None;
        }
        held
    }

    /// Goes on in another ring. The last entry of the old one says so; it counts as the others do.
    pub(crate) fn resize(&mut self, ring: RegionMemory) -> Result<(), ResizeError> {
        let entries = entries_of(&ring).ok_or(ResizeError::Ring(ring.len()))?;
        if self.overrun {
            return Err(ResizeError::Overrun);
        }
        let outstanding = self.outstanding();
        let entries_of_smaller = entries.min(self.entries);
        // The host moves what it has not read to the new ring, where the place of the last entry stays empty.
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

    /// Entries, and indices of the host and of this side, 24 bits.
    pub(crate) fn indices(&self) -> (u32, u32, u32) {
        (self.entries, self.consumer.load() & INDEX, self.producer & INDEX)
    }

    /// What it was armed for and has not told, and whether it has overrun.
    pub(crate) const fn state(&self) -> (Option<Arm>, bool) {
        (self.armed, self.overrun)
    }

    /// Entries that the host has not read, as far as its record says.
    #[inline]
    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer.load()) & INDEX
    }

    /// True if it waits for an entry, and its bell would be rung.
    pub(crate) const fn would_ring(&self) -> bool {
        self.armed.is_some() && self.bell.is_some()
    }

    /// Writes an entry whose owner bit this sets.
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

    /// Writes an entry, and says what that is to whoever waits. After an overrun, which is told once, nothing is written any more.
    fn push(&mut self, bytes: &[u8; CQE_SIZE], solicited: bool) -> Result<Told, Overrun> {
        if self.overrun || self.outstanding() >= self.entries {
            return Err(Overrun { first: !std::mem::replace(&mut self.overrun, true) });
        }
        self.put(bytes)?;
        if solicited {
            self.solicited = self.producer;
        }
        match self.armed {
            Some(Arm::Solicited) if !solicited => Ok(Told::Nothing),
            Some(_) => Ok(self.count(1)),
            None => Ok(Told::Nothing),
        }
    }

    /// Writes a success; `cqe` has every field but opcode and owner.
    pub(crate) fn complete(
        &mut self,
        mut cqe: Cqe,
        opcode: CqeOpcode,
        solicited: bool,
    ) -> Result<Told, Overrun> {
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
    ) -> Result<Told, Overrun> {
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
