//! A worker's faces: its queues on each port.

use arrayvec::ArrayVec;
use pmd::eth::{Burst, EthQueue};
use pmd::hca::{BURST, Queues};
use pmd::mem::Mbuf;

use super::{GatewayCommand, GatewayNote};
use crate::counter::{Traffic, WorkerCounters};
use endpoint::LinkWorker;
use ipoib::drop_reason::DropReason;

/// How many turns a frame that the port does not take is held before it is dropped.
const TX_PATIENCE: u32 = 64;

/// A worker's queues on an InfiniBand port.
#[derive(Debug)]
pub(super) struct InfiniBandFace<Q: Queues> {
    pub(super) link: LinkWorker<Q, GatewayCommand, GatewayNote>,
}

impl<Q: Queues> InfiniBandFace<Q> {
    pub(super) fn new(link: LinkWorker<Q, GatewayCommand, GatewayNote>) -> Self {
        Self { link }
    }
}

/// A worker's queue on an Ethernet port, and the frames that wait for it.
#[derive(Debug)]
pub(super) struct EthernetFace {
    pub(super) queue: EthQueue,
    waiting: Burst,
    /// Turns for which the port has refused frames.
    refused_turns: u32,
    /// It has refused frames for as long as patience lasts, and has taken none since: it is not waited for.
    is_stuck: bool,
}

impl EthernetFace {
    pub(super) fn new(queue: EthQueue) -> Self {
        Self { queue, waiting: Burst::new(), refused_turns: 0, is_stuck: false }
    }

    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.waiting.is_full()
    }

    /// Has a frame wait for [`EthernetFace::flush`]. False, and the frame is lost, if there is no room.
    #[inline]
    pub(super) fn push(&mut self, frame: Mbuf) -> bool {
        self.waiting.try_push(frame).is_ok()
    }

    /// Sends what waits; what the port does not take waits on.
    pub(super) fn flush(&mut self, counters: &mut WorkerCounters) {
        if self.waiting.is_empty() {
            return;
        }
        // Before they are sent: a driver may put a tag even into a frame that it does not take.
        let lengths: ArrayVec<usize, BURST> = self.waiting.iter().map(Mbuf::len).collect();
        let sent = self.queue.tx_burst(&mut self.waiting);
        let bytes: usize = lengths.iter().take(sent).sum();
        counters.packets(Traffic::EthTransmit, sent as u64, bytes as u64);
        self.is_stuck &= sent == 0;
        self.refused_turns = if self.waiting.is_empty() { 0 } else { self.refused_turns + 1 };
    }

    /// True if receiving from the fabric may wait for this port. Not for long, not when there is no `time`, and not for a port that
    /// has taken nothing since it was last waited for: there are others. What is not waited for is dropped.
    pub(super) fn may_be_waited_for(
        &mut self,
        time: impl FnOnce() -> bool,
        counters: &mut WorkerCounters,
    ) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        if self.refused_turns < TX_PATIENCE && !self.is_stuck && time() {
            return true;
        }
        self.is_stuck |= self.refused_turns >= TX_PATIENCE;
        self.refused_turns = 0;
        self.clear(DropReason::EthQueueFull, counters);
        false
    }

    /// Drops what waits.
    pub(super) fn clear(&mut self, reason: DropReason, counters: &mut WorkerCounters) {
        counters.drops(reason, self.waiting.len() as u64);
        self.waiting.clear();
    }
}
