//! Several switches: every route reaches its destination, without a cycle of packets that wait for each
//! other, or a loop of multicasts.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::mad::{Mad, Method};
use ib_wire::sa::{JoinState, McMask, McMemberRecord, SaMad};
use ib_wire::smp::NodeType;
use ib_wire::{Gid, Guid, Lid, PKey, Tid};

use super::world::{SWITCH, World};
use super::{SECOND, all_active, config};
use crate::subnet::{OwnSwitches, SmConfig};

/// Port of a switch with an adapter.
const HOST: u8 = 17;

/// Builds `switches` switches, each but the first with an adapter; returns the adapters by their switches.
fn build(switches: usize, trunks: &[(usize, usize)]) -> (World, BTreeMap<usize, usize>) {
    build_with(config(), switches, trunks)
}

pub(super) fn build_with(
    config: SmConfig,
    switches: usize,
    trunks: &[(usize, usize)],
) -> (World, BTreeMap<usize, usize>) {
    let mut world = World::new(1, config);
    let mut nodes = vec![0];
    for n in 1..switches {
        // The GUIDs do not follow the order.
        let guid = 0x200 + (n as u64 * 7) % 5 * 0x10 + n as u64;
        nodes.push(world.add(NodeType::Switch, guid, 20));
    }
    for (n, &(a, b)) in trunks.iter().enumerate() {
        world.connect((nodes[a], 2 + n as u8), (nodes[b], 2 + n as u8));
    }
    let mut adapters = BTreeMap::from([(0, 1)]);
    for (n, &switch) in nodes.iter().enumerate().skip(1) {
        let adapter = world.add(NodeType::ChannelAdapter, 0x8000 + 0x10 * n as u64, 1);
        world.connect((switch, HOST), (adapter, 1));
        adapters.insert(switch, adapter);
    }
    world.pass(SECOND);
    assert!(world.sm.is_up() && all_active(&world), "{:?}", world.sm.counters());
    (world, adapters)
}

/// Returns the trunks of a packet from a switch to a LID, each as the switch that it leaves and its port.
pub(super) fn walk(world: &World, from: usize, lid: Lid) -> Vec<(usize, u8)> {
    let (mut at, mut way) = (from, Vec::new());
    loop {
        let port = world.route(at, lid);
        let (next, _) = world.peer((at, port)).unwrap_or_else(|| panic!("{lid} at {at}: port {port}"));
        let there = &world.nodes[next].ports[1];
        if there.lid.0 == lid.0 >> there.lmc.get() << there.lmc.get() && next != 0 {
            return way;
        }
        way.push((at, port));
        assert!(way.len() < 10, "{lid} goes round: {way:?}");
        at = next;
    }
}

/// Checks that every adapter reaches every other, and that the trunks, each waiting for the next one of some
/// route, form no cycle.
fn check_unicast(world: &World, adapters: &BTreeMap<usize, usize>) {
    let mut waits: BTreeMap<(usize, u8), BTreeSet<(usize, u8)>> = BTreeMap::new();
    for &from in adapters.keys() {
        for (&home, &adapter) in adapters {
            let way = walk(world, from, world.lid(adapter));
            assert_eq!(way.is_empty(), from == home);
            for pair in way.windows(2) {
                waits.entry(pair[0]).or_default().insert(pair[1]);
            }
        }
    }
    // Trunks for which no other waits are removed until none is left.
    while !waits.is_empty() {
        let waited: BTreeSet<_> = waits.values().flatten().copied().collect();
        let before = waits.len();
        waits.retain(|trunk, _| waited.contains(trunk));
        assert!(waits.len() < before, "a circle: {waits:?}");
    }
}

fn broadcast() -> Gid {
    ib_wire::ipoib::broadcast_gid(PKey::DEFAULT, ib_wire::ipoib::GroupScope::LINK_LOCAL)
}

