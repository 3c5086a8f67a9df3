//! Hosts of the Ethernet side: learnt from ARP, aged, probed, and bounded (RFC 1122 2.3.2, RFC 4861 7.3 in spirit).
//!
//! ```text
//!            resolve            ARP heard                confirmed age out
//!  (unknown) ───────> Incomplete ───────> Reachable ─────────────────────> Stale
//!                      │ no answer          ▲   ▲  ARP heard                 │ used
//!                      ▼                    │   └────────────── Probing <────┘
//!                    Gone                   └────────────────────┘ │ no answer
//!                      ▲────────── unused for long, Stale          ▼
//!                      └───────────────────────────────────────── Gone
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use foldhash::fast::FixedState;

use super::tables::MAX_NEIGHBOURS;
use ipoib::net::ethernet::MacAddress;

/// Most packets that wait for one neighbour, as in Linux.
pub const PARKED: usize = 3;
/// Time between two probes.
const RETRANSMIT: Duration = Duration::from_secs(1);
/// Probes before a neighbour counts as gone.
const PROBES: u8 = 3;
/// Most neighbours that are being asked for at once: a scan of the subnet must not push out those that are there.
const MAX_INCOMPLETE: usize = 512;

/// Times of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ageing {
    /// How long what was heard is taken for true.
    pub reachable: Duration,
    /// How long an entry that nobody uses is kept after that.
    pub idle: Duration,
}

impl Default for Ageing {
    /// As Linux has it.
    fn default() -> Self {
        Self { reachable: Duration::from_secs(30), idle: Duration::from_secs(60) }
    }
}

/// An ARP request to send on the Ethernet side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Whom to ask for.
    pub ip: Ipv4Addr,
    /// Where to send it: the address known so far, or all stations.
    pub to: MacAddress,
}

/// What happened to a neighbour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NeighbourEvent<P> {
    /// It is known, or has another address now: publish it, and send what waited for it.
    Set {
        /// Its IPv4 address.
        ip: Ipv4Addr,
        /// Its Ethernet address.
        mac: MacAddress,
        /// Packets that waited, oldest first.
        parked: ArrayVec<P, PARKED>,
    },
    /// It is not there: take it out of the tables, and drop what waited for it.
    Gone {
        /// Its IPv4 address.
        ip: Ipv4Addr,
        /// Packets that waited, oldest first.
        parked: ArrayVec<P, PARKED>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Incomplete { probes: u8 },
    Reachable,
    Stale,
    Probing { probes: u8 },
}

#[derive(Debug)]
struct Entry<P> {
    mac: Option<MacAddress>,
    state: State,
    /// When the state's time is over.
    due: Instant,
    used: bool,
    parked: ArrayVec<P, PARKED>,
}

/// A host, as `ctl neighbours` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostInfo {
    /// Its IPv4 address.
    pub ip: Ipv4Addr,
    /// Its Ethernet address, if it has answered.
    pub mac: Option<MacAddress>,
    /// Name of the state that it is in.
    pub state: &'static str,
    /// Packets that wait for it.
    pub waiting: usize,
}

/// Why a packet was not parked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParkError {
    /// Enough wait already.
    QueueFull,
    /// The table is full.
    TableFull,
}

/// The table. `P` is a packet that waits for its destination to answer.
#[derive(Debug)]
pub struct EthernetNeighbours<P> {
    ageing: Ageing,
    entries: HashMap<Ipv4Addr, Entry<P>, FixedState>,
    incomplete: usize,
    probes: VecDeque<Probe>,
    events: VecDeque<NeighbourEvent<P>>,
    next_due: Option<Instant>,
}

impl<P> EthernetNeighbours<P> {
    /// An empty table; `seed` is drawn at start.
    #[must_use]
    pub fn new(seed: u64, ageing: Ageing) -> Self {
        Self {
            ageing,
            entries: HashMap::with_hasher(FixedState::with_seed(seed)),
            incomplete: 0,
            probes: VecDeque::new(),
            events: VecDeque::new(),
            next_due: None,
        }
    }

    /// The address of a host that has answered.
    #[must_use]
    pub fn get(&self, ip: Ipv4Addr) -> Option<MacAddress> {
        self.entries.get(&ip)?.mac
    }

