//! Read progress of a completion queue.

/// Counts the entries consumed from a completion queue.
///
/// After a queue pair is closed, all completions in the queue at that time have been read when either
/// condition holds:
///
/// - A number of entries equal to the queue's size has been consumed since.
/// - The queue was found empty. Under load this never happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Entries consumed. Each time the queue was found empty, its capacity is added.
    read: u64,
    entries: u64,
}

/// A position in the read progress of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark(u64);

impl Progress {
    /// Creates the progress of a queue with this many entries.
    pub(crate) const fn new(entries: u32) -> Self {
        Self { read: 0, entries: entries as u64 }
    }

    /// Records that `taken` entries were consumed, and whether the queue was then empty.
    #[inline]
    pub(crate) const fn polled(&mut self, taken: usize, empty: bool) {
        let rest = if empty { self.entries } else { 0 };
        self.read = self.read.wrapping_add(taken as u64 + rest);
    }

    /// Returns the current position.
    pub(crate) const fn mark(&self) -> Mark {
        Mark(self.read)
    }

    /// True if no completion that was in the queue at `mark` is left.
    pub(crate) const fn is_past(&self, mark: Mark) -> bool {
        self.read.wrapping_sub(mark.0) >= self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_past_what_lay_there_when_that_was_taken_or_nothing_was_left() {
        let mut progress = Progress::new(8);
        progress.polled(100, false);
        let mark = progress.mark();
        progress.polled(7, false);
        assert!(!progress.is_past(mark), "one may be left");
        progress.polled(1, false);
        assert!(progress.is_past(mark));
        let mark = progress.mark();
        progress.polled(0, false);
        assert!(!progress.is_past(mark), "there was no room to take any");
        progress.polled(0, true);
        assert!(progress.is_past(mark));
    }
}
