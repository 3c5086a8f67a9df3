//! Paths to peers' ports. The port's services look them up and cache them; ARP packets that wait for a path
//! are kept here.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use cm::Path;
use cm::port::{Ask, Outcome, PathQuery};
use hca::UdDestination;
use ib_wire::{Gid, Lid, Qpn};

use super::ARP_FRAME_LEN;
use super::action::Action;
use super::ground::Ground;
use super::groups::Groups;
use super::neighbours::NeighbourMap;
use super::outbox::Outbox;
use super::request::Request;
use super::settings::WorkerIndex;
use super::timers::Timer;
use ib_wire::ipoib::{Arp, ArpOperation, ENCAPSULATION_LEN, EtherType, encapsulation};

/// ARP packets that may always wait for one path (Linux: `IPOIB_MAX_PATH_REC_QUEUE`).
const WAITING: usize = 3;
/// ARP packets that may wait for one path while those beyond [`WAITING`] are at most [`EXTRA`] for all paths.
/// A host that opens connections to many others at once gets its replies from one port, and repeats its
/// requests only after a second.
const MOST_WAITING: usize = 64;
/// ARP packets beyond the first [`WAITING`] of their paths, over all paths of a
/// link: a quarter of a megabyte.
const EXTRA: usize = 4096;
/// Interval of the sweeps, which drop paths that no neighbour needs.
pub(super) const SWEEP: Duration = Duration::from_secs(60);
/// Ports that one LID may name before the first of them is found: enough for virtual functions that send at
/// the same time.
const NAMED: u32 = 16;
/// Paths that are examined to make room for one.
const SEARCH: usize = 64;

/// The reason for which a path is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// We send to the port, or have received an answer from it.
    Needed,
    /// A connection request that came by this LID was accepted. Its origin is not proven yet.
    Accepted(Lid),
    /// A packet from this LID claims to be from the port.
    Named(Lid),
}

impl Reason {
    /// The LID that names the port.
    const fn lid(self) -> Option<Lid> {
        match self {
            Self::Needed => None,
            Self::Accepted(lid) | Self::Named(lid) => Some(lid),
        }
    }
}

/// The paths that may be dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spare {
    /// Those that are not being looked up.
    Unused,
    /// Also those that are looked up only because a host named them.
    Rumoured,
}

/// An ARP packet that waits for a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parked {
    worker: WorkerIndex,
    qpn: Qpn,
    packet: Arp,
}

/// A path that the link uses, or wants to use.
#[derive(Debug, Default)]
pub(super) struct PathEntry {
    path: Option<Path>,
    /// An answer is pending.
    pending: bool,
    /// The LID of the packet that caused the lookup.
    named: Option<Lid>,
    /// A connection waits for the answer: the path is not dropped to make room.
    proves: bool,
    /// It is in the list of paths that may be unneeded.
    spare: bool,
    /// The peer was seen to send from another LID than the path leads to.
    doubtful: bool,
    /// Packets to send when the path is known. If it is doubtful: packets to send again if it has changed.
    parked: Vec<Parked>,
}

/// The paths of a link.
#[derive(Debug, Default)]
pub(super) struct Paths {
    entries: HashMap<Gid, PathEntry>,
    /// Paths that may be unneeded.
    spare: VecDeque<Gid>,
    /// Pending answers, by the LID that has named the port.
    named: HashMap<Lid, u32>,
    /// Parked packets beyond the first [`WAITING`] of their paths.
    extra: usize,
}

impl Paths {
    pub(super) fn get(&self, gid: Gid) -> Option<&Path> {
        self.entries.get(&gid)?.path.as_ref()
    }

