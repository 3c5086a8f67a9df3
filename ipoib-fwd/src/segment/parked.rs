//! Packets that wait for a way to their destination: few for each, and few altogether.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::output::Arrival;

/// Packets that wait for one destination, as Linux has it for a path (IPOIB_MAX_PATH_REC_QUEUE) and for ARP.
pub(super) const PER_DESTINATION: usize = 3;
/// Destinations of one kind that are waited for.
pub(super) const DESTINATIONS: usize = 256;
/// How long a packet waits: after that its sender has sent it again.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// What a packet waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Awaited {
    /// An Ethernet host's address.
    EthernetHost,
    /// An InfiniBand host's address and path.
    InfiniBandHost,
    /// A connection to an InfiniBand host that takes larger packets than a datagram does.
    Connection {
        /// Largest packet without it.
        mtu: u16,
    },
}

impl Awaited {
    /// The kind, as the first half of a key.
    const fn kind(self) -> u8 {
        match self {
            Self::EthernetHost => 0,
            Self::InfiniBandHost => 1,
            Self::Connection { .. } => 2,
        }
    }
}

/// A packet that waits.
#[derive(Debug)]
pub(super) struct Waiting<P> {
    pub(super) awaited: Awaited,
    pub(super) arrival: Arrival,
    pub(super) packet: P,
    since: Instant,
}

/// All that wait, by what for.
#[derive(Debug)]
pub(super) struct Parked<P> {
    waiting: BTreeMap<(u8, IpAddr), VecDeque<Waiting<P>>>,
    destinations: [usize; 3],
    /// Packets in all, and the most.
    held: usize,
    most: usize,
}

impl<P> Parked<P> {
    /// None yet, and at most `most`.
    pub(super) const fn new(most: usize) -> Self {
        Self { waiting: BTreeMap::new(), destinations: [0; 3], held: 0, most }
    }

    /// At most `most` from now on; those that wait stay.
    pub(super) const fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Keeps a packet, or hands one back that has to go: the oldest for this destination, or this one if there is no
    /// place for another destination.
    pub(super) fn park(
        &mut self,
        now: Instant,
        to: IpAddr,
        awaited: Awaited,
        arrival: Arrival,
        packet: P,
    ) -> Option<Waiting<P>> {
        let key = (awaited.kind(), to);
        let new = Waiting { awaited, arrival, packet, since: now };
        let Some(count) = self.destinations.get_mut(usize::from(key.0)) else { return Some(new) };
        let known = self.waiting.contains_key(&key);
        // A destination that waits already gives its oldest; others find no place.
        let full = self.held >= self.most && !known;
        if !known {
            if full || *count >= DESTINATIONS {
                return Some(new);
            }
            *count += 1;
        }
        let queue = self.waiting.entry(key).or_default();
        queue.push_back(new);
        if queue.len() > PER_DESTINATION || self.held >= self.most {
            return queue.pop_front();
        }
        self.held += 1;
        None
    }

    /// Takes what waits for a destination in one way; what [`Awaited::Connection`] holds does not matter.
    pub(super) fn take(&mut self, awaited: Awaited, to: IpAddr) -> VecDeque<Waiting<P>> {
        let taken = self.waiting.remove(&(awaited.kind(), to));
        if taken.is_some()
            && let Some(count) = self.destinations.get_mut(usize::from(awaited.kind()))
        {
            *count -= 1;
        }
        let taken = taken.unwrap_or_default();
        self.held -= taken.len();
        taken
    }

    /// Takes those that wait for a connection and for which `done` says that they need not any more.
    pub(super) fn take_connections(
        &mut self,
        mut done: impl FnMut(IpAddr, &Arrival) -> bool,
    ) -> Vec<(IpAddr, Waiting<P>)> {
        let kind = Awaited::Connection { mtu: 0 }.kind();
        self.take_if(|key, waiting| key.0 == kind && done(key.1, &waiting.arrival))
    }

    /// Takes what has waited for too long.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<(IpAddr, Waiting<P>)> {
        self.take_if(|_, waiting| now.saturating_duration_since(waiting.since) > PATIENCE)
    }

    /// Takes everything.
    pub(super) fn clear(&mut self) -> Vec<(IpAddr, Waiting<P>)> {
        self.take_if(|_, _| true)
    }

    fn take_if(
        &mut self,
        mut which: impl FnMut(&(u8, IpAddr), &Waiting<P>) -> bool,
    ) -> Vec<(IpAddr, Waiting<P>)> {
        let mut taken = Vec::new();
        let (destinations, held) = (&mut self.destinations, &mut self.held);
        self.waiting.retain(|key, queue| {
            for _ in 0..queue.len() {
                let Some(waiting) = queue.pop_front() else { break };
                if which(key, &waiting) {
                    taken.push((key.1, waiting));
                    *held -= 1;
                } else {
                    queue.push_back(waiting);
                }
            }
            if queue.is_empty()
                && let Some(count) = destinations.get_mut(usize::from(key.0))
            {
                *count -= 1;
            }
            !queue.is_empty()
        });
        taken
    }

    /// True if there is room for many destinations of a kind.
    pub(super) fn has_room(&self, awaited: Awaited) -> bool {
        let count = self.destinations.get(usize::from(awaited.kind()));
        count.is_some_and(|n| *n < DESTINATIONS / 2) && self.held < self.most / 2
    }

    /// How many packets wait for an Ethernet host.
    pub(super) fn waiting_for(&self, awaited: Awaited, to: IpAddr) -> usize {
        self.waiting.get(&(awaited.kind(), to)).map_or(0, VecDeque::len)
    }

    /// True if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::Side;
    use ipoib::link::WorkerIndex;

    #[test]
    fn packets_are_bounded_in_all_and_each_that_goes_makes_room() {
        let mut parked = Parked::new(4);
        let (now, arrival) =
            (Instant::now(), Arrival { side: Side::InfiniBand, worker: WorkerIndex(0), origin: None });
        let host = |n: u8| IpAddr::from([10, 0, 0, n]);
        let park = |parked: &mut Parked<u32>, n, packet| {
            parked.park(now, host(n), Awaited::EthernetHost, arrival, packet).map(|w| w.packet)
        };
        for packet in 0..4 {
            assert_eq!(park(&mut parked, packet as u8 % 2, packet), None);
        }
        assert_eq!(park(&mut parked, 9, 4), Some(4), "no place for another destination");
        assert_eq!(park(&mut parked, 0, 5), Some(0), "the oldest for one that waits");
        assert_eq!(parked.take(Awaited::EthernetHost, host(0)).len(), 2);
        assert_eq!(
            (park(&mut parked, 9, 6), park(&mut parked, 9, 7), park(&mut parked, 8, 8)),
            (None, None, Some(8))
        );
        assert_eq!(parked.clear().len(), 4);
        assert!(parked.is_empty() && parked.held == 0);
    }
}
