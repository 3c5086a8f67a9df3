//! Packets that wait for a path to their destination, bounded per destination and in total.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::output::Arrival;

/// Maximum number of packets that wait for one destination: the first window of a TCP connection (RFC 6928),
/// and a few of other flows.
pub(super) const PER_DESTINATION: usize = 16;
/// Maximum number of destinations of one kind.
pub(super) const DESTINATIONS: usize = 256;
/// How long a packet waits: after that its sender has retransmitted it.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The event that a packet waits for.
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

/// Packets for one destination.
#[derive(Debug)]
struct Queue<P> {
    /// Arrival time of the first packet.
    born: Instant,
    packets: VecDeque<Waiting<P>>,
}

/// All waiting packets, by the event that they wait for.
#[derive(Debug)]
pub(super) struct Parked<P> {
    waiting: BTreeMap<(u8, IpAddr), Queue<P>>,
    /// The destinations of each kind, the one with the longest wait first.
    order: [BTreeSet<(Instant, IpAddr)>; 3],
    /// Number of packets, and its maximum.
    held: usize,
    most: usize,
}

impl<P> Parked<P> {
    /// Makes an empty queue of at most `most` packets.
    pub(super) const fn new(most: usize) -> Self {
        Self { waiting: BTreeMap::new(), order: [const { BTreeSet::new() }; 3], held: 0, most }
    }

    /// Sets the maximum number of packets; those that wait stay.
    pub(super) const fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// Keeps a packet and returns the packets evicted to make room for it: the oldest for this destination,
    /// or those of the destination with the longest wait. A host that is present answers soon.
    pub(super) fn park(
        &mut self,
        now: Instant,
        to: IpAddr,
        awaited: Awaited,
        arrival: Arrival,
        packet: P,
    ) -> Vec<Waiting<P>> {
        let key = (awaited.kind(), to);
        let new = Waiting { awaited, arrival, packet, since: now };
        let mut gone = Vec::new();
        if !self.waiting.contains_key(&key)
            && let Some(order) = self.order.get_mut(usize::from(key.0))
        {
            let oldest = order.first().copied().filter(|_| order.len() >= DESTINATIONS);
            order.insert((now, to));
            if let Some((_, ip)) = oldest {
                gone.extend(self.take(awaited, ip));
            }
        }
        let queue = self.waiting.entry(key).or_insert(Queue { born: now, packets: VecDeque::new() });
        queue.packets.push_back(new);
        self.held += 1;
        if queue.packets.len() > PER_DESTINATION {
            self.held -= 1;
            gone.extend(queue.packets.pop_front());
        }
        if self.held > self.most {
            gone.extend(self.take_oldest());
        }
        gone
    }

    /// Takes a packet of the destination with the longest wait.
    fn take_oldest(&mut self) -> Option<Waiting<P>> {
        let firsts = (0u8..).zip(&self.order).filter_map(|(kind, order)| {
            let (born, ip) = *order.first()?;
            Some((born, (kind, ip)))
        });
        let (born, key) = firsts.min()?;
        let queue = self.waiting.get_mut(&key)?;
        let oldest = queue.packets.pop_front()?;
        self.held -= 1;
        if queue.packets.is_empty() {
            self.waiting.remove(&key);
            self.order.get_mut(usize::from(key.0))?.remove(&(born, key.1));
        }
        Some(oldest)
    }

    /// Takes the packets that wait for one event of a destination; the value in [`Awaited::Connection`] does
    /// not matter.
    pub(super) fn take(&mut self, awaited: Awaited, to: IpAddr) -> VecDeque<Waiting<P>> {
        let kind = awaited.kind();
        let Some(taken) = self.waiting.remove(&(kind, to)) else { return VecDeque::new() };
        if let Some(order) = self.order.get_mut(usize::from(kind)) {
            order.remove(&(taken.born, to));
        }
        self.held -= taken.packets.len();
        taken.packets
    }

