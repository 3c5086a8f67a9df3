//! Subnet administration from the clients' side.

use std::time::Duration;

use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::rmpp::RmppFlags;
use ib_wire::sa::{
    ClassPortInfo, InformInfo, JoinState, McMask, McMemberRecord, PathMask, PathRecord, Record, SaMad,
    Selector, attribute, trap,
};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Rate, ServiceLevel, Tid};

use super::world::World;
use super::{config, partition};
use crate::subnet::{Partition, SmConfig};

pub(super) const JOIN: McMask = McMask::MGID.union(McMask::PORT_GID).union(McMask::JOIN_STATE);

pub(super) fn up(adapters: u8, config: SmConfig) -> World {
    let mut world = World::new(adapters, config);
    world.pump();
    world.inbox.clear();
    world
}

impl World {
    pub(super) fn send(&mut self, from: usize, request: &SaMad) -> SaMad {
        let mad = Mad { peer: self.address(from), bytes: request.to_bytes() };
        self.sm.handle_mad(self.now, &mad);
        self.pump();
        let answer = self.inbox.pop_front().expect("an answer");
        assert_eq!(answer.peer.lid, self.lid(from));
        let answer = SaMad::parse(&answer.bytes);
        assert_eq!(answer.header.tid, request.header.tid);
        answer
    }

    pub(super) fn ask<R: Record>(&mut self, from: usize, method: Method, mask: u64, record: &R) -> SaMad {
        self.send(from, &SaMad::request(method, Tid(0x99), mask, record))
    }

    pub(super) fn member(
        &mut self,
        from: usize,
        method: Method,
        mask: McMask,
        record: &McMemberRecord,
    ) -> Result<McMemberRecord, u16> {
        let answer = self.ask(from, method, mask.bits(), record);
        if answer.header.status.is_ok() { Ok(answer.record().unwrap()) } else { Err(answer.header.status.0) }
    }

    pub(super) fn path(
        &mut self,
        from: usize,
        mask: PathMask,
        record: &PathRecord,
    ) -> Result<PathRecord, u16> {
        let answer = self.ask(from, Method::Get, mask.bits(), record);
        if answer.header.status.is_ok() { Ok(answer.record().unwrap()) } else { Err(answer.header.status.0) }
    }

    pub(super) fn subscribe(&mut self, from: usize, trap: u16, on: bool) -> MadStatus {
        self.ask(from, Method::Set, 0, &InformInfo::trap(trap, on)).header.status
    }
}

pub(super) fn broadcast() -> Gid {
    Gid("ff12:401b:ffff::ffff:ffff".parse::<std::net::Ipv6Addr>().unwrap().octets())
}

pub(super) fn all_hosts() -> Gid {
    Gid("ff12:401b:ffff::1".parse::<std::net::Ipv6Addr>().unwrap().octets())
}

pub(super) fn member(world: &World, i: usize, mgid: Gid) -> McMemberRecord {
    McMemberRecord {
        mgid,
        port_gid: world.gid(i),
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    }
}

/// Returns a join as Linux sends it for any group except the broadcast group.
pub(super) fn creation(world: &World, i: usize, mgid: Gid) -> (McMask, McMemberRecord) {
    let mask = JOIN
        | McMask::QKEY
        | McMask::MTU_SELECTOR
        | McMask::MTU
        | McMask::TRAFFIC_CLASS
        | McMask::PKEY
        | McMask::RATE_SELECTOR
        | McMask::RATE
        | McMask::SL
        | McMask::FLOW_LABEL
        | McMask::HOP_LIMIT;
    let record = McMemberRecord {
        qkey: QKey(0xb1b),
        mtu_selector: Selector::Exactly,
        mtu: Mtu::B4096.into(),
        pkey: PKey::DEFAULT,
        rate_selector: Selector::Exactly,
        rate: Rate::new(3),
        ..member(world, i, mgid)
    };
    (mask, record)
}

