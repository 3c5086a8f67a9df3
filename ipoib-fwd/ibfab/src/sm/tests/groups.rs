//! Multicast groups as ports create, join and leave them.

use ib_wire::mad::Method;
use ib_wire::sa::{JoinState, McMask, McMemberRecord, Selector};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Rate, ServiceLevel};

use super::administration::{JOIN, all_hosts, broadcast, creation, member, up};
use super::world::World;
use super::{config, partition};
use crate::subnet::{Partition, SmConfig};

#[test]
fn joins_of_the_broadcast_group_program_the_switch() {
    let mut world = up(3, config());
    let wanted = member(&world, 1, broadcast());
    let got = world.member(1, Method::Set, JOIN, &wanted).unwrap();
    assert_eq!((got.mlid, got.qkey, got.pkey), (Lid(0xc000), QKey(0xb1b), PKey::DEFAULT));
    assert_eq!((got.mtu_selector, got.mtu.mtu()), (Selector::Exactly, Some(Mtu::B4096)));
    assert_eq!((got.rate, got.life_time.get(), got.scope.get()), (Rate::new(3), 18, 2));
    assert_eq!(got.join_state, JoinState::FULL_MEMBER);
    assert_eq!(world.multicast(0, Lid(0xc000)), 1 << 1);
    let wanted = member(&world, 3, broadcast());
    world.member(3, Method::Set, JOIN, &wanted).unwrap();
    assert_eq!(world.multicast(0, Lid(0xc000)), 1 << 1 | 1 << 3);
    // Send-only members get nothing.
    let send_only =
        McMemberRecord { join_state: JoinState::SEND_ONLY_FULL_MEMBER, ..member(&world, 2, broadcast()) };
    world.member(2, Method::Set, JOIN, &send_only).unwrap();
    assert_eq!(world.multicast(0, Lid(0xc000)), 1 << 1 | 1 << 3);
    world.member(3, Method::Delete, JOIN, &wanted).unwrap();
    assert_eq!(world.multicast(0, Lid(0xc000)), 1 << 1);
    assert_eq!(world.member(3, Method::Delete, JOIN, &wanted), Err(0x0200), "a second leave");
}

#[test]
fn groups_are_created_and_deleted_with_their_members() {
    let mut world = up(2, config());
    let wanted = member(&world, 1, all_hosts());
    assert_eq!(world.member(1, Method::Set, JOIN, &wanted), Err(0x0600), "not there, and no attributes");
    let (mask, record) = creation(&world, 1, all_hosts());
    let got = world.member(1, Method::Set, mask, &record).unwrap();
    assert_eq!(got.mlid, Lid(0xc001));
    assert_eq!(world.multicast(0, Lid(0xc001)), 1 << 1);
    // Others join by the present attributes, or by the same ones.
    let second = member(&world, 2, all_hosts());
    world.member(2, Method::Set, JOIN, &second).unwrap();
    let other = McMemberRecord { qkey: QKey(7), ..creation(&world, 2, all_hosts()).1 };
    assert_eq!(world.member(2, Method::Set, mask, &other), Err(0x0200), "another Q_Key");
    world.member(1, Method::Delete, JOIN, &record).unwrap();
    assert_eq!(world.sm.groups().count(), 2);
    world.member(2, Method::Delete, JOIN, &second).unwrap();
    assert_eq!(world.sm.groups().count(), 1, "the broadcast group stays");
    assert_eq!(world.multicast(0, Lid(0xc001)), 0);
    // The number is free again.
    assert_eq!(world.member(1, Method::Set, mask, &record).unwrap().mlid, Lid(0xc001));
}

