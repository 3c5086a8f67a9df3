//! The send queue as the device sees it.

use crate::memory::{HostMemory, HostWord};
use crate::region::{MemoryPieces, RegionMemory};
use prm::{DBREC_SEND, WQEBB};

/// The send queue's ring and how far it is worked through.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: RegionMemory,
    mask: u16,
    /// `None` for a queue that takes nothing.
    dbrec: Option<HostMemory>,
    /// How far it is posted.
    posted: Option<HostWord>,
    /// First WQEBB not looked at yet, modulo 2^16.
    pub(crate) head: u16,
}

impl SendQueue {
    pub(crate) fn new(ring: RegionMemory, dbrec: HostMemory) -> Option<Self> {
        let len = usize::try_from(ring.len()).ok()?;
        let blocks = len / WQEBB;
        let fits = blocks.is_power_of_two() && blocks <= 1 << 15 && blocks * WQEBB == len;
        let posted = Some(dbrec.word_at(DBREC_SEND * 4)?);
        fits.then(|| Self { ring, mask: (blocks - 1) as u16, dbrec: Some(dbrec), posted, head: 0 })
    }

    /// That of a queue pair which sends no requests.
    pub(crate) fn none() -> Self {
        Self { ring: MemoryPieces::default().into(), mask: 0, dbrec: None, posted: None, head: 0 }
    }

    /// Forgets what is posted. libmlx5 sets the doorbell record to 0 with this move, and nobody else would do it here.
    pub(crate) fn reset(&mut self) {
        self.head = 0;
        if let Some(dbrec) = &self.dbrec {
            dbrec.write(&[0; 8]);
        }
    }

    /// WQEBBs posted and not looked at. A record that runs ahead of the ring cannot be right and counts as none.
    #[inline]
    pub(crate) fn pending(&self) -> u16 {
        let Some(posted) = self.posted else { return 0 };
        let posted = posted.load() as u16;
        let pending = posted.wrapping_sub(self.head);
        if pending <= self.mask.saturating_add(1) { pending } else { 0 }
    }

    /// Copies the WQEBB `index`, or its first bytes; behind the ring's end it goes on at slot 0.
    #[inline]
    pub(crate) fn read<const N: usize>(&self, index: u16, out: &mut [u8; N]) -> bool {
        const { assert!(N <= WQEBB) }
        self.ring.read(usize::from(index & self.mask) * WQEBB, out)
    }
}
