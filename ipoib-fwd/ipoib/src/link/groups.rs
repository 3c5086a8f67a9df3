//! Multicast groups: the broadcast group first, then the others; joined again after events, with back-off.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use cm::port::Outcome;
use hca::{AddressVector, GlobalRoute, UdDestination};
use ib_wire::mad::MadStatus;
use ib_wire::sa::{JoinState, McMask, McMemberRecord, MtuCode, Selector, status};
use ib_wire::{Gid, Lid, Mtu, QKey, Qpn};

use super::action::Action;
use super::ground::Ground;
use super::outbox::{Outbox, Word};
use super::request::Request;
use super::settings::WorkerIndex;
use super::statistics::GroupInfo;
use super::timers::Timer;
use super::waiting::Waiting;
use ib_wire::ipoib::{GroupScope, broadcast_gid, multicast_gid};

/// First and largest delay between attempts to join (Linux: doubling up to 16 s).
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(16));

/// The groups that routers and services of a link use and whose packets stay on the link (224.0.0.0/24): all
/// systems, all routers, OSPF's two, RIP, EIGRP, PIM, VRRP, IGMPv3, GLBP and HSRPv2, mDNS, LLMNR.
///
/// Linux sends the packets of each to its own multicast group, which reaches only the members. A member
/// receives them, and its own packets reach the other members.
pub const LINK_LOCAL_GROUPS: [Ipv4Addr; 12] = [
    Ipv4Addr::new(224, 0, 0, 1),
    Ipv4Addr::new(224, 0, 0, 2),
    Ipv4Addr::new(224, 0, 0, 5),
    Ipv4Addr::new(224, 0, 0, 6),
    Ipv4Addr::new(224, 0, 0, 9),
    Ipv4Addr::new(224, 0, 0, 10),
    Ipv4Addr::new(224, 0, 0, 13),
    Ipv4Addr::new(224, 0, 0, 18),
    Ipv4Addr::new(224, 0, 0, 22),
    Ipv4Addr::new(224, 0, 0, 102),
    Ipv4Addr::new(224, 0, 0, 251),
    Ipv4Addr::new(224, 0, 0, 252),
];

/// The state of a join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Joining {
    /// No join is needed: joined, or the link is down.
    Idle,
    /// A request is pending.
    Requested,
    /// The next attempt waits for a timer.
    Delayed,
}

/// A group that the link is a member of, or wants to join.
#[derive(Debug)]
pub(super) struct Group {
    mgid: Gid,
    /// The group's parameters while we are a member. They stay in force while a re-join is under way.
    member: Option<McMemberRecord>,
    joining: Joining,
    /// The datagram queue pair is attached, or the device was requested to attach it.
    attached: bool,
    failures: u32,
    /// Consecutive attachments that the device has refused.
    refusals: u32,
    /// The reason for which the last attempt to join failed, if it did.
    failure: Option<Waiting>,
    /// The status of the last refusal.
    refused: MadStatus,
}

impl Group {
    const fn new(mgid: Gid) -> Self {
        Self {
            mgid,
            member: None,
            joining: Joining::Idle,
            attached: false,
            failures: 0,
            refusals: 0,
            failure: None,
            refused: MadStatus::OK,
        }
    }
}

/// The destination of datagrams to a group.
fn destination(record: &McMemberRecord, qkey: QKey) -> UdDestination {
    UdDestination {
        av: AddressVector {
            dlid: record.mlid,
            sl: record.sl,
            src_path_bits: 0,
            rate: record.rate,
            grh: Some(GlobalRoute {
                dgid: record.mgid,
                sgid_index: 0,
                flow_label: record.flow_label.get(),
                hop_limit: record.hop_limit,
                traffic_class: record.traffic_class,
            }),
        },
        qpn: Qpn::MULTICAST,
        qkey: Some(qkey),
    }
}

/// The groups of a link.
#[derive(Debug, Default)]
pub(super) struct Groups {
    map: HashMap<Ipv4Addr, Group>,
    /// The parameters with which the datagram queue pairs were opened.
    opened: Option<(u16, QKey)>,
    /// Groups whose leaving has not been answered.
    leaving: usize,
}

