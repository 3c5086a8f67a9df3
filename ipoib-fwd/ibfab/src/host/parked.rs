//! Packets that wait for their destination's address, or, if too long for a datagram, for its connection.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use pmd::mem::Mbuf;

/// Most packets that wait for one destination.
const PER_DESTINATION: usize = 16;
/// Most destinations that packets wait for.
const DESTINATIONS: usize = 64;
/// How long a packet waits; its sender has retransmitted it by then.
const PATIENCE: Duration = Duration::from_secs(3);

/// Event that a packet waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum For {
    /// Its destination's address.
    Address,
    /// A connection to its destination.
    Connection,
}

#[derive(Debug)]
struct Queue {
    packets: VecDeque<Mbuf>,
    since: Instant,
}

/// All waiting packets, by next hop and event.
#[derive(Debug, Default)]
pub(super) struct Parked {
    queues: HashMap<(Ipv4Addr, For), Queue>,
}

impl Parked {
    /// Keeps a packet; returns it if there is no room.
    pub(super) fn park(&mut self, now: Instant, hop: Ipv4Addr, what: For, packet: Mbuf) -> Result<(), Mbuf> {
        let key = (hop, what);
        if self.queues.len() >= DESTINATIONS && !self.queues.contains_key(&key) {
            return Err(packet);
        }
        let queue = self.queues.entry(key).or_insert_with(|| Queue { packets: VecDeque::new(), since: now });
        if queue.packets.len() >= PER_DESTINATION {
            return Err(packet);
        }
        queue.packets.push_back(packet);
        Ok(())
    }

    /// True if packets wait for this event.
    pub(super) fn waits(&self, hop: Ipv4Addr, what: For) -> bool {
        self.queues.contains_key(&(hop, what))
    }

    /// True if no packet waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the events that packets wait for.
    pub(super) fn wanted(&self) -> Vec<(Ipv4Addr, For)> {
        self.queues.keys().copied().collect()
    }

    /// Takes the packets that wait for an event, oldest first.
    pub(super) fn take(&mut self, hop: Ipv4Addr, what: For) -> VecDeque<Mbuf> {
        self.queues.remove(&(hop, what)).map(|q| q.packets).unwrap_or_default()
    }

    /// Drops packets that have waited for too long; returns their number.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let late = |q: &Queue| now.saturating_duration_since(q.since) > PATIENCE;
        self.queues.extract_if(|_, q| late(q)).map(|(_, q)| q.packets.len()).sum()
    }
}
