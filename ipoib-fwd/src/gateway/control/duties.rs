//! The segments of the control lcore, by index.

use ib_wire::PKey;
use ipoib::link::LinkIndex;
use pmd::mem::Mbuf;

use super::news::News;
use super::pair_duty::PairDuty;
use crate::counter::SegmentTotals;
use crate::forward::{EndpointIndex, EthernetIndex, MAX_SEGMENTS, SegmentIndex};
use crate::segment::Segment;

/// A segment and its state on the control lcore.
#[derive(Debug)]
pub(in crate::gateway) struct SegmentDuty {
    pub(in crate::gateway) name: String,
    pub(in crate::gateway) index: SegmentIndex,
    /// Its InfiniBand port and the link on it.
    pub(in crate::gateway) endpoint: EndpointIndex,
    pub(in crate::gateway) link: LinkIndex,
    /// Its Ethernet port.
    pub(in crate::gateway) ethernet: EthernetIndex,
    pub(in crate::gateway) pkey: PKey,
    pub(in crate::gateway) segment: Segment<Mbuf>,
    pub(in crate::gateway) news: News,
    /// Other gateways of the segment.
    pub(in crate::gateway) duty: PairDuty,
    /// Counters of earlier segments with its index, by worker; the control lcore's are last. Empty for
    /// segments of the start.
    pub(in crate::gateway) counted_before: Vec<SegmentTotals>,
    /// Counters at the time of the last `ctl clear`, in the same order.
    pub(in crate::gateway) cleared: Option<Vec<SegmentTotals>>,
}

/// A segment's duty with its link and its table, as separate borrows; `None` if one of them is gone.
macro_rules! parts {
    ($control:expr, $at:expr) => {
        match $control.segments.at_mut($at) {
            Some(duty) => match ($control.endpoints.link(duty.endpoint, duty.link), $control.board.at($at)) {
                (Some(link), Some(board)) => Some((duty, link, board)),
                _ => None,
            },
            None => None,
        }
    };
}
pub(super) use parts;

/// All segments, by their indexes.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Duties {
    places: Vec<Option<SegmentDuty>>,
}

/// Packets that any segment may hold in its pending queue.
const LEAST_PARKED: usize = 8;

impl Duties {
    /// Inserts a segment at its index.
    pub(in crate::gateway) fn insert(&mut self, duty: SegmentDuty) {
        let at = usize::from(duty.index.0);
        if at >= self.places.len() {
            self.places.resize_with(at + 1, || None);
        }
        if let Some(place) = self.places.get_mut(at) {
            *place = Some(duty);
        }
        self.share_parked();
    }

    /// Shares the pending packets that the gateway may hold equally among its segments.
    fn share_parked(&mut self) {
        let all = config::PARKED_PACKETS as usize;
        let part = (all / self.iter().count().max(1)).max(LEAST_PARKED);
        self.iter_mut().for_each(|duty| duty.segment.park_at_most(part));
    }

    /// The segment with an index.
    pub(in crate::gateway) fn at(&self, index: SegmentIndex) -> Option<&SegmentDuty> {
        self.places.get(usize::from(index.0))?.as_ref()
    }

    /// The segment with an index, for changes.
    pub(in crate::gateway) fn at_mut(&mut self, index: SegmentIndex) -> Option<&mut SegmentDuty> {
        self.places.get_mut(usize::from(index.0))?.as_mut()
    }

    /// Removes a segment.
    pub(in crate::gateway) fn take(&mut self, index: SegmentIndex) -> Option<SegmentDuty> {
        let taken = self.places.get_mut(usize::from(index.0))?.take();
        self.share_parked();
        taken
    }

    /// True if there is a segment of this name.
    pub(in crate::gateway) fn has(&self, name: &str) -> bool {
        self.iter().any(|duty| duty.name == name)
    }

    /// All segments, in the order of their indexes.
    pub(in crate::gateway) fn iter(&self) -> impl Iterator<Item = &SegmentDuty> {
        self.places.iter().flatten()
    }

    /// All segments, or only the given one.
    pub(in crate::gateway) fn chosen(
        &self,
        only: Option<SegmentIndex>,
    ) -> impl Iterator<Item = &SegmentDuty> {
        self.iter().filter(move |duty| only.is_none_or(|only| duty.index == only))
    }

    /// All segments, for changes.
    pub(in crate::gateway) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SegmentDuty> {
        self.places.iter_mut().flatten()
    }

    /// The indexes of all segments.
    pub(in crate::gateway) fn indices(&self) -> impl Iterator<Item = SegmentIndex> + use<> {
        let indices: arrayvec::ArrayVec<SegmentIndex, MAX_SEGMENTS> =
            self.iter().map(|duty| duty.index).take(MAX_SEGMENTS).collect();
        indices.into_iter()
    }
}