    /// Takes the packets that wait for one event of a destination and for which `which` returns true.
    pub(super) fn take_those(
        &mut self,
        awaited: Awaited,
        to: IpAddr,
        which: impl Fn(&P) -> bool,
    ) -> VecDeque<Waiting<P>> {
        let all = self.take(awaited, to);
        let (taken, stay): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|waiting| which(&waiting.packet));
        if let Some(first) = stay.front() {
            let (kind, born) = (awaited.kind(), first.since);
            self.held += stay.len();
            if let Some(order) = self.order.get_mut(usize::from(kind)) {
                order.insert((born, to));
            }
            self.waiting.insert((kind, to), Queue { born, packets: stay });
        }
        taken
    }

    /// Takes the packets whose wait for a connection is over according to `done`.
    pub(super) fn take_connections(
        &mut self,
        mut done: impl FnMut(IpAddr, &Arrival) -> bool,
    ) -> Vec<(IpAddr, Waiting<P>)> {
        let kind = Awaited::Connection { mtu: 0 }.kind();
        self.take_if(|key, waiting| key.0 == kind && done(key.1, &waiting.arrival))
    }

    /// Takes the packets that have waited for too long.
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
        let (order, held) = (&mut self.order, &mut self.held);
        self.waiting.retain(|key, queue| {
            for _ in 0..queue.packets.len() {
                let Some(waiting) = queue.packets.pop_front() else { break };
                if which(key, &waiting) {
                    taken.push((key.1, waiting));
                    *held -= 1;
                } else {
                    queue.packets.push_back(waiting);
                }
            }
            if queue.packets.is_empty()
                && let Some(order) = order.get_mut(usize::from(key.0))
            {
                order.remove(&(queue.born, key.1));
            }
            !queue.packets.is_empty()
        });
        taken
    }

    /// True if there is room for many destinations of a kind.
    pub(super) fn has_room(&self, awaited: Awaited) -> bool {
        let order = self.order.get(usize::from(awaited.kind()));
        order.is_some_and(|all| all.len() < DESTINATIONS / 2) && self.held < self.most / 2
    }

    /// Number of packets that wait for an Ethernet host.
    pub(super) fn waiting_for(&self, awaited: Awaited, to: IpAddr) -> usize {
        self.waiting.get(&(awaited.kind(), to)).map_or(0, |queue| queue.packets.len())
    }

    /// Number of waiting packets.
    #[cfg(test)]
    pub(super) const fn held(&self) -> usize {
        self.held
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
        let (start, arrival) =
            (Instant::now(), Arrival { side: Side::InfiniBand, worker: WorkerIndex(0), origin: None });
        let host = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut now = start;
        let mut park = |parked: &mut Parked<u32>, n, packet| {
            now += Duration::from_millis(1);
            let gone = parked.park(now, host(n), Awaited::EthernetHost, arrival, packet);
            gone.into_iter().map(|w| w.packet).collect::<Vec<_>>()
        };
        for packet in 0..4 {
            assert!(park(&mut parked, packet as u8 % 2, packet).is_empty());
        }
        assert_eq!(park(&mut parked, 9, 4), [0], "the destination with the longest wait makes room");
        assert_eq!(park(&mut parked, 9, 5), [2]);
        assert_eq!(park(&mut parked, 1, 6), [1], "and then its own");
        assert_eq!(parked.take(Awaited::EthernetHost, host(1)).len(), 2);
        assert_eq!((park(&mut parked, 0, 7), park(&mut parked, 8, 8)), (vec![], vec![]));
        assert_eq!(parked.clear().len(), 4);
        assert!(parked.is_empty() && parked.held == 0);
        parked.set_most(4096);
        let gone: Vec<_> = (0..=255).flat_map(|n| park(&mut parked, n, n.into())).collect();
        assert!(gone.is_empty());
        park(&mut parked, 0, 1000);
        let other = IpAddr::from([10, 0, 1, 0]);
        let gone = parked.park(start + PATIENCE, other, Awaited::EthernetHost, arrival, 2000);
        assert_eq!(
            gone.iter().map(|w| w.packet).collect::<Vec<_>>(),
            [0, 1000],
            "one destination for another"
        );
        assert_eq!((parked.waiting.len(), parked.order[0].len(), parked.held), (256, 256, 256));
        parked.expire(start + PATIENCE * 3);
        assert!(parked.is_empty() && parked.held == 0 && parked.order.iter().all(BTreeSet::is_empty));
        parked.set_most(0);
        assert_eq!(park(&mut parked, 3, 3), [3]);
        assert!(parked.is_empty() && parked.order.iter().all(BTreeSet::is_empty));
    }
}
