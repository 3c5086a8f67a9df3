//! M_Keys, and reading back what was written.

use ib_wire::sa::McMemberRecord;
use ib_wire::smp::{PortInfo, ProtectBits, attribute};

use super::administration::{JOIN, broadcast, member};
use super::*;
use crate::subnet::{MKeys, OwnSwitches};

fn guarded() -> World {
    let mut world = World::new(3, SmConfig { m_keys: Some(MKeys::new([7; 16])), ..config() });
    world.pump();
    assert!(world.sm.is_up(), "{:?}", world.sm.counters());
    world
}

#[test]
fn every_end_port_has_a_key_of_its_own() {
    let mut world = guarded();
    let ports = [(0, 0), (1, 1), (2, 1), (3, 1)].map(|(node, port)| world.nodes[node].ports[port]);
    let mut keys: Vec<u64> = ports.iter().map(|port| port.mkey).collect();
    for port in ports {
        assert_eq!((port.mkey_protect.get(), port.mkey_lease), (1, 30));
    }
    keys.sort_unstable();
    keys.dedup();
    assert!(keys.len() == 4 && keys[0] != 0);
    // The manager knows them: with protected ports, a sweep still writes.
    world.disconnect((0, 2));
    world.connect((0, 2), (2, 1));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    assert!(all_active(&world) && world.sm.is_up());
    assert_eq!(world.nodes.iter().map(|node| node.refused).sum::<u32>(), 0);
}

#[test]
fn what_somebody_else_wrote_is_found_and_written_again() {
    for m_keys in [None, Some(MKeys::new([7; 16]))] {
        let mut world = World::new(3, SmConfig { m_keys, ..config() });
        world.pump();
        let sane = |world: &World| {
            let node = &world.nodes[2];
            let switch = &world.nodes[0];
            (
                node.pkeys.clone(),
                switch.pkeys.clone(),
                switch.linear.clone(),
                switch.multicast.clone(),
                switch.ports[2].pkey_enforce_in,
                node.ports[1].sm_lid,
            )
        };
        let before = sane(&world);
        let sets = world.sets();
        let mut found = 0;
        type Change = fn(&mut World);
        let changes: [Change; 6] = [
            |world| world.nodes[2].pkeys[1].get_mut(&0).unwrap()[5] = PKey(0x8005),
            |world| world.nodes[0].pkeys[2].get_mut(&0).unwrap()[5] = PKey(0x8005),
            |world| world.nodes[0].linear.get_mut(&0).unwrap()[3] = 1,
            |world| world.nodes[0].multicast.values_mut().for_each(|masks| masks[9] = 2),
            |world| world.nodes[0].ports[2].pkey_enforce_in = false,
            |world| world.nodes[2].ports[1].sm_lid = Lid(9),
        ];
        for (n, change) in changes.iter().enumerate() {
            // An empty table was not written.
            if n == 3 && before.3.is_empty() {
                continue;
            }
            change(&mut world);
            world.pass(11 * SECOND);
            found += 1;
            assert_eq!(sane(&world), before, "change {n}");
            assert_eq!(world.sm.counters().found_changed, found, "change {n}");
            assert_eq!(world.sets(), sets + found as u32, "change {n}: one value is written again");
            assert!(world.sm.is_up());
        }
    }
}

#[test]
fn a_port_that_does_not_take_its_keys_stays_down() {
    let mut world = World::new(2, SmConfig { m_keys: Some(MKeys::new([7; 16])), ..config() });
    let mkey_protect = ProtectBits::new(1);
    world.nodes[2].guards[1].set(&PortInfo { mkey: 42, mkey_protect, ..PortInfo::default() });
    world.pass(5 * SECOND);
    assert_eq!(world.nodes[1].ports[1].state, PortState::Active);
    assert!(world.nodes[2].refused > 0);
    for (node, port) in [(2, 1), (0, 2)] {
        assert_eq!(world.nodes[node].ports[port].state, PortState::Init);
    }
}

