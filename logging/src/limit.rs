//! How often the same is logged: who can make it happen again and again, a host on a wire for instance, fills neither disk nor journal.
//!
//! Of each place in the code, and each segment of which it tells, so many entries are let through in a spell; the last of them says that others
//! are held back, and the first one after them how many. What is logged at `debug` or `trace` was asked for, and all of it comes.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Entries of a place that are let through in a spell.
pub(super) const MOST: u32 = 200;
const SPELL: Duration = Duration::from_secs(10);

/// What an entry that is let through says of others of its place.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Note {
    #[default]
    Nothing,
    /// It is the last one of its spell.
    Last,
    /// So many before it were held back.
    HeldBack(u64),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Last => write!(f, " (more of these are held back for {} s at most)", SPELL.as_secs()),
            Self::HeldBack(n) => write!(f, " (of these {n} were held back)"),
        }
    }
}

thread_local! {
    /// Of the entry that this thread has under way: it is let through and written in one call.
    static NOTE: Cell<Note> = const { Cell::new(Note::Nothing) };
}

/// What the entry under way is to say; once.
pub(super) fn note() -> Note {
    NOTE.take()
}

/// A place's spell.
#[derive(Debug)]
struct Spell {
    since: Instant,
    passed: u32,
    held_back: u64,
}

impl Spell {
    /// What the next entry says, if it is let through.
    fn next(&mut self, now: Instant) -> Option<Note> {
        if now.saturating_duration_since(self.since) >= SPELL {
            let held_back = std::mem::take(&mut self.held_back);
            (self.since, self.passed) = (now, 1);
            return Some(if held_back == 0 { Note::Nothing } else { Note::HeldBack(held_back) });
        }
        if self.passed >= MOST {
            self.held_back += 1;
            return None;
        }
        self.passed += 1;
        Some(if self.passed == MOST { Note::Last } else { Note::Nothing })
    }
}

/// Most spells that are kept: more places and segments than there are. What has none shares that of its place.
const MOST_SPELLS: usize = 1 << 14;

/// A place in the code, and what it tells of: a number of the segment's name, 0 for what is of none.
type Kind = (Identifier, u64);

/// The segment that an entry is of.
struct About<'h> {
    hasher: &'h RandomState,
    segment: u64,
}

impl Visit for About<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "segment" {
            self.segment = self.hasher.hash_one(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "segment" {
            self.record_str(field, &format!("{value:?}"));
        }
    }
}

/// Holds back what is too often.
#[derive(Clone, Default, Debug)]
pub(super) struct Limit {
    spells: Arc<Mutex<HashMap<Kind, Spell>>>,
    hasher: RandomState,
}

impl Limit {
    fn next(&self, (place, segment): Kind, now: Instant) -> Option<Note> {
        let mut spells = self.spells.lock().unwrap_or_else(PoisonError::into_inner);
        let has_one = spells.len() < MOST_SPELLS || spells.contains_key(&(place.clone(), segment));
        let kind = (place, if has_one { segment } else { 0 });
        spells.entry(kind).or_insert(Spell { since: now, passed: 0, held_back: 0 }).next(now)
    }

    /// How many are held back of which nothing was said yet; from now on they are.
    pub(super) fn take_held_back(&self) -> u64 {
        let mut spells = self.spells.lock().unwrap_or_else(PoisonError::into_inner);
        spells.values_mut().map(|spell| std::mem::take(&mut spell.held_back)).sum()
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        if *about.level() > Level::INFO {
            NOTE.set(Note::Nothing);
            return true;
        }
        let mut of = About { hasher: &self.hasher, segment: 0 };
        event.record(&mut of);
        let next = self.next((about.callsite(), of.segment), Instant::now());
        NOTE.set(next.unwrap_or_default());
        next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_its_share_of_each_spell_and_says_what_it_held_back() {
        let begin = Instant::now();
        let mut spell = Spell { since: begin, passed: 0, held_back: 0 };
        let all: Vec<_> = (0..MOST).map(|_| spell.next(begin)).collect();
        assert!(all[..MOST as usize - 1].iter().all(|note| *note == Some(Note::Nothing)));
        assert_eq!(all.last(), Some(&Some(Note::Last)));
        let late = begin + SPELL - Duration::from_millis(1);
        assert!((0..1000).all(|_| spell.next(late).is_none()));
        let next = begin + SPELL;
        assert_eq!(spell.next(next), Some(Note::HeldBack(1000)));
        // A spell of its own, which says nothing twice, and a clock that stands still or goes back holds nothing up.
        let passed = (0..2 * MOST).filter_map(|_| spell.next(begin)).collect::<Vec<_>>();
        assert_eq!((passed.len() as u32, passed.last()), (MOST - 1, Some(&Note::Last)));
        // After a quiet spell nothing is said.
        let mut quiet = Spell { since: begin, passed: 0, held_back: 0 };
        assert_eq!(
            (quiet.next(begin), quiet.next(begin + 2 * SPELL)),
            (Some(Note::Nothing), Some(Note::Nothing))
        );
    }
}
