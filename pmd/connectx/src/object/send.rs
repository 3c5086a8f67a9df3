//! The send queue as the device sees it.

use crate::memory::HostMemory;
use crate::region::{MemoryPieces, RegionMemory};
use prm::{DBREC_SEND, WQEBB};

/// The send queue's ring and how far it is worked through.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: RegionMemory,
    len: usize,
    mask: u16,
    /// `None` for a queue that takes nothing.
    dbrec: Option<HostMemory>,
    /// First WQEBB not looked at yet, modulo 2^16.
    pub(crate) head: u16,
}

impl SendQueue {
    pub(crate) fn new(ring: RegionMemory, dbrec: HostMemory) -> Option<Self> {
        let len = usize::try_from(ring.len()).ok()?;
        let blocks = len / WQEBB;
        let fits = blocks.is_power_of_two() && blocks <= 1 << 15 && blocks * WQEBB == len;
        dbrec.load(DBREC_SEND * 4)?;
        fits.then(|| Self { ring, len, mask: (blocks - 1) as u16, dbrec: Some(dbrec), head: 0 })
    }

    /// That of a queue pair which sends no requests.
    pub(crate) fn none() -> Self {
        Self { ring: MemoryPieces::default().into(), len: 0, mask: 0, dbrec: None, head: 0 }
    }

    /// Forgets what is posted. libmlx5 sets the doorbell record to 0 with this move, and nobody else would do it here.
    pub(crate) fn reset(&mut self) {
        self.head = 0;
        if let Some(dbrec) = &self.dbrec {
            dbrec.write(&[0; 8]);
        }
    }

    /// WQEBBs posted and not looked at. A record that runs ahead of the ring cannot be right and counts as none.
    pub(crate) fn pending(&self) -> u16 {
        let Some(dbrec) = &self.dbrec else { return 0 };
        let posted = dbrec.load(DBREC_SEND * 4).unwrap_or(0) as u16;
        let pending = posted.wrapping_sub(self.head);
        if pending <= self.mask.saturating_add(1) { pending } else { 0 }
    }

    /// Copies `out.len()` bytes of the entry that begins at WQEBB `index`, going on at slot 0 behind the ring's end.
    pub(crate) fn read(&self, index: u16, out: &mut [u8]) -> bool {
        let at = usize::from(index & self.mask) * WQEBB;
        let first = out.len().min(self.len.saturating_sub(at));
        let (head, tail) = out.split_at_mut(first);
        self.ring.read(at, head) && (tail.is_empty() || self.ring.read(0, tail))
    }
}