    /// How many hosts are known or asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// All hosts, in no order.
    pub fn iter(&self) -> impl Iterator<Item = HostInfo> {
        self.entries.iter().map(|(ip, entry)| HostInfo {
            ip: *ip,
            mac: entry.mac,
            state: match entry.state {
                State::Incomplete { .. } => "incomplete",
                State::Reachable => "reachable",
                State::Stale => "stale",
                State::Probing { .. } => "probing",
            },
            waiting: entry.parked.len(),
        })
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A host told its address by ARP, already validated. Answers false if there is no room for it.
    pub fn learn(&mut self, now: Instant, ip: Ipv4Addr, mac: MacAddress) -> bool {
        let due = now + self.ageing.reachable;
        self.wake_by(due);
        if let Some(entry) = self.entries.get_mut(&ip) {
            if matches!(entry.state, State::Incomplete { .. }) {
                self.incomplete -= 1;
            }
            let changed = entry.mac.replace(mac) != Some(mac);
            (entry.state, entry.due, entry.used) = (State::Reachable, due, false);
            if changed {
                let parked = entry.parked.take();
                self.events.push_back(NeighbourEvent::Set { ip, mac, parked });
            }
            return true;
        }
        if self.entries.len() >= MAX_NEIGHBOURS {
            return false;
        }
        let entry =
            Entry { mac: Some(mac), state: State::Reachable, due, used: false, parked: ArrayVec::new() };
        self.entries.insert(ip, entry);
        self.events.push_back(NeighbourEvent::Set { ip, mac, parked: ArrayVec::new() });
        true
    }

    /// The host turned up on the other side, or its link went down.
    pub fn forget(&mut self, ip: Ipv4Addr) {
        if let Some(entry) = self.entries.remove(&ip) {
            self.incomplete -= usize::from(matches!(entry.state, State::Incomplete { .. }));
            self.events.push_back(NeighbourEvent::Gone { ip, parked: entry.parked });
        }
    }

    /// Asks for a host that is not known; does nothing if it is known or asked for already. Answers false if there is
    /// no room.
    pub fn resolve(&mut self, now: Instant, ip: Ipv4Addr) -> bool {
        if self.entries.contains_key(&ip) {
            return true;
        }
        if self.entries.len() >= MAX_NEIGHBOURS || self.incomplete >= MAX_INCOMPLETE {
            return false;
        }
        let due = now + RETRANSMIT;
        let state = State::Incomplete { probes: 1 };
        self.entries.insert(ip, Entry { mac: None, state, due, used: true, parked: ArrayVec::new() });
        self.incomplete += 1;
        self.probes.push_back(Probe { ip, to: MacAddress::BROADCAST });
        self.wake_by(due);
        true
    }

    /// Keeps a packet until its destination answers, asking for it if need be. If the destination has answered
    /// meanwhile, the packet comes back at once with a [`NeighbourEvent::Set`].
    pub fn park(&mut self, now: Instant, ip: Ipv4Addr, packet: P) -> Result<(), (P, ParkError)> {
        if !self.resolve(now, ip) {
            return Err((packet, ParkError::TableFull));
        }
        let Some(entry) = self.entries.get_mut(&ip) else { return Err((packet, ParkError::TableFull)) };
        if let Some(mac) = entry.mac {
            let parked = [packet].into_iter().collect();
            self.events.push_back(NeighbourEvent::Set { ip, mac, parked });
            return Ok(());
        }
        entry.parked.try_push(packet).map_err(|full| (full.element(), ParkError::QueueFull))
    }

    /// A worker sent to this host since it was last asked.
    pub fn note_used(&mut self, now: Instant, ip: Ipv4Addr) {
        let Some(entry) = self.entries.get_mut(&ip) else { return };
        entry.used = true;
        if let (State::Stale, Some(to)) = (entry.state, entry.mac) {
            (entry.state, entry.due) = (State::Probing { probes: 1 }, now + RETRANSMIT);
            self.probes.push_back(Probe { ip, to });
            self.wake_by(now + RETRANSMIT);
        }
    }

    /// The next ARP request to send.
    pub fn poll_transmit(&mut self) -> Option<Probe> {
        self.probes.pop_front()
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<NeighbourEvent<P>> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] wants to be called; not later than anything is due.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.next_due
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.next_due.is_none_or(|due| now < due) {
            return;
        }
        let ageing = self.ageing;
        let mut gone = Vec::new();
        for (ip, entry) in &mut self.entries {
            if now < entry.due {
                continue;
            }
            // The last probes before giving up go to all stations: the host may have another card.
            let probe = match entry.state {
                State::Incomplete { probes } if probes < PROBES => {
                    entry.state = State::Incomplete { probes: probes + 1 };
                    Some(MacAddress::BROADCAST)
                }
                State::Probing { probes } if probes < PROBES => {
                    entry.state = State::Probing { probes: probes + 1 };
                    if probes + 1 < PROBES { entry.mac } else { Some(MacAddress::BROADCAST) }
                }
                State::Reachable if entry.used => {
                    entry.state = State::Probing { probes: 1 };
                    entry.mac
                }
                State::Reachable => {
                    (entry.state, entry.due) = (State::Stale, now + ageing.idle);
                    continue;
                }
                State::Incomplete { .. } | State::Probing { .. } | State::Stale => {
                    gone.push(*ip);
                    continue;
                }
            };
            entry.due = now + RETRANSMIT;
            self.probes.extend(probe.map(|to| Probe { ip: *ip, to }));
        }
        for ip in gone {
            self.forget(ip);
        }
        self.next_due = self.entries.values().map(|e| e.due).min();
    }

    fn wake_by(&mut self, due: Instant) {
        self.next_due = Some(self.next_due.map_or(due, |at| at.min(due)));
    }
}

/// Which of `workers` answers for an Ethernet host on the InfiniBand side, 0 to `workers` - 1. The same for the life
/// of the gateway, so that a host's traffic stays on one worker.
#[must_use]
pub fn worker_of(ip: Ipv4Addr, workers: u8) -> u8 {
    let hash = FixedState::with_seed(0).hash_one(ip.to_bits());
    // The upper half of a product with the hash's upper bits is even without a division.
    (((hash >> 32) * u64::from(workers)) >> 32) as u8
}
