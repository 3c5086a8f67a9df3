//! Other segments of the same gateway that share a network with this one.
//!
//! The segments of a gateway have separate networks. If one hears another, two of their networks have been
//! joined, which is reported. If they meet on both sides, they form a loop. Segments with one P_Key and
//! subnet resolve that by election, as any two gateways do. Others are strangers to each other, and neither
//! forwards the other's probes: there the one with the higher GUID is blocked.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ib_wire::Guid;

use super::message::{SegmentId, Side, SideSet};

/// Maximum number that is known; further ones are reported, but cause no block.
const KNOWN: usize = 32;

#[derive(Debug)]
struct Met {
    who: (Guid, SegmentId),
    /// When each side heard it last.
    heard: [Option<Instant>; 2],
}

/// The other segments that were heard.
#[derive(Debug, Default)]
pub(super) struct Siblings {
    met: ArrayVec<Met, KNOWN>,
}

impl Siblings {
    /// Records that a segment was heard on a side. Returns the sides on which it was heard within the lease.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        side: Side,
        who: (Guid, SegmentId),
        lease: Duration,
    ) -> SideSet {
        let is_fresh = |at: Option<Instant>| at.is_some_and(|at| now < at + lease);
        self.met.retain(|met| met.heard.into_iter().any(is_fresh));
        let heard = |heard: &mut [Option<Instant>; 2]| {
            if let Some(at) = heard.get_mut(side as usize) {
                *at = Some(now);
            }
            let sides = Side::BOTH.into_iter().zip(heard.iter());
            sides.fold(SideSet::NONE, |set, (side, at)| set.with(side, is_fresh(*at)))
        };
        if let Some(known) = self.met.iter_mut().find(|met| met.who == who) {
            return heard(&mut known.heard);
        }
        let mut met = Met { who, heard: [None; 2] };
        let sides = heard(&mut met.heard);
        // There is no room for one more.
        drop(self.met.try_push(met));
        sides
    }
}
