//! Multicast groups: the broadcast group first, then the others; joined anew after events, with back-off.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use hca::{AddressVector, GlobalRoute, UdDestination};
use ib_wire::sa::{JoinState, McMask, McMemberRecord, MtuCode, Selector};
use ib_wire::{Gid, Lid, QKey, Qpn};

use super::action::{Action, Event};
use super::machine::Link;
use super::request::Request;
use super::settings::WorkerIndex;
use super::statistics::GroupInfo;
use super::timers::Timer;
use super::waiting::Waiting;
use ib_wire::ipoib::{GroupScope, broadcast_gid, multicast_gid};

/// First and largest delay between attempts to join (Linux: doubling up to 16 s).
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(16));

/// The groups of a link's routers and services whose packets stay on the link (224.0.0.0/24), and which are used: all systems, all
/// routers, OSPF's two, RIP, EIGRP, PIM, VRRP, IGMPv3, GLBP and HSRPv2, mDNS, LLMNR.
///
/// Linux sends each to its own group, which reaches nobody who has not joined it. One that joins hears them, and what it sends is heard.
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

/// What is happening about a membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Joining {
    /// Nothing: joined, or the link is down.
    Idle,
    /// A request is under way.
    Asked,
    /// The next attempt has a timer.
    Delayed,
}

/// A group that the link is in, or wants to be in.
#[derive(Debug)]
pub(super) struct Group {
    mgid: Gid,
    /// The group's parameters while we are a member. They stay in force while a re-join is under way.
    member: Option<McMemberRecord>,
    joining: Joining,
    failures: u32,
    /// What the last attempt to join came to, if it failed.
    failure: Option<Waiting>,
}

impl Group {
    const fn new(mgid: Gid) -> Self {
        Self { mgid, member: None, joining: Joining::Idle, failures: 0, failure: None }
    }
}

/// Where datagrams to a group go.
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
        qkey,
    }
}

impl Link {
    /// The broadcast group's parameters, if joined.
    pub(super) fn broadcast(&self) -> Option<&McMemberRecord> {
        self.groups.get(&Ipv4Addr::BROADCAST)?.member.as_ref()
    }

    /// The Q_Key of the link: the broadcast group's (RFC 4391 4).
    pub(super) fn qkey(&self) -> Option<QKey> {
        self.broadcast().map(|b| b.qkey)
    }

    /// Where broadcasts go.
    #[must_use]
    pub fn broadcast_destination(&self) -> Option<UdDestination> {
        self.broadcast().map(|b| destination(b, b.qkey))
    }

    /// Where datagrams to the other joined groups go.
    pub(super) fn group_destinations(&self) -> Vec<(Ipv4Addr, UdDestination)> {
        let Some(qkey) = self.qkey() else { return Vec::new() };
        self.groups
            .iter()
            .filter(|(ip, _)| **ip != Ipv4Addr::BROADCAST)
            .filter_map(|(ip, g)| g.member.as_ref().map(|m| (*ip, destination(m, qkey))))
            .collect()
    }

    /// Joins an IPv4 group for as long as the link lives; false if it is none or there are too many.
    pub fn join(&mut self, _now: Instant, group: Ipv4Addr) -> bool {
        if self.is_shutting_down() {
            return false;
        }
        let scope = GroupScope::new(self.settings.scope);
        let mgid = multicast_gid(IpAddr::V4(group), self.settings.pkey, scope);
        let (Some(mgid), true) = (mgid, group.is_multicast()) else { return false };
        if self.groups.contains_key(&group) {
            return true;
        }
        if self.groups.len() > self.settings.max_groups {
            return false;
        }
        self.groups.insert(group, Group::new(mgid));
        self.ask_to_join(group);
        true
    }

    /// Leaves a group.
    pub fn leave(&mut self, _now: Instant, group: Ipv4Addr) {
        if group == Ipv4Addr::BROADCAST {
            return;
        }
        if let Some(left) = self.groups.remove(&group) {
            self.timers.cancel(Timer::Group(group));
            self.leave_group(group, &left);
        }
    }

