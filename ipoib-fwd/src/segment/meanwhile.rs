//! Addresses that hosts of the other side have claimed while this gateway did not forward, and so judged no
//! claims. A host that moves from one side to the other may announce that only once. So a gateway that starts
//! to forward queries the owners of these addresses. An owner that does not answer is forgotten and looked up
//! on both sides. Until an owner has answered, it is not announced on the other side.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

/// Maximum number of addresses; the oldest make room.
const MOST: usize = 256;

/// The claimed addresses.
#[derive(Debug, Default)]
pub(super) struct Meanwhile {
    /// Addresses whose owners have not been queried yet, in the order of the last claim.
    claimed: VecDeque<IpAddr>,
    /// Addresses whose owners are being queried.
    queried: Vec<IpAddr>,
}

impl Meanwhile {
    /// Records a claimed address.
    pub(super) fn note(&mut self, ip: IpAddr) {
        self.claimed.retain(|known| *known != ip);
        if self.claimed.len() == MOST {
            self.claimed.pop_front();
        }
        self.claimed.push_back(ip);
    }

    /// Addresses whose owners have not answered yet.
    pub(super) fn doubted(&self) -> HashSet<IpAddr> {
        self.claimed.iter().chain(&self.queried).copied().collect()
    }

    /// True if the owner of `ip` has not answered yet.
    pub(super) fn is_doubted(&self, ip: IpAddr) -> bool {
        self.claimed.contains(&ip) || self.queried.contains(&ip)
    }

    /// Takes the addresses whose owners must be queried now.
    pub(super) fn start_queries(&mut self) -> Vec<IpAddr> {
        let claimed = Vec::from(std::mem::take(&mut self.claimed));
        self.queried.extend(&claimed);
        claimed
    }

    /// Takes the addresses whose owners are not being queried any more: they have answered or are gone.
    pub(super) fn settled(&mut self, is_queried: impl Fn(IpAddr) -> bool) -> Vec<IpAddr> {
        self.queried.extract_if(.., |ip| !is_queried(*ip)).collect()
    }

    /// The gateway stops forwarding: owners that have not answered by now are queried again when it forwards
    /// again.
    pub(super) fn resign(&mut self) {
        std::mem::take(&mut self.queried).into_iter().for_each(|ip| self.note(ip));
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
        // A repeated claim makes the address the newest.
        meanwhile.note(address(1));
        let kept = meanwhile.start_queries();
        assert_eq!(kept.len(), MOST);
        assert_eq!((kept.first(), kept.last()), (Some(&address(2)), Some(&address(1))));
        assert!(meanwhile.start_queries().is_empty());
    }

    #[test]
    fn an_address_is_doubted_and_queried_again_until_its_owner_has_answered() {
        let [a, b] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let mut meanwhile = Meanwhile::default();
        meanwhile.note(a);
        meanwhile.note(b);
        assert_eq!(meanwhile.start_queries(), [a, b]);
        assert!(meanwhile.settled(|_| true).is_empty());
        assert_eq!(meanwhile.doubted(), HashSet::from([a, b]));
        assert_eq!(meanwhile.settled(|ip| ip == b), [a]);
        meanwhile.resign();
        assert_eq!(meanwhile.doubted(), HashSet::from([b]));
        assert_eq!(meanwhile.start_queries(), [b]);
    }
}
