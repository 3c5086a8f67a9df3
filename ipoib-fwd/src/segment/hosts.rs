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
//!
//! A full table makes room by class: who never answered goes first, then whom no worker sends to, the longest unused
//! before the others. Hosts that carry traffic make room for nobody.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use serde::Serialize;

use crate::forward::MAX_NEIGHBOURS;
use ipoib::net::ethernet::MacAddress;

/// Time between two probes.
const RETRANSMIT: Duration = Duration::from_secs(1);
/// Probes before a neighbour counts as gone.
const PROBES: u8 = 3;
/// Most neighbours that are being asked for at once: a scan of the subnet must not push out those that are there.
const MAX_INCOMPLETE: usize = 512;
/// Most hosts without traffic that are known by one Ethernet address and were not asked for.
const UNUSED_EACH: u32 = 256;

/// Times of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ageing {
    /// How long what was heard is taken for true.
    pub reachable: Duration,
    /// How long an entry that nobody uses is kept after that.
    pub idle: Duration,
    /// How long an address that moves too often stays with its owner.
    pub hold: Duration,
}

impl Default for Ageing {
    /// The first two as Linux has them.
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { reachable: minute / 2, idle: minute, hold: minute }
    }
}

/// What befell the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct HostCounters {
    /// Hosts that had not answered yet and made room for others.
    pub evicted_unanswered: u64,
    /// Hosts without traffic that made room for others.
    pub evicted_unused: u64,
    /// Hosts for which there was no room.
    pub table_full: u64,
    /// Hosts that were not learnt because their sender names too many.
    pub sender_limited: u64,
}

/// An ARP request to send on the Ethernet side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Probe {
    /// Whom to ask for.
    pub(super) ip: IpAddr,
    /// Where to send it: the address known so far, or all stations.
    pub(super) to: MacAddress,
}

/// What happened to a neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostEvent {
    /// It is known, or has another address now.
    Set { ip: IpAddr, mac: MacAddress },
    /// It is not there, or had to make room.
    Gone { ip: IpAddr },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Incomplete { probes: u8 },
    Reachable,
    Stale,
    Probing { probes: u8 },
}

/// Who makes room for whom: the lower for the higher, and for its like.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    Unanswered,
    Unused,
    Used,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Option<MacAddress>,
    state: State,
    /// When the state's time is over.
    due: Instant,
    /// A worker sent to it since it was last confirmed.
    used: bool,
    class: Class,
    /// Since when it is in its class, or was last used.
    touched: Instant,
}

/// A host, as `ctl neighbours` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostInfo {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its Ethernet address, if it has answered.
    pub mac: Option<MacAddress>,
    /// Name of the state that it is in.
    pub state: &'static str,
    /// Packets that wait for it.
    pub waiting: usize,
}

/// The table. Every step costs the logarithm of its size at most.
#[derive(Debug)]
pub(super) struct Hosts {
    ageing: Ageing,
    entries: HashMap<IpAddr, Entry, FixedState>,
    due: BTreeSet<(Instant, IpAddr)>,
    /// Who makes room first.
    order: BTreeSet<(Class, Instant, IpAddr)>,
    /// Unused hosts by Ethernet address.
    unused: HashMap<MacAddress, u32, FixedState>,
    incomplete: usize,
    probes: VecDeque<Probe>,
    events: VecDeque<HostEvent>,
    counters: HostCounters,
}

impl Hosts {
    /// An empty table; `seed` is drawn at start.
    pub(super) fn new(seed: u64, ageing: Ageing) -> Self {
        Self {
            ageing,
            entries: HashMap::with_hasher(FixedState::with_seed(seed)),
            due: BTreeSet::new(),
            order: BTreeSet::new(),
            unused: HashMap::with_hasher(FixedState::with_seed(seed.rotate_left(17))),
            incomplete: 0,
            probes: VecDeque::new(),
            events: VecDeque::new(),
            counters: HostCounters::default(),
        }
    }

    /// Hosts that nobody sends to are forgotten after another time from now on.
    pub(super) const fn set_idle(&mut self, idle: Duration) {
        self.ageing.idle = idle;
    }

    /// The address of a host that has answered.
    pub(super) fn get(&self, ip: IpAddr) -> Option<MacAddress> {
        self.entries.get(&ip)?.mac
    }

