//! Limit on the outstanding sends of a worker's queues.

/// Number of sends that any connection may have outstanding regardless of the share that it leaves to others.
const FAIR: u32 = 16;
/// Divisor for the two reserves: one for connections with few sends outstanding, one for datagrams.
const KEPT: u32 = 8;

/// Limit on the outstanding sends of all queue pairs together.
///
/// Each send can complete separately once it is flushed, so the limit is the capacity of the completion
/// queue. The rings may hold more, since they are never all full at once.
///
/// A connection's sends complete when its peer accepts them; a datagram's always complete. Datagrams may
/// therefore use the whole capacity, and peers that accept nothing cannot exhaust it:
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
    /// Below this number every connection may post, and completions are not scarce.
    plenty: u32,
    outstanding: u32,
    /// Outstanding sends of removed queue pairs. Their completions may still be in the queue.
    orphaned: u32,
}

impl Credit {
    pub(crate) const fn new(most: u32) -> Self {
        let kept = most / KEPT;
        let many = most - 2 * kept;
        Self { most, few: most - kept, many, plenty: many / 2, outstanding: 0, orphaned: 0 }
    }

    /// True if a datagram, or another send that completes without a peer, may be posted.
    #[inline]
    pub(crate) const fn has_room(&self) -> bool {
        self.outstanding < self.most
    }

    /// True if a connection with `held` outstanding sends may post one more. Beyond `FAIR` it may hold at
    /// most what it leaves to all others.
    #[inline]
    pub(crate) const fn admits(&self, held: u32) -> bool {
        self.outstanding < self.few && (held < FAIR || held + self.outstanding <= self.many)
    }

    /// True if any connection may post one more unsignaled send.
    ///
    /// One comparison. It implies [`Credit::has_room`] and [`Credit::admits`], and excludes
    /// [`Credit::is_scarce`].
    #[inline]
    pub(crate) const fn is_plentiful(&self) -> bool {
        self.outstanding < self.plenty
    }

    /// True if a connection with `held` outstanding sends may post `count` more at once.
    pub(crate) const fn admits_all(&self, held: u32, count: u32) -> bool {
        let last = Self { outstanding: self.outstanding + count.saturating_sub(1), ..*self };
        last.admits(held + count.saturating_sub(1))
    }

    /// True if a connection may post a NOP that requests the completion of its sends. It may use part of the
    /// datagram reserve, because the sends would otherwise never complete.
    pub(crate) const fn admits_nop(&self) -> bool {
        self.outstanding < self.few.midpoint(self.most)
    }

    /// True if half of the capacity is used. Every send then requests a completion, so that a full queue
    /// always has some pending.
    #[inline]
    pub(crate) const fn is_scarce(&self) -> bool {
        self.outstanding >= self.most / 2
    }

    /// Number of outstanding sends.
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

    /// Records that a queue pair was removed with `count` sends outstanding.
    pub(crate) const fn orphan(&mut self, count: u32) {
        self.orphaned += count;
    }

    /// Records that the completion queue was found empty.
    pub(crate) const fn settle(&mut self) {
        let orphaned = std::mem::replace(&mut self.orphaned, 0);
        self.give_back(orphaned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of sends that each connection gets if peers accept nothing, filled one connection after
    /// another.
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
            // NOPs leave half of the datagram reserve.
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
