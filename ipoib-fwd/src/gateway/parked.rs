//! Packets from Ethernet that wait for their destination in the fabric: few for each, and few altogether.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use pmd::mem::Mbuf;

use ipoib::link::WorkerIndex;

/// Packets that wait for one destination, as Linux has it for a path (IPOIB_MAX_PATH_REC_QUEUE).
const PER_DESTINATION: usize = 3;
/// Destinations that are waited for.
const DESTINATIONS: usize = 256;
/// How long a packet waits: after that its sender has sent it again.
const PATIENCE: Duration = Duration::from_secs(3);

/// A packet that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) worker: WorkerIndex,
    pub(super) packet: Mbuf,
    since: Instant,
}

/// All that wait, by destination.
#[derive(Debug, Default)]
pub(super) struct Parked {
    waiting: HashMap<Ipv4Addr, VecDeque<Waiting>>,
}

impl Parked {
    /// Keeps a packet, or hands one back that has to go: the oldest for this destination, or this one if there is no
    /// place for another destination.
    pub(super) fn park(
        &mut self,
        now: Instant,
        to: Ipv4Addr,
        worker: WorkerIndex,
        packet: Mbuf,
    ) -> Option<Mbuf> {
        if self.waiting.len() >= DESTINATIONS && !self.waiting.contains_key(&to) {
            return Some(packet);
        }
        let queue = self.waiting.entry(to).or_default();
        queue.push_back(Waiting { worker, packet, since: now });
        if queue.len() > PER_DESTINATION { queue.pop_front().map(|w| w.packet) } else { None }
    }

    /// Takes what waits for a destination.
    pub(super) fn take(&mut self, to: Ipv4Addr) -> VecDeque<Waiting> {
        self.waiting.remove(&to).unwrap_or_default()
    }

    /// Drops what has waited for too long; returns how many packets.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let mut dropped = 0;
        self.waiting.retain(|_, queue| {
            while queue.front().is_some_and(|w| now.duration_since(w.since) > PATIENCE) {
                queue.pop_front();
                dropped += 1;
            }
            !queue.is_empty()
        });
        dropped
    }

    /// Drops everything; returns how many packets.
    pub(super) fn clear(&mut self) -> usize {
        let dropped = self.waiting.values().map(VecDeque::len).sum();
        self.waiting.clear();
        dropped
    }
}