    /// True if a host is known or asked for.
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.entries.contains_key(&ip)
    }

    /// How many hosts are known or asked for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) const fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// All hosts, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = HostInfo> {
        self.entries.iter().map(|(ip, entry)| HostInfo {
            ip: *ip,
            mac: entry.mac,
            state: match entry.state {
                State::Incomplete { .. } => "incomplete",
                State::Reachable => "reachable",
                State::Stale => "stale",
                State::Probing { .. } => "probing",
            },
            waiting: 0,
        })
    }

    /// A host told its address, already validated. Answers false if there is no room for it. Whom nobody asked for is
    /// learnt within limits.
    pub(super) fn learn(&mut self, now: Instant, ip: IpAddr, mac: MacAddress) -> bool {
        let due = now + self.ageing.reachable;
        if let Some(mut entry) = self.take(ip) {
            let changed = entry.mac.replace(mac) != Some(mac);
            (entry.state, entry.due, entry.used) = (State::Reachable, due, false);
            if entry.class == Class::Unanswered {
                // Traffic asked for it.
                (entry.class, entry.touched) = (Class::Used, now);
            }
            self.put(ip, entry);
            if changed {
                self.events.push_back(HostEvent::Set { ip, mac });
            }
            return true;
        }
        if self.unused.get(&mac).is_some_and(|n| *n >= UNUSED_EACH) {
            self.counters.sender_limited += 1;
            return false;
        }
        if !self.make_room(Class::Unused) {
            return false;
        }
        let entry = Entry {
            mac: Some(mac),
            state: State::Reachable,
            due,
            used: false,
            class: Class::Unused,
            touched: now,
        };
        self.put(ip, entry);
        self.events.push_back(HostEvent::Set { ip, mac });
        true
    }

    /// The host is no host of this side any more.
    pub(super) fn forget(&mut self, ip: IpAddr) {
        if self.take(ip).is_some() {
            self.events.push_back(HostEvent::Gone { ip });
        }
    }

    /// Asks for a host that is not known; does nothing if it is known or asked for already. Answers false if there is
    /// no room.
    pub(super) fn resolve(&mut self, now: Instant, ip: IpAddr) -> bool {
        if self.entries.contains_key(&ip) {
            return true;
        }
        // Of those that are asked for, the oldest has had the most time to answer.
        if self.incomplete >= MAX_INCOMPLETE {
            self.evict_first();
        }
        if !self.make_room(Class::Unused) {
            return false;
        }
        let due = now + RETRANSMIT;
        let state = State::Incomplete { probes: 1 };
        self.put(ip, Entry { mac: None, state, due, used: true, class: Class::Unanswered, touched: now });
        self.probes.push_back(Probe { ip, to: MacAddress::BROADCAST });
        true
    }

    /// A worker sent to this host since it was last asked.
    pub(super) fn note_used(&mut self, now: Instant, ip: IpAddr) {
        let Some(mut entry) = self.take(ip) else { return };
        entry.used = true;
        if let Some(to) = entry.mac {
            (entry.class, entry.touched) = (Class::Used, now);
            if entry.state == State::Stale {
                (entry.state, entry.due) = (State::Probing { probes: 1 }, now + RETRANSMIT);
                self.probes.push_back(Probe { ip, to });
            }
        }
        self.put(ip, entry);
    }

    /// The next ARP request to send.
    pub(super) fn poll_transmit(&mut self) -> Option<Probe> {
        self.probes.pop_front()
    }

    /// What happened next.
    pub(super) fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] wants to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Lets time pass.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, ip)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            let Some(mut entry) = self.take(ip) else { return };
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
                    (entry.state, entry.due) = (State::Stale, now + self.ageing.idle);
                    (entry.class, entry.touched) = (Class::Unused, now);
                    self.put(ip, entry);
                    continue;
                }
                State::Incomplete { .. } | State::Probing { .. } | State::Stale => {
                    self.events.push_back(HostEvent::Gone { ip });
                    continue;
                }
            };
            entry.due = now + RETRANSMIT;
            self.probes.extend(probe.map(|to| Probe { ip, to }));
            self.put(ip, entry);
        }
    }

    /// Sees to it that there is room for one more of a class.
    fn make_room(&mut self, class: Class) -> bool {
        if self.entries.len() < MAX_NEIGHBOURS {
            return true;
        }
        if self.order.first().is_none_or(|(first, ..)| *first > class) {
            self.counters.table_full += 1;
            return false;
        }
        self.evict_first();
        true
    }

    fn evict_first(&mut self) {
        let Some((class, _, ip)) = self.order.first().copied() else { return };
        match class {
            Class::Unanswered => self.counters.evicted_unanswered += 1,
            Class::Unused | Class::Used => self.counters.evicted_unused += 1,
        }
        self.forget(ip);
    }

    /// Takes an entry out of all indices; [`Self::put`] brings it back.
    fn take(&mut self, ip: IpAddr) -> Option<Entry> {
        let entry = self.entries.remove(&ip)?;
        self.due.remove(&(entry.due, ip));
        self.order.remove(&(entry.class, entry.touched, ip));
        self.incomplete -= usize::from(entry.class == Class::Unanswered);
        if let (Class::Unused, Some(mac)) = (entry.class, entry.mac)
            && let Some(n) = self.unused.get_mut(&mac)
        {
            *n -= 1;
            if *n == 0 {
                self.unused.remove(&mac);
            }
        }
        Some(entry)
    }

    fn put(&mut self, ip: IpAddr, entry: Entry) {
        self.due.insert((entry.due, ip));
        self.order.insert((entry.class, entry.touched, ip));
        self.incomplete += usize::from(entry.class == Class::Unanswered);
        if let (Class::Unused, Some(mac)) = (entry.class, entry.mac) {
            *self.unused.entry(mac).or_default() += 1;
        }
        self.entries.insert(ip, entry);
    }
}

/// Which of `workers` answers for an Ethernet host on the InfiniBand side, 0 to `workers` - 1. The same for the life
/// of the gateway, so that a host's traffic stays on one worker.
#[must_use]
pub fn worker_of(ip: IpAddr, workers: u8) -> u8 {
    let hash = match ip {
        IpAddr::V4(ip) => FixedState::with_seed(0).hash_one(ip.to_bits()),
        IpAddr::V6(ip) => FixedState::with_seed(0).hash_one(ip.to_bits()),
    };
    // The upper half of a product with the hash's upper bits is even without a division.
    (((hash >> 32) * u64::from(workers)) >> 32) as u8
}