    /// Detaches from a group and tells the subnet administration.
    fn leave_group(&mut self, ip: Ipv4Addr, group: &Group) {
        if let Some(member) = &group.member {
            self.actions.push_back(Action::DetachMulticast {
                worker: WorkerIndex(0),
                mgid: group.mgid,
                mlid: member.mlid,
            });
            self.state_dirty = true;
        }
        // A join that is under way may still succeed, so it is undone as well.
        if self.port_usable() && (group.member.is_some() || group.joining == Joining::Asked) {
            let record = McMemberRecord {
                mgid: group.mgid,
                port_gid: self.port.gid,
                join_state: JoinState::FULL_MEMBER,
                ..McMemberRecord::default()
            };
            self.sa_leave(ip, record, McMask::MGID | McMask::PORT_GID | McMask::JOIN_STATE);
        }
    }

    /// Leaves all groups at the end.
    pub(super) fn leave_all(&mut self) {
        for (ip, group) in std::mem::take(&mut self.groups) {
            self.timers.cancel(Timer::Group(ip));
            self.leave_group(ip, &group);
        }
    }

    /// Asks for the broadcast group, and for all others if it is joined.
    pub(super) fn join_all(&mut self) {
        if self.is_shutting_down() {
            return;
        }
        let mgid = broadcast_gid(self.settings.pkey, GroupScope::new(self.settings.scope));
        self.groups.entry(Ipv4Addr::BROADCAST).or_insert_with(|| Group::new(mgid));
        for group in self.groups.values_mut() {
            group.failures = 0;
            group.failure = None;
        }
        self.ask_to_join(Ipv4Addr::BROADCAST);
    }

    /// Takes requests to join back, to be made again.
    pub(super) fn restart_joins(&mut self) {
        for (ip, group) in &mut self.groups {
            if std::mem::replace(&mut group.joining, Joining::Idle) == Joining::Asked {
                self.requests.push_back(Request::CancelJoin(*ip));
            }
        }
    }

    /// Forgets all memberships: the port went away and the subnet manager with it.
    pub(super) fn drop_memberships(&mut self) {
        for (ip, group) in &mut self.groups {
            self.timers.cancel(Timer::Group(*ip));
            if std::mem::replace(&mut group.joining, Joining::Idle) == Joining::Asked {
                self.requests.push_back(Request::CancelJoin(*ip));
            }
            if let Some(member) = group.member.take() {
                self.actions.push_back(Action::DetachMulticast {
                    worker: WorkerIndex(0),
                    mgid: group.mgid,
                    mlid: member.mlid,
                });
            }
        }
        self.state_dirty = true;
    }

