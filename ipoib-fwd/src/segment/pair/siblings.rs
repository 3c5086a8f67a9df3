//! Other segments of the same gateway, where they meet.
//!
//! A gateway's segments are apart from each other. If one hears another, somebody has joined two of their networks, which is told. If they
//! meet on both sides, they make a loop. Segments of one P_Key and subnet find that out as any two gateways do, by election; others are
//! strangers to each other, whose probes neither forwards: there the one with the higher GUID is blocked.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ib_wire::Guid;

use super::message::{SegmentId, Side, SideSet};

/// Most that are known; more than these are told of, but not blocked for.
const KNOWN: usize = 32;

#[derive(Debug)]
struct Met {
    who: (Guid, SegmentId),
    /// When, by side.
    heard: [Option<Instant>; 2],
}

/// The other segments that were heard.
#[derive(Debug, Default)]
pub(super) struct Siblings {
    met: ArrayVec<Met, KNOWN>,
}

impl Siblings {
    /// One was heard on a side. Answers on which sides that was the case within the lease.
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
        // One too many.
        drop(self.met.try_push(met));
        sides
    }
}