#[test]
fn joins_that_cannot_be_are_refused() {
    let mut world = up(2, config());
    let good = member(&world, 1, broadcast());
    let refused = [
        (JOIN - McMask::JOIN_STATE, good, 0x0600),
        (JOIN, McMemberRecord { join_state: JoinState::empty(), ..good }, 0x0200),
        (JOIN, McMemberRecord { port_gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(1)), ..good }, 0x0200),
        (JOIN, McMemberRecord { port_gid: world.gid(2), ..good }, 0x0200),
        (JOIN | McMask::PKEY, McMemberRecord { pkey: PKey(0x8005), ..good }, 0x0200),
        (
            JOIN | McMask::MTU_SELECTOR | McMask::MTU,
            McMemberRecord { mtu_selector: Selector::Less, mtu: Mtu::B4096.into(), ..good },
            0x0200,
        ),
    ];
    for (mask, record, status) in refused {
        assert_eq!(world.member(1, Method::Set, mask, &record), Err(status), "{mask:?} {record:?}");
    }
    let (mask, record) = creation(&world, 1, all_hosts());
    let non_member = McMemberRecord { join_state: JoinState::NON_MEMBER, ..record };
    assert_eq!(world.member(1, Method::Set, mask, &non_member), Err(0x0200));
    let stranger = McMemberRecord { pkey: PKey(0x8005), ..record };
    assert_eq!(world.member(1, Method::Set, mask, &stranger), Err(0x0200));
    let unicast = McMemberRecord { mgid: world.gid(1), ..record };
    assert_eq!(world.member(1, Method::Set, mask, &unicast), Err(0x0200));
    assert_eq!(world.sm.groups().count(), 1);
    let counters = world.sm.counters();
    assert_eq!((counters.sa_refused, counters.sa_refused_by), (9, [0, 0, 8, 0, 0, 0, 1, 0]));
    assert_eq!(counters.ports_refused, 2, "one port, two statuses");
}

#[test]
fn a_port_that_cannot_carry_the_group_is_refused() {
    let mut world = World::new(2, config());
    world.nodes[1].ports[1].mtu_cap = Mtu::B2048.into();
    world.pump();
    let wanted = member(&world, 1, broadcast());
    assert_eq!(world.member(1, Method::Set, JOIN, &wanted), Err(0x0200));
    // It cannot create one either: a group of the link would have the MTU of the broadcast group.
    let (mask, new) = creation(&world, 1, all_hosts());
    let mask = mask.difference(McMask::MTU_SELECTOR | McMask::MTU);
    assert_eq!(world.member(1, Method::Set, mask, &new), Err(0x0200));
    assert_eq!(world.sm.groups().count(), 1, "none is left without members");
}

#[test]
fn the_number_of_groups_is_bounded() {
    let mut world = up(1, SmConfig { max_groups: 3, ..config() });
    for n in 0..4u8 {
        let mut mgid = all_hosts();
        mgid.0[15] = n;
        let (mask, record) = creation(&world, 1, mgid);
        let got = world.member(1, Method::Set, mask, &record);
        assert_eq!(got.is_ok(), n < 2, "{got:?}");
    }
    // Multicast tables of 64 entries.
    let mut world = up(1, config());
    let mut refused = 0;
    for n in 0..70u8 {
        let mut mgid = all_hosts();
        mgid.0[15] = n;
        let (mask, record) = creation(&world, 1, mgid);
        refused += u32::from(world.member(1, Method::Set, mask, &record) == Err(0x0100));
    }
    assert_eq!(refused, 7);
}

#[test]
fn a_group_is_made_by_who_only_sends() {
    let mut world = up(2, config());
    let (mask, record) = creation(&world, 1, all_hosts());
    let sender = McMemberRecord { join_state: JoinState::SEND_ONLY_FULL_MEMBER, ..record };
    let got = world.member(1, Method::Set, mask, &sender).unwrap();
    assert_eq!((got.mlid, got.join_state), (Lid(0xc001), JoinState::SEND_ONLY_FULL_MEMBER));
    assert_eq!(world.multicast(0, Lid(0xc001)), 0, "it receives nothing");
    let second = member(&world, 2, all_hosts());
    world.member(2, Method::Set, JOIN, &second).unwrap();
    assert_eq!(world.multicast(0, Lid(0xc001)), 1 << 2);
    // It cannot leave with join states that it does not have, not even in addition to its own.
    let more = McMemberRecord { join_state: JoinState::FULL_MEMBER | sender.join_state, ..sender };
    assert_eq!(world.member(1, Method::Delete, JOIN, &more), Err(0x0200));
    world.member(2, Method::Delete, JOIN, &second).unwrap();
    assert_eq!(world.sm.groups().count(), 2, "it keeps the group alive");
    world.member(1, Method::Delete, JOIN, &sender).unwrap();
    assert_eq!(world.sm.groups().count(), 1);
    // A sender without membership creates no group.
    let stranger = McMemberRecord { join_state: JoinState::SEND_ONLY_NON_MEMBER, ..record };
    assert_eq!(world.member(1, Method::Set, mask, &stranger), Err(0x0200));
}