#[test]
fn paths_between_ports() {
    let mut world = World::new(2, config());
    world.nodes[2].ports[1].mtu_cap = Mtu::B2048.into();
    world.pump();
    let ends = PathMask::DGID | PathMask::SGID;
    let wanted = PathRecord { dgid: world.gid(2), sgid: world.gid(1), ..PathRecord::default() };
    let got = world.path(1, ends | PathMask::NUMB_PATH, &wanted).unwrap();
    assert_eq!((got.dlid, got.slid), (world.lid(2), world.lid(1)));
    assert_eq!((got.pkey, got.mtu.mtu(), got.rate), (PKey::DEFAULT, Some(Mtu::B2048), Rate::new(7)));
    assert!(got.reversible && got.mtu_selector == Selector::Exactly);
    let unknown = PathRecord { dgid: Gid::new(Gid::DEFAULT_PREFIX, Guid(5)), ..wanted };
    assert_eq!(world.path(1, ends, &unknown), Err(0x0300));
    let elsewhere = PathRecord { dgid: Gid::new(0x2001 << 48, world.gid(2).id()), ..wanted };
    assert_eq!(world.path(1, ends, &elsewhere), Err(0x0500), "another subnet's");
    let source = PathRecord { sgid: Gid::new(Gid::DEFAULT_PREFIX, Guid(5)), ..wanted };
    assert_eq!(world.path(1, ends, &source), Err(0x0500));
    // Selectors.
    let mtu = PathMask::MTU_SELECTOR | PathMask::MTU;
    let more = PathRecord { mtu_selector: Selector::Greater, mtu: Mtu::B2048.into(), ..wanted };
    assert_eq!(world.path(1, ends | mtu, &more), Err(0x0300));
    let exact = PathRecord { mtu_selector: Selector::Exactly, ..more };
    assert!(world.path(1, ends | mtu, &exact).is_ok());
    let lane = PathRecord { sl: ServiceLevel::new(3), ..wanted };
    assert_eq!(world.path(1, ends | PathMask::SL, &lane), Err(0x0300));
    // By LID, and to a group.
    let by_lid = PathRecord { dlid: world.lid(2), slid: world.lid(1), ..PathRecord::default() };
    assert_eq!(world.path(2, PathMask::DLID | PathMask::SLID, &by_lid).unwrap().dgid, world.gid(2));
    let group = PathRecord { dgid: broadcast(), ..wanted };
    assert_eq!(world.path(1, ends, &group).unwrap().dlid, Lid(0xc000));
    // All paths from one port: too many for one record, a table for several.
    assert_eq!(world.path(1, PathMask::SGID, &wanted), Err(0x0400));
    let table = world.ask(1, Method::GetTable, PathMask::SGID.bits(), &wanted);
    assert!(table.header.status.is_ok() && table.rmpp.flags.contains(RmppFlags::LAST));
    assert_eq!((table.attribute_offset, table.rmpp.length), (8, 3 * 64 + 20));
}

#[test]
fn tables_that_do_not_fit_are_refused() {
    let mut world = up(3, config());
    let wanted = PathRecord { sgid: world.gid(1), ..PathRecord::default() };
    let table = world.ask(1, Method::GetTable, PathMask::SGID.bits(), &wanted);
    assert_eq!(table.header.status, MadStatus(0x0100));
}

