//! One worker's queues: see [`crate::hca::Queues`].
//!
//! The ID of a work request encodes its kind and slot. If a device names an ID that it does not own, or a
//! length that does not fit, the driver counts an anomaly and ignores the completion. No buffer is lost or
//! handed out twice.

mod completions;
mod pairs;
mod receive;
mod seam;
mod send;
#[cfg(test)]
mod tests;
mod work;

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::object::{CompletionQueue, MemoryRegion, SharedReceiveQueue};
use super::window::Windows;
use crate::bookkeeping::{Credit, Numbers, Places, Progress};
use crate::hca::{BURST, Done, HcaError, QpEvent, QueuesId};
use crate::mem::Pool;
use crate::mlx5::mr::MrTable;
pub use pairs::{VerbsRc, VerbsUd};
use receive::{SharedDatagrams, SharedReceives, Stash};
use send::Lists;
pub(super) use send::SendSide;

/// Kind of a work request, the upper half of its ID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Kind {
    Send = 1,
    Drain = 2,
    /// A datagram receive.
    Datagram = 3,
    /// A receive for connections.
    Shared = 4,
}

const fn tag(kind: Kind, place: u32) -> u64 {
    (kind as u64) << 32 | place as u64
}

const fn untag(id: u64) -> Option<(Kind, u32)> {
    let kind = match id >> 32 {
        1 => Kind::Send,
        2 => Kind::Drain,
        3 => Kind::Datagram,
        4 => Kind::Shared,
        _ => return None,
    };
    Some((kind, id as u32))
}

/// Counters of invalid device behavior.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Anomalies {
    /// Completions of queue pairs that are not in the table, or no longer.
    pub unknown_qp: u64,
    /// Completions that name an entry which the device did not own.
    pub unknown_entry: u64,
    /// Messages shorter than a datagram's GRH area or longer than their buffers.
    pub bad_length: u64,
    /// Completion queues that could not be polled.
    pub bad_poll: u64,
}

/// Components of a worker's queues.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) id: QueuesId,
    pub(super) send_cq: Arc<CompletionQueue>,
    pub(super) recv_cq: Arc<CompletionQueue>,
    /// Receive queue shared by all datagram queue pairs, and its depth; `None` if each has its own.
    pub(super) datagrams: Option<(Arc<SharedReceiveQueue>, u32)>,
    /// Receive queue shared by all connections, and the number of segments of its entries.
    pub(super) srq: Option<(Arc<SharedReceiveQueue>, usize)>,
    pub(super) srq_depth: u32,
    pub(super) regions: MrTable,
    /// The library objects of the same regions.
    pub(super) memory: Vec<Arc<MemoryRegion>>,
    pub(super) windows: Windows,
    pub(super) pool: Pool,
    pub(super) max_ud: u16,
    pub(super) max_rc: u32,
    /// Maximum number of outstanding sends: the capacity of the completion queue.
    pub(super) max_sends: u32,
}

/// A worker's queue set. Dropping it destroys its queue pairs, then returns their buffers.
#[derive(Debug)]
pub struct VerbsQueues {
    id: QueuesId,
    numbers: Numbers,
    uds: Places<VerbsUd>,
    rcs: Places<VerbsRc>,
    /// Maximum number of segments of a message on a connection.
    max_segments: usize,
    datagrams: Option<SharedDatagrams>,
    shared: Option<SharedReceives>,
    send_cq: Arc<CompletionQueue>,
    recv_cq: Arc<CompletionQueue>,
    /// Read progress of the receive completion queue.
    progress: Progress,
    lists: Lists,
    stash: Stash,
    regions: MrTable,
    memory: Vec<Arc<MemoryRegion>>,
    windows: Windows,
    pool: Pool,
    credit: Credit,
    /// Faults found while posting.
    faults: ArrayVec<QpEvent, BURST>,
    anomalies: Anomalies,
    /// Finished memory work, oldest first.
    done: VecDeque<Done>,
}

impl Drop for VerbsQueues {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{}", super::remedy::whole(&e));
        }
    }
}

impl VerbsQueues {
    pub(super) fn new(parts: Parts) -> Self {
        let room = parts.pool.data_room();
        let shared =
            parts.srq.map(|(queue, segments)| SharedReceives::new(queue, parts.srq_depth, segments, room));
        Self {
            id: parts.id,
            numbers: Numbers::new(usize::from(parts.max_ud) + parts.max_rc.min(1 << 16) as usize),
            uds: Places::new(parts.max_ud.into()),
            rcs: Places::new(parts.max_rc),
            max_segments: usize::MAX,
            datagrams: parts.datagrams.map(|(queue, depth)| SharedDatagrams::new(queue, depth)),
            shared,
            send_cq: parts.send_cq,
            progress: Progress::new(parts.recv_cq.entries()),
            recv_cq: parts.recv_cq,
            lists: Lists::new(),
            stash: Stash::new(),
            regions: parts.regions,
            memory: parts.memory,
            windows: parts.windows,
            done: VecDeque::new(),
            pool: parts.pool,
            credit: Credit::new(parts.max_sends),
            faults: ArrayVec::new(),
            anomalies: Anomalies::default(),
        }
    }

    /// Destroys all queue pairs, then returns the buffers, except those that the device does not release.
    /// Returns the first error.
    fn end(&mut self) -> Result<(), HcaError> {
        // Queue pairs use the shared receives.
        let mut result = Ok(());
        for rc in self.rcs.take_all() {
            result = result.and(rc.destroy());
        }
        for ud in self.uds.take_all() {
            result = result.and(ud.destroy());
        }
        let datagrams = self.datagrams.as_mut().map_or(Ok(()), SharedDatagrams::destroy);
        let shared = self.shared.as_mut().map_or(Ok(()), SharedReceives::destroy);
        result.and(datagrams).and(shared)
    }

    pub(super) fn destroy(mut self) -> Result<(), HcaError> {
        self.end()
    }

    /// Returns the anomaly counters.
    #[must_use]
    pub const fn anomalies(&self) -> Anomalies {
        self.anomalies
    }
}
