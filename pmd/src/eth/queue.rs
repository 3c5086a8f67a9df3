//! One queue pair of a port: receives and sends bursts of frames.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use super::Running;
use super::waker::Waker;
use crate::hca::BURST;
use crate::mem::{Mbuf, Pool};

/// Frames of one receive or transmit call.
pub type Burst = ArrayVec<Mbuf, BURST>;

/// One queue pair of a port, owned by one worker.
#[derive(Debug)]
pub struct EthQueue {
    pub(super) port: u16,
    pub(super) queue: u16,
    pub(super) _running: Arc<Running>,
    /// True if the driver sends only the first segment, so that chains must be copied.
    pub(super) one_segment: bool,
    /// True for a bond that sends LACP frames along with each burst.
    pub(super) speaks_lacp: bool,
    pub(super) inserts_tags: bool,
    /// Wakes this worker when a frame arrives.
    pub(super) waker: Option<Waker>,
    pub(super) pool: Pool,
}

impl EthQueue {
    /// True if the port inserts the tags requested by [`Mbuf::wish_tag`].
    #[inline]
    #[must_use]
    pub const fn inserts_tags(&self) -> bool {
        self.inserts_tags
    }

    /// Enables the port's wakeup interrupt, if it has one.
    ///
    /// Returns true if it was disabled before. Frames that arrived until now do not trigger it, so poll once
    /// more before sleeping. Makes system calls, or writes to the port's registers.
    pub fn arm(&mut self) -> bool {
        self.waker.as_mut().is_some_and(Waker::arm)
    }

    /// Disables the interrupt, for a worker that polls.
    pub fn disarm(&mut self) {
        if let Some(waker) = &mut self.waker {
            waker.disarm();
        }
    }

    /// True if an arriving frame ends a wait ([`super::wait`]).
    #[must_use]
    pub fn wakes(&self) -> bool {
        self.events().is_some()
    }

    /// Returns a descriptor that is readable when a frame is available, or `None` if the driver has none.
    #[must_use]
    pub(super) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().and_then(Waker::events)
    }

    /// Receives frames and appends them to `burst`. Returns their number.
    pub fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let (length, room) = (burst.len(), burst.remaining_capacity());
        // SAFETY: an `Mbuf` is a pointer to a chain, and there is room for `room` of them after the burst's
        // last. The queue is set up and used by this worker only, and the driver hands over `count` chains,
        // at most `room`.
        let count = unsafe {
            let behind = burst.as_mut_ptr().add(length).cast::<*mut sys::rte_mbuf>();
            let count = sys::shim_eth_rx_burst(self.port, self.queue, behind, room as u16);
            burst.set_len(length + usize::from(count));
            count
        };
        count.into()
    }

    /// Sends frames, oldest first. Frames that the port does not accept stay in the burst. Returns the number
    /// of accepted frames.
    ///
    /// For a driver that sends only one segment, chains are copied. If no buffer is free for a copy, that
    /// frame and all later ones stay in the burst. A frame longer than a buffer, and therefore longer than
    /// `EthConfig::mtu`, is removed and not counted as accepted.
    pub fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let ready = if self.one_segment { self.make_single(burst) } else { burst.len() };
        let length = burst.len();
        let raw = burst.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: an `Mbuf` is a pointer to a chain, and these are owned here and may be given away. The
        // queue is set up and used by this worker only. The driver has taken the first `sent` of `ready`, at
        // most `length`; the others move up.
        let sent = unsafe {
            burst.set_len(0);
            let sent = sys::shim_eth_tx_burst(self.port, self.queue, raw, ready as u16);
            let left = length - usize::from(sent);
            std::ptr::copy(raw.add(sent.into()), raw, left);
            burst.set_len(left);
            sent
        };
        sent.into()
    }

    /// Lets a bond in LACP mode send its own frames. Call it in each iteration, even without frames to send.
    ///
    /// Such a bond sends LACP frames along with other bursts. Without bursts its partner would consider it
    /// lost.
    #[inline]
    pub fn keep_up(&mut self) {
        if self.speaks_lacp {
            // SAFETY: an array without elements is not read; the queue is set up and used by this worker
            // only.
            unsafe { sys::shim_eth_tx_burst(self.port, self.queue, std::ptr::null_mut(), 0) };
        }
    }

    /// Copies chains into single buffers, for drivers that send only one segment. Returns the number of ready
    /// frames: all, or those before the first one without a free buffer.
    fn make_single(&self, burst: &mut Burst) -> usize {
        // Usually no frame has several segments.
        let first = burst.iter().position(|frame| frame.segment_count() != 1);
        let mut at = first.unwrap_or(burst.len());
        while let Some(frame) = burst.get_mut(at) {
            if frame.segment_count() == 1 {
                at += 1;
                continue;
            }
            let Some(mut one) = self.pool.alloc() else { break };
            let length = frame.len();
            let copied = one.append(length).is_some_and(|room| frame.read(0, room) == length);
            if !copied {
                drop(burst.remove(at));
                continue;
            }
            if let Some(control) = frame.wished_tag() {
                one.wish_tag(control);
            }
            *frame = one;
            at += 1;
        }
        at
    }
}
