//! Paths to peers' ports, asked of the subnet administration once per GID and kept until an event makes them doubtful.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use cm::Path;
use hca::{AddressVector, GlobalRoute, UdDestination};
use ib_wire::sa::{NumbPath, PathMask, PathRecord};
use ib_wire::{Gid, Lid, QKey, Qpn};

use super::ARP_FRAME_LEN;
use super::action::Action;
use super::machine::Link;
use super::settings::WorkerIndex;
use super::subnet::Purpose;
use super::timers::Timer;
use ib_wire::ipoib::{Arp, ArpOperation, ENCAPSULATION_LEN, EtherType, encapsulation};

/// ARP packets that wait for one path (Linux: `IPOIB_MAX_PATH_REC_QUEUE`).
const WAITING: usize = 3;
/// Path lookups under way at once; the rest waits its turn.
const OUTSTANDING: usize = 64;
/// How long a failed lookup is not repeated.
const HOLD: Duration = Duration::from_secs(1);
/// Least time between refreshing lookups of one path.
const REFRESH: Duration = Duration::from_secs(1);
/// A path that no neighbour needs is dropped at the next sweep.
pub(super) const SWEEP: Duration = Duration::from_secs(60);

/// An ARP packet that waits for a path.
#[derive(Clone, Copy, Debug)]
struct Parked {
    worker: WorkerIndex,
    qpn: Qpn,
    packet: Arp,
}

/// How a lookup stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lookup {
    /// None needed.
    Idle,
    /// In the queue of those that wait for others to end.
    Queued,
    /// The subnet administration has been asked.
    Asked,
    /// It has failed a moment ago; a timer ends the hold.
    Held,
}

/// An entry of the path cache.
#[derive(Debug)]
pub(super) struct PathEntry {
    path: Option<Path>,
    lookup: Lookup,
    asked_at: Instant,
    /// The LID that the peer was last seen to send from, if the path leads to another.
    seen: Option<Lid>,
    parked: ArrayVec<Parked, WAITING>,
}

/// The path cache.
#[derive(Debug, Default)]
pub(super) struct Paths {
    entries: std::collections::HashMap<Gid, PathEntry>,
    queue: VecDeque<Gid>,
    asked: usize,
}