/// A subnet manager takes over a fabric that another one brought up. One host has a different M_Key, another
/// one does not answer.
#[test]
fn a_link_that_was_up_before_goes_down_if_its_host_cannot_be_configured() {
    let mut world = World::new(4, config());
    world.pump();
    assert!(all_active(&world));
    let state = |world: &World, port: usize| world.nodes[0].ports[port].state;
    let mkey_protect = ProtectBits::new(1);
    world.nodes[2].guards[1].set(&PortInfo { mkey: 42, mkey_protect, ..PortInfo::default() });
    world.nodes[3].mute = true;
    let prefix = 0xfec0_0000_0000_0007;
    world.sm = crate::sm::SubnetManager::new(world.now, SmConfig { subnet_prefix: prefix, ..config() });
    world.pass(50 * SECOND);
    for port in 1..=4 {
        assert_eq!(state(&world, port), PortState::Active, "a predecessor's keys may still be on lease");
    }
    world.pass(120 * SECOND);
    let states = [1, 2, 3, 4].map(|port| state(&world, port));
    let (active, init) = (PortState::Active, PortState::Init);
    assert_eq!(states, [active, init, init, active]);
    assert_eq!(world.sm.counters().links_taken_down, 2);
    // Ports that can be configured were, on links that stayed up.
    for node in [1, 4] {
        let port = &world.nodes[node].ports[1];
        assert_eq!((port.state, port.gid_prefix, world.nodes[node].reregistered), (active, prefix, 2));
    }
    // They come back once they accept their settings.
    world.nodes[2].guards[1] = Default::default();
    world.nodes[3].mute = false;
    world.pass(120 * SECOND);
    assert_eq!([1, 2, 3, 4].map(|port| state(&world, port)), [active; 4]);
    for node in [2, 3] {
        assert_eq!(world.nodes[node].ports[1].gid_prefix, prefix);
    }
    assert!(world.sm.is_up());
    assert_eq!(world.sm.counters().links_taken_down, 2);
}

#[test]
fn a_node_that_claims_the_guids_of_another_one_does_not_get_its_key() {
    // Cases: the port GUID under another node GUID, both, and both as a switch. Each at a port before the
    // victim's and behind it, with the port number that its cable is in, and with one that the victim does
    // not have.
    for (node_guid, kind) in [
        (0x9000, NodeType::ChannelAdapter),
        (0x2000, NodeType::ChannelAdapter),
        (0x2000, NodeType::Switch),
        (SWITCH.0, NodeType::ChannelAdapter),
        (SWITCH.0, NodeType::Switch),
    ] {
        for (at, local_port) in [(1, None), (9, None), (1, Some(200)), (9, Some(200))] {
            let own = OwnSwitches { guids: [SWITCH].into(), ..OwnSwitches::default() };
            let mut world = World::new(0, SmConfig { m_keys: Some(MKeys::new([7; 16])), own, ..config() });
            let victim = world.add(NodeType::ChannelAdapter, 0x2000, 1);
            world.connect((0, 5), (victim, 1));
            world.pump();
            let stolen = [world.nodes[0].ports[0].mkey, world.nodes[victim].ports[1].mkey];
            let attacker = world.add(NodeType::ChannelAdapter, 0x9000, 1);
            world.nodes[attacker].claims = Some((node_guid, kind));
            world.nodes[attacker].claimed_local_port = local_port;
            // With a port GUID of its own, it is a second port of the victim, unless that is a switch.
            let is_second = local_port.is_some() && node_guid != 0x2000;
            if !is_second {
                world.nodes[attacker].claimed_port_guid =
                    Some(if node_guid == SWITCH.0 { SWITCH } else { Guid(0x2001) });
            }
            world.connect((0, at), (attacker, 1));
            world.sm.handle_port_change(world.now);
            world.pass(30 * SECOND);
            let case = format!("{node_guid:#x} {kind:?} {at} {local_port:?}");
            for key in stolen {
                assert!(key != 0 && !world.nodes[attacker].keys_seen.contains(&key), "{case}");
            }
            let is_honest = is_second && node_guid == 0x9000;
            let state = if is_honest { PortState::Active } else { PortState::Init };
            assert_eq!(world.nodes[attacker].ports[1].state, state, "{case}");
            assert_eq!(world.nodes[victim].ports[1].state, PortState::Active, "{case}");
            assert_eq!(world.route(0, world.nodes[victim].ports[1].lid), 5, "{case}");
        }
    }
}