#[test]
fn groups_of_a_link_are_as_its_broadcast_group() {
    let mut config = config();
    config.partitions.push(Partition { ipoib: false, ..partition(0x8002, &[(0x1001, true)]) });
    let mut world = up(1, config);
    assert_eq!(world.sm.groups().count(), 1, "none for a partition without IPoIB");
    let (mask, good) = creation(&world, 1, all_hosts());
    for bad in [
        McMemberRecord { qkey: QKey(7), ..good },
        McMemberRecord { sl: ServiceLevel::new(1), ..good },
        McMemberRecord { hop_limit: 3, ..good },
        McMemberRecord { traffic_class: 1, ..good },
        McMemberRecord { pkey: PKey(0x8002), ..good },
        // An MTU or a rate that would exclude others.
        McMemberRecord { mtu: Mtu::B256.into(), ..good },
        McMemberRecord { rate: Rate::new(2), ..good },
    ] {
        let mask = mask | McMask::MTU_SELECTOR | McMask::MTU | McMask::RATE_SELECTOR | McMask::RATE;
        assert_eq!(world.member(1, Method::Set, mask, &bad), Err(0x0200), "{bad:?}");
    }
    // Components that are not given are those of the broadcast group.
    let unsaid = McMask::MTU_SELECTOR | McMask::MTU | McMask::RATE_SELECTOR | McMask::RATE;
    let made = world.member(1, Method::Set, mask.difference(unsaid), &good).unwrap();
    assert_eq!((made.mtu, made.rate), (Mtu::B4096.into(), Rate::new(3)));
    // No broadcast group: that one comes first, then others.
    let mut mgid = all_hosts();
    mgid.0[4..6].copy_from_slice(&[0x80, 0x02]);
    let early = McMemberRecord { mgid, pkey: PKey(0x8002), ..good };
    assert_eq!(world.member(1, Method::Set, mask, &early), Err(0x0200));
    let mut broadcast = broadcast();
    broadcast.0[4..6].copy_from_slice(&[0x80, 0x02]);
    let own = McMemberRecord { mgid: broadcast, qkey: QKey(5), ..early };
    assert!(world.member(1, Method::Set, mask, &own).is_ok());
    let late = McMemberRecord { qkey: QKey(5), ..early };
    assert!(world.member(1, Method::Set, mask, &late).is_ok());
}

#[test]
fn a_group_over_two_switches_reaches_its_members_only() {
    let mut world = World::new(2, config());
    let far = world.add(ib_wire::smp::NodeType::Switch, 0x200, 20);
    world.connect((0, 20), (far, 5));
    let adapter = world.add(ib_wire::smp::NodeType::ChannelAdapter, 0x8000, 1);
    world.connect((far, 17), (adapter, 1));
    world.pump();
    let wanted = member(&world, 1, broadcast());
    world.member(1, Method::Set, JOIN, &wanted).unwrap();
    assert_eq!(world.multicast(0, Lid(0xc000)), 1 << 1);
    assert_eq!(world.multicast(far, Lid(0xc000)), 1 << 5, "senders behind it reach the member");
    let wanted = member(&world, adapter, broadcast());
    world.member(adapter, Method::Set, JOIN, &wanted).unwrap();
    assert_eq!(world.multicast(0, Lid(0xc000)), 1 << 1 | 1 << 20);
    assert_eq!(world.multicast(far, Lid(0xc000)), 1 << 5 | 1 << 17);
}
