//! The client itself.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use ib_wire::mad::{Mad, MadAddress, Method, MgmtClass};
use ib_wire::sa::{
    CLASS_VERSION, CapabilityMask2, ClassPortInfo, InformInfo, JoinState, McMask, McMemberRecord, Notice,
    NumbPath, PathMask, PathRecord, Record, SaMad, trap,
};
use ib_wire::{Gid, Tid};

use super::groups::{Group, Progress, join_request, join_state};
use super::paths::PathCache;
use super::{Config, Event, Failure, GroupState, JoinKind, Lookup, SaError, SaPort};
use crate::Path;
use crate::agent::{Agent, Handled, RequestId, answer};
use crate::timers::Timers;

/// Notices that wait for the owner at most; more are dropped.
const MAX_NOTICES: usize = 256;

/// What an outstanding request is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Path(Gid),
    Join(Gid),
    Leave,
    Subscribe(u16),
    ClassPortInfo,
}

/// A wish whose time for another try comes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Wish {
    Group(Gid),
    Trap(u16),
}

/// A client of subnet administration.
#[derive(Debug)]
pub struct SaClient {
    config: Config,
    agent: Agent,
    port: Option<SaPort>,
    purposes: HashMap<RequestId, Purpose>,
    paths: PathCache,
    groups: BTreeMap<Gid, Group>,
    broadcast: Option<Gid>,
    traps: BTreeMap<u16, Progress>,
    timers: Timers<Wish>,
    /// `None` until the SA has said what it can, or has failed to.
    send_only_full_member: Option<bool>,
    events: VecDeque<Event>,
    notices: usize,
    dropped: u64,
}