#[test]
fn a_host_behind_a_switch_of_others_does_not_take_the_place_of_an_adapter() {
    // As a switch with the node GUID of an adapter, with its port GUID, or with that of the fabric's own
    // switch.
    for (node_guid, port_guid) in [(0x1000, 0x1001), (0x50, 0x1001), (0x50, SWITCH.0)] {
        let others = [(SWITCH, 9)].into();
        let own = OwnSwitches { guids: [SWITCH].into(), trunks: [].into(), others };
        let mut world = World::new(1, SmConfig { m_keys: Some(MKeys::new([7; 16])), own, ..config() });
        let far = world.add(NodeType::Switch, 0x200, 20);
        world.connect((0, 9), (far, 5));
        world.pump();
        let lid = world.lid(1);
        let attacker = world.add(NodeType::Switch, 0x9000, 1);
        world.nodes[attacker].claims = Some((node_guid, NodeType::Switch));
        world.nodes[attacker].claimed_port_guid = Some(Guid(port_guid));
        world.connect((far, 7), (attacker, 1));
        world.sm.handle_port_change(world.now);
        world.pass(30 * SECOND);
        assert_eq!((world.route(0, lid), world.route(0, Lid(1))), (1, 0), "{node_guid:#x} {port_guid:#x}");
        assert_eq!(world.nodes[1].ports[1].state, PortState::Active);
        assert_eq!(world.nodes[far].ports[7].state, PortState::Init);
    }
}

#[test]
fn a_switch_is_taken_in_where_one_may_be() {
    for (others, active) in [(vec![(SWITCH, 9)], true), (vec![], false)] {
        let own =
            OwnSwitches { guids: [SWITCH].into(), trunks: [].into(), others: others.into_iter().collect() };
        let mut world = World::new(1, SmConfig { own, ..config() });
        let far = world.add(NodeType::Switch, 0x200, 20);
        world.connect((0, 9), (far, 5));
        let host = world.add(NodeType::ChannelAdapter, 0x8000, 1);
        world.connect((far, 7), (host, 1));
        world.pump();
        assert_eq!(world.nodes[host].ports[1].state == PortState::Active, active);
        assert_eq!(world.sm.counters().nodes_ignored, u64::from(!active));
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        assert_eq!(world.sm.counters().nodes_ignored, u64::from(!active), "counted and reported once");
    }
}

#[test]
fn a_key_of_a_manager_that_is_gone_is_replaced_after_its_lease() {
    let mut world = World::new(2, SmConfig { m_keys: Some(MKeys::new([7; 16])), ..config() });
    let old = PortInfo { mkey: 42, mkey_protect: ProtectBits::new(1), mkey_lease: 30, ..PortInfo::default() };
    world.nodes[0].guards[0].set(&old);
    world.nodes[2].guards[1].set(&old);
    world.pass(25 * SECOND);
    assert!(!world.sm.is_up() && world.nodes[2].ports[1].state == PortState::Init);
    let request = world.nodes[2].refused;
    assert!(request > 4 && request < 400, "{request}");
    world.pass(20 * SECOND);
    assert!(world.sm.is_up() && all_active(&world), "{:?}", world.sm.counters());
    assert!(![0, 42].contains(&world.nodes[2].ports[1].mkey));
    // A host with a wrong key does not end the lease of a manager that is present.
    let request = Smp::directed(Method::Set, Tid(1), attribute::PORT_INFO, 0, &DirectedPath::LOCAL);
    let key = world.nodes[2].ports[1].mkey;
    for _ in 0..20 {
        assert!(!world.nodes[2].guards[1].admits(&Smp { mkey: 42, ..request }));
        world.nodes[2].guards[1].follow(world.now);
        world.pass(10 * SECOND);
        world.nodes[2].guards[1].follow(world.now);
    }
    let mut shown = PortInfo::default();
    world.nodes[2].guards[1].show(&request, &mut shown);
    assert_eq!((shown.mkey, shown.mkey_protect.get()), (0, 1));
    assert_eq!(world.nodes[2].ports[1].mkey, key);
}

