//! The path of doorbells into the device. A posted write of eight bytes is a message in a bounded queue. An
//! overflow of the queue loses nothing: the device then checks every queue pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ib_wire::Qpn;
use rtrb::{Consumer, Producer, RingBuffer};

/// Capacity of the queue of each handle.
const DEPTH: usize = 1024;

/// A write to a doorbell register.
#[derive(Clone, Copy, Debug)]
struct Doorbell {
    value: [u8; 8],
}

/// The host's end.
#[derive(Debug)]
pub struct DoorbellSender {
    fifo: Producer<Doorbell>,
    overflowed: Arc<AtomicBool>,
}

/// The device's end.
#[derive(Debug)]
pub(crate) struct DoorbellReceiver {
    fifo: Consumer<Doorbell>,
    overflowed: Arc<AtomicBool>,
}

/// A doorbell received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rung {
    /// The doorbell of this queue pair.
    Qp(Qpn),
    /// Some doorbells were lost: check all queue pairs.
    All,
}

/// Creates both ends of one handle's queue.
pub(crate) fn channel() -> (DoorbellSender, DoorbellReceiver) {
    let (producer, consumer) = RingBuffer::new(DEPTH);
    let overflowed = Arc::new(AtomicBool::new(false));
    (
        DoorbellSender { fifo: producer, overflowed: overflowed.clone() },
        DoorbellReceiver { fifo: consumer, overflowed },
    )
}

impl DoorbellSender {
    /// Posts a write. Earlier stores of this thread are visible to the device when it sees the write.
    #[inline]
    pub fn post(&mut self, value: [u8; 8]) {
        if self.fifo.push(Doorbell { value }).is_err() {
            self.overflowed.store(true, Ordering::Release);
        }
    }
}

impl DoorbellReceiver {
    /// The next write. The first eight bytes of a control segment name the queue pair.
    pub(crate) fn next(&mut self) -> Option<Rung> {
        // Cheaper than a swap in the common case.
        if self.overflowed.load(Ordering::Relaxed) && self.overflowed.swap(false, Ordering::AcqRel) {
            return Some(Rung::All);
        }
        let [_, _, _, _, a, b, c, _] = self.fifo.pop().ok()?.value;
        Some(Rung::Qp(Qpn::from_be_bytes([a, b, c])))
    }

    /// True if a write is queued.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.fifo.is_empty() || self.overflowed.load(Ordering::Relaxed)
    }

    /// True if the host's end is closed and the queue is empty.
    pub(crate) fn is_over(&self) -> bool {
        self.fifo.is_abandoned() && self.fifo.is_empty() && !self.overflowed.load(Ordering::Acquire)
    }
}
