//! Numbers of queue pairs that were removed with outstanding sends.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use super::{Mark, Progress};

/// Maximum number of queue pair numbers that are tracked individually.
const MOST: usize = 4096;

/// A token that a removed queue pair holds until the device has destroyed it. Until then the device may write
/// completions for it.
#[derive(Clone, Debug)]
pub(crate) struct Removed(Arc<()>);

impl Removed {
    /// Leaks the token of a queue pair that the device did not destroy. Its number stays stale permanently.
    pub(crate) fn forget(self) {
        std::mem::forget(self.0);
    }
}

/// A worker's read progress of the receive and send completion queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) receives: &'a Progress,
    pub(crate) sends: &'a Progress,
}

impl Reading<'_> {
    fn marks(&self) -> (Mark, Mark) {
        (self.receives.mark(), self.sends.mark())
    }

    fn is_past(&self, (receives, sends): (Mark, Mark)) -> bool {
        self.receives.is_past(receives) && self.sends.is_past(sends)
    }
}

/// One or more queue pairs with possibly unread completions.
#[derive(Debug)]
struct Stale {
    pairs: Weak<()>,
    /// Read progress when their destruction was first observed.
    destroyed: Option<(Mark, Mark)>,
}

impl Stale {
    fn new(removed: &Removed) -> Self {
        Self { pairs: Arc::downgrade(&removed.0), destroyed: None }
    }

    /// True if no completions of theirs are left: the device has destroyed all of them, and the completion
    /// queues were read up to that point.
    fn is_over(&mut self, reading: Reading<'_>) -> bool {
        if self.pairs.strong_count() > 0 {
            return false;
        }
        // Synchronizes with the release by the last token, which is dropped after the destruction.
        fence(Ordering::Acquire);
        reading.is_past(*self.destroyed.get_or_insert_with(|| reading.marks()))
    }
}

/// Queue pair numbers with possibly unread completions.
///
/// A new queue pair with such a number must not post until they are read. Otherwise they would be taken for
/// completions of its own sends. Its buffers would then be reused while the device reads them.
#[derive(Debug, Default)]
pub(crate) struct StaleNumbers {
    numbers: BTreeMap<u32, Stale>,
    /// Queue pairs beyond [`MOST`]. While these are pending, any number may be stale.
    others: Option<Stale>,
}

impl StaleNumbers {
    /// Records that a queue pair was removed with outstanding sends. The queue pair keeps the returned token
    /// until it is destroyed.
    pub(crate) fn note(&mut self, number: u32, reading: Reading<'_>) -> Removed {
        if self.numbers.len() >= MOST {
            self.numbers.retain(|_, stale| !stale.is_over(reading));
        }
        if self.numbers.len() < MOST {
            let removed = Removed(Arc::default());
            self.numbers.insert(number, Stale::new(&removed));
            return removed;
        }
        let removed =
            Removed(self.others.as_ref().and_then(|others| others.pairs.upgrade()).unwrap_or_default());
        self.others = Some(Stale::new(&removed));
        removed
    }

    /// Returns true if completions of an older queue pair with this number may be left. Call it once for each
    /// new queue pair.
    pub(crate) fn take(&mut self, number: u32, reading: Reading<'_>) -> bool {
        let known = self.numbers.remove(&number).is_some();
        self.others.take_if(|others| others.is_over(reading));
        known || self.others.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completion queues with eight entries each.
    struct Queues(Progress, Progress);

    impl Queues {
        fn new() -> Self {
            Self(Progress::new(8), Progress::new(8))
        }

        fn read(&self) -> Reading<'_> {
            Reading { receives: &self.0, sends: &self.1 }
        }

        fn read_all(&mut self) {
            self.0.polled(0, true);
            self.1.polled(0, true);
        }
    }

    #[test]
    fn a_number_is_stale_until_it_is_given_again_and_none_is_forgotten() {
        let queues = Queues::new();
        let mut stale = StaleNumbers::default();
        drop(stale.note(7, queues.read()));
        assert!(
            !stale.take(8, queues.read()) && stale.take(7, queues.read()) && !stale.take(7, queues.read())
        );
        let pairs: Vec<_> = (0..=MOST as u32).map(|number| stale.note(number, queues.read())).collect();
        assert!(stale.take(MOST as u32, queues.read()) && stale.take(1 << 20, queues.read()));
        assert!(stale.numbers.len() <= MOST);
        drop(pairs);
    }

    #[test]
    fn after_too_many_a_number_is_fresh_again_once_all_were_destroyed_and_their_completions_read() {
        let mut queues = Queues::new();
        let mut stale = StaleNumbers::default();
        let mut pairs: Vec<_> =
            (0..MOST as u32 + 2).map(|number| stale.note(number, queues.read())).collect();
        let fresh = 1 << 20;
        let last = pairs.pop();
        drop(pairs);
        queues.read_all();
        assert!(stale.take(fresh, queues.read()), "the device still has one");
        queues.read_all();
        assert!(stale.take(fresh, queues.read()), "it may have completed until now");
        drop(last);
        assert!(stale.take(fresh, queues.read()), "its completions are not read");
        queues.0.polled(0, true);
        assert!(stale.take(fresh, queues.read()), "those of the other queue are not");
        queues.1.polled(0, true);
        assert!(!stale.take(fresh, queues.read()));
        assert!(stale.take(MOST as u32 - 1, queues.read()), "named ones stay until they are given again");
    }

    #[test]
    fn numbers_that_are_not_given_again_make_room() {
        let mut queues = Queues::new();
        let mut stale = StaleNumbers::default();
        (0..MOST as u32).for_each(|number| drop(stale.note(number, queues.read())));
        drop(stale.note(1 << 20, queues.read()));
        assert_eq!(stale.numbers.len(), MOST, "their completions are not read");
        queues.read_all();
        drop(stale.note(1 << 21, queues.read()));
        assert_eq!(stale.numbers.len(), 1);
        assert!(stale.take(1 << 21, queues.read()));
    }

    #[test]
    fn what_the_device_did_not_destroy_stays_stale() {
        let mut queues = Queues::new();
        let mut stale = StaleNumbers::default();
        (0..=MOST as u32).for_each(|number| stale.note(number, queues.read()).forget());
        for _ in 0..3 {
            queues.read_all();
            assert!(stale.take(1 << 20, queues.read()));
        }
    }
}