impl Paths {
    pub(super) fn get(&self, gid: Gid) -> Option<&Path> {
        self.entries.get(&gid)?.path.as_ref()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Link {
    /// A datagram destination at the end of a path.
    pub(super) fn ud_destination(&self, path: &Path, qpn: Qpn, qkey: QKey) -> UdDestination {
        UdDestination { av: self.address_vector(path), qpn, qkey }
    }

    /// Sees to it that the path to `gid` is known or being looked up; false if there is no room for it.
    pub(super) fn want_path(&mut self, now: Instant, gid: Gid) -> bool {
        if !self.paths.entries.contains_key(&gid) {
            // Room for every neighbour's, and for some of those whom we only answer.
            if self.paths.entries.len() >= self.settings.max_neighbours.saturating_add(64) {
                self.sweep_paths();
                if self.paths.entries.len() >= self.settings.max_neighbours.saturating_add(64) {
                    return false;
                }
            }
            let entry = PathEntry {
                path: None,
                lookup: Lookup::Idle,
                asked_at: now,
                seen: None,
                parked: ArrayVec::new(),
            };
            self.paths.entries.insert(gid, entry);
            if self.timers.get(Timer::PathSweep).is_none() {
                self.timers.set(Timer::PathSweep, now + SWEEP);
            }
        }
        if self.paths.entries.get(&gid).is_some_and(|e| e.path.is_none() && e.lookup == Lookup::Idle) {
            self.look_up(now, gid);
        }
        true
    }

    /// Asks for a path again, now or as soon as that is allowed; the old one stays in use meanwhile.
    pub(super) fn refresh_path(&mut self, now: Instant, gid: Gid) {
        let Some(entry) = self.paths.entries.get(&gid) else { return };
        let due = entry.asked_at + REFRESH;
        match entry.lookup {
            Lookup::Idle if entry.path.is_none() || due <= now => self.look_up(now, gid),
            Lookup::Idle => self.timers.set(Timer::Path(gid), due),
            Lookup::Queued | Lookup::Asked | Lookup::Held => {}
        }
    }

    /// A datagram came from `gid` by another LID than we send to: perhaps the peer has moved. Until the subnet
    /// administration has said so, only answers go to that LID.
    pub(super) fn check_lid(&mut self, now: Instant, gid: Gid, slid: Lid) {
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return };
        let usable = slid != Lid(0) && !slid.is_multicast() && slid != Lid::PERMISSIVE;
        if usable && entry.path.is_some_and(|p| p.dlid != slid) {
            entry.seen = Some(slid);
            self.refresh_path(now, gid);
        }
    }

    /// Asks for every path again after a flush.
    pub(super) fn requery_paths(&mut self, now: Instant) {
        let all: Vec<_> =
            self.paths.entries.iter().filter(|(_, e)| e.lookup == Lookup::Idle).map(|(g, _)| *g).collect();
        for gid in all {
            self.look_up(now, gid);
        }
    }

    /// Takes lookups back and asks for every path again, after a light flush.
    pub(super) fn restart_lookups(&mut self, now: Instant) {
        self.sa_cancel_paths();
        self.paths.asked = 0;
        for entry in self.paths.entries.values_mut() {
            if entry.lookup == Lookup::Asked {
                entry.lookup = Lookup::Idle;
            }
        }
        self.requery_paths(now);
    }

    /// Forgets every path.
    pub(super) fn drop_paths(&mut self) {
        for (gid, entry) in self.paths.entries.drain() {
            self.counters.arp_dropped += entry.parked.len() as u64;
            self.timers.cancel(Timer::Path(gid));
        }
        self.paths.queue.clear();
        // Answers that are still to come find no entry.
        self.paths.asked = 0;
        self.sa_cancel_paths();
        self.timers.cancel(Timer::PathSweep);
    }

    /// Drops paths that no neighbour needs.
    pub(super) fn sweep_paths(&mut self) {
        let neighbours = &self.neighbours;
        let unused: Vec<_> = self
            .paths
            .entries
            .iter()
            .filter(|(gid, e)| matches!(e.lookup, Lookup::Idle | Lookup::Held) && !neighbours.uses_gid(**gid))
            .map(|(gid, _)| *gid)
            .collect();
        for gid in unused {
            self.paths.entries.remove(&gid);
            self.timers.cancel(Timer::Path(gid));
        }
    }

    pub(super) fn path_sweep_timeout(&mut self, now: Instant) {
        self.sweep_paths();
        if !self.paths.entries.is_empty() {
            self.timers.set(Timer::PathSweep, now + SWEEP);
        }
    }

    fn look_up(&mut self, now: Instant, gid: Gid) {
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return };
        entry.asked_at = now;
        self.timers.cancel(Timer::Path(gid));
        if !self.up || self.paths.asked >= OUTSTANDING {
            entry.lookup = Lookup::Queued;
            self.paths.queue.push_back(gid);
            return;
        }
        entry.lookup = Lookup::Asked;
        self.paths.asked += 1;
        self.counters.path_queries += 1;
        let record = PathRecord {
            dgid: gid,
            sgid: self.port.gid,
            numb_path: NumbPath::new(1),
            pkey: ib_wire::PKey(self.settings.pkey.0 | 0x8000),
            traffic_class: self.broadcast().map_or(0, |b| b.traffic_class),
            ..PathRecord::default()
        };
        let mask =
            PathMask::DGID | PathMask::SGID | PathMask::NUMB_PATH | PathMask::TRAFFIC_CLASS | PathMask::PKEY;
        self.sa_path(now, Purpose::Path(gid), &record, mask);
    }

    /// Starts lookups that waited for their turn.
    pub(super) fn next_lookups(&mut self, now: Instant) {
        while self.up && self.paths.asked < OUTSTANDING {
            let Some(gid) = self.paths.queue.pop_front() else { return };
            if self.paths.entries.get(&gid).is_some_and(|e| e.lookup == Lookup::Queued) {
                self.look_up(now, gid);
            }
        }
    }

