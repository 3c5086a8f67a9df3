//! Paths to peers' ports as the link uses them. The port's services look them up and keep them; what waits for one is kept here.

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

/// ARP packets that may wait for one path in any case (Linux: `IPOIB_MAX_PATH_REC_QUEUE`).
const WAITING: usize = 3;
/// ARP packets that may wait for one path as long as those beyond [`WAITING`] are at most [`EXTRA`] for
/// all paths. A host that opens connections to many others at once gets its replies from one port, and
/// asks again only after a second.
const MOST_WAITING: usize = 64;
/// ARP packets beyond the first [`WAITING`] of their paths, over all paths of a
/// link: a quarter of a megabyte.
const EXTRA: usize = 4096;
/// A path that no neighbour needs is dropped at the next sweep.
pub(super) const SWEEP: Duration = Duration::from_secs(60);
/// Ports that one LID may name to us before the first of them is found: as many as virtual functions speak at once.
const NAMED: u32 = 16;
/// Paths that are looked at to make room for one.
const SEARCH: usize = 64;

/// Why a path is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// We send there, or have been answered from there.
    Needed,
    /// A connection from there was accepted, by a request that came by this LID. The
    /// request's origin is not proven yet.
    Accepted(Lid),
    /// Somebody at this LID says that it is there.
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

/// Which paths may be dropped.
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

/// A path that the link uses, or wants to.
#[derive(Debug, Default)]
pub(super) struct PathEntry {
    path: Option<Path>,
    /// An answer is still to come.
    asked: bool,
    /// The LID that had it asked for.
    named: Option<Lid>,
    /// A connection waits for the answer: it makes room for nothing.
    proves: bool,
    /// It is among those that may be needed no more.
    spare: bool,
    /// The peer was seen to send from another LID than the path leads to.
    doubtful: bool,
    /// What is to be sent when the path is known; where it is doubtful, what is to be sent again if it has changed.
    parked: Vec<Parked>,
}

/// The paths of a link.
#[derive(Debug, Default)]
pub(super) struct Paths {
    entries: HashMap<Gid, PathEntry>,
    /// Those that no neighbour may need.
    spare: VecDeque<Gid>,
    /// Answers to come, by the LID that has named the port.
    named: HashMap<Lid, u32>,
    /// Parked packets beyond the first [`WAITING`] of their paths.
    extra: usize,
}

impl Paths {
    pub(super) fn get(&self, gid: Gid) -> Option<&Path> {
        self.entries.get(&gid)?.path.as_ref()
    }

    /// Takes a path to be known.
    #[cfg(test)]
    pub(super) fn know(&mut self, path: Path) {
        self.entries.insert(path.dgid, PathEntry { path: Some(path), ..PathEntry::default() });
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Perhaps no neighbour needs the path to this port any more.
    pub(super) fn set_spare(&mut self, gid: Gid) {
        if let Some(entry) = self.entries.get_mut(&gid)
            && !std::mem::replace(&mut entry.spare, true)
        {
            self.spare.push_back(gid);
        }
    }

    /// Keeps a packet for a path. False if there is no room for it.
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

    /// The packets that were kept for a path have been sent or dropped.
    const fn unpark(&mut self, parked: &[Parked]) {
        self.extra = self.extra.saturating_sub(parked.len().saturating_sub(WAITING));
    }

    /// True if the path to `gid` is known or looked up, or may be because of a request that came by `lid`.
    pub(super) fn may_look_up(&self, gid: Gid, lid: Lid) -> bool {
        self.entries.get(&gid).is_some_and(|entry| entry.path.is_some() || entry.asked)
            || !self.is_at_limit(lid)
    }

    /// True if the ports that a LID has named are at the limit of lookups at once.
    fn is_at_limit(&self, lid: Lid) -> bool {
        self.named.get(&lid).is_some_and(|n| *n >= NAMED)
    }

    /// Nobody's word has the path asked for any more.
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

/// The paths at work: with what they need of the link.
pub(super) struct Work<'a> {
    pub(super) paths: &'a mut Paths,
    pub(super) ground: &'a Ground,
    pub(super) groups: &'a Groups,
    pub(super) neighbours: &'a NeighbourMap,
    pub(super) out: &'a mut Outbox,
}

/// What an answer to a lookup brings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Nothing new.
    Known,
    /// The path is known, or another one. `moved`: what was sent the old way gets lost.
    Changed { dlid: Lid, moved: bool },
    /// There is no path.
    Failed,
}

