//! From which connections a worker has received lately. Which neighbours it has sent to is marked in the segments' tables
//! ([`crate::forward::Used`]).

use std::sync::atomic::{AtomicU32, Ordering};

use dataplane::usage::Marks;
use ib_wire::Qpn;

/// Places for queue pairs: more than a worker has.
const PLACES: usize = 1 << 16;

/// Marks of one worker.
#[derive(Debug)]
pub(super) struct Receivers {
    marks: Marks,
    /// Which queue pair has the mark of a place.
    numbers: Box<[AtomicU32]>,
}

impl Default for Receivers {
    fn default() -> Self {
        Self { marks: Marks::new(PLACES), numbers: (0..PLACES).map(|_| AtomicU32::new(0)).collect() }
    }
}

impl Receivers {
    /// The worker received from a connection.
    #[inline]
    pub(super) fn mark(&self, qpn: Qpn) {
        // Numbers that are alike in 16 bits share a place: of two that receive at once one is seen each time, and they take
        // turns.
        let place = qpn.get() as usize % PLACES;
        if let Some(number) = self.numbers.get(place)
            && number.load(Ordering::Relaxed) != qpn.get()
        {
            number.store(qpn.get(), Ordering::Relaxed);
        }
        self.marks.mark(place);
    }

    /// Takes all marks: the queue pairs that received.
    pub(super) fn take(&self) -> Vec<Qpn> {
        let mut all = Vec::new();
        self.marks.take(|place| {
            all.extend(self.numbers.get(place).map(|n| Qpn::new(n.load(Ordering::Relaxed))));
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_received_is_named_once() {
        let receivers = Receivers::default();
        for qpn in [0x12_3456, 0x12_3457, 0x12_3456].map(Qpn::new) {
            receivers.mark(qpn);
        }
        assert_eq!(receivers.take(), [0x12_3456, 0x12_3457].map(Qpn::new));
        assert!(receivers.take().is_empty());
        // Not another one that is alike in its lower bits.
        receivers.mark(Qpn::new(0x99_3456));
        assert_eq!(receivers.take(), [Qpn::new(0x99_3456)]);
    }
}
