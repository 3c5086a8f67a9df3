//! Messages that wait for a full queue of an InfiniBand port, and are counted when they are posted.

use pmd::hca::{MemoryWork, PostError};

use super::faces::InfiniBandFace;
use crate::counter::{SegmentTraffic, Traffic, WorkerCounters};
use crate::forward::SegmentIndex;
use endpoint::{HELD, Tag, Waited};
use ipoib::drop_reason::DropReason;

// The configuration reserves buffers for them.
const _: () = assert!(HELD == config::HELD_MESSAGES as usize);

/// The counter of a message that waits.
#[inline]
pub(super) const fn tag(segment: SegmentIndex, path: Traffic) -> Tag {
    Tag(u16::from_le_bytes([segment.0, path as u8]))
}

/// The drop reason of a message that a queue does not accept.
pub(super) const fn reason(error: PostError) -> DropReason {
    match error {
        PostError::Full => DropReason::IbQueueFull,
        PostError::TooManySegments => DropReason::TooManySegments,
        PostError::NoConnection => DropReason::NoConnection,
        PostError::NotRegistered => DropReason::SendFailed,
    }
}

impl<Q: MemoryWork> InfiniBandFace<Q> {
    /// Offers waiting messages to the queues again. True if any still wait.
    #[inline]
    pub(super) fn retry(&mut self, counters: &mut WorkerCounters) -> bool {
        self.link.retry(|Tag(tag), waited| {
            let [segment, path] = tag.to_le_bytes();
            let segment = SegmentIndex(segment);
            match waited {
                Waited::Sent(bytes) => {
                    if let Some(path) = Traffic::ALL.get(usize::from(path)) {
                        counters.packet(*path, bytes);
                    }
                    counters.of_segment(segment, SegmentTraffic::ToInfiniBand, bytes);
                }
                Waited::Lost(error) => counters.drops_of(segment, reason(error), 1),
            }
        });
        self.link.waiting() > 0
    }
}