impl Work<'_> {
    /// Sees to it that the path to `gid` is known or being looked up; false if there is no room for it, or `reason` is not good enough.
    pub(super) fn want(&mut self, now: Instant, gid: Gid, reason: Reason) -> bool {
        let entry = self.paths.entries.get_mut(&gid);
        let known = entry.is_some();
        if let Some(entry) = entry.filter(|entry| entry.path.is_some() || entry.asked) {
            entry.proves |= entry.asked && matches!(reason, Reason::Accepted(_));
            // What was nobody's need so far is looked up before the others from now on.
            if entry.named.is_some() && reason == Reason::Needed {
                self.paths.unname(gid);
                self.ask(gid, Ask::Unknown);
            }
            return true;
        }
        if reason.lid().is_some_and(|lid| self.paths.is_at_limit(lid)) {
            self.out.counters.paths_limited += 1;
            return false;
        }
        if !known {
            // Room for every neighbour's, and for some of those whom we only answer.
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
            self.ask(gid, if reason == Reason::Needed { Ask::Unknown } else { Ask::Rumoured });
        }
        true
    }

    fn ask(&mut self, gid: Gid, ask: Ask) {
        if let Some(entry) = self.paths.entries.get_mut(&gid) {
            entry.asked = true;
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

    /// Asks for a path again, now or as soon as that is allowed; the old one stays in use meanwhile.
    pub(super) fn refresh(&mut self, gid: Gid) {
        let asked = self.paths.entries.get(&gid).is_none_or(|e| e.asked);
        if !asked && self.ground.up {
            self.ask(gid, Ask::Doubtful);
        }
    }

    /// A datagram came from `gid` by another LID than we send to: perhaps the peer has moved, perhaps the sender is somebody else.
    /// Subnet administration knows; nothing goes to that LID before it has said so.
    pub(super) fn check_lid(&mut self, gid: Gid, slid: Lid) {
        let subnet = self.ground.port.subnet();
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return };
        let usable = slid != Lid(0) && !slid.is_multicast() && slid != Lid::PERMISSIVE;
        if usable && entry.path.is_some_and(|p| !subnet.is_same_port(p.dlid, slid)) {
            entry.doubtful = true;
            self.refresh(gid);
        }
    }

    /// Asks for every path anew after a flush.
    pub(super) fn requery(&mut self) {
        let all: Vec<_> = self.paths.entries.keys().copied().collect();
        for gid in all {
            self.ask(gid, Ask::Restart);
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
        // What is parked beside a path was sent by it.
        if entry.path.is_none() {
            self.out.counters.arp_dropped += entry.parked.len() as u64;
        }
        let key = self.ground.path_key(gid);
        self.out.requests.push_back(Request::ForgetPath(key));
    }

    /// Drops up to `most` paths that no neighbour needs, of `search` that may be such; returns how many.
    fn drop_spare(&mut self, search: usize, most: usize, which: Spare) -> usize {
        let mut dropped = 0;
        for _ in 0..search.min(self.paths.spare.len()) {
            let Some(gid) = self.paths.spare.pop_front() else { break };
            let Some(entry) = self.paths.entries.get_mut(&gid) else { continue };
            let is_rumour = entry.named.is_some() && !entry.proves;
            if entry.asked && !(which == Spare::Rumoured && is_rumour) {
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

    /// Answers [`Request::Path`]; comes unasked too, where another link's request has brought something new.
    pub(super) fn answered(&mut self, gid: Gid, outcome: Outcome<Path>) -> Answer {
        if outcome == Outcome::Silence {
            self.out.counters.sa_timeouts += 1;
        }
        self.paths.unname(gid);
        let subnet = self.ground.port.subnet();
        let Some(entry) = self.paths.entries.get_mut(&gid) else { return Answer::Known };
        (entry.asked, entry.proves) = (false, false);
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
        // A copy is kept with a doubtful path: it is sent again if it turns out that the peer has moved.
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

    /// Sends an ARP packet to all.
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
            // Made by parsing only.
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
