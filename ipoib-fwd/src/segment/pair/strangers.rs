//! Gateways between the same two networks that are not believed: they speak with another key or version, or name the segment otherwise.
//!
//! Whatever they say, this gateway goes on: a stranger must not be able to end its work. But far more often than by a stranger such messages
//! are sent by a gateway that was meant to be the other one of the pair. Then both forward, and only the bound on packets to
//! groups ([`super::storm`]) keeps the networks from harm; so somebody has to be told.

use std::time::{Duration, Instant};

use super::api::Disbelief;
use super::message::{Identity, MessageError, Side, SideSet};

/// Messages that are no chance any more.
const ENOUGH: u32 = 3;
/// Who is silent for so long is gone.
const QUIET: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
struct Heard {
    why: Disbelief,
    sides: [Option<Instant>; 2],
    since: Instant,
    count: u32,
    told: bool,
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

/// What is heard of such gateways.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    heard: Option<Heard>,
    /// Who named another segment last, on each side.
    elsewhere: [Option<(Identity, Instant)>; 2],
}

impl Strangers {
    /// A message could not be read. True if that is to be told now.
    pub(super) fn unreadable(&mut self, now: Instant, side: Side, error: MessageError) -> bool {
        match error {
            MessageError::Key | MessageError::Version(_) => self.note(now, side, Disbelief::Message(error)),
            MessageError::Foreign | MessageError::Length | MessageError::Value => false,
        }
    }

    /// A gateway names another segment. On one side that is as it should be: it joins this network to another one. True if that is to be
    /// told now.
    pub(super) fn elsewhere(&mut self, now: Instant, side: Side, who: Identity) -> bool {
        let here = |heard: (Identity, Instant)| heard.0 == who && now < heard.1 + QUIET;
        self.elsewhere[side as usize] = Some((who, now));
        self.elsewhere[side.other() as usize].is_some_and(here) && self.note(now, side, Disbelief::Segment)
    }

    fn note(&mut self, now: Instant, side: Side, why: Disbelief) -> bool {
        let new = Heard { why, sides: [None; 2], since: now, count: 0, told: false };
        let heard = self.heard.get_or_insert(new);
        heard.why = why;
        heard.sides[side as usize] = Some(now);
        heard.count = heard.count.saturating_add(1);
        heard.count >= ENOUGH && !std::mem::replace(&mut heard.told, heard.count >= ENOUGH)
    }

    /// Lets time pass. True if somebody who has been told of is gone.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        let is_gone =
            |heard: &Heard| heard.last().is_none_or(|at| now.saturating_duration_since(at) >= QUIET);
        let gone = self.heard.take_if(|heard| is_gone(heard));
        gone.is_some_and(|heard| heard.told)
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.heard.and_then(|heard| heard.last()).map(|at| at + QUIET)
    }

    /// Why somebody is not believed, where, and since when; if somebody is there.
    pub(super) fn told(&self) -> Option<(Disbelief, SideSet, Instant)> {
        self.heard.filter(|heard| heard.told).map(|heard| (heard.why, heard.sides(), heard.since))
    }
}
