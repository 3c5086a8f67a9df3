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
}

impl<P> Default for Parked<P> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), destinations: [0; 3] }
    }
}

impl<P> Parked<P> {
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
        if !self.waiting.contains_key(&key) {
            if *count >= DESTINATIONS {
                return Some(new);
            }
            *count += 1;
        }
        let queue = self.waiting.entry(key).or_default();
        queue.push_back(new);
        if queue.len() > PER_DESTINATION { queue.pop_front() } else { None }
    }

    /// Takes what waits for a destination in one way; what [`Awaited::Connection`] holds does not matter.
    pub(super) fn take(&mut self, awaited: Awaited, to: IpAddr) -> VecDeque<Waiting<P>> {
        let taken = self.waiting.remove(&(awaited.kind(), to));
        if taken.is_some()
            && let Some(count) = self.destinations.get_mut(usize::from(awaited.kind()))
        {
            *count -= 1;
        }
        taken.unwrap_or_default()
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
        let destinations = &mut self.destinations;
        self.waiting.retain(|key, queue| {
            for _ in 0..queue.len() {
                let Some(waiting) = queue.pop_front() else { break };
                if which(key, &waiting) {
                    taken.push((key.1, waiting));
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

    /// How many packets wait for an Ethernet host.
    pub(super) fn waiting_for(&self, awaited: Awaited, to: IpAddr) -> usize {
        self.waiting.get(&(awaited.kind(), to)).map_or(0, VecDeque::len)
    }

    /// True if nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