impl Groups {
    /// The broadcast group's parameters, if joined.
    pub(super) fn broadcast(&self) -> Option<&McMemberRecord> {
        self.map.get(&Ipv4Addr::BROADCAST)?.member.as_ref()
    }

    /// The Q_Key of the link: the broadcast group's (RFC 4391 4).
    pub(super) fn qkey(&self) -> Option<QKey> {
        self.broadcast().map(|b| b.qkey)
    }

    /// The destination of broadcasts.
    pub(super) fn broadcast_destination(&self) -> Option<UdDestination> {
        self.broadcast().map(|b| destination(b, b.qkey))
    }

    /// The destinations of datagrams to the other joined groups.
    pub(super) fn group_destinations(&self) -> Vec<(Ipv4Addr, UdDestination)> {
        let Some(qkey) = self.qkey() else { return Vec::new() };
        self.map
            .iter()
            .filter(|(ip, _)| **ip != Ipv4Addr::BROADCAST)
            .filter_map(|(ip, g)| g.member.as_ref().map(|m| (*ip, destination(m, qkey))))
            .collect()
    }

    /// The reason for which the broadcast group is not joined, once an attempt has failed.
    pub(super) fn broadcast_failure(&self) -> Option<Waiting> {
        self.map.get(&Ipv4Addr::BROADCAST).filter(|group| group.member.is_none())?.failure
    }

    /// All groups.
    pub(super) fn list(&self) -> Vec<GroupInfo> {
        let mut all: Vec<_> = self
            .map
            .iter()
            .map(|(ip, g)| GroupInfo {
                ip: *ip,
                mgid: g.mgid,
                mlid: g.member.map_or(Lid(0), |m| m.mlid).0,
                state: match (g.member.is_some(), g.joining) {
                    (true, Joining::Idle) => "joined",
                    (true, _) => "rejoining",
                    (false, Joining::Idle) => "waiting",
                    (false, Joining::Requested) => "joining",
                    (false, Joining::Delayed) => "backing_off",
                },
            })
            .collect();
        all.sort_by_key(|g| g.ip);
        all
    }

    /// True while the answer to a leave request is pending.
    pub(super) const fn is_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// Largest datagram, encapsulation header included, on a port with this MTU.
    pub(super) fn ud_mtu(&self, port: Mtu) -> u32 {
        let of_group = self.broadcast().and_then(|b: &McMemberRecord| MtuCode::mtu(b.mtu));
        of_group.map_or(0, |group| group.min(port).bytes() as u32)
    }
}

/// The groups, with the parts of the link that they need.
pub(super) struct Work<'a> {
    pub(super) groups: &'a mut Groups,
    pub(super) ground: &'a Ground,
    pub(super) out: &'a mut Outbox,
}