#[test]
fn a_host_that_reads_back_something_else_does_not_make_the_manager_sweep_without_end() {
    let mut world = guarded();
    world.nodes[2].lies = true;
    world.pass(30 * SECOND);
    let sweeps = world.sm.counters().sweeps;
    world.pass(10 * SECOND);
    assert!(world.sm.counters().sweeps - sweeps <= 2, "{:?}", world.sm.counters());
    // Nor does it cause more reads when links change all the time.
    let found = world.sm.counters().found_changed;
    for _ in 0..100 {
        world.sm.handle_port_change(world.now);
        world.pass(SECOND / 10);
    }
    assert!(world.sm.counters().found_changed - found <= 4, "{:?}", world.sm.counters());
}

#[test]
fn reading_a_mute_host_back_holds_up_no_joins_and_links_once() {
    let mut world = guarded();
    let joined = |world: &World| world.multicast(0, Lid(0xc000));
    let is_up = |world: &World, node: usize| world.nodes[node].ports[1].state == PortState::Active;
    world.nodes[2].mute = true;
    // The light sweep has started, and the mute host's answers are outstanding.
    world.pass(10 * SECOND);
    let wanted: McMemberRecord = member(&world, 1, broadcast());
    world.member(1, Method::Set, JOIN, &wanted).unwrap();
    world.pass(Duration::from_millis(1));
    assert_eq!(joined(&world), 1 << 1);
    let host = world.add(NodeType::ChannelAdapter, 0x8000, 1);
    world.pass(Duration::from_millis(999));
    world.connect((0, 9), (host, 1));
    world.sm.handle_port_change(world.now);
    world.pass(Duration::from_millis(100));
    assert!(!is_up(&world, host), "a sweep waits for it the first time");
    world.pass(Duration::from_millis(800));
    assert!(is_up(&world, host));
    let next = world.add(NodeType::ChannelAdapter, 0x9000, 1);
    world.connect((0, 10), (next, 1));
    world.sm.handle_port_change(world.now);
    world.pass(Duration::from_millis(50));
    assert!(is_up(&world, next));
    // Reads that were left out follow later: the change of a table in between.
    world.nodes[2].mute = false;
    world.nodes[3].pkeys[1].get_mut(&0).unwrap()[5] = PKey(0x8005);
    world.pass(11 * SECOND);
    assert_eq!(world.nodes[3].pkeys[1][&0][5], PKey(0));
}

#[test]
fn joins_without_end_do_not_let_the_leases_run_out() {
    let m_keys = Some(MKeys::new([7; 16]));
    let mut world = World::new(3, SmConfig { m_keys, smp_window: 1, ..config() });
    world.pump();
    world.nodes[2].mute = true;
    let wrong = Smp::directed(Method::Set, Tid(1), attribute::PORT_INFO, 0, &DirectedPath::LOCAL);
    let wanted: McMemberRecord = member(&world, 1, broadcast());
    for n in 0..6000 {
        let guard = &mut world.nodes[3].guards[1];
        assert!(!guard.admits(&wrong));
        guard.follow(world.now);
        let method = if n % 2 == 0 { Method::Set } else { Method::Delete };
        world.member(1, method, JOIN, &wanted).unwrap();
        world.pass(SECOND / 100);
        world.nodes[3].guards[1].follow(world.now);
    }
    let mut shown = PortInfo::default();
    world.nodes[3].guards[1].show(&wrong, &mut shown);
    assert_eq!((shown.mkey, shown.mkey_protect.get()), (0, 1), "the key is still on guard");
}