impl SaClient {
    /// A client that knows nothing yet, its port down.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            agent: Agent::new(config.seed, config.max_outstanding),
            port: None,
            purposes: HashMap::new(),
            paths: PathCache::new(config.max_paths),
            groups: BTreeMap::new(),
            broadcast: None,
            traps: BTreeMap::new(),
            timers: Timers::new(),
            send_only_full_member: None,
            events: VecDeque::new(),
            notices: 0,
            dropped: 0,
            config,
        }
    }

    /// Says what the port is now; `None` while it is not active. A change makes everything be asked anew.
    pub fn set_port(&mut self, now: Instant, port: Option<SaPort>) {
        if self.port != port {
            self.port = port;
            self.reregister(now);
        }
    }

    /// The subnet manager has forgotten us, or asks us to register anew: paths are dropped, groups joined again,
    /// subscriptions renewed.
    pub fn reregister(&mut self, now: Instant) {
        let ids: Vec<RequestId> = self.purposes.keys().copied().collect();
        for id in ids {
            self.agent.cancel(id);
        }
        self.purposes.clear();
        let mut asked: Vec<Gid> = self.paths.pending.drain().map(|(dgid, _)| dgid).collect();
        asked.sort_unstable();
        for dgid in asked {
            self.events.push_back(Event::PathFailed { dgid, failure: Failure::PortDown });
        }
        self.invalidate_paths();
        self.send_only_full_member = None;
        for (mgid, group) in &mut self.groups {
            if group.joined.take().is_some() {
                self.events.push_back(Event::Lost { mgid: *mgid });
            }
            self.timers.set(Wish::Group(*mgid), &mut group.progress.deadline, None);
            group.progress = Progress::NEW;
        }
        for (number, progress) in &mut self.traps {
            self.timers.set(Wish::Trap(*number), &mut progress.deadline, None);
            *progress = Progress::NEW;
        }
        self.push_on(now);
    }

    /// The path to a port, from the cache or by asking.
    pub fn path(&mut self, now: Instant, dgid: Gid) -> Result<Lookup, SaError> {
        if let Some(path) = self.paths.get(dgid) {
            return Ok(Lookup::Known(path));
        }
        if self.paths.pending.contains_key(&dgid) {
            return Ok(Lookup::Pending);
        }
        let port = self.port.ok_or(SaError::PortDown)?;
        let record = PathRecord {
            dgid,
            sgid: port.gid,
            numb_path: NumbPath::new(1),
            pkey: self.config.pkey,
            traffic_class: self.config.traffic_class,
            ..PathRecord::default()
        };
        let mask =
            PathMask::DGID | PathMask::SGID | PathMask::NUMB_PATH | PathMask::TRAFFIC_CLASS | PathMask::PKEY;
        let id =
            self.ask(now, Method::Get, mask.bits(), &record, Purpose::Path(dgid)).ok_or(SaError::Busy)?;
        self.paths.pending.insert(dgid, id);
        Ok(Lookup::Pending)
    }

    /// Forgets the path to a port.
    pub fn invalidate_path(&mut self, dgid: Gid) {
        if self.paths.remove(dgid) {
            self.events.push_back(Event::PathInvalid { dgid: Some(dgid) });
        }
    }

    /// Forgets all paths.
    pub fn invalidate_paths(&mut self) {
        if self.paths.len() > 0 {
            self.paths.clear();
            self.events.push_back(Event::PathInvalid { dgid: None });
        }
    }

    /// Wishes to be in a group. Joining again with another kind changes the kind (a sender becomes a member).
    pub fn join(&mut self, now: Instant, mgid: Gid, kind: JoinKind) -> Result<(), SaError> {
        if !mgid.is_multicast() {
            return Err(SaError::NotMulticast(mgid));
        }
        if self.groups.get(&mgid).is_some_and(|g| g.kind == kind) {
            return Ok(());
        }
        if !self.groups.contains_key(&mgid) && self.groups.len() >= self.config.max_groups {
            return Err(SaError::GroupsFull(self.config.max_groups));
        }
        self.forget_group(mgid);
        self.groups.insert(mgid, Group::new(kind));
        if kind == JoinKind::Broadcast {
            self.broadcast = Some(mgid);
        }
        self.push_on(now);
        Ok(())
    }

    /// Leaves a group; no event follows.
    pub fn leave(&mut self, now: Instant, mgid: Gid) {
        let Some(group) = self.forget_group(mgid) else { return };
        if self.broadcast == Some(mgid) {
            self.broadcast = None;
        }
        let Some(port) = self.port else { return };
        // A join that is still under way may have reached the SA: take that back too.
        let join_state = match (group.joined, group.progress.request) {
            (Some(record), _) => record.join_state,
            (None, Some(_)) => join_state(group.kind, self.send_only_full_member == Some(true)),
            (None, None) => return,
        };
        let record = McMemberRecord { mgid, port_gid: port.gid, join_state, ..McMemberRecord::default() };
        let mask = McMask::MGID | McMask::PORT_GID | McMask::JOIN_STATE;
        if self.ask(now, Method::Delete, mask.bits(), &record, Purpose::Leave).is_none() {
            self.dropped += 1;
        }
    }

    /// How far a group is.
    #[must_use]
    pub fn group(&self, mgid: Gid) -> Option<GroupState> {
        self.groups.get(&mgid).map(Group::state)
    }

    /// The groups that are wished for.
    pub fn groups(&self) -> impl Iterator<Item = (Gid, GroupState)> + '_ {
        self.groups.iter().map(|(mgid, g)| (*mgid, g.state()))
    }

    /// Wishes to hear of a trap (see [`trap`]).
    pub fn subscribe(&mut self, now: Instant, trap_number: u16) {
        self.traps.entry(trap_number).or_insert(Progress::NEW);
        self.push_on(now);
    }

    /// Takes a datagram of class SA.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) {
        let header = mad.header();
        if header.class != MgmtClass::SubnAdm || header.class_version != CLASS_VERSION {
            self.dropped += 1;
            return;
        }
        match self.agent.handle_mad(mad) {
            Handled::Response(id) => {
                let Some(purpose) = self.purposes.remove(&id) else { return };
                let sa = SaMad::parse(&mad.bytes);
                let outcome =
                    if header.status.is_ok() { Ok(&sa) } else { Err(Failure::Refused(header.status)) };
                self.answered(now, purpose, outcome);
            }
            Handled::Unsolicited if header.method == Method::Report => self.on_report(mad),
            Handled::Unsolicited | Handled::Stray => self.dropped += 1,
            Handled::Busy => {}
        }
    }

    /// The next datagram to send from QP1.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.agent.poll_transmit()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if matches!(event, Some(Event::Notice { .. })) {
            self.notices = self.notices.saturating_sub(1);
        }
        event
    }

    /// When [`SaClient::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.agent.poll_timeout(), self.timers.next()].into_iter().flatten().min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.agent.handle_timeout(now);
        while let Some(id) = self.agent.poll_expired() {
            if let Some(purpose) = self.purposes.remove(&id) {
                self.answered(now, purpose, Err(Failure::TimedOut));
            }
        }
        while let Some(wish) = self.timers.pop_due(now) {
            let progress = match wish {
                Wish::Group(mgid) => self.groups.get_mut(&mgid).map(|g| &mut g.progress),
                Wish::Trap(number) => self.traps.get_mut(&number),
            };
            if let Some(progress) = progress {
                progress.deadline = None;
            }
        }
        self.push_on(now);
    }

    /// Datagrams dropped: not of this class, late answers, reports of strangers or beyond what the owner takes.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Requests outstanding.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.agent.outstanding()
    }

    /// Paths in the cache.
    #[must_use]
    pub fn cached_paths(&self) -> usize {
        self.paths.len()
    }

    fn ask<R: Record>(
        &mut self,
        now: Instant,
        method: Method,
        mask: u64,
        record: &R,
        purpose: Purpose,
    ) -> Option<RequestId> {
        let port = self.port?;
        let mut peer = MadAddress::gsi(port.sm_lid, port.sm_sl);
        peer.pkey_index = self.config.pkey_index;
        let bytes = SaMad::request(method, Tid(0), mask, record).to_bytes();
        let id = self.agent.request(now, Mad { peer, bytes }, self.config.attempts).ok()?;
        self.purposes.insert(id, purpose);
        Some(id)
    }

    /// Sends every request that nothing stands in the way of.
    fn push_on(&mut self, now: Instant) {
        if self.port.is_none() {
            return;
        }
        if self.send_only_full_member.is_none()
            && !self.purposes.values().any(|p| matches!(p, Purpose::ClassPortInfo))
            && self.groups.values().any(|g| g.kind == JoinKind::SendOnly)
        {
            let empty = ClassPortInfo::parse(&[0; ClassPortInfo::LEN]);
            self.ask(now, Method::Get, 0, &empty, Purpose::ClassPortInfo);
        }
        let idle = |p: &Progress| p.request.is_none() && p.deadline.is_none();
        let broadcast = self.broadcast.and_then(|b| self.groups.get(&b)?.joined);
        let ready: Vec<(Gid, JoinKind)> = self
            .groups
            .iter()
            .filter(|(_, g)| g.joined.is_none() && idle(&g.progress))
            .filter(|(_, g)| match g.kind {
                JoinKind::Broadcast => true,
                JoinKind::Full => broadcast.is_some(),
                JoinKind::SendOnly => broadcast.is_some() && self.send_only_full_member.is_some(),
            })
            .map(|(mgid, g)| (*mgid, g.kind))
            .collect();
        for (mgid, kind) in ready {
            self.send_join(now, mgid, kind, broadcast.as_ref());
        }
        let traps: Vec<u16> =
            self.traps.iter().filter(|(_, p)| idle(p) && !p.done).map(|(number, _)| *number).collect();
        for number in traps {
            let request =
                self.ask(now, Method::Set, 0, &InformInfo::trap(number, true), Purpose::Subscribe(number));
            if let Some(progress) = self.traps.get_mut(&number) {
                progress.request = request;
                if request.is_none() {
                    retry(&mut self.timers, now, Wish::Trap(number), progress);
                }
            }
        }
    }

    fn send_join(&mut self, now: Instant, mgid: Gid, kind: JoinKind, broadcast: Option<&McMemberRecord>) {
        let Some(port) = self.port else { return };
        let copied = if kind == JoinKind::Broadcast { None } else { broadcast };
        let send_only = self.send_only_full_member == Some(true);
        let (record, mask) = join_request(kind, mgid, port.gid, self.config.pkey, copied, send_only);
        let request = self.ask(now, Method::Set, mask.bits(), &record, Purpose::Join(mgid));
        if request.is_none() {
            self.join_failed(now, mgid, Failure::Busy);
        } else if let Some(group) = self.groups.get_mut(&mgid) {
            group.progress.request = request;
        }
    }

    fn answered(&mut self, now: Instant, purpose: Purpose, outcome: Result<&SaMad, Failure>) {
        match purpose {
            Purpose::Path(dgid) => self.on_path(dgid, outcome),
            Purpose::Join(mgid) => self.on_join(now, mgid, outcome),
            Purpose::Leave => {}
            Purpose::Subscribe(number) => {
                if let Some(progress) = self.traps.get_mut(&number) {
                    progress.request = None;
                    match outcome {
                        Ok(_) => progress.done = true,
                        Err(_) => retry(&mut self.timers, now, Wish::Trap(number), progress),
                    }
                }
            }
            Purpose::ClassPortInfo => {
                let info = outcome.ok().and_then(SaMad::record::<ClassPortInfo>);
                self.send_only_full_member =
                    Some(info.is_some_and(|i| {
                        i.capability_mask2.contains(CapabilityMask2::SEND_ONLY_FULL_MEMBER)
                    }));
            }
        }
        self.push_on(now);
    }

    fn on_path(&mut self, dgid: Gid, outcome: Result<&SaMad, Failure>) {
        self.paths.pending.remove(&dgid);
        let path = outcome.and_then(|sa| {
            sa.record::<PathRecord>().and_then(|r| Path::from_record(&r)).ok_or(Failure::BadRecord)
        });
        self.events.push_back(match path {
            Ok(path) => {
                self.paths.insert(dgid, path);
                Event::Path { dgid, path }
            }
            Err(failure) => Event::PathFailed { dgid, failure },
        });
    }

    fn on_join(&mut self, now: Instant, mgid: Gid, outcome: Result<&SaMad, Failure>) {
        let record = outcome.and_then(|sa| {
            sa.record::<McMemberRecord>()
                .filter(|r| r.mgid == mgid && r.mlid.is_multicast() && r.mtu.mtu().is_some())
                .ok_or(Failure::BadRecord)
        });
        let Some(group) = self.groups.get_mut(&mgid) else { return };
        group.progress.request = None;
        match record {
            Ok(mut record) => {
                group.progress.failures = 0;
                if record.join_state.is_empty() {
                    record.join_state = JoinState::FULL_MEMBER;
                }
                group.joined = Some(record);
                self.events.push_back(Event::Joined { record });
            }
            Err(failure) => self.join_failed(now, mgid, failure),
        }
    }

    fn join_failed(&mut self, now: Instant, mgid: Gid, failure: Failure) {
        let Some(group) = self.groups.get_mut(&mgid) else { return };
        retry(&mut self.timers, now, Wish::Group(mgid), &mut group.progress);
        self.events.push_back(Event::JoinFailed {
            mgid,
            failure,
            failures: group.progress.failures,
            retry_in: group.progress.backoff(),
        });
    }

    fn forget_group(&mut self, mgid: Gid) -> Option<Group> {
        let mut group = self.groups.remove(&mgid)?;
        self.timers.set(Wish::Group(mgid), &mut group.progress.deadline, None);
        if let Some(id) = group.progress.request {
            self.agent.cancel(id);
            self.purposes.remove(&id);
        }
        Some(group)
    }

    fn on_report(&mut self, mad: &Mad) {
        let sa = SaMad::parse(&mad.bytes);
        let from_sa = self.port.is_some_and(|p| p.sm_lid == mad.peer.lid);
        let (true, Some(notice)) = (from_sa, sa.record::<Notice>()) else {
            self.dropped += 1;
            return;
        };
        if let Some(answer) = answer(mad)
            && !self.agent.send(answer)
        {
            self.dropped += 1;
        }
        if let Some(gid) = notice.gid()
            && matches!(notice.trap_number, trap::GID_IN_SERVICE | trap::GID_OUT_OF_SERVICE)
        {
            self.invalidate_path(gid);
        }
        if self.notices < MAX_NOTICES {
            self.notices += 1;
            self.events.push_back(Event::Notice { notice: Box::new(notice) });
        } else {
            self.dropped += 1;
        }
    }
}

/// Schedules the next try of a wish that failed.
fn retry(timers: &mut Timers<Wish>, now: Instant, wish: Wish, progress: &mut Progress) {
    progress.failures = progress.failures.saturating_add(1);
    let at = now + progress.backoff();
    timers.set(wish, &mut progress.deadline, Some(at));
}