pub(super) fn join(world: &mut World, adapter: usize) {
    let record = McMemberRecord {
        mgid: broadcast(),
        port_gid: world.gid(adapter),
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let mask = McMask::MGID | McMask::PORT_GID | McMask::JOIN_STATE;
    let request = SaMad::request(Method::Set, Tid(1), mask.bits(), &record);
    let mad = Mad { peer: world.address(adapter), bytes: request.to_bytes() };
    world.sm.handle_mad(world.now, &mad);
    world.pump();
    let answer = SaMad::parse(&world.inbox.pop_front().unwrap().bytes);
    assert!(answer.header.status.is_ok(), "{:?}", answer.header);
}

/// Returns how many copies of a broadcast of the adapter at switch `home` each adapter gets.
pub(super) fn copies(world: &World, adapters: &BTreeMap<usize, usize>, home: usize) -> BTreeMap<usize, u32> {
    let mut got: BTreeMap<usize, u32> = BTreeMap::new();
    let own = if home == 0 { 1 } else { HOST };
    let mut copies = vec![(home, own)];
    let mut hops = 0;
    while let Some((at, entry)) = copies.pop() {
        hops += 1;
        assert!(hops < 100, "it goes round");
        let ports = world.multicast(at, Lid(0xc000));
        for port in (1..20u8).filter(|&p| ports >> p & 1 == 1 && p != entry) {
            let Some((next, entry)) = world.peer((at, port)) else { continue };
            if adapters.contains_key(&next) {
                copies.push((next, entry));
            } else {
                *got.entry(next).or_default() += 1;
            }
        }
    }
    got
}

/// Checks that a broadcast of every adapter reaches every other one exactly once.
fn check_multicast(world: &World, adapters: &BTreeMap<usize, usize>) {
    for (&home, &sender) in adapters {
        let others = adapters.values().filter(|&&a| a != sender).map(|&a| (a, 1)).collect();
        assert_eq!(copies(world, adapters, home), others, "from {sender}");
    }
}

pub(super) fn check(world: &World, adapters: &BTreeMap<usize, usize>) {
    check_unicast(world, adapters);
    check_multicast(world, adapters);
}

#[test]
fn rings_stars_and_meshes() {
    let shapes: [(usize, &[(usize, usize)]); 6] = [
        (2, &[(0, 1), (0, 1), (1, 0)]),
        (3, &[(0, 1), (1, 2), (2, 0)]),
        (5, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]),
        (6, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4)]),
        (5, &[(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1)]),
        (4, &[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (2, 3)]),
    ];
    for (switches, trunks) in shapes {
        let (mut world, adapters) = build(switches, trunks);
        adapters.values().for_each(|&adapter| join(&mut world, adapter));
        check(&world, &adapters);
    }
}

#[test]
fn equal_ways_share_the_load() {
    let (mut world, adapters) = build(2, &[(0, 1), (0, 1)]);
    let far = *adapters.keys().last().unwrap();
    for n in 0..4 {
        let adapter = world.add(NodeType::ChannelAdapter, 0x9000 + 0x10 * n, 1);
        world.connect((far, HOST - 1 - n as u8), (adapter, 1));
    }
    world.pass(11 * SECOND);
    let mut used = BTreeSet::new();
    for lid in 1..=world.sm.ports().count() as u16 {
        used.insert(world.route(0, Lid(lid)));
    }
    assert!(used.contains(&2) && used.contains(&3), "{used:?}");
    check_unicast(&world, &adapters);
}

#[test]
fn a_trunk_that_goes_is_gone_around_and_comes_back() {
    let ring = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 1)];
    for lost in 0..ring.len() as u8 {
        let (mut world, adapters) = build(4, &ring);
        adapters.values().for_each(|&adapter| join(&mut world, adapter));
        let lids: Vec<Lid> = adapters.values().map(|&a| world.lid(a)).collect();
        let switches: Vec<usize> = adapters.keys().copied().collect();
        let end = switches.iter().map(|&s| (s, 2 + lost)).find(|&end| world.peer(end).is_some()).unwrap();
        let other = world.peer(end).unwrap();
        world.disconnect(end);
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        assert!(world.sm.is_up());
        check(&world, &adapters);
        world.connect(end, other);
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        assert!(world.sm.is_up());
        check(&world, &adapters);
        assert_eq!(adapters.values().map(|&a| world.lid(a)).collect::<Vec<_>>(), lids);
    }
}

