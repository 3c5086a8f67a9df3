//! One queue pair of a port: frames in and out, in bursts.

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

/// One queue pair of a port, for one worker.
#[derive(Debug)]
pub struct EthQueue {
    pub(super) port: u16,
    pub(super) queue: u16,
    pub(super) _running: Arc<Running>,
    /// The driver sends the first segment only: longer chains must be copied.
    pub(super) one_segment: bool,
    /// A bond that has frames of its own to send, with each burst.
    pub(super) speaks_lacp: bool,
    pub(super) inserts_tags: bool,
    /// What wakes this worker when there is a frame.
    pub(super) waker: Option<Waker>,
    pub(super) pool: Pool,
}

impl EthQueue {
    /// True if the port puts the tags into frames that [`Mbuf::wish_tag`] asks for.
    #[inline]
    #[must_use]
    pub const fn inserts_tags(&self) -> bool {
        self.inserts_tags
    }

    /// Asks the port to wake by an interrupt when a frame comes, where it has one. True if it was not asked before: what came until
    /// now does not wake, so look after it before you rest. Makes system calls, or writes to the port's registers.
    pub fn arm(&mut self) -> bool {
        self.waker.as_mut().is_some_and(Waker::arm)
    }

    /// Asks it no more: who is awake wants no interrupts.
    pub fn disarm(&mut self) {
        if let Some(waker) = &mut self.waker {
            waker.disarm();
        }
    }

    /// True if a frame ends a wait ([`super::wait`]).
    #[must_use]
    pub fn wakes(&self) -> bool {
        self.events().is_some()
    }

    /// Readable when there is a frame; `None` where nothing tells.
    #[must_use]
    pub(super) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().and_then(Waker::events)
    }

    /// Receives frames into an empty or part-filled burst; returns how many came.
    pub fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let (length, room) = (burst.len(), burst.remaining_capacity());
        // SAFETY: an `Mbuf` is a pointer to a chain, and there is room for `room` of them behind the burst's last; the queue
        // is set up and used by this worker only, and the driver gives `count` chains away, at most `room`.
        let count = unsafe {
            let behind = burst.as_mut_ptr().add(length).cast::<*mut sys::rte_mbuf>();
            let count = sys::shim_eth_rx_burst(self.port, self.queue, behind, room as u16);
            burst.set_len(length + usize::from(count));
            count
        };
        count.into()
    }

    /// Sends frames, oldest first; what the port does not take stays in the burst. Returns how many it took.
    ///
    /// A driver that sends one segment only gets copies of chains. While there is no buffer for a copy, the
    /// frame and those behind it stay in the burst. A frame longer than a buffer, and so longer than
    /// `EthConfig::mtu`, is removed and not counted as taken.
    pub fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let ready = if self.one_segment { self.make_single(burst) } else { burst.len() };
        let length = burst.len();
        let raw = burst.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: an `Mbuf` is a pointer to a chain, and these are ours to give; the queue is set up and used by this worker
        // only. The driver has taken the first `sent` of `ready`, which are `length` at most; the others move up.
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

    /// To be called in each turn, whether or not there is anything to send: a bond in LACP's mode sends its own frames with the bursts of
    /// others, and without any its partner gives it up.
    #[inline]
    pub fn keep_up(&mut self) {
        if self.speaks_lacp {
            // SAFETY: an array without elements is not looked into; the queue is set up and used by this worker only.
            unsafe { sys::shim_eth_tx_burst(self.port, self.queue, std::ptr::null_mut(), 0) };
        }
    }

    /// Copies chains into one buffer each, for drivers that send one segment only. Returns how many frames
    /// are ready: all, or those before the first for which there is no buffer.
    fn make_single(&self, burst: &mut Burst) -> usize {
        // As a rule none has more.
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