    /// Stores a path.
    #[cfg(test)]
    pub(super) fn know(&mut self, path: Path) {
        self.entries.insert(path.dgid, PathEntry { path: Some(path), ..PathEntry::default() });
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Marks the path to this port as possibly unneeded.
    pub(super) fn set_spare(&mut self, gid: Gid) {
        if let Some(entry) = self.entries.get_mut(&gid)
            && !std::mem::replace(&mut entry.spare, true)
        {
            self.spare.push_back(gid);
        }
    }

    /// Keeps a packet for a path; false if there is no room for it.
    fn park(&mut self, gid: Gid, packet: Parked) -> bool {
        let Some(PathEntry { parked, .. }) = self.entries.get_mut(&gid) else { return false };
        // A host that repeats its request gets one answer.
        if parked.contains(&packet) {
            return true;
        }
        let is_extra = parked.len() >= WAITING;
        if is_extra && (parked.len() >= MOST_WAITING || self.extra >= EXTRA) {
            return false;
        }
        self.extra += usize::from(is_extra);
        parked.push(packet);
        true
    }

    /// Updates the count when the packets that were kept for a path are sent or dropped.
    const fn unpark(&mut self, parked: &[Parked]) {
        self.extra = self.extra.saturating_sub(parked.len().saturating_sub(WAITING));
    }

    /// True if the path to `gid` is known or pending, or may be looked up because of a request that came by
    /// `lid`.
    pub(super) fn may_look_up(&self, gid: Gid, lid: Lid) -> bool {
        self.entries.get(&gid).is_some_and(|entry| entry.path.is_some() || entry.pending)
            || !self.is_at_limit(lid)
    }

    /// True if the ports that a LID has named have reached the limit of simultaneous lookups.
    fn is_at_limit(&self, lid: Lid) -> bool {
        self.named.get(&lid).is_some_and(|n| *n >= NAMED)
    }

    /// Ends the accounting of a lookup that a packet caused.
    fn unname(&mut self, gid: Gid) {
        let lid = self.entries.get_mut(&gid).and_then(|entry| entry.named.take());
        if let Some(lid) = lid
            && let Some(n) = self.named.get_mut(&lid)
        {
            *n -= 1;
            if *n == 0 {
                self.named.remove(&lid);
            }
        }
    }
}

/// The paths, with the parts of the link that they need.
pub(super) struct Work<'a> {
    pub(super) paths: &'a mut Paths,
    pub(super) ground: &'a Ground,
    pub(super) groups: &'a Groups,
    pub(super) neighbours: &'a NeighbourMap,
    pub(super) out: &'a mut Outbox,
}

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Nothing new.
    Known,
    /// The path is known now, or has changed. `moved`: packets sent on the old path are lost.
    Changed { dlid: Lid, moved: bool },
    /// There is no path.
    Failed,
}