/// Whenever a table is written, in any order and with any losses, no multicast loops.
#[test]
fn no_circle_while_trees_change() {
    let mesh = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)];
    let mut written = 0;
    for seed in 0..12 {
        let (mut world, adapters) = build(4, &mesh);
        adapters.values().for_each(|&adapter| join(&mut world, adapter));
        let ends: Vec<((usize, u8), (usize, u8))> = (2..8)
            .map(|port| {
                let end = adapters.keys().map(|&s| (s, port)).find(|&end| world.peer(end).is_some()).unwrap();
                (end, world.peer(end).unwrap())
            })
            .collect();
        let (gone, next) = (ends[seed % 6], ends[(seed * 5 + 1) % 6]);
        world.disconnect(gone.0);
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        if next != gone {
            world.disconnect(next.0);
        }
        world.connect(gone.0, gone.1);
        world.lose_one_in(6, seed as u64);
        world.sm.handle_port_change(world.now);
        world.watch = Some(Lid(0xc000));
        world.pass(30 * SECOND);
        written += world.watched;
        world.lose_one_in(0, 0);
        world.pass(30 * SECOND);
        assert!(world.sm.is_up());
        check(&world, &adapters);
    }
    assert!(written > 20, "{written} tables were written");
}

#[test]
fn lids_of_ports_that_are_not_behind_a_link_to_switches_of_others_are_known() {
    let others = [(SWITCH, 18), (SWITCH, 19), (SWITCH, 20)].into();
    let own = OwnSwitches { guids: [SWITCH].into(), trunks: [].into(), others };
    let mut world = World::new(1, SmConfig { own, ..config() });
    let mut ends = Vec::new();
    for (n, port) in [(1u64, 19), (2, 20)] {
        let far = world.add(NodeType::Switch, 0x200 * n, 20);
        let host = world.add(NodeType::ChannelAdapter, 0x8000 * n, 1);
        world.connect((far, 7), (host, 1));
        world.connect((0, port), (far, 5));
        ends.push((far, host));
    }
    world.pump();
    let lid = |world: &World, node: usize| {
        let port = usize::from(world.nodes[node].ports.len() == 2);
        world.nodes[node].ports[port].lid
    };
    let [(a, a1), (b, b1)] = ends[..] else { panic!("two switches") };
    let not = |nodes: [usize; 4]| nodes.map(|node| lid(&world, node)).into_iter().collect::<BTreeSet<_>>();
    let expected = [((SWITCH, 19), not([0, 1, b, b1])), ((SWITCH, 20), not([0, 1, a, a1]))];
    assert_eq!(world.sm.elsewhere(), BTreeMap::from(expected.clone()));
    // By a second link, packets between our own may arrive.
    world.connect((0, 18), (a, 9));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    let none = |port| ((SWITCH, port), BTreeSet::new());
    assert_eq!(world.sm.elsewhere(), BTreeMap::from([none(18), none(19), expected[1].clone()]));
    // A port whose other end is unknown is omitted.
    world.nodes[b].mute = true;
    world.sm.handle_port_change(world.now);
    world.pass(30 * SECOND);
    assert_eq!(world.sm.elsewhere(), BTreeMap::from([none(18), none(19)]));
}

