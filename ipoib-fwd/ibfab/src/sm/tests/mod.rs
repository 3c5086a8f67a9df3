mod administration;
mod duplicates;
mod groups;
mod hostile;
mod keys;
mod lmc;
mod membership;
mod mute;
mod reports;
mod shares;
mod stray;
mod switches;
mod virtual_ports;
mod world;

use std::time::Duration;

use ib_wire::mad::{Method, MgmtClass};
use ib_wire::sa::Notice;
use ib_wire::smp::{DirectedPath, NodeType, PortState, Smp, attribute};
use ib_wire::{Guid, Lid, Mtu, PKey, Tid};

use crate::subnet::{Member, Members, Membership, Partition, SmConfig};
use world::{SWITCH, World};

const SECOND: Duration = Duration::from_secs(1);

fn config() -> SmConfig {
    SmConfig::new(SWITCH)
}

/// A partition with the ports of these GUIDs, full members or limited ones.
fn partition(pkey: u16, guids: &[(u64, bool)]) -> Partition {
    let membership = |full| if full { Membership::Full } else { Membership::Limited };
    let named = guids.iter().map(|&(guid, full)| (Member::Guid(Guid(guid)), membership(full))).collect();
    let members = Members { named, others: None };
    Partition { pkey: PKey(pkey), members, ..Partition::default_ipoib() }
}

fn all_active(world: &World) -> bool {
    world.adapters().all(|n| n.ports[1].state == PortState::Active)
}

#[test]
fn brings_a_fabric_up() {
    let mut world = World::new(3, config());
    world.pump();
    assert!(world.sm.is_up(), "{:?}", world.sm.counters());
    assert!(all_active(&world));
    let mut lids: Vec<Lid> = (1..=3).map(|i| world.lid(i)).collect();
    assert_eq!(world.nodes[0].ports[0].lid, Lid(1));
    for i in 1..=3u8 {
        let port = &world.nodes[usize::from(i)].ports[1];
        assert_eq!(port.sm_lid, Lid(1));
        assert_eq!(port.gid_prefix, 0xfe80_0000_0000_0000);
        assert_eq!(port.neighbor_mtu.mtu(), Some(Mtu::B4096));
        assert_eq!(port.subnet_timeout.code(), 18);
        assert_eq!(world.nodes[0].ports[usize::from(i)].state, PortState::Active);
        assert_eq!(world.route(0, world.lid(i.into())), i);
        let keys = &world.nodes[usize::from(i)].pkeys[1];
        assert_eq!(keys[&0][..2], [PKey::DEFAULT, PKey(0)]);
        assert_eq!(world.nodes[usize::from(i)].reregistered, 1);
    }
    assert_eq!(world.route(0, Lid(1)), 0);
    assert_eq!(world.route(0, Lid(40)), 255);
    lids.sort();
    lids.dedup();
    assert_eq!(lids.len(), 3);
}

#[test]
fn a_healthy_fabric_is_only_read() {
    let mut world = World::new(3, config());
    world.pump();
    let sets = world.sets();
    world.pass(60 * SECOND);
    assert_eq!(world.sets(), sets);
    assert_eq!(world.sm.counters().sweeps, 1, "light sweeps find nothing to do");
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    assert_eq!(world.sm.counters().sweeps, 2);
    assert_eq!(world.sets(), sets, "nor does a full one");
}

#[test]
fn lost_packets_are_sent_again() {
    for seed in 1..20 {
        let mut world = World::new(3, config());
        world.lose_one_in(4, seed);
        world.pass(60 * SECOND);
        assert!(world.sm.is_up() && all_active(&world), "seed {seed}: {:?}", world.sm.counters());
    }
}

#[test]
fn a_silent_fabric_ends_in_bounded_tries() {
    let mut world = World::new(2, config());
    world.lose_one_in(1, 1);
    world.pass(5 * SECOND);
    assert!(!world.sm.is_up());
    assert_eq!(world.sm.counters().smp_lost, 5, "one request a sweep, 0.8 s each, 0.25 s between them");
    world.lose_one_in(0, 1);
    world.pass(2 * SECOND);
    assert!(world.sm.is_up() && all_active(&world), "it is looked for again");
}

