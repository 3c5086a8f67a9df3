//! The send queue as seen by the device.

use crate::memory::{HostMemory, HostWord};
use crate::region::{MemoryPieces, RegionMemory};
use prm::{DBREC_SEND, WQEBB};

/// The ring of the send queue and the device's progress in it.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: RegionMemory,
    mask: u16,
    /// `None` for a queue that accepts no requests.
    dbrec: Option<HostMemory>,
    /// The host's producer index.
    posted: Option<HostWord>,
    /// First WQEBB not processed yet, modulo 2^16.
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

    /// The send queue of a queue pair that sends no requests.
    pub(crate) fn none() -> Self {
        Self { ring: MemoryPieces::default().into(), mask: 0, dbrec: None, posted: None, head: 0 }
    }

    /// Discards the posted entries. libmlx5 clears the doorbell record in this transition; no other component
    /// does it here.
    pub(crate) fn reset(&mut self) {
        self.head = 0;
        if let Some(dbrec) = &self.dbrec {
            dbrec.write(&[0; 8]);
        }
    }

    /// WQEBBs posted and not processed. A record that is ahead of the ring is invalid and counts as none.
    #[inline]
    pub(crate) fn pending(&self) -> u16 {
        let Some(posted) = self.posted else { return 0 };
        let posted = posted.load() as u16;
        let pending = posted.wrapping_sub(self.head);
        if pending <= self.mask.saturating_add(1) { pending } else { 0 }
    }

    /// Copies the first `N` bytes of WQEBB `index`; behind the end of the ring it continues at slot 0.
    #[inline]
    pub(crate) fn read<const N: usize>(&self, index: u16, out: &mut [u8; N]) -> bool {
        const { assert!(N <= WQEBB) }
        self.ring.read(usize::from(index & self.mask) * WQEBB, out)
    }
}