#[test]
fn partitions_keep_ports_apart() {
    let mut config = config();
    config.partitions = vec![
        partition(0x8002, &[(0x1001, true), (0x2001, false), (0x3001, false)]),
        partition(0x8003, &[(0x4001, true)]),
    ];
    let mut world = up(4, config);
    let ends = PathMask::DGID | PathMask::SGID;
    let between = |world: &World, a, b| PathRecord {
        sgid: world.gid(a),
        dgid: world.gid(b),
        pkey: PKey(0x8002),
        ..PathRecord::default()
    };
    let wanted = between(&world, 1, 2);
    assert_eq!(world.path(1, ends, &wanted).unwrap().pkey, PKey(0x8002));
    assert_eq!(world.path(1, ends | PathMask::PKEY, &wanted).unwrap().pkey, PKey(0x8002));
    let other = PathRecord { pkey: PKey(0x8003), ..wanted };
    assert_eq!(world.path(1, ends | PathMask::PKEY, &other), Err(0x0300));
    let limited = between(&world, 2, 3);
    assert_eq!(world.path(2, ends, &limited), Err(0x0300), "two limited members");
    let (up, down) = (between(&world, 2, 1), between(&world, 1, 2));
    assert_eq!(world.path(2, ends, &up).unwrap().pkey, PKey(0x0002), "a limited member to a full one");
    assert_eq!(world.path(2, ends, &down).unwrap().pkey, PKey(0x8002));
    let apart = between(&world, 1, 4);
    assert_eq!(world.path(1, ends, &apart), Err(0x0300));
    // Groups.
    let mut mgid = broadcast();
    mgid.0[4..6].copy_from_slice(&[0x80, 0x02]);
    let wanted = member(&world, 1, mgid);
    assert_eq!(world.member(1, Method::Set, JOIN, &wanted).unwrap().pkey, PKey(0x8002));
    let wanted = member(&world, 4, mgid);
    assert_eq!(world.member(4, Method::Set, JOIN, &wanted), Err(0x0200));
    assert_eq!(world.member(4, Method::Get, McMask::MGID, &wanted), Err(0x0300));
    // A limited member joins by the full key, which is the group's, not by a limited one.
    let limited = McMemberRecord { pkey: PKey(2), ..member(&world, 2, mgid) };
    assert!(world.member(2, Method::Set, JOIN, &limited).is_ok());
    let full = McMemberRecord { pkey: PKey(0x8002), ..limited };
    assert!(world.member(2, Method::Set, JOIN | McMask::PKEY, &full).is_ok());
    // Nodes and ports of other partitions are hidden.
    for id in [attribute::NODE_RECORD, attribute::PORT_INFO_RECORD] {
        for (of, status) in [(1, MadStatus::OK), (4, MadStatus(0x0300))] {
            let mut record = SaMad::request(Method::Get, Tid(1), 1, &PathRecord::default());
            record.header.attribute = id;
            record.data[..2].copy_from_slice(&world.lid(of).0.to_be_bytes());
            assert_eq!(world.send(2, &record).header.status, status, "{id:#x} of {of}");
        }
    }
}

#[test]
fn events_stay_within_their_partitions() {
    let mut config = config();
    config.partitions =
        vec![partition(0x8002, &[(0x1001, true), (0x2001, false)]), partition(0x8003, &[(0x3001, true)])];
    let mut world = up(3, config);
    for asker in [1, 3] {
        for trap in [trap::GID_OUT_OF_SERVICE, trap::GROUP_CREATED, trap::GROUP_DELETED] {
            assert!(world.subscribe(asker, trap, true).is_ok());
        }
    }
    let (me, gone) = (world.lid(1), world.gid(2));
    let mut mgid = all_hosts();
    mgid.0[4..6].copy_from_slice(&[0x80, 0x02]);
    let (mask, record) = creation(&world, 2, mgid);
    let record = McMemberRecord { pkey: PKey(0x8002), ..record };
    let request = SaMad::request(Method::Set, Tid(4), mask.bits(), &record);
    let mad = Mad { peer: world.address(2), bytes: request.to_bytes() };
    world.sm.handle_mad(world.now, &mad);
    world.pump();
    world.inbox.pop_front();
    assert_eq!(world.reports(true), [(me, trap::GROUP_CREATED, mgid)]);
    world.disconnect((0, 2));
    world.sm.handle_port_change(world.now);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.reports(true), [(me, trap::GROUP_DELETED, mgid), (me, trap::GID_OUT_OF_SERVICE, gone)]);
}

