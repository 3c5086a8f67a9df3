//! Event queues: the device writes entries, the driver tells by doorbell how far it has read them.

use prm::context::EqContext;
use prm::{EQE_SIZE, Eqe, EventType};
use zerocopy::IntoBytes;

use crate::memory::Lease;
use connectx::RegionMemory;

/// Bits of the indices that the driver tells.
const INDEX: u32 = 0xff_ffff;

/// An event queue.
#[derive(Debug)]
pub(super) struct EventQueue {
    ring: RegionMemory,
    _lease: Lease,
    log_size: u8,
    context: EqContext,
    pub(super) vector: u16,
    /// Kinds of events that it takes, a bit each.
    mask: u64,
    producer: u32,
    consumer: u32,
    armed: bool,
    /// There was no room for an event: those in it can be read, and no other comes.
    overrun: bool,
}

/// An event queue has no room for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full {
    /// It had room until now.
    pub(super) first: bool,
}

impl EventQueue {
    /// On a ring of as many entries as the context says; `None` if it is too short.
    pub(super) fn new((ring, lease): (RegionMemory, Lease), context: &EqContext, mask: u64) -> Option<Self> {
        let log_size = context.log_size();
        (ring.len() >= (EQE_SIZE as u64) << log_size).then_some(Self {
            ring,
            _lease: lease,
            log_size,
            context: *context,
            vector: context.vector(),
            mask,
            producer: 0,
            consumer: 0,
            armed: false,
            overrun: false,
        })
    }

    /// True if it takes events of a kind.
    pub(super) fn takes(&self, kind: EventType) -> bool {
        self.mask >> kind as u8 & 1 == 1
    }

    /// True if it takes events of any asynchronous kind.
    pub(super) const fn is_asynchronous(&self) -> bool {
        self.mask != 0
    }

    /// The doorbell page that it was made with.
    pub(super) const fn uar_page(&self) -> u32 {
        self.context.uar_page()
    }

    /// True if an event was lost: it has to be destroyed.
    pub(super) const fn has_overrun(&self) -> bool {
        self.overrun
    }

    /// An event for it was lost elsewhere.
    pub(super) const fn fail(&mut self) {
        self.overrun = true;
    }

    /// Writes an entry. Once there was no room for one the queue is in error and takes no other: its reader could not tell that one is
    /// missing.
    pub(super) fn push(&mut self, kind: EventType, subtype: u8, data: [u8; Eqe::DATA]) -> Result<(), Full> {
        if self.overrun || self.producer.wrapping_sub(self.consumer) & INDEX >= 1 << self.log_size {
            return Err(Full { first: !std::mem::replace(&mut self.overrun, true) });
        }
        let at = (self.producer & ((1 << self.log_size) - 1)) as usize * EQE_SIZE;
        let entry = Eqe { kind: kind as u8, subtype, data, ..Eqe::default() };
        let Some(slot) = self.ring.slot(at, EQE_SIZE) else {
            return Err(Full { first: !std::mem::replace(&mut self.overrun, true) });
        };
        let bytes = entry.as_bytes();
        slot.write(bytes.get(..EQE_SIZE - 1).unwrap_or_default());
        slot.publish(EQE_SIZE - 1, (self.producer >> self.log_size) as u8 & 1);
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    /// For queries: as it was made, with its state.
    pub(super) fn context(&self) -> EqContext {
        let status = if self.overrun { EqContext::OVERRUN } else { 0 };
        let state = if self.armed { EqContext::ARMED } else { EqContext::FIRED };
        EqContext {
            status: (status | state).into(),
            consumer: (self.consumer & INDEX).into(),
            producer: (self.producer & INDEX).into(),
            ..self.context
        }
    }

    /// Kinds of events that it takes, a bit each.
    pub(super) const fn mask(&self) -> u64 {
        self.mask
    }

    /// The driver has read so far, and may want an interrupt for what comes. An index that cannot be is left out.
    pub(super) fn update(&mut self, consumer: u32, arm: bool) {
        if self.producer.wrapping_sub(consumer) & INDEX <= 1 << self.log_size {
            self.consumer = consumer & INDEX;
        }
        self.armed |= arm;
    }

    /// True if an interrupt is due.
    pub(super) fn is_due(&self) -> bool {
        self.armed && (self.producer ^ self.consumer) & INDEX != 0
    }

    /// It has been raised: the next one only when the driver arms the queue again.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }
}
