//! How many sends may be outstanding on a worker's queues.

/// Sends that any connection may have outstanding before it counts what it leaves to others.
const FAIR: u32 = 16;
/// Part of the sends that is kept back twice: for connections with few outstanding, and for datagrams.
const KEPT: u32 = 8;

/// How many sends may be outstanding at once, of all queue pairs together.
///
/// Each may complete by itself once it is flushed, so that this is what the completion queue has room for: rings may promise
/// more, since they never are all full at once.
///
/// A connection's sends complete when its peer takes them, a datagram's always do. So datagrams may use all there is, and
/// peers that take nothing cannot hold it:
///
/// ```text
///  0                                          many       few        most
///  | a connection, no more than it leaves here | 16 each  | datagrams |
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credit {
    most: u32,
    few: u32,
    many: u32,
    /// Below it every connection is admitted, whatever it holds of it, and nothing is scarce.
    plenty: u32,
    outstanding: u32,
    /// Of queue pairs that were taken out with sends outstanding. Their completions may still lie in the queue.
    orphaned: u32,
}

impl Credit {
    pub(crate) const fn new(most: u32) -> Self {
        let kept = most / KEPT;
        let many = most - 2 * kept;
        Self { most, few: most - kept, many, plenty: many / 2, outstanding: 0, orphaned: 0 }
    }

    /// True if a datagram may be posted, or what completes without a peer.
    #[inline]
    pub(crate) const fn has_room(&self) -> bool {
        self.outstanding < self.most
    }

    /// True if a connection with `held` outstanding may post one more: beyond a few it may hold no more than it leaves to all others.
    #[inline]
    pub(crate) const fn admits(&self, held: u32) -> bool {
        self.outstanding < self.few && (held < FAIR || held + self.outstanding <= self.many)
    }

    /// True if so little is outstanding that anybody may post one more, and need not ask for its completion: what
    /// [`Credit::has_room`], [`Credit::admits`] and [`Credit::is_scarce`] would say of it, in one comparison.
    #[inline]
    pub(crate) const fn is_plentiful(&self) -> bool {
        self.outstanding < self.plenty
    }

    /// True if a connection with `held` outstanding may post so many more at once.
    pub(crate) const fn admits_all(&self, held: u32, count: u32) -> bool {
        let last = Self { outstanding: self.outstanding + count.saturating_sub(1), ..*self };
        last.admits(held + count.saturating_sub(1))
    }

    /// True if a connection may post what fetches the completion of its sends. Without it nobody would tell of them, so that it may
    /// use some of what is kept for datagrams.
    pub(crate) const fn admits_nop(&self) -> bool {
        self.outstanding < self.few.midpoint(self.most)
    }

    /// Half of it is gone: from here on every send asks for a completion, so that a full queue always has some on their way.
    #[inline]
    pub(crate) const fn is_scarce(&self) -> bool {
        self.outstanding >= self.most / 2
    }

    /// Sends outstanding.
    pub(crate) const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    #[inline]
    pub(crate) const fn take(&mut self) {
        self.outstanding += 1;
    }

    #[inline]
    pub(crate) const fn give_back(&mut self, count: u32) {
        self.outstanding = self.outstanding.saturating_sub(count);
    }

    /// A queue pair was taken out with so many outstanding.
    pub(crate) const fn orphan(&mut self, count: u32) {
        self.orphaned += count;
    }

    /// The completion queue was found empty.
    pub(crate) const fn settle(&mut self) {
        let orphaned = std::mem::replace(&mut self.orphaned, 0);
        self.give_back(orphaned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one connection after the other gets if none of them gives anything back.
    fn stalled(credit: &mut Credit, connections: u32, ring: u32) -> Vec<u32> {
        let mut fill = |_| {
            let mut held = 0;
            while held < ring && credit.admits(held) {
                credit.take();
                held += 1;
            }
            held
        };
        (0..connections).map(&mut fill).collect()
    }

    #[test]
    fn peers_that_take_nothing_leave_room_to_other_connections() {
        let mut credit = Credit::new(8192);
        let held = stalled(&mut credit, 64, 1024);
        assert_eq!(held[..12], [1024, 1024, 1024, 1024, 1024, 513, 256, 128, 64, 32, 16, 16]);
        assert_eq!(held.iter().min(), Some(&FAIR), "and so would the next");
        assert!(credit.admits(0) && credit.admits(FAIR - 1) && !credit.admits(FAIR));
    }

    #[test]
    fn however_many_they_are_datagrams_go() {
        for most in [1, 2, 7, 8, 9, 255, 256, 1024, 8192, 1 << 14] {
            let mut credit = Credit::new(most);
            let held: u32 = stalled(&mut credit, 10_000, 1024).iter().sum();
            let kept = most / KEPT;
            assert_eq!(held, most - kept);
            // What asks for completions leaves half of it.
            let mut nops = 0;
            while credit.admits_nop() {
                credit.take();
                nops += 1;
            }
            assert_eq!(nops, kept / 2, "of {most}");
            for _ in 0..kept - nops {
                assert!(credit.has_room());
                credit.take();
            }
            assert!(!credit.has_room());
        }
    }

    #[test]
    fn where_it_is_plentiful_all_are_admitted() {
        for most in (0..200).chain([1024, 8192, 1 << 14]) {
            let mut credit = Credit::new(most);
            while credit.is_plentiful() {
                assert!(credit.has_room() && !credit.is_scarce(), "{} of {most}", credit.outstanding());
                assert!(credit.admits(0) && credit.admits(credit.outstanding()), "{credit:?}");
                credit.take();
            }
            assert_eq!(credit.outstanding(), credit.many / 2, "of {most}");
        }
    }

    #[test]
    fn what_was_taken_out_counts_until_the_completion_queue_is_empty() {
        let mut credit = Credit::new(2);
        credit.take();
        credit.take();
        credit.orphan(1);
        assert!(!credit.has_room());
        credit.settle();
        assert!(credit.has_room());
        credit.take();
        credit.settle();
        assert!(!credit.has_room(), "once");
        credit.give_back(2);
        assert!(!credit.is_scarce());
    }
}