#[test]
fn a_port_goes_and_comes_back_with_its_lid() {
    let mut world = World::new(3, config());
    world.pump();
    let lid = world.lid(2);
    world.disconnect((0, 2));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    assert_eq!(world.sm.ports().count(), 3);
    assert_eq!(world.route(0, lid), 255);
    world.nodes[2].ports[1].lid = Lid(0);
    world.connect((0, 2), (2, 1));
    // No trap this time: the light sweep sees the switch's flag.
    world.pass(11 * SECOND);
    assert_eq!(world.sm.ports().count(), 4);
    assert_eq!(world.lid(2), lid);
    assert_eq!(world.route(0, lid), 2);
    assert!(all_active(&world));
    assert_eq!(world.nodes[2].reregistered, 2);
    assert_eq!(world.nodes[1].reregistered, 1);
}

#[test]
fn a_host_that_stands_still_for_a_moment_stays() {
    let mut world = World::new(2, config());
    world.pump();
    let lid = world.lid(2);
    world.nodes[2].mute = true;
    world.sm.handle_port_change(world.now);
    world.pass(2 * SECOND);
    assert_eq!(world.sm.ports().count(), 3);
    assert_eq!(world.route(0, lid), 2);
    world.nodes[2].mute = false;
    world.pass(2 * SECOND);
    assert!(world.sm.is_up());
    assert_eq!(world.nodes[2].reregistered, 1, "it lost nothing");
    world.nodes[2].mute = true;
    world.sm.handle_port_change(world.now);
    world.pass(10 * SECOND);
    assert_eq!(world.sm.ports().count(), 2, "not for ever");
    assert_eq!(world.route(0, lid), 255);
}

#[test]
fn a_trap_is_confirmed_and_followed() {
    let mut world = World::new(2, config());
    world.pump();
    let adapter = world.add(NodeType::ChannelAdapter, 0x9000, 1);
    world.connect((0, 9), (adapter, 1));
    let trap = Notice::link_state_change(Lid(1)).to_trap(Tid(77)).to_mad(Lid(1));
    world.sm.handle_mad(world.now, &trap);
    world.pass(Duration::from_millis(100));
    let repress = Smp::from_mad(&world.inbox.pop_front().unwrap().bytes).unwrap();
    assert_eq!((repress.header.method, repress.header.tid), (Method::TrapRepress, Tid(77)));
    assert!(all_active(&world));
}

#[test]
fn a_flood_of_traps_does_not_sweep_for_ever() {
    let mut world = World::new(2, config());
    world.pump();
    for _ in 0..1000 {
        let trap = Notice::link_state_change(Lid(1)).to_trap(Tid(1)).to_mad(Lid(1));
        world.sm.handle_mad(world.now, &trap);
        world.pass(Duration::from_millis(1));
    }
    assert!(world.sm.counters().sweeps < 60, "{:?}", world.sm.counters());
}

/// Two switches with two links between them, an adapter on each, one with both ports on different switches.
#[test]
fn several_switches_are_walked_and_routed() {
    let mut world = World::new(1, config());
    let far = world.add(NodeType::Switch, 0x200, 20);
    world.connect((0, 19), (far, 5));
    world.connect((0, 20), (far, 6));
    let adapter = world.add(NodeType::ChannelAdapter, 0x8000, 2);
    world.connect((far, 17), (adapter, 1));
    world.connect((0, 7), (adapter, 2));
    world.pump();
    assert!(world.sm.is_up(), "{:?}", world.sm.counters());
    assert!(all_active(&world));
    assert_eq!(world.nodes[adapter].ports[2].state, PortState::Active);
    let (near, there) = (world.lid(1), world.lid(adapter));
    assert_ne!(there, world.nodes[adapter].ports[2].lid);
    assert_eq!(world.route(far, there), 17);
    assert!([19, 20].contains(&world.route(0, there)));
    assert!([5, 6].contains(&world.route(far, near)));
    assert_eq!(world.route(0, world.nodes[adapter].ports[2].lid), 7);
    assert_eq!(world.route(far, world.nodes[far].ports[0].lid), 0);
    for port in [5, 6] {
        assert_eq!(world.nodes[far].ports[port].state, PortState::Active);
    }
}

#[test]
fn partitions_go_to_their_ports() {
    let mut config = config();
    config.partitions.push(partition(0x8002, &[(0x1001, true), (0x2001, false)]));
    let mut world = World::new(3, config);
    world.pump();
    let keys = |i: usize| world.nodes[i].pkeys[1][&0][..3].to_vec();
    assert_eq!(keys(1), [PKey::DEFAULT, PKey(0x8002), PKey(0)]);
    assert_eq!(keys(2), [PKey::DEFAULT, PKey(0x0002), PKey(0)]);
    assert_eq!(keys(3), [PKey::DEFAULT, PKey(0), PKey(0)]);
    assert_eq!(world.nodes[0].pkeys[0][&0][..2], [PKey::DEFAULT, PKey(0x8002)]);
}