#[test]
fn gids_of_another_prefix_are_refused() {
    let mut world = up(2, config());
    let prefix = 0xfec0_0000_0000_0007;
    world.sm.set_prefix(world.now, prefix);
    world.pass(Duration::from_millis(100));
    let (old, new) = (world.gid(1), Gid::new(prefix, world.gid(1).id()));
    let by = |port_gid| McMemberRecord {
        port_gid,
        join_state: JoinState::FULL_MEMBER,
        mgid: broadcast(),
        ..McMemberRecord::default()
    };
    assert_eq!(
        world.member(1, Method::Set, JOIN, &by(old)),
        Err(0x0200),
        "it has not learned the new prefix yet"
    );
    assert_eq!(world.member(1, Method::Set, JOIN, &by(new)).unwrap().port_gid, new);
    assert_eq!(world.member(1, Method::Delete, JOIN, &by(old)), Err(0x0200));
    // Paths are also found by link-local GIDs, which every port has, but not by a third prefix.
    let ends = PathMask::DGID | PathMask::SGID;
    let link_local = PathRecord { sgid: old, dgid: world.gid(2), ..PathRecord::default() };
    assert_eq!(world.path(1, ends, &link_local).unwrap().sgid, new);
    let foreign = Gid::new(0xfec0_0000_0000_0008, world.gid(2).id());
    assert_eq!(world.path(1, ends, &PathRecord { dgid: foreign, ..link_local }), Err(0x0500));
    assert_eq!(world.path(1, ends, &PathRecord { sgid: foreign, ..link_local }), Err(0x0500));
}

#[test]
fn partitions_come_and_go_while_others_talk() {
    let mut world = up(3, config());
    let default = Partition::default_ipoib();
    let of = |pkey: u16| {
        let mut mgid = broadcast();
        mgid.0[4..6].copy_from_slice(&pkey.to_be_bytes());
        mgid
    };
    for i in [1, 2] {
        let wanted = member(&world, i, broadcast());
        world.member(i, Method::Set, JOIN, &wanted).unwrap();
    }
    let set = |world: &mut World, partitions: &[Partition]| {
        world.sm.set_partitions(world.now, partitions.to_vec());
        world.pass(Duration::from_millis(100));
        assert!(world.sm.is_up());
    };
    let keys = |world: &World, i: usize| world.nodes[i].pkeys[1][&0][..3].to_vec();
    let join = |world: &mut World, i, pkey| {
        let wanted = member(world, i, of(pkey));
        world.member(i, Method::Set, JOIN, &wanted).map(|r| r.mlid)
    };
    // Two more: the default one does not change.
    let two = partition(0x8002, &[(0x1001, true), (0x2001, false)]);
    let three = partition(0x8003, &[(0x1001, true), (0x3001, true)]);
    set(&mut world, &[default.clone(), two.clone(), three.clone()]);
    assert_eq!(keys(&world, 1), [PKey::DEFAULT, PKey(0x8002), PKey(0x8003)]);
    assert_eq!(keys(&world, 2), [PKey::DEFAULT, PKey(0x0002), PKey(0)]);
    assert_eq!(world.nodes[1].reregistered, 1);
    assert_eq!(world.multicast(0, Lid(0xc000)), 1 << 1 | 1 << 2);
    let mlid = join(&mut world, 1, 0x8002).unwrap();
    join(&mut world, 2, 0x8002).unwrap();
    join(&mut world, 1, 0x8003).unwrap();
    assert_eq!(join(&mut world, 3, 0x8002), Err(0x0200));
    assert_eq!(world.multicast(0, mlid), 1 << 1 | 1 << 2);
    // One is removed: later keys keep their indexes, and its group is deleted.
    set(&mut world, &[default.clone(), three.clone()]);
    assert_eq!(keys(&world, 1), [PKey::DEFAULT, PKey(0), PKey(0x8003)]);
    assert_eq!(world.multicast(0, mlid), 0);
    assert_eq!(join(&mut world, 1, 0x8002), Err(0x0600));
    assert_eq!(world.sm.groups().count(), 2);
    // Memberships change: a removed member leaves the group, a limited one remains.
    set(&mut world, &[default.clone(), partition(0x8003, &[(0x1001, false), (0x2001, true)])]);
    assert_eq!(keys(&world, 1), [PKey::DEFAULT, PKey(0), PKey(0x0003)]);
    assert_eq!(keys(&world, 3), [PKey::DEFAULT, PKey(0), PKey(0)]);
    let members = |world: &World| world.sm.groups().find(|(mgid, ..)| *mgid == of(0x8003)).unwrap().2;
    assert_eq!(members(&world), 1);
    set(&mut world, &[default.clone(), partition(0x8003, &[(0x2001, true)])]);
    assert_eq!(members(&world), 0);
    // Another Q_Key: members are requested to join again.
    let before = world.nodes[1].reregistered;
    set(&mut world, &[Partition { qkey: QKey(0xb1c), ..default.clone() }]);
    assert_eq!((world.nodes[1].reregistered, world.nodes[3].reregistered), (before + 1, 1));
    let wanted = member(&world, 1, broadcast());
    assert_eq!(world.member(1, Method::Set, JOIN, &wanted).unwrap().qkey, QKey(0xb1c));
    // The same again changes nothing.
    let sets = world.sets();
    set(&mut world, &[Partition { qkey: QKey(0xb1c), ..default }]);
    assert_eq!(world.sets(), sets);
}