    /// The subnet administration has answered a lookup, or has not.
    pub(super) fn path_answered(&mut self, now: Instant, gid: Gid, record: Option<PathRecord>) {
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return };
        if entry.lookup != Lookup::Asked {
            return;
        }
        self.paths.asked = self.paths.asked.saturating_sub(1);
        let parked = std::mem::take(&mut entry.parked);
        match record.as_ref().and_then(Path::from_record) {
            Some(path) => {
                // The key stays the GID that was asked for, whatever the answer says (ib_ipoib does the same).
                let path = Path { dgid: gid, sgid: self.port.gid, ..path };
                entry.lookup = Lookup::Idle;
                entry.seen = None;
                let before = entry.path.replace(path);
                for p in parked {
                    self.send_arp_by(&path, p.worker, p.qpn, &p.packet);
                }
                if before != Some(path) {
                    self.path_changed(now, gid, before.is_some_and(|b| b.dlid != path.dlid));
                }
            }
            None => {
                self.counters.path_failures += 1;
                self.counters.arp_dropped += parked.len() as u64;
                entry.lookup = Lookup::Held;
                self.timers.set(Timer::Path(gid), now + HOLD);
                self.path_failed(now, gid);
            }
        }
        self.next_lookups(now);
    }

    /// True if packets need a GRH; not where only our subnet's name has changed, for the peer may have dropped the old one.
    fn needs_grh(&self, path: &Path) -> bool {
        path.needs_grh() && (path.hop_limit > 1 || !self.own.is_left_behind(path.dgid))
    }

    /// The address vector of a path.
    pub(super) fn address_vector(&self, path: &Path) -> AddressVector {
        let bits = path.slid.0.wrapping_sub(self.port.lid.0);
        AddressVector {
            dlid: path.dlid,
            sl: path.sl,
            src_path_bits: if bits < 128 { bits as u8 } else { 0 },
            rate: path.rate,
            grh: self.needs_grh(path).then_some(GlobalRoute {
                dgid: path.dgid,
                sgid_index: 0,
                flow_label: path.flow_label.get(),
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
            }),
        }
    }

    /// A lookup could not be sent: it is tried again later.
    pub(super) fn hold_lookup(&mut self, now: Instant, gid: Gid) {
        self.paths.asked = self.paths.asked.saturating_sub(1);
        if let Some(entry) = self.paths.entries.get_mut(&gid) {
            entry.lookup = Lookup::Held;
            self.timers.set(Timer::Path(gid), now + HOLD);
        }
    }

    /// The hold of a failed lookup is over, or a refreshing one is due.
    pub(super) fn path_timeout(&mut self, now: Instant, gid: Gid) {
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return };
        match entry.lookup {
            Lookup::Held => {
                entry.lookup = Lookup::Idle;
                if entry.path.is_none() && self.neighbours.uses_gid(gid) {
                    self.look_up(now, gid);
                }
            }
            Lookup::Idle => self.look_up(now, gid),
            Lookup::Queued | Lookup::Asked => {}
        }
    }

    /// Sends an ARP packet to a host's datagram queue pair, as soon as the path is known.
    pub(super) fn send_arp(&mut self, now: Instant, worker: WorkerIndex, gid: Gid, qpn: Qpn, packet: Arp) {
        if !self.up || !self.want_path(now, gid) {
            self.counters.arp_dropped += 1;
            return;
        }
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return };
        match entry.path {
            Some(path) => {
                let path = Path { dlid: entry.seen.unwrap_or(path.dlid), ..path };
                self.send_arp_by(&path, worker, qpn, &packet);
            }
            None if entry.lookup == Lookup::Held => self.counters.arp_dropped += 1,
            None => {
                if entry.parked.try_push(Parked { worker, qpn, packet }).is_err() {
                    self.counters.arp_dropped += 1;
                }
            }
        }
    }

    fn send_arp_by(&mut self, path: &Path, worker: WorkerIndex, qpn: Qpn, packet: &Arp) {
        let Some(qkey) = self.qkey() else {
            self.counters.arp_dropped += 1;
            return;
        };
        let to = self.ud_destination(path, qpn, qkey);
        self.push_arp(worker, to, packet);
    }

    /// Sends an ARP packet to all.
    pub(super) fn broadcast_arp(&mut self, worker: WorkerIndex, packet: &Arp) {
        match self.broadcast_destination() {
            Some(to) if self.up => self.push_arp(worker, to, packet),
            _ => self.counters.arp_dropped += 1,
        }
    }

    fn push_arp(&mut self, worker: WorkerIndex, to: UdDestination, packet: &Arp) {
        match packet.operation {
            ArpOperation::Request => self.counters.arp_requests_sent += 1,
            ArpOperation::Reply => self.counters.arp_replies_sent += 1,
            // Made by parsing only.
            ArpOperation::Other(_) => return,
        }
        let bytes: Box<[u8; ARP_FRAME_LEN]> = Box::new(arp_frame(packet));
        self.actions.push_back(Action::SendUd { worker, to, bytes });
    }
}

/// The message that carries an ARP packet.
fn arp_frame(packet: &Arp) -> [u8; ARP_FRAME_LEN] {
    let mut frame = [0; ARP_FRAME_LEN];
    let (header, content) = frame.split_at_mut(ENCAPSULATION_LEN);
    header.copy_from_slice(&encapsulation(EtherType::Arp));
    content.copy_from_slice(&packet.to_bytes());
    frame
}