    /// Sends the request to join a group, if its turn has come.
    fn ask_to_join(&mut self, ip: Ipv4Addr) {
        if !self.port_usable() {
            return;
        }
        let (pkey, port_gid) = (self.full_pkey(), self.port.gid);
        let broadcast = self.broadcast().copied();
        let Some(group) = self.groups.get_mut(&ip) else { return };
        if group.joining == Joining::Asked {
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
        group.joining = Joining::Asked;
        self.timers.cancel(Timer::Group(ip));
        self.counters.joins += 1;
        self.sa_join(ip, record, mask);
    }

    /// The timer of a group's next attempt has run out.
    pub(super) fn group_timeout(&mut self, ip: Ipv4Addr) {
        if let Some(group) = self.groups.get_mut(&ip) {
            group.joining = Joining::Idle;
        }
        self.ask_to_join(ip);
    }

    /// The subnet administration has answered a request to join, or has not: `answer` is its record; `refused` tells a
    /// refusal from silence.
    pub(super) fn joined(
        &mut self,
        now: Instant,
        ip: Ipv4Addr,
        answer: Option<McMemberRecord>,
        refused: bool,
    ) {
        let Some(group) = self.groups.get_mut(&ip) else { return };
        if group.joining != Joining::Asked {
            return;
        }
        let mgid = group.mgid;
        let usable = answer.filter(|m| m.mgid == mgid && m.mlid.is_multicast() && m.mtu.mtu().is_some());
        let Some(member) = usable else {
            self.join_failed(now, ip, refused || answer.is_some());
            return;
        };
        group.joining = Joining::Idle;
        group.failures = 0;
        let before = group.member.replace(member);
        if ip == Ipv4Addr::BROADCAST {
            self.broadcast_joined(before.as_ref(), &member);
        }
        let worker = WorkerIndex(0);
        match before {
            Some(before) if before.mlid == member.mlid => {}
            Some(before) => {
                self.actions.push_back(Action::DetachMulticast { worker, mgid, mlid: before.mlid });
                self.actions.push_back(Action::AttachMulticast { worker, mgid, mlid: member.mlid });
            }
            None => self.actions.push_back(Action::AttachMulticast { worker, mgid, mlid: member.mlid }),
        }
        self.state_dirty = true;
        if ip == Ipv4Addr::BROADCAST {
            let was_up = self.up;
            self.link_up();
            self.own_address_confirmed(!was_up);
            let others: Vec<_> = self.groups.keys().copied().filter(|g| *g != Ipv4Addr::BROADCAST).collect();
            for group in others {
                self.ask_to_join(group);
            }
        }
    }

    /// Opens the datagram queue pairs, or gives them the new Q_Key.
    fn broadcast_joined(&mut self, before: Option<&McMemberRecord>, member: &McMemberRecord) {
        let qkey = member.qkey;
        let Some(pkey_index) = self.port.pkey_index else { return };
        if self.opened != Some((pkey_index, qkey)) {
            for worker in self.worker_indices() {
                self.actions.push_back(match self.opened {
                    Some((index, _)) if index == pkey_index => Action::SetQKey { worker, qkey },
                    _ => Action::OpenUd { worker, pkey_index, qkey },
                });
            }
            self.opened = Some((pkey_index, qkey));
        }
        if before.is_some_and(|b| b.qkey != qkey) {
            self.republish_all();
        }
    }

    fn join_failed(&mut self, now: Instant, ip: Ipv4Addr, refused: bool) {
        self.counters.join_failures += 1;
        let Some(group) = self.groups.get_mut(&ip) else { return };
        let delay = self.random.backoff(BACKOFF.0, group.failures, BACKOFF.1);
        group.failures = group.failures.saturating_add(1);
        group.failure = Some(if refused { Waiting::Admission } else { Waiting::Answer });
        group.joining = Joining::Delayed;
        self.timers.set(Timer::Group(ip), now + delay);
        // Silence may be a subnet manager on its way back; a refusal means that the membership is gone.
        if refused && let Some(member) = group.member.take() {
            let mgid = group.mgid;
            self.actions.push_back(Action::DetachMulticast {
                worker: WorkerIndex(0),
                mgid,
                mlid: member.mlid,
            });
            self.state_dirty = true;
            if ip == Ipv4Addr::BROADCAST {
                self.link_down(now);
            }
        }
        self.note_waiting();
    }

    /// Why the broadcast group is not joined, once an attempt has failed.
    pub(super) fn broadcast_failure(&self) -> Option<Waiting> {
        self.groups.get(&Ipv4Addr::BROADCAST).filter(|group| group.member.is_none())?.failure
    }

    /// The link has come up, if it was not.
    fn link_up(&mut self) {
        if !self.up {
            self.up = true;
            self.events.push_back(Event::Up);
            self.requery_paths();
        }
    }

    /// Largest datagram, encapsulation header included.
    pub(super) fn ud_mtu(&self) -> u32 {
        let of_group = self.broadcast().and_then(|b: &McMemberRecord| MtuCode::mtu(b.mtu));
        of_group.map_or(0, |group| group.min(self.port.mtu).bytes() as u32)
    }

    /// All groups.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupInfo> {
        let mut all: Vec<_> = self
            .groups
            .iter()
            .map(|(ip, g)| GroupInfo {
                ip: *ip,
                mgid: g.mgid,
                mlid: g.member.map_or(Lid(0), |m| m.mlid).0,
                state: match (g.member.is_some(), g.joining) {
                    (true, Joining::Idle) => "joined",
                    (true, _) => "rejoining",
                    (false, Joining::Idle) => "waiting",
                    (false, Joining::Asked) => "joining",
                    (false, Joining::Delayed) => "backing_off",
                },
            })
            .collect();
        all.sort_by_key(|g| g.ip);
        all
    }
}
