//! Rate limit of log entries, so that repeated events, for example caused by a host on the network, do not
//! fill the disk or the journal.
//!
//! For each call site, and each segment that it refers to, the limit admits a number of entries per period.
//! The last one says that others are suppressed, and the first one after the period says how many were.
//! Entries at `debug` or `trace` were requested and are not limited.

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

/// Number of admitted entries of a call site per period.
pub(super) const MOST: u32 = 200;
const SPELL: Duration = Duration::from_secs(10);

/// Note of an admitted entry about others of its call site.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Note {
    #[default]
    Nothing,
    /// It is the last one of its period.
    Last,
    /// Number of suppressed entries before it.
    HeldBack(u64),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Last => {
                write!(f, " (further entries of this kind are suppressed for up to {} s)", SPELL.as_secs())
            }
            Self::HeldBack(n) => write!(f, " ({n} entries of this kind were suppressed)"),
        }
    }
}

thread_local! {
    /// Note for this thread's current entry, which is admitted and written in one call.
    static NOTE: Cell<Note> = const { Cell::new(Note::Nothing) };
}

/// Takes the note for the current entry.
pub(super) fn note() -> Note {
    NOTE.take()
}

/// The period of a call site.
#[derive(Debug)]
struct Spell {
    since: Instant,
    passed: u32,
    held_back: u64,
}

impl Spell {
    /// Returns the note of the next entry, if it is admitted.
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

/// Maximum number of tracked periods, more than call sites and segments combined. Others share the one of
/// their call site.
const MOST_SPELLS: usize = 1 << 14;

/// A call site, and a hash of the segment's name; 0 without a segment.
type Kind = (Identifier, u64);

/// Finds the segment of an entry.
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

/// The rate limit.
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

    /// Returns the number of suppressed entries that have not been reported, and marks them as reported.
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
        // A separate period repeats no notes, and a clock that stops or goes backwards suppresses nothing.
        let passed = (0..2 * MOST).filter_map(|_| spell.next(begin)).collect::<Vec<_>>();
        assert_eq!((passed.len() as u32, passed.last()), (MOST - 1, Some(&Note::Last)));
        // After a period without suppression there is no note.
        let mut quiet = Spell { since: begin, passed: 0, held_back: 0 };
        assert_eq!(
            (quiet.next(begin), quiet.next(begin + 2 * SPELL)),
            (Some(Note::Nothing), Some(Note::Nothing))
        );
    }
}
