//! Strangers: gateways that are not believed, since they use another key or version, or name another
//! partition.
//!
//! Their messages change nothing: a stranger must not be able to stop this gateway. But most often such a
//! gateway was meant to be the other one of the pair, so it is reported. Echoes show whether it joins the
//! same two networks ([`super::rivals`]). The gateway probes more often for them while a stranger is near.
//!
//! A gateway that names the same partition and another subnet is believed while it is heard on both sides. If
//! it is heard on one side only, it joins this network to another one, as it should.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;

use super::api::Disbelief;
use super::message::{Identity, MAX_PEERS, MessageError, Side, SideSet};

/// Number of messages that are no coincidence any more.
const ENOUGH: u32 = 3;
/// A stranger that is silent for this long is gone.
const QUIET: Duration = Duration::from_secs(30);

/// After this silence on a side another network may have been joined to this one.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Heard {
    why: Disbelief,
    sides: [Option<Instant>; 2],
    since: Instant,
    count: u32,
    reported: bool,
}

impl Heard {
    fn last(&self) -> Option<Instant> {
        self.sides.iter().flatten().max().copied()
    }

    fn sides(&self) -> SideSet {
        Side::BOTH
            .into_iter()
            .fold(SideSet::NONE, |set, side| set.with(side, self.sides[side as usize].is_some()))
    }
}

/// A gateway that names another segment.
#[derive(Debug)]
struct Elsewhere {
    who: Identity,
    /// When it was heard, by side.
    heard: [Option<Instant>; 2],
}

impl Elsewhere {
    fn last(&self) -> Option<Instant> {
        self.heard.iter().flatten().max().copied()
    }
}

/// The strangers that are heard.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    heard: Option<Heard>,
    /// Gateways that named another segment; the one with the longest silence makes room.
    elsewhere: ArrayVec<Elsewhere, MAX_PEERS>,
}

impl Strangers {
    /// Records a message that could not be read. True if it should be reported now.
    pub(super) fn unreadable(&mut self, now: Instant, side: Side, error: MessageError) -> bool {
        match error {
            MessageError::Key | MessageError::Version(_) => self.note(now, side, Disbelief::Message(error)),
            MessageError::Foreign | MessageError::Length | MessageError::Value => false,
        }
    }

    /// Records a gateway that names another segment. True if it is heard on both sides, so it joins the same
    /// two networks.
    pub(super) fn is_on_both_sides(&mut self, now: Instant, side: Side, who: Identity) -> bool {
        let is_fresh = |at: Option<Instant>| at.is_some_and(|at| now < at + QUIET);
        self.elsewhere.retain(|known| is_fresh(known.last()));
        let place = self.elsewhere.iter().position(|known| known.who == who).unwrap_or_else(|| {
            if self.elsewhere.is_full() {
                let oldest = self.elsewhere.iter().enumerate().min_by_key(|(_, known)| known.last());
                if let Some(oldest) = oldest.map(|(place, _)| place) {
                    self.elsewhere.remove(oldest);
                }
            }
            self.elsewhere.push(Elsewhere { who, heard: [None; 2] });
            self.elsewhere.len() - 1
        });
        let Some(known) = self.elsewhere.get_mut(place) else { return false };
        known.heard[side as usize] = Some(now);
        known.heard.into_iter().all(is_fresh)
    }

    /// Records a gateway of another partition that is heard on both sides. True if it should be reported now.
    pub(super) fn elsewhere(&mut self, now: Instant, side: Side) -> bool {
        self.note(now, side, Disbelief::Segment)
    }

    /// True if messages of strangers have been heard recently.
    pub(super) const fn is_near(&self) -> bool {
        self.heard.is_some()
    }

    /// True if messages of strangers are heard on this side: not the first one after a pause.
    pub(super) fn are_on(&self, now: Instant, side: Side) -> bool {
        let heard = self.heard.and_then(|heard| heard.sides.get(side as usize).copied().flatten());
        heard.is_some_and(|at| now < at + PAUSE)
    }

    /// True if messages of strangers have been heard recently on each side: one of them may join the same two
    /// networks.
    pub(super) fn are_on_both_sides(&self, now: Instant) -> bool {
        self.heard
            .is_some_and(|heard| heard.sides.into_iter().all(|at| at.is_some_and(|at| now < at + QUIET)))
    }

    fn note(&mut self, now: Instant, side: Side, why: Disbelief) -> bool {
        let new = Heard { why, sides: [None; 2], since: now, count: 0, reported: false };
        let heard = self.heard.get_or_insert(new);
        heard.why = why;
        heard.sides[side as usize] = Some(now);
        heard.count = heard.count.saturating_add(1);
        heard.count >= ENOUGH && !std::mem::replace(&mut heard.reported, heard.count >= ENOUGH)
    }

    /// Forgets strangers that are gone. True if a reported one is gone.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        let is_gone =
            |heard: &Heard| heard.last().is_none_or(|at| now.saturating_duration_since(at) >= QUIET);
        let gone = self.heard.take_if(|heard| is_gone(heard));
        gone.is_some_and(|heard| heard.reported)
    }

    /// Time of the next [`Self::handle_timeout`].
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.heard.and_then(|heard| heard.last()).map(|at| at + QUIET)
    }

    /// The reported stranger, if there is one: why it is not believed, where it is heard, and since when.
    pub(super) fn reported(&self) -> Option<(Disbelief, SideSet, Instant)> {
        self.heard.filter(|heard| heard.reported).map(|heard| (heard.why, heard.sides(), heard.since))
    }
}