#[test]
fn members_are_shown_to_those_who_may_see_them() {
    let mut world = up(2, config());
    for i in [1, 2] {
        let wanted = member(&world, i, broadcast());
        world.member(i, Method::Set, JOIN, &wanted).unwrap();
    }
    let wanted = member(&world, 1, broadcast());
    let seen = world.member(1, Method::Get, McMask::MGID, &wanted).unwrap();
    assert_eq!((seen.port_gid, seen.join_state), (Gid::ZERO, JoinState::empty()));
    let own = world.member(1, Method::Get, McMask::MGID | McMask::PORT_GID, &wanted).unwrap();
    assert_eq!(own.port_gid, world.gid(1));
    let mut trusted = SaMad::request(Method::GetTable, Tid(3), McMask::MGID.bits(), &wanted);
    trusted.sm_key = 1;
    let table = world.send(1, &trusted);
    assert_eq!(table.rmpp.length, 2 * 56 + 20);
}

#[test]
fn a_restarted_port_has_left_everything() {
    let mut world = up(2, config());
    let wanted = member(&world, 1, broadcast());
    world.member(1, Method::Set, JOIN, &wanted).unwrap();
    assert!(world.subscribe(1, trap::GROUP_CREATED, true).is_ok());
    // Down and up between two sweeps.
    world.disconnect((0, 1));
    world.connect((0, 1), (1, 1));
    world.sm.handle_port_change(world.now);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.nodes[1].reregistered, 2);
    assert_eq!(world.multicast(0, Lid(0xc000)), 0);
    assert_eq!(world.subscribe(1, trap::GROUP_CREATED, false), MadStatus(0x0200));
}

#[test]
fn unknown_requests_get_a_status() {
    let mut world = up(1, config());
    let info = world.ask(1, Method::Get, 0, &ClassPortInfo::parse(&[0; 72]));
    let info: ClassPortInfo = info.record().unwrap();
    assert_eq!((info.base_version, info.class_version), (1, 2));
    let mut request = SaMad::request(Method::Get, Tid(1), 0, &PathRecord::default());
    request.header.attribute = 0x99;
    assert_eq!(world.send(1, &request).header.status, MadStatus::UNSUPPORTED_ATTRIBUTE);
    request.header.method = Method::GetMulti;
    assert_eq!(world.send(1, &request).header.status, MadStatus::UNSUPPORTED_METHOD);
    // A port without a LID gets no answer.
    let mad =
        Mad { peer: ib_wire::mad::MadAddress::gsi(Lid(77), ServiceLevel::new(0)), bytes: request.to_bytes() };
    world.sm.handle_mad(world.now, &mad);
    world.pump();
    assert!(world.inbox.is_empty());
    let mut record = SaMad::request(Method::Get, Tid(1), 1, &PathRecord::default());
    record.header.attribute = attribute::NODE_RECORD;
    record.data[..2].copy_from_slice(&world.lid(1).0.to_be_bytes());
    let answer = world.send(1, &record);
    assert_eq!(answer.data[4 + 12..4 + 20], 0x1000u64.to_be_bytes());
    record.header.attribute = attribute::PORT_INFO_RECORD;
    let answer = world.send(1, &record);
    assert_eq!(answer.data[4 + 16..4 + 18], world.lid(1).0.to_be_bytes());
}