/// Builds three switches of ours with hosts in the broadcast group, in one ring: port 2 between the first and
/// the second switch, port 3 between the first and the last, port 4 between the second and the last.
pub(super) fn own_ring() -> (World, BTreeMap<usize, usize>, [usize; 3]) {
    let ring = [(0, 1), (0, 2), (1, 2)];
    // GUIDs as `build_with` assigns them.
    let [near, b, c] = [SWITCH, Guid(0x221), Guid(0x242)];
    let trunks = [(near, 2), (near, 3), (b, 2), (b, 4), (c, 3), (c, 4)].into();
    let own = OwnSwitches { guids: [near, b, c].into(), trunks, others: [].into() };
    let (mut world, adapters) = build_with(SmConfig { own, ..config() }, 3, &ring);
    adapters.values().for_each(|&adapter| join(&mut world, adapter));
    check(&world, &adapters);
    let switches: Vec<usize> = adapters.keys().copied().collect();
    let [a, b, c] = switches[..] else { panic!("three switches") };
    (world, adapters, [a, b, c])
}

#[test]
fn a_switch_in_a_ring_whose_answers_are_late_keeps_all_its_trunks() {
    let (_, _, switches) = own_ring();
    for late in &switches[1..] {
        let (mut world, adapters, _) = own_ring();
        world.watch = Some(Lid(0xc000));
        world.nodes[*late].mute = true;
        world.sm.handle_port_change(world.now);
        for _ in 0..90 {
            world.pass(SECOND);
            check(&world, &adapters);
        }
        assert_eq!(world.sm.counters().links_taken_down, 0);
        world.nodes[*late].mute = false;
        world.pass(10 * SECOND);
        assert!(world.sm.is_up(), "{:?}", world.sm.counters());
        check(&world, &adapters);
    }
}

#[test]
fn a_trunk_that_comes_while_a_switch_is_late_closes_no_circle() {
    let (_, _, [a, b, c]) = own_ring();
    for (late, end) in [(b, (a, 3)), (c, (a, 2)), (b, (c, 4)), (c, (b, 4))] {
        let (mut world, adapters, _) = own_ring();
        let other = world.peer(end).unwrap();
        world.disconnect(end);
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        check(&world, &adapters);
        world.watch = Some(Lid(0xc000));
        world.nodes[late].mute = true;
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        world.connect(end, other);
        world.sm.handle_port_change(world.now);
        world.pass(5 * SECOND);
        check_multicast(&world, &adapters);
        // A join is no reason to close it.
        let host = world.add(NodeType::ChannelAdapter, 0x1_0000, 1);
        world.connect((a, 15), (host, 1));
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        join(&mut world, host);
        world.pass(5 * SECOND);
        world.nodes[late].mute = false;
        world.pass(20 * SECOND);
        assert!(world.sm.is_up(), "{:?}", world.sm.counters());
        assert_ne!(world.multicast(a, Lid(0xc000)) & 1 << 15, 0, "the join has taken effect");
    }
}

#[test]
fn a_switch_with_two_trunks_whose_answers_are_late_keeps_both() {
    let far = Guid(0x221);
    let trunks = [(SWITCH, 2), (SWITCH, 3), (far, 2), (far, 3)].into();
    let own = OwnSwitches { guids: [SWITCH, far].into(), trunks, others: [].into() };
    let (mut world, adapters) = build_with(SmConfig { own, ..config() }, 2, &[(0, 1), (0, 1)]);
    adapters.values().for_each(|&adapter| join(&mut world, adapter));
    let late = *adapters.keys().last().unwrap();
    world.watch = Some(Lid(0xc000));
    world.nodes[late].mute = true;
    world.sm.handle_port_change(world.now);
    for _ in 0..90 {
        world.pass(SECOND);
        check(&world, &adapters);
    }
    assert_eq!(world.sm.counters().links_taken_down, 0);
    // One of them is removed: the other replaces it as soon as the switch answers.
    let end = (0, 2);
    world.disconnect(end);
    world.sm.handle_port_change(world.now);
    world.pass(5 * SECOND);
    world.nodes[late].mute = false;
    world.pass(10 * SECOND);
    assert!(world.sm.is_up(), "{:?}", world.sm.counters());
    check(&world, &adapters);
}