impl Work<'_> {
    /// Ensures that the path to `gid` is known or pending; false if there is no room for it, or if the limit
    /// for `reason` is reached.
    pub(super) fn want(&mut self, now: Instant, gid: Gid, reason: Reason) -> bool {
        let entry = self.paths.entries.get_mut(&gid);
        let known = entry.is_some();
        if let Some(entry) = entry.filter(|entry| entry.path.is_some() || entry.pending) {
            entry.proves |= entry.pending && matches!(reason, Reason::Accepted(_));
            // A path that becomes needed is looked up with priority from now on.
            if entry.named.is_some() && reason == Reason::Needed {
                self.paths.unname(gid);
                self.look_up(gid, Ask::Unknown);
            }
            return true;
        }
        if reason.lid().is_some_and(|lid| self.paths.is_at_limit(lid)) {
            self.out.counters.paths_limited += 1;
            return false;
        }
        if !known {
            // Room for every neighbour's path, and for some of hosts that we only answer.
            let most = self.ground.settings.max_neighbours.saturating_add(64);
            if self.paths.entries.len() >= most
                && self.drop_spare(SEARCH, 1, Spare::Unused) == 0
                && !(reason == Reason::Needed && self.drop_spare(SEARCH, 1, Spare::Rumoured) == 1)
            {
                return false;
            }
            self.paths.entries.insert(gid, PathEntry::default());
            self.paths.set_spare(gid);
            if self.out.timers.get(Timer::PathSweep).is_none() {
                self.out.timers.set(Timer::PathSweep, now + SWEEP);
            }
        }
        if self.ground.up {
            if let (Some(lid), Some(entry)) = (reason.lid(), self.paths.entries.get_mut(&gid)) {
                entry.named = Some(lid);
                entry.proves = matches!(reason, Reason::Accepted(_));
                *self.paths.named.entry(lid).or_default() += 1;
            }
            self.look_up(gid, if reason == Reason::Needed { Ask::Unknown } else { Ask::Rumoured });
        }
        true
    }

    fn look_up(&mut self, gid: Gid, ask: Ask) {
        if let Some(entry) = self.paths.entries.get_mut(&gid) {
            entry.pending = true;
            let query = PathQuery {
                sm: self.ground.sm(),
                key: self.ground.path_key(gid),
                sgid: self.ground.port.gid,
                traffic_class: self.groups.broadcast().map_or(0, |b| b.traffic_class),
            };
            self.out.counters.path_queries += 1;
            self.out.requests.push_back(Request::Path { query, ask });
        }
    }

    /// Looks a path up again, now or as soon as that is allowed; the old one stays in use until the answer.
    pub(super) fn refresh(&mut self, gid: Gid) {
        let pending = self.paths.entries.get(&gid).is_none_or(|e| e.pending);
        if !pending && self.ground.up {
            self.look_up(gid, Ask::Doubtful);
        }
    }

    /// Handles a datagram that came from `gid` by another LID than we send to: the peer may have moved, or
    /// another host may have sent it. Subnet administration knows; nothing is sent to that LID before its
    /// answer.
    pub(super) fn check_lid(&mut self, gid: Gid, slid: Lid) {
        let subnet = self.ground.port.subnet();
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return };
        let usable = slid != Lid(0) && !slid.is_multicast() && slid != Lid::PERMISSIVE;
        if usable && entry.path.is_some_and(|p| !subnet.is_same_port(p.dlid, slid)) {
            entry.doubtful = true;
            self.refresh(gid);
        }
    }

    /// Looks every path up again after a flush.
    pub(super) fn requery(&mut self) {
        let all: Vec<_> = self.paths.entries.keys().copied().collect();
        for gid in all {
            self.look_up(gid, Ask::Restart);
        }
    }

    /// Forgets every path.
    pub(super) fn drop_all(&mut self) {
        let Paths { entries, .. } = std::mem::take(self.paths);
        for (gid, entry) in entries {
            self.forgotten(gid, &entry);
        }
        self.out.timers.cancel(Timer::PathSweep);
    }

    fn forgotten(&mut self, gid: Gid, entry: &PathEntry) {
        self.paths.unpark(&entry.parked);
        // A packet that is parked with a known path has already been sent on it.
        if entry.path.is_none() {
            self.out.counters.arp_dropped += entry.parked.len() as u64;
        }
        let key = self.ground.path_key(gid);
        self.out.requests.push_back(Request::ForgetPath(key));
    }

    /// Drops up to `most` unneeded paths, of at most `search` candidates; returns how many.
    fn drop_spare(&mut self, search: usize, most: usize, which: Spare) -> usize {
        let mut dropped = 0;
        for _ in 0..search.min(self.paths.spare.len()) {
            let Some(gid) = self.paths.spare.pop_front() else { break };
            let Some(entry) = self.paths.entries.get_mut(&gid) else { continue };
            let is_rumour = entry.named.is_some() && !entry.proves;
            if entry.pending && !(which == Spare::Rumoured && is_rumour) {
                self.paths.spare.push_back(gid);
                continue;
            }
            entry.spare = false;
            if !self.neighbours.uses_gid(gid) {
                self.paths.unname(gid);
                let Some(entry) = self.paths.entries.remove(&gid) else { continue };
                self.forgotten(gid, &entry);
                dropped += 1;
                if dropped == most {
                    break;
                }
            }
        }
        dropped
    }

    pub(super) fn sweep_timeout(&mut self, now: Instant) {
        self.drop_spare(usize::MAX, usize::MAX, Spare::Unused);
        if !self.paths.entries.is_empty() {
            self.out.timers.set(Timer::PathSweep, now + SWEEP);
        }
    }

    /// Answers [`Request::Path`]; also comes unrequested if another link's request has brought a new path.
    pub(super) fn answered(&mut self, gid: Gid, outcome: Outcome<Path>) -> Answer {
        if outcome == Outcome::Silence {
            self.out.counters.sa_timeouts += 1;
        }
        self.paths.unname(gid);
        let subnet = self.ground.port.subnet();
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return Answer::Known };
        (entry.pending, entry.proves) = (false, false);
        let doubtful = std::mem::take(&mut entry.doubtful);
        let parked = std::mem::take(&mut entry.parked);
        self.paths.unpark(&parked);
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return Answer::Known };
        match outcome {
            Outcome::Granted(path) => {
                let before = entry.path.replace(path);
                let moved = before.is_some_and(|b| !subnet.is_same_port(b.dlid, path.dlid));
                if before.is_none() || (doubtful && moved) {
                    for p in parked {
                        self.send_arp_by(&path, p.worker, p.qpn, &p.packet);
                    }
                }
                if before == Some(path) { Answer::Known } else { Answer::Changed { dlid: path.dlid, moved } }
            }
            Outcome::Refused(_) | Outcome::Silence => {
                self.out.counters.path_failures += 1;
                if entry.path.is_some() {
                    return Answer::Known;
                }
                self.out.counters.arp_dropped += parked.len() as u64;
                Answer::Failed
            }
        }
    }

    /// Sends an ARP packet to a host's datagram queue pair, as soon as the path is known.
    pub(super) fn send_arp(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        (gid, qpn): (Gid, Qpn),
        packet: Arp,
        reason: Reason,
    ) {
        if !self.ground.up || !self.want(now, gid, reason) {
            self.out.counters.arp_dropped += 1;
            return;
        }
        let Some(entry) = self.paths.entries.get(&gid) else { return };
        let (path, doubtful) = (entry.path, entry.doubtful);
        // A copy is kept with a doubtful path: it is sent again if the peer turns out to have moved.
        let is_parked = (path.is_none() || doubtful) && self.paths.park(gid, Parked { worker, qpn, packet });
        match path {
            Some(path) => self.send_arp_by(&path, worker, qpn, &packet),
            None => self.out.counters.arp_dropped += u64::from(!is_parked),
        }
    }

    fn send_arp_by(&mut self, path: &Path, worker: WorkerIndex, qpn: Qpn, packet: &Arp) {
        let Some(qkey) = self.groups.qkey() else {
            self.out.counters.arp_dropped += 1;
            return;
        };
        let to = self.ground.ud_destination(path, qpn, qkey);
        self.push_arp(worker, to, packet);
    }

    /// Broadcasts an ARP packet.
    pub(super) fn broadcast_arp(&mut self, worker: WorkerIndex, packet: &Arp) {
        match self.groups.broadcast_destination() {
            Some(to) if self.ground.up => self.push_arp(worker, to, packet),
            _ => self.out.counters.arp_dropped += 1,
        }
    }

    fn push_arp(&mut self, worker: WorkerIndex, to: UdDestination, packet: &Arp) {
        match packet.operation {
            ArpOperation::Request => self.out.counters.arp_requests_sent += 1,
            ArpOperation::Reply => self.out.counters.arp_replies_sent += 1,
            // Only parsing produces it.
            ArpOperation::Other(_) => return,
        }
        let bytes: Box<[u8; ARP_FRAME_LEN]> = Box::new(arp_frame(packet));
        self.out.actions.push_back(Action::SendUd { worker, to, bytes });
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