#[test]
fn switches_enforce_partitions_where_adapters_hang() {
    let mut config = config();
    config.partitions.push(partition(0x8002, &[(0x1001, true), (0x2001, false)]));
    // One port by its position, and all others as limited members.
    let named = vec![(Member::At((SWITCH, 3)), Membership::Full)];
    let members = Members { named, others: Some(Membership::Limited) };
    config.partitions.push(Partition { pkey: PKey(0x8003), members, ..Partition::default_ipoib() });
    let mut world = World::new(3, config);
    let far = world.add(NodeType::Switch, 0x200, 20);
    world.nodes[far].switch.partition_enforcement_cap = 2;
    world.connect((0, 19), (far, 5));
    let adapter = world.add(NodeType::ChannelAdapter, 0x8000, 1);
    world.connect((far, 17), (adapter, 1));
    let other = world.add(NodeType::ChannelAdapter, 0x9000, 1);
    world.connect((far, 18), (other, 1));
    world.pump();
    assert!(world.sm.is_up());
    for (i, expected) in
        [(1, [0xffff, 0x8002, 0x0003]), (2, [0xffff, 0x0002, 0x0003]), (3, [0xffff, 0x8003, 0])]
    {
        let (at, own) = (&world.nodes[0], &world.nodes[i]);
        assert_eq!(own.pkeys[1][&0][..3], expected.map(PKey));
        assert_eq!(at.pkeys[i], own.pkeys[1], "the same at both ends");
        assert!(at.ports[i].pkey_enforce_in && at.ports[i].pkey_enforce_out);
    }
    // Not between switches; a table that is too short is not enforced.
    assert!(!world.nodes[0].ports[19].pkey_enforce_in && !world.nodes[far].ports[5].pkey_enforce_out);
    assert!(world.nodes[far].ports[17].pkey_enforce_in);
    world.nodes[far].switch.partition_enforcement_cap = 1;
    world.disconnect((far, 17));
    world.connect((far, 17), (adapter, 1));
    world.pass(11 * SECOND);
    assert!(!world.nodes[far].ports[17].pkey_enforce_in);
    assert!(world.sm.counters().not_enforced > 0);
}

#[test]
fn more_nodes_than_allowed_are_ignored() {
    let mut world = World::new(8, SmConfig { max_nodes: 4, ..config() });
    world.pump();
    assert_eq!(world.sm.ports().count(), 4);
    assert!(world.sm.counters().nodes_ignored >= 5);
}

#[test]
fn answers_that_nobody_waits_for_are_counted() {
    let mut world = World::new(1, config());
    world.pump();
    let path = DirectedPath::LOCAL;
    let forged = Smp::directed(Method::GetResp, Tid(0xdead), attribute::NODE_INFO, 0, &path);
    world.sm.handle_mad(world.now, &forged.to_mad(Lid(9)));
    let mut other = forged.to_mad(Lid(9));
    other.bytes[1] = MgmtClass::Perf.code();
    world.sm.handle_mad(world.now, &other);
    assert_eq!((world.sm.counters().unasked, world.sm.counters().unknown), (1, 1));
}

#[test]
fn another_manager_learns_who_is_master() {
    let mut world = World::new(1, config());
    world.pump();
    let ask = Smp::lid_routed(Method::Get, Tid(5), attribute::SM_INFO, 0);
    world.sm.handle_mad(world.now, &ask.to_mad(Lid(2)));
    world.pump();
    let answer = Smp::from_mad(&world.inbox.pop_front().unwrap().bytes).unwrap();
    let info = answer.attribute::<ib_wire::smp::SmInfo>().unwrap();
    assert_eq!((info.guid, info.state), (SWITCH, ib_wire::smp::SmState::Master));
}

#[test]
fn a_lid_that_several_ports_come_with_is_nobodys() {
    let mut world = World::new(3, config());
    for (node, lid) in [(1, 20), (2, 20), (3, 21)] {
        world.nodes[node].ports[1].lid = Lid(lid);
    }
    world.pump();
    assert!(world.sm.is_up());
    assert_eq!(world.lid(3), Lid(21), "a port keeps the LID that it alone comes with");
    let lids: Vec<Lid> = world.sm.ports().map(|(lid, _)| lid).collect();
    assert!(lids.len() == 4 && !lids.contains(&Lid(20)), "{lids:?}");
}
