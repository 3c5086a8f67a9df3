//! The send queue as the device sees it.

use crate::memory::HostMemory;
use prm::{DBREC_SEND, WQEBB};

/// The send queue's ring and how far it is worked through.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: HostMemory,
    mask: u16,
    dbrec: HostMemory,
    /// First WQEBB not looked at yet, modulo 2^16.
    pub(crate) head: u16,
}

impl SendQueue {
    pub(crate) fn new(ring: HostMemory, dbrec: HostMemory) -> Option<Self> {
        let blocks = ring.len() / WQEBB;
        let fits = blocks.is_power_of_two() && blocks <= 1 << 15 && blocks * WQEBB == ring.len();
        dbrec.load(DBREC_SEND * 4)?;
        fits.then_some(Self { ring, mask: (blocks - 1) as u16, dbrec, head: 0 })
    }

    /// Forgets what is posted. libmlx5 sets the doorbell record to 0 with this move, and nobody else would do it here.
    pub(crate) fn reset(&mut self) {
        self.head = 0;
        self.dbrec.write(&[0; 8]);
    }

    /// WQEBBs posted and not looked at. A record that runs ahead of the ring cannot be right and counts as none.
    pub(crate) fn pending(&self) -> u16 {
        let posted = self.dbrec.load(DBREC_SEND * 4).unwrap_or(0) as u16;
        let pending = posted.wrapping_sub(self.head);
        if pending <= self.mask.saturating_add(1) { pending } else { 0 }
    }

    /// Copies `out.len()` bytes of the entry that begins at WQEBB `index`, going on at slot 0 behind the ring's end.
    pub(crate) fn read(&self, index: u16, out: &mut [u8]) -> bool {
        let at = usize::from(index & self.mask) * WQEBB;
        let first = out.len().min(self.ring.len() - at);
        let (head, tail) = out.split_at_mut(first);
        self.ring.part(at, first).is_some_and(|m| m.read(head)) && self.ring.read(tail)
    }
}
