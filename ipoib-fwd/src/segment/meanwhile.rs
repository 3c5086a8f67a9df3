//! Addresses that hosts of the other side have claimed while this gateway did not forward, and so judged nobody's claims. A host that comes
//! from one side to the other then says so but once. Who begins to forward has such owners asked whether they are still there: who does
//! not answer is forgotten, and looked for on both sides. Until one has answered nobody is told that it is behind this gateway.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

/// As many as are kept; the oldest make room.
const MOST: usize = 256;

/// Those addresses.
#[derive(Debug, Default)]
pub(super) struct Meanwhile {
    /// Whose owners are to be asked, the last that was claimed last.
    claimed: VecDeque<IpAddr>,
    /// Whose owners are being asked.
    asked: Vec<IpAddr>,
}

impl Meanwhile {
    /// One was claimed.
    pub(super) fn note(&mut self, ip: IpAddr) {
        self.claimed.retain(|known| *known != ip);
        if self.claimed.len() == MOST {
            self.claimed.pop_front();
        }
        self.claimed.push_back(ip);
    }

    /// Those whose owners have not answered yet.
    pub(super) fn doubted(&self) -> HashSet<IpAddr> {
        self.claimed.iter().chain(&self.asked).copied().collect()
    }

    /// True if this one's owner has not answered yet.
    pub(super) fn is_doubted(&self, ip: IpAddr) -> bool {
        self.claimed.contains(&ip) || self.asked.contains(&ip)
    }

    /// Those whose owners are to be asked now.
    pub(super) fn ask(&mut self) -> Vec<IpAddr> {
        let claimed = Vec::from(std::mem::take(&mut self.claimed));
        self.asked.extend(&claimed);
        claimed
    }

    /// Those of them that are not being asked any more: they have answered or are gone.
    pub(super) fn settled(&mut self, is_asked: impl Fn(IpAddr) -> bool) -> Vec<IpAddr> {
        self.asked.extract_if(.., |ip| !is_asked(*ip)).collect()
    }

    /// It does not forward any more: who has not answered by now is asked again when it does.
    pub(super) fn resign(&mut self) {
        std::mem::take(&mut self.asked).into_iter().for_each(|ip| self.note(ip));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_each_once() {
        let address = |n: usize| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
        let mut meanwhile = Meanwhile::default();
        (0..=MOST).chain(0..=MOST).for_each(|n| meanwhile.note(address(n)));
        // Claimed once more it is the newest.
        meanwhile.note(address(1));
        let kept = meanwhile.ask();
        assert_eq!(kept.len(), MOST);
        assert_eq!((kept.first(), kept.last()), (Some(&address(2)), Some(&address(1))));
        assert!(meanwhile.ask().is_empty());
    }

    #[test]
    fn whose_owner_has_not_answered_is_doubted_and_asked_again_by_who_resigns_before() {
        let [a, b] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let mut meanwhile = Meanwhile::default();
        meanwhile.note(a);
        meanwhile.note(b);
        assert_eq!(meanwhile.ask(), [a, b]);
        assert!(meanwhile.settled(|_| true).is_empty());
        assert_eq!(meanwhile.doubted(), HashSet::from([a, b]));
        assert_eq!(meanwhile.settled(|ip| ip == b), [a]);
        meanwhile.resign();
        assert_eq!(meanwhile.doubted(), HashSet::from([b]));
        assert_eq!(meanwhile.ask(), [b]);
    }
}
