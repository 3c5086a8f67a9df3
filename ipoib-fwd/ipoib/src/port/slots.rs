//! The connection slots in each worker's table, shared by all links.

use std::collections::VecDeque;

use hca::RcSlot;

use crate::link::WorkerIndex;

/// The connection slots of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerSlots {
    /// The first slot that may be assigned.
    pub first: u16,
    /// The number of slots from there.
    pub count: u16,
}

#[derive(Debug)]
struct Worker {
    range: WorkerSlots,
    /// The number of slots that have been assigned at least once.
    dealt: u16,
    free: VecDeque<RcSlot>,
}

/// The slots of all workers.
#[derive(Debug)]
pub(super) struct Slots(Vec<Worker>);

impl Slots {
    pub(super) fn new(workers: &[WorkerSlots]) -> Self {
        Self(workers.iter().map(|range| Worker { range: *range, dealt: 0, free: VecDeque::new() }).collect())
    }

    /// A slot of a worker's table that is in no published table.
    pub(super) fn take(&mut self, worker: WorkerIndex) -> Option<RcSlot> {
        let worker = self.0.get_mut(usize::from(worker.0))?;
        if let Some(slot) = worker.free.pop_front() {
            return Some(slot);
        }
        let next = worker.range.first.checked_add(worker.dealt)?;
        (worker.dealt < worker.range.count).then(|| {
            worker.dealt += 1;
            RcSlot(next)
        })
    }

    pub(super) fn put(&mut self, worker: WorkerIndex, slot: RcSlot) {
        if let Some(worker) = self.0.get_mut(usize::from(worker.0)) {
            worker.free.push_back(slot);
        }
    }

    /// Slots that are not free.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.0.iter().map(|w| usize::from(w.dealt) - w.free.len()).sum()
    }
}