#[test]
fn a_mute_host_holds_up_joins_and_links_once_and_comes_back() {
    let mut world = guarded();
    let joined = |world: &World| world.multicast(0, Lid(0xc000));
    let is_up = |world: &World, node: usize| world.nodes[node].ports[1].state == PortState::Active;
    // One that never answers, and one that stops.
    let mute = world.add(NodeType::ChannelAdapter, 0x8000, 1);
    world.nodes[mute].mute = true;
    world.nodes[2].mute = true;
    world.connect((0, 8), (mute, 1));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    let wanted: McMemberRecord = member(&world, 1, broadcast());
    for (n, port) in (0..10).zip(9..) {
        // At any time, and each time without delay.
        world.pass(Duration::from_millis(730));
        let host = world.add(NodeType::ChannelAdapter, 0x1_0000 * (n + 1), 1);
        world.connect((0, port), (host, 1));
        world.sm.handle_port_change(world.now);
        world.pass(Duration::from_millis(50));
        assert!(is_up(&world, host), "host {n}: {:?}", world.sm.counters());
        let method = if n % 2 == 0 { Method::Set } else { Method::Delete };
        world.member(1, method, JOIN, &wanted).unwrap();
        world.pass(Duration::from_millis(1));
        assert_eq!(joined(&world), if n % 2 == 0 { 1 << 1 } else { 0 }, "join {n}");
    }
    for node in [mute, 2] {
        world.nodes[node].mute = false;
    }
    world.pass(6 * SECOND);
    assert!(is_up(&world, mute) && is_up(&world, 2) && world.sm.is_up(), "{:?}", world.sm.counters());
}

#[test]
fn a_host_that_no_longer_answers_leaves_its_groups() {
    let mut world = guarded();
    let joined = |world: &World| world.multicast(0, Lid(0xc000));
    for host in [1, 2] {
        let wanted: McMemberRecord = member(&world, host, broadcast());
        world.member(host, Method::Set, JOIN, &wanted).unwrap();
    }
    world.pass(SECOND);
    assert_eq!(joined(&world), 1 << 1 | 1 << 2);
    // Its link stays up, and no port of a switch changes.
    world.nodes[2].mute = true;
    world.pass(20 * SECOND);
    assert_eq!(joined(&world), 1 << 1);
    assert_eq!(world.sm.ports().count(), 3);
    world.nodes[2].mute = false;
    world.pass(6 * SECOND);
    assert_eq!((world.sm.ports().count(), world.nodes[2].reregistered), (4, 2), "it must join again");
}

#[test]
fn a_host_that_answers_only_who_it_is_holds_up_others_now_and_then() {
    let mut world = guarded();
    let host = world.add(NodeType::ChannelAdapter, 0x8000, 1);
    world.nodes[host].answers_only = Some(attribute::NODE_INFO);
    world.connect((0, 9), (host, 1));
    world.sm.handle_port_change(world.now);
    world.pass(60 * SECOND);
    let before = world.sm.counters().smp_lost;
    world.pass(60 * SECOND);
    // Each attempt, at least four seconds apart, loses two packets at the same time.
    assert!(world.sm.counters().smp_lost - before <= 26, "{:?}", world.sm.counters());
    world.nodes[host].answers_only = None;
    world.pass(6 * SECOND);
    assert!(world.nodes[host].ports[1].state == PortState::Active && world.sm.is_up());
}