impl Work<'_> {
    /// Joins an IPv4 group for as long as the link exists; false if `group` is no group or the limit is
    /// reached.
    pub(super) fn join(&mut self, group: Ipv4Addr) -> bool {
        if self.ground.is_shutting_down() {
            return false;
        }
        let scope = GroupScope::new(self.ground.settings.scope);
        let mgid = multicast_gid(IpAddr::V4(group), self.ground.settings.pkey, scope);
        let (Some(mgid), true) = (mgid, group.is_multicast()) else { return false };
        if self.groups.map.contains_key(&group) {
            return true;
        }
        if self.groups.map.len() > self.ground.settings.max_groups {
            return false;
        }
        self.groups.map.insert(group, Group::new(mgid));
        self.request_join(group);
        true
    }

    /// Leaves a group.
    pub(super) fn leave(&mut self, group: Ipv4Addr) {
        if group == Ipv4Addr::BROADCAST {
            return;
        }
        if let Some(left) = self.groups.map.remove(&group) {
            self.out.timers.cancel(Timer::Group(group));
            self.leave_group(group, &left);
        }
    }

    /// Detaches from a group and sends a leave request to subnet administration.
    fn leave_group(&mut self, ip: Ipv4Addr, group: &Group) {
        if let Some(member) = &group.member {
            if group.attached {
                self.out.actions.push_back(Action::DetachMulticast {
                    worker: WorkerIndex(0),
                    mgid: group.mgid,
                    mlid: member.mlid,
                });
            }
            self.out.state_dirty = true;
        }
        // A pending join may still succeed, so it is undone as well.
        if self.ground.port_usable() && (group.member.is_some() || group.joining == Joining::Requested) {
            let record = McMemberRecord {
                mgid: group.mgid,
                port_gid: self.ground.port.gid,
                join_state: JoinState::FULL_MEMBER,
                ..McMemberRecord::default()
            };
            let mask = McMask::MGID | McMask::PORT_GID | McMask::JOIN_STATE;
            self.groups.leaving += 1;
            self.out.requests.push_back(Request::Leave { group: ip, sm: self.ground.sm(), record, mask });
        }
    }

    /// Leaves all groups for a shutdown.
    pub(super) fn leave_all(&mut self) {
        for (ip, group) in std::mem::take(&mut self.groups.map) {
            self.out.timers.cancel(Timer::Group(ip));
            self.leave_group(ip, &group);
        }
    }

    /// Joins the broadcast group; its answer triggers the joins of all others.
    pub(super) fn join_all(&mut self) {
        if self.ground.is_shutting_down() {
            return;
        }
        let mgid = broadcast_gid(self.ground.settings.pkey, GroupScope::new(self.ground.settings.scope));
        self.groups.map.entry(Ipv4Addr::BROADCAST).or_insert_with(|| Group::new(mgid));
        for group in self.groups.map.values_mut() {
            group.failures = 0;
            group.failure = None;
        }
        self.request_join(Ipv4Addr::BROADCAST);
    }

    /// Cancels pending joins; they will be sent again.
    pub(super) fn restart(&mut self) {
        for (ip, group) in &mut self.groups.map {
            if std::mem::replace(&mut group.joining, Joining::Idle) == Joining::Requested {
                self.out.requests.push_back(Request::CancelJoin(*ip));
            }
        }
    }

    /// Forgets all memberships: the port has gone down, and the subnet manager's state with it.
    pub(super) fn drop_all(&mut self) {
        for (ip, group) in &mut self.groups.map {
            self.out.timers.cancel(Timer::Group(*ip));
            if std::mem::replace(&mut group.joining, Joining::Idle) == Joining::Requested {
                self.out.requests.push_back(Request::CancelJoin(*ip));
            }
            let attached = std::mem::take(&mut group.attached);
            if let Some(member) = group.member.take().filter(|_| attached) {
                self.out.actions.push_back(Action::DetachMulticast {
                    worker: WorkerIndex(0),
                    mgid: group.mgid,
                    mlid: member.mlid,
                });
            }
        }
        self.out.state_dirty = true;
    }

    /// Sends the request to join a group, if its conditions are met.
    fn request_join(&mut self, ip: Ipv4Addr) {
        if !self.ground.port_usable() {
            return;
        }
        let (pkey, port_gid) = (self.ground.full_pkey(), self.ground.port.gid);
        let broadcast = self.groups.broadcast().copied();
        let Some(group) = self.groups.map.get_mut(&ip) else { return };
        if group.joining == Joining::Requested {
            return;
        }
        let mut record = McMemberRecord {
            mgid: group.mgid,
            port_gid,
            pkey,
            join_state: JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        };
        let mut mask = McMask::MGID | McMask::PORT_GID | McMask::PKEY | McMask::JOIN_STATE;
        if ip != Ipv4Addr::BROADCAST {
            // RFC 4391 4: every group of a link has the broadcast group's parameters.
            let Some(broadcast) = broadcast else { return };
            record = McMemberRecord {
                qkey: broadcast.qkey,
                mtu_selector: Selector::Exactly,
                mtu: broadcast.mtu,
                traffic_class: broadcast.traffic_class,
                rate_selector: Selector::Exactly,
                rate: broadcast.rate,
                sl: broadcast.sl,
                flow_label: broadcast.flow_label,
                hop_limit: broadcast.hop_limit,
                ..record
            };
            mask |= McMask::QKEY
                | McMask::MTU_SELECTOR
                | McMask::MTU
                | McMask::TRAFFIC_CLASS
                | McMask::RATE_SELECTOR
                | McMask::RATE
                | McMask::SL
                | McMask::FLOW_LABEL
                | McMask::HOP_LIMIT;
        }
        group.joining = Joining::Requested;
        self.out.timers.cancel(Timer::Group(ip));
        self.out.counters.joins += 1;
        self.out.requests.push_back(Request::Join { group: ip, sm: self.ground.sm(), record, mask });
    }

    /// Handles the timer of a group's next attempt.
    pub(super) fn timeout(&mut self, ip: Ipv4Addr) {
        if let Some(group) = self.groups.map.get_mut(&ip) {
            group.joining = Joining::Idle;
        }
        self.request_join(ip);
    }

    /// Answers [`Request::Join`].
    pub(super) fn answered(&mut self, now: Instant, ip: Ipv4Addr, outcome: Outcome<Option<McMemberRecord>>) {
        match outcome {
            Outcome::Granted(record) => self.joined(now, ip, record, None),
            Outcome::Refused(status) => self.joined(now, ip, None, Some(status)),
            Outcome::Silence => {
                self.out.counters.sa_timeouts += 1;
                self.joined(now, ip, None, None);
            }
        }
    }

    /// Handles the answer of subnet administration to a join request, or the lack of one: `answer` is its
    /// record; `refused` is the status of a refusal.
    fn joined(
        &mut self,
        now: Instant,
        ip: Ipv4Addr,
        answer: Option<McMemberRecord>,
        refused: Option<MadStatus>,
    ) {
        let Some(group) = self.groups.map.get_mut(&ip) else { return };
        if group.joining != Joining::Requested {
            return;
        }
        let mgid = group.mgid;
        let usable = answer.filter(|m| m.mgid == mgid && m.mlid.is_multicast() && m.mtu.mtu().is_some());
        let Some(member) = usable else {
            // A grant without a usable membership counts as a refusal.
            self.join_failed(now, ip, refused.or(answer.map(|_| MadStatus::OK)));
            return;
        };
        group.joining = Joining::Idle;
        group.failures = 0;
        let before = group.member.replace(member);
        let attached = std::mem::replace(&mut group.attached, true);
        if ip == Ipv4Addr::BROADCAST {
            self.broadcast_joined(before.as_ref(), &member);
        }
        let worker = WorkerIndex(0);
        match before.filter(|_| attached) {
            Some(before) if before.mlid == member.mlid => {}
            Some(before) => {
                self.out.actions.push_back(Action::DetachMulticast { worker, mgid, mlid: before.mlid });
                self.out.actions.push_back(Action::AttachMulticast { worker, mgid, mlid: member.mlid });
            }
            None => self.out.actions.push_back(Action::AttachMulticast { worker, mgid, mlid: member.mlid }),
        }
        self.out.state_dirty = true;
        if ip == Ipv4Addr::BROADCAST {
            self.out.words.push_back(Word::Joined);
            let others: Vec<_> =
                self.groups.map.keys().copied().filter(|g| *g != Ipv4Addr::BROADCAST).collect();
            for group in others {
                self.request_join(group);
            }
        }
    }

    /// Opens the datagram queue pairs, or gives them the new Q_Key.
    fn broadcast_joined(&mut self, before: Option<&McMemberRecord>, member: &McMemberRecord) {
        let qkey = member.qkey;
        let Some(pkey_index) = self.ground.port.pkey_index else { return };
        if self.groups.opened != Some((pkey_index, qkey)) {
            for worker in self.ground.worker_indices() {
                self.out.actions.push_back(match self.groups.opened {
                    Some((index, _)) if index == pkey_index => Action::SetQKey { worker, qkey },
                    _ => Action::OpenUd { worker, pkey_index, qkey },
                });
            }
            self.groups.opened = Some((pkey_index, qkey));
        }
        if before.is_some_and(|b| b.qkey != qkey) {
            self.out.words.push_back(Word::RepublishAll);
        }
    }

    fn join_failed(&mut self, now: Instant, ip: Ipv4Addr, refused: Option<MadStatus>) {
        self.out.counters.join_failures += 1;
        let Some(group) = self.groups.map.get_mut(&ip) else { return };
        let delay = self.out.random.backoff(BACKOFF.0, group.failures, BACKOFF.1);
        group.failures = group.failures.saturating_add(1);
        group.joining = Joining::Delayed;
        match refused {
            Some(status) if ip == Ipv4Addr::BROADCAST => {
                group.refused = status;
                // The status alone does not show the reason; the group's parameters may.
                let (sm, mgid) = (self.ground.sm(), group.mgid);
                self.out.requests.push_back(Request::QueryGroup { group: ip, sm, mgid });
            }
            Some(status) => group.failure = Some(Waiting::Admission { status: status.0, rate: None }),
            None => group.failure = Some(Waiting::Answer),
        }
        self.out.timers.set(Timer::Group(ip), now + delay);
        // Silence may mean that a subnet manager is restarting; a refusal means that the membership is lost.
        if refused.is_some()
            && let Some(member) = group.member.take()
        {
            let mgid = group.mgid;
            if std::mem::take(&mut group.attached) {
                self.out.actions.push_back(Action::DetachMulticast {
                    worker: WorkerIndex(0),
                    mgid,
                    mlid: member.mlid,
                });
            }
            self.out.state_dirty = true;
            if ip == Ipv4Addr::BROADCAST {
                self.out.words.push_back(Word::Excluded);
            }
        }
    }

    /// Answers [`Request::QueryGroup`]: the reason for which a group could not be joined.
    pub(super) fn explained(&mut self, ip: Ipv4Addr, outcome: Outcome<Option<McMemberRecord>>) {
        let port = self.ground.port.mtu.bytes();
        let Some(group) = self.groups.map.get_mut(&ip) else { return };
        if group.member.is_some() {
            return;
        }
        let is_missing = matches!(outcome, Outcome::Refused(why) if why.class_code() == status::NO_RECORDS);
        let record = match outcome {
            Outcome::Granted(record) => record.filter(|record| record.mgid == group.mgid),
            Outcome::Refused(_) | Outcome::Silence => None,
        };
        let mtu = record.and_then(|record| record.mtu.mtu()).map(Mtu::bytes);
        let (status, rate) = (group.refused.0, record.and_then(|record| record.rate.megabits()));
        group.failure = Some(match mtu {
            Some(mtu) if mtu > port => Waiting::GroupMtu { group: mtu as u16, port: port as u16 },
            _ if is_missing => Waiting::NoGroup { status },
            _ => Waiting::Admission { status, rate },
        });
    }

    /// Answers [`Action::AttachMulticast`]. Packets of a group that is not attached are not received, so the
    /// join and the attachment are retried after a while, as Linux does.
    pub(super) fn attached(&mut self, now: Instant, mgid: Gid, mlid: Lid, ok: bool) {
        let named = |group: &Group| group.mgid == mgid && group.member.is_some_and(|m| m.mlid == mlid);
        let Some((ip, group)) = self.groups.map.iter_mut().find(|(_, group)| named(group)) else { return };
        if ok {
            group.refusals = 0;
            return;
        }
        group.attached = false;
        let delay = self.out.random.backoff(BACKOFF.0, group.refusals, BACKOFF.1);
        group.refusals = group.refusals.saturating_add(1);
        self.out.counters.attach_failures += 1;
        if group.joining == Joining::Idle {
            group.joining = Joining::Delayed;
            self.out.timers.set(Timer::Group(*ip), now + delay);
        }
    }

    /// Answers [`Request::Leave`].
    pub(super) fn left(&mut self, outcome: Outcome<()>) {
        if outcome == Outcome::Silence {
            self.out.counters.sa_timeouts += 1;
        }
        self.groups.leaving = self.groups.leaving.saturating_sub(1);
    }
}
