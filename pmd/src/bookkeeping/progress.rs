//! How far a completion queue has been read.

/// Counts what was taken from a completion queue, so that who closes a queue pair knows when all that lay in the queue then has
/// been read: as many entries as it holds were taken since, or it was found empty. Under load it never is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Entries taken; where the queue was found empty, as many as it holds beside.
    read: u64,
    entries: u64,
}

/// A moment in the reading of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark(u64);

impl Progress {
    /// Of a queue that holds this many entries.
    pub(crate) const fn new(entries: u32) -> Self {
        Self { read: 0, entries: entries as u64 }
    }

    /// So many entries were taken, and the queue was found empty behind them or not.
    #[inline]
    pub(crate) const fn polled(&mut self, taken: usize, empty: bool) {
        let rest = if empty { self.entries } else { 0 };
        self.read = self.read.wrapping_add(taken as u64 + rest);
    }

    /// This moment.
    pub(crate) const fn mark(&self) -> Mark {
        Mark(self.read)
    }

    /// True if nothing that lay in the queue at that moment is left.
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
