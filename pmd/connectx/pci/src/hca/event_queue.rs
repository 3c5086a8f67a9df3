//! Event queues: the device writes entries, and the driver reports its consumer index by doorbell.

use prm::context::EqContext;
use prm::{EQE_SIZE, Eqe, EventType};
use zerocopy::IntoBytes;

use crate::memory::Lease;
use connectx::RegionMemory;

/// Mask of the index bits that the driver reports.
const INDEX: u32 = 0xff_ffff;

/// An event queue.
#[derive(Debug)]
pub(super) struct EventQueue {
    ring: RegionMemory,
    _lease: Lease,
    log_size: u8,
    context: EqContext,
    pub(super) vector: u16,
    /// Bit mask of the event types that it accepts.
    mask: u64,
    producer: u32,
    consumer: u32,
    armed: bool,
    /// An event was lost for lack of room. The existing entries can be read; no more are written.
    overrun: bool,
}

/// An event queue has no room for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full {
    /// This is the first event lost.
    pub(super) first: bool,
}

impl EventQueue {
    /// Creates a queue with the number of entries in the context; `None` if the ring is too short.
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

    /// True if it accepts this type of event.
    pub(super) fn takes(&self, kind: EventType) -> bool {
        self.mask >> kind as u8 & 1 == 1
    }

    /// True if it accepts any asynchronous event.
    pub(super) const fn is_asynchronous(&self) -> bool {
        self.mask != 0
    }

    /// The doorbell page of the queue.
    pub(super) const fn uar_page(&self) -> u32 {
        self.context.uar_page()
    }

    /// True if an event was lost. The queue must then be destroyed.
    pub(super) const fn has_overrun(&self) -> bool {
        self.overrun
    }

    /// Marks the queue as failed because an event for it was lost elsewhere.
    pub(super) const fn fail(&mut self) {
        self.overrun = true;
    }

    /// Writes an entry. After the first lost event the queue is in error and accepts no more, because its
    /// reader could not notice the gap.
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

    /// Context for queries: as created, with its state.
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

    /// Bit mask of the event types that it accepts.
    pub(super) const fn mask(&self) -> u64 {
        self.mask
    }

    /// Sets the driver's consumer index and, with `arm`, requests an interrupt. An impossible index is
    /// ignored.
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

    /// Disarms the queue after its interrupt, until the driver arms it again.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }
}
