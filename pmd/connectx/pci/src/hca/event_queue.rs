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
    pub(super) vector: u16,
    /// Kinds of events that it takes, a bit each.
    mask: u64,
    producer: u32,
    consumer: u32,
    armed: bool,
}

impl EventQueue {
    /// On a ring of as many entries as the context says; `None` if it is too short.
    pub(super) fn new((ring, lease): (RegionMemory, Lease), context: &EqContext, mask: u64) -> Option<Self> {
        let log_size = context.log_size();
        (ring.len() >= (EQE_SIZE as u64) << log_size).then_some(Self {
            ring,
            _lease: lease,
            log_size,
            vector: context.vector(),
            mask,
            producer: 0,
            consumer: 0,
            armed: false,
        })
    }

    /// True if it takes events of a kind.
    pub(super) fn takes(&self, kind: EventType) -> bool {
        self.mask >> kind as u8 & 1 == 1
    }

    /// Writes an entry; false if the queue is full and the event lost.
    pub(super) fn push(&mut self, kind: EventType, subtype: u8, data: [u8; Eqe::DATA]) -> bool {
        if self.producer.wrapping_sub(self.consumer) & INDEX >= 1 << self.log_size {
            return false;
        }
        let at = (self.producer & ((1 << self.log_size) - 1)) as usize * EQE_SIZE;
        let entry = Eqe { kind: kind as u8, subtype, data, ..Eqe::default() };
        let Some(slot) = self.ring.slot(at, EQE_SIZE) else { return false };
        let bytes = entry.as_bytes();
        slot.write(bytes.get(..EQE_SIZE - 1).unwrap_or_default());
        slot.publish(EQE_SIZE - 1, (self.producer >> self.log_size) as u8 & 1);
        self.producer = self.producer.wrapping_add(1);
        true
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
