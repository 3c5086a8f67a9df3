//! Two nodes with one GUID: the first keeps its traffic, the port of the second stays down.

use std::collections::BTreeSet;

use ib_wire::Guid;
use ib_wire::smp::{NodeType, PortPhysicalState, PortState, attribute};

use super::mute::with_far_switch;
use super::world::{SWITCH, World};
use super::{SECOND, config};
use crate::subnet::{MKeys, OwnSwitches, SmConfig};

/// GUID of the first adapter.
const FIRST: u64 = 0x1000;

fn sweep(world: &mut World) {
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    assert!(world.sm.is_up(), "{:?}", world.sm.counters());
}

/// Adapter 1 at switch port 3, and a clone of it at `port`.
fn with_clone(port: u8) -> (World, usize) {
    let mut world = World::new(2, config());
    world.pump();
    world.disconnect((0, 1));
    world.connect((0, 3), (1, 1));
    sweep(&mut world);
    assert_eq!(world.nodes[1].ports[1].state, PortState::Active, "one that moved is no duplicate");
    assert_eq!(world.sm.counters().duplicate_guids, 0);
    let clone = world.add(NodeType::ChannelAdapter, FIRST, 1);
    world.connect((0, port), (clone, 1));
    (world, clone)
}

#[test]
fn the_second_one_stays_down_wherever_it_is_plugged_in() {
    // Before the first one in the order of discovery, and after it.
    for port in [1, 5] {
        let (mut world, clone) = with_clone(port);
        let (lid, registrations) = (world.lid(1), world.nodes[1].reregistered);
        for _ in 0..3 {
            sweep(&mut world);
            assert_eq!(world.route(0, lid), 3, "the path to the first one");
            assert_eq!(world.nodes[1].ports[1].state, PortState::Active);
            assert_eq!(world.nodes[1].reregistered, registrations, "it keeps its groups");
            assert_eq!(world.nodes[clone].ports[1].state, PortState::Init, "port {port}");
            assert_eq!(world.nodes[0].ports[usize::from(port)].state, PortState::Init);
            assert_eq!(world.sm.counters().duplicate_guids, 1, "counted and reported once");
        }
        // With a GUID of its own it comes up.
        world.disconnect((0, port));
        let other = world.add(NodeType::ChannelAdapter, 0x7000, 1);
        world.connect((0, port), (other, 1));
        sweep(&mut world);
        assert_eq!(world.nodes[other].ports[1].state, PortState::Active);
    }
}

#[test]
fn it_takes_the_place_of_the_first_one_only_when_that_is_gone() {
    let (mut world, clone) = with_clone(1);
    sweep(&mut world);
    // The first one does not answer for a moment.
    world.nodes[1].mute = true;
    sweep_silent(&mut world);
    assert_eq!(world.nodes[clone].ports[1].state, PortState::Init);
    world.nodes[1].mute = false;
    sweep(&mut world);
    let lid = world.lid(1);
    world.disconnect((0, 3));
    sweep(&mut world);
    assert_eq!((world.nodes[clone].ports[1].state, world.lid(clone)), (PortState::Active, lid));
    assert_eq!(world.route(0, lid), 1);
}

#[test]
fn it_takes_the_place_of_the_first_one_as_soon_as_that_counts_as_gone() {
    let (mut world, clone) = with_clone(1);
    sweep(&mut world);
    // The first one keeps its link, and no longer answers.
    world.nodes[1].mute = true;
    sweep_silent(&mut world);
    assert_eq!(world.nodes[clone].ports[1].state, PortState::Init);
    world.pass(5 * SECOND);
    assert_eq!(world.nodes[clone].ports[1].state, PortState::Active);
}

/// Runs a sweep in which a node does not answer.
fn sweep_silent(world: &mut World) {
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
}

#[test]
fn it_does_not_take_the_place_of_one_behind_a_switch_that_is_late() {
    let trunks = [(SWITCH, 20), (Guid(0x200), 5)].into();
    let own = OwnSwitches { guids: [SWITCH, Guid(0x200)].into(), trunks, others: [].into() };
    let (mut world, far, [host, _]) = with_far_switch(SmConfig { own, ..config() });
    let (lid, registrations) = (world.lid(host), world.nodes[host].reregistered);
    world.nodes[far].mute = true;
    let clone = world.add(NodeType::ChannelAdapter, 0x8000, 1);
    world.connect((0, 3), (clone, 1));
    for _ in 0..90 {
        sweep_silent(&mut world);
        assert_eq!(world.nodes[clone].ports[1].state, PortState::Init);
        assert_eq!(world.route(0, lid), 20, "the path to the first one");
    }
    world.nodes[far].mute = false;
    world.pass(10 * SECOND);
    sweep(&mut world);
    assert_eq!(world.nodes[clone].ports[1].state, PortState::Init);
    assert_eq!((world.lid(host), world.nodes[host].reregistered), (lid, registrations));
    // Without the cable to its switch, the first one is gone.
    world.disconnect((0, 20));
    sweep(&mut world);
    assert_eq!((world.nodes[clone].ports[1].state, world.lid(clone)), (PortState::Active, lid));
}

/// GUID of a switch of another owner.
const FAR: u64 = 0x200;

/// A fabric whose ports 9 and 10 lead to switches of another owner. Adapter 1 is at port 1, a switch behind
/// port 9 by its port 5, and an adapter at port 7 of that switch.
fn with_switch_of_others() -> (World, usize, usize) {
    let own =
        OwnSwitches { guids: [SWITCH].into(), trunks: [].into(), others: [(SWITCH, 9), (SWITCH, 10)].into() };
    let m_keys = Some(MKeys::new([7; 16]));
    let mut world = World::new(1, SmConfig { own, m_keys, ..config() });
    let far = world.add(NodeType::Switch, FAR, 20);
    let host = world.add(NodeType::ChannelAdapter, 0x8000, 1);
    world.connect((0, 9), (far, 5));
    world.connect((far, 7), (host, 1));
    world.pump();
    (world, far, host)
}

/// Checks that packets pass in both directions between adapter 1 and the one behind the switch of another
/// owner.
fn check_ways(world: &World, far: usize, host: usize, case: &str) {
    let (near, there) = (world.lid(1), world.lid(host));
    let ways =
        [(0, there), (far, there), (far, near), (0, near)].map(|(switch, lid)| world.route(switch, lid));
    assert_eq!(ways, [9, 7, 5, 1], "{case}");
    assert_eq!(world.nodes[host].ports[1].state, PortState::Active, "{case}");
    assert!(world.sm.elsewhere()[&(SWITCH, 9)].contains(&near), "{case}");
}

#[test]
fn a_host_does_not_cut_off_the_switch_of_others_that_it_hangs_on() {
    // It names the port that leads to the fabric, its own port, and one without a cable.
    for local_port in [5, 4, 11] {
        let (mut world, far, host) = with_switch_of_others();
        let liar = world.add(NodeType::ChannelAdapter, 0x9000, 1);
        world.nodes[liar].claims = Some((FAR, NodeType::Switch));
        world.nodes[liar].claimed_port_guid = Some(Guid(FAR));
        world.nodes[liar].claimed_local_port = Some(local_port);
        world.connect((far, 4), (liar, 1));
        for _ in 0..3 {
            sweep(&mut world);
            check_ways(&world, far, host, &local_port.to_string());
            assert_eq!(world.nodes[far].ports[4].state, PortState::Init);
            assert_eq!(world.sm.counters().duplicate_guids, 1);
        }
    }
}

#[test]
fn a_host_does_not_link_the_switch_that_it_hangs_on_with_another_one() {
    // It names a port without a cable, and one with an adapter; the GUID of the other switch is lower, and
    // higher.
    for (guid, local_port) in [(0x180, 11), (0x180, 7), (0x280, 11), (0x280, 7)] {
        let (mut world, far, host) = with_switch_of_others();
        let other = world.add(NodeType::Switch, guid, 20);
        let there = world.add(NodeType::ChannelAdapter, 0xa000, 1);
        world.connect((0, 10), (other, 5));
        world.connect((other, 7), (there, 1));
        let liar = world.add(NodeType::ChannelAdapter, 0x9000, 1);
        world.nodes[liar].claims = Some((guid, NodeType::Switch));
        world.nodes[liar].claimed_port_guid = Some(Guid(guid));
        world.nodes[liar].claimed_local_port = Some(local_port);
        world.connect((far, 4), (liar, 1));
        for _ in 0..3 {
            sweep(&mut world);
            let case = format!("{guid:#x} {local_port}");
            check_ways(&world, far, host, &case);
            let lid = world.lid(there);
            assert_eq!([0, far, other].map(|switch| world.route(switch, lid)), [10, 5, 7], "{case}");
            assert!(world.sm.elsewhere()[&(SWITCH, 9)].contains(&lid), "{case}");
            assert_eq!(world.nodes[there].ports[1].state, PortState::Active, "{case}");
            assert_eq!(world.nodes[far].ports[4].state, PortState::Init, "{case}");
            assert_eq!(world.sm.counters().duplicate_guids, 1, "{case}");
        }
    }
}

/// Adds a second switch of another owner at port 6 of the first one, by its port 5, and an adapter at its
/// port 7.
fn with_farther_switch(guid: u64) -> (World, [usize; 4]) {
    let (mut world, far, host) = with_switch_of_others();
    let farther = world.add(NodeType::Switch, guid, 20);
    let there = world.add(NodeType::ChannelAdapter, 0xa000, 1);
    world.connect((far, 6), (farther, 5));
    world.connect((farther, 7), (there, 1));
    sweep(&mut world);
    (world, [far, host, farther, there])
}

/// Adds a switch at port 4 of the first switch of another owner that answers as the one with this GUID, and
/// behind it an adapter that answers as the one there. The sweep queries this port before the one that leads
/// to the real switch.
fn with_liar(world: &mut World, far: usize, guid: u64, local_port: u8, answers_only: Option<u16>) {
    let liar = world.add(NodeType::Switch, 0x9000, 20);
    world.nodes[liar].claims = Some((guid, NodeType::Switch));
    world.nodes[liar].claimed_port_guid = Some(Guid(guid));
    world.nodes[liar].claimed_local_port = Some(local_port);
    world.nodes[liar].answers_only = answers_only;
    let clone = world.add(NodeType::ChannelAdapter, 0xa000, 1);
    world.connect((far, 4), (liar, local_port));
    world.connect((liar, if local_port == 7 { 8 } else { 7 }), (clone, 1));
}

#[test]
fn a_host_that_answers_before_a_farther_switch_does_not_take_its_place() {
    // It names the port that leads to the fabric, one without a cable, and one with an adapter; with and
    // without further answers.
    for answers_only in [None, Some(attribute::NODE_INFO)] {
        for (guid, local_port) in [(0x180, 5), (0x280, 5), (0x180, 11), (0x280, 11), (0x280, 7)] {
            let (mut world, [far, host, farther, there]) = with_farther_switch(guid);
            with_liar(&mut world, far, guid, local_port, answers_only);
            for late in [false, true, false] {
                // Also while the switch does not answer for a moment.
                world.nodes[farther].mute = late;
                sweep_silent(&mut world);
                let case = format!("{guid:#x} {local_port} {answers_only:?} {late}");
                check_ways(&world, far, host, &case);
                let lid = world.lid(there);
                assert_eq!([0, far, farther].map(|switch| world.route(switch, lid)), [9, 6, 7], "{case}");
                assert_eq!(world.nodes[there].ports[1].state, PortState::Active, "{case}");
                assert_eq!(world.nodes[far].ports[4].state, PortState::Init, "{case}");
                assert_eq!(world.nodes[far].ports[6].state, PortState::Active, "{case}");
                if late {
                    world.nodes[farther].mute = false;
                    sweep(&mut world);
                }
            }
            assert_eq!(world.sm.counters().duplicate_guids, 1, "{guid:#x} {local_port} {answers_only:?}");
        }
    }
}

#[test]
fn a_host_that_has_added_a_link_does_not_take_the_place_of_a_farther_switch() {
    let (mut world, [far, host, farther, there]) = with_farther_switch(0x280);
    let second = world.add(NodeType::ChannelAdapter, 0xb000, 1);
    world.connect((farther, 8), (second, 1));
    // A host that has a link and answers nothing: the liar names its port.
    world.nodes[there].mute = true;
    world.pass(20 * SECOND);
    with_liar(&mut world, far, 0x280, 7, None);
    let liar = world.peer((far, 4)).unwrap().0;
    for _ in 0..4 {
        sweep_silent(&mut world);
        check_ways(&world, far, host, "");
        let lid = world.lid(second);
        assert_eq!([0, far, farther].map(|switch| world.route(switch, lid)), [9, 6, 8]);
        assert_eq!(world.nodes[far].ports[6].state, PortState::Active);
        assert_eq!(world.nodes[second].ports[1].state, PortState::Active);
        assert_eq!(world.nodes[liar].keys_seen, BTreeSet::from([0]), "it learns no key");
    }
}

/// Checks that a farther switch is reached by these ports, and that the host at port 4 is refused.
fn check_farther(world: &World, far: usize, farther: usize, ports: [u8; 3], case: &str) {
    let there = world.peer((farther, 7)).unwrap().0;
    let liar = world.peer((far, 4)).unwrap().0;
    assert_eq!(world.nodes[liar].keys_seen, BTreeSet::from([0]), "it learns no key: {case}");
    let lid = world.lid(there);
    assert_eq!([0, far, farther].map(|switch| world.route(switch, lid)), ports, "{case}");
    assert_eq!(world.nodes[there].ports[1].state, PortState::Active, "{case}");
    assert_eq!(world.nodes[far].ports[usize::from(ports[1])].state, PortState::Active, "{case}");
    assert_eq!(world.nodes[far].ports[4].state, PortState::Init, "{case}");
}

#[test]
fn a_host_does_not_take_the_place_of_a_farther_switch_when_the_path_to_it_changes() {
    for (guid, local_port) in [(0x180, 5), (0x280, 5), (0x180, 11), (0x280, 11)] {
        let (mut world, [far, _, farther, there]) = with_farther_switch(guid);
        world.connect((0, 10), (far, 12));
        sweep(&mut world);
        with_liar(&mut world, far, guid, local_port, None);
        sweep(&mut world);
        let case = format!("{guid:#x} {local_port}");
        let first = world.route(0, world.lid(there));
        check_farther(&world, far, farther, [first, 6, 7], &case);
        world.disconnect((0, 9));
        for _ in 0..3 {
            sweep_silent(&mut world);
            check_farther(&world, far, farther, [10, 6, 7], &case);
        }
    }
}

#[test]
fn a_host_does_not_take_the_place_of_a_farther_switch_that_is_reached_by_another_cable() {
    // The other cable is already a link, or the first one is moved to another port. A new host does not
    // replace a known link, either.
    for (is_second, is_new) in [(true, false), (true, true), (false, false)] {
        for (guid, local_port) in [(0x180, 5), (0x280, 5), (0x280, 9), (0x180, 11), (0x280, 11)] {
            let (mut world, [far, _, farther, _]) = with_farther_switch(guid);
            if is_second {
                world.connect((far, 8), (farther, 9));
                sweep(&mut world);
            }
            with_liar(&mut world, far, guid, local_port, None);
            if !is_new {
                sweep(&mut world);
            }
            world.disconnect((far, 6));
            if !is_second {
                world.connect((far, 8), (farther, 9));
            }
            for _ in 0..3 {
                sweep_silent(&mut world);
                let case = format!("{is_second} {is_new} {guid:#x} {local_port}");
                check_farther(&world, far, farther, [9, 8, 7], &case);
            }
        }
    }
}

#[test]
fn a_host_does_not_take_the_place_of_a_switch_behind_one_that_is_reached_by_another_cable() {
    for is_second in [true, false] {
        for local_port in [5, 11] {
            let (mut world, [far, _, farther, _]) = with_farther_switch(0x280);
            let last = world.add(NodeType::Switch, 0x300, 20);
            let there = world.add(NodeType::ChannelAdapter, 0xb000, 1);
            world.connect((farther, 6), (last, 5));
            world.connect((last, 7), (there, 1));
            if is_second {
                world.connect((far, 8), (farther, 9));
            }
            sweep(&mut world);
            with_liar(&mut world, far, 0x300, local_port, None);
            sweep(&mut world);
            world.disconnect((far, 6));
            if !is_second {
                world.connect((far, 8), (farther, 9));
            }
            for _ in 0..3 {
                sweep_silent(&mut world);
                let case = format!("{is_second} {local_port}");
                check_farther(&world, far, farther, [9, 8, 7], &case);
                let lid = world.lid(there);
                let ports = [0, far, farther, last].map(|switch| world.route(switch, lid));
                assert_eq!(ports, [9, 8, 6, 7], "{case}");
            }
        }
    }
}

#[test]
fn a_switch_of_others_that_was_moved_comes_up_with_all_behind_it() {
    // To a port that is queried before its old one, and to one after it.
    for port in [4, 8] {
        let (mut world, [far, host, farther, there]) = with_farther_switch(0x280);
        let (lid, registrations) = (world.lid(there), world.nodes[there].reregistered);
        world.disconnect((far, 6));
        world.connect((far, port), (farther, 9));
        sweep(&mut world);
        check_ways(&world, far, host, &port.to_string());
        assert_eq!([0, far, farther].map(|switch| world.route(switch, lid)), [9, port, 7]);
        assert_eq!((world.lid(there), world.nodes[there].reregistered), (lid, registrations));
        assert_eq!(world.nodes[far].ports[usize::from(port)].state, PortState::Active);
        assert_eq!(world.sm.counters().duplicate_guids, 0);
        // A second cable is a link, too.
        world.connect((far, 6), (farther, 5));
        sweep(&mut world);
        assert_eq!(world.nodes[far].ports[6].state, PortState::Active);
    }
}

#[test]
fn a_switch_behind_our_own_port_is_found_by_it_though_a_host_has_its_place() {
    let (mut world, far, host) = with_switch_of_others();
    let other = world.add(NodeType::Switch, 0x280, 20);
    let there = world.add(NodeType::ChannelAdapter, 0xa000, 1);
    world.connect((other, 7), (there, 1));
    with_liar(&mut world, far, 0x280, 5, None);
    sweep(&mut world);
    // The first sweep has no earlier state for a comparison.
    assert_eq!(world.nodes[far].ports[4].state, PortState::Active);
    world.connect((0, 10), (other, 5));
    world.nodes[other].delay = SECOND / 50;
    world.sm.handle_port_change(world.now);
    world.pass(5 * SECOND);
    check_ways(&world, far, host, "");
    let lid = world.lid(there);
    assert_eq!([0, far, other].map(|switch| world.route(switch, lid)), [10, 5, 7]);
    assert_eq!(world.nodes[there].ports[1].state, PortState::Active);
}

#[test]
fn a_trunk_that_comes_up_while_its_ends_are_read_is_no_duplicate() {
    let trunks = [(SWITCH, 19), (SWITCH, 20), (Guid(0x200), 5), (Guid(0x200), 6)].into();
    let own = OwnSwitches { guids: [SWITCH, Guid(0x200)].into(), trunks, others: [].into() };
    let (mut world, far, _) = with_far_switch(SmConfig { own, ..config() });
    world.connect((0, 19), (far, 6));
    // The near end is read a moment before it comes up.
    let up = world.nodes[0].ports[19];
    world.nodes[0].ports[19].state = PortState::Down;
    world.nodes[0].ports[19].physical_state = PortPhysicalState::Polling;
    let sweeps = world.sm.counters().sweeps;
    world.sm.handle_port_change(world.now);
    while world.sm.counters().sweeps == sweeps {
        world.pass(SECOND / 1000);
    }
    world.nodes[0].ports[19] = up;
    world.pass(SECOND / 10);
    assert_eq!(world.sm.counters().duplicate_guids, 0);
    assert_eq!(world.nodes[0].ports[19].state, PortState::Active);
    assert_eq!(world.nodes[far].ports[6].state, PortState::Active);
}

#[test]
fn an_adapter_does_not_keep_out_the_switch_of_others_whose_guid_it_has() {
    // Its node GUID, and its port GUID.
    for (node_guid, port_guid) in [(FAR, 0x9001), (0x9000, FAR), (0x50, FAR)] {
        let (mut world, far, host) = with_switch_of_others();
        let case = format!("{node_guid:#x} {port_guid:#x}");
        world.disconnect((0, 9));
        sweep(&mut world);
        let liar = world.add(NodeType::ChannelAdapter, 0x9000, 1);
        world.nodes[liar].claims = Some((node_guid, NodeType::ChannelAdapter));
        world.nodes[liar].claimed_port_guid = Some(Guid(port_guid));
        world.connect((0, 3), (liar, 1));
        sweep(&mut world);
        assert_eq!(world.nodes[0].ports[3].state, PortState::Active, "{case}");
        world.connect((0, 9), (far, 5));
        for _ in 0..3 {
            sweep_silent(&mut world);
            check_ways(&world, far, host, &case);
            assert_eq!(world.sm.counters().duplicate_guids, 1, "{case}");
            assert!(world.sm.ports().all(|(_, gid)| gid.id() != Guid(0x9001)), "{case}");
        }
        // Its port is taken down, and stays down until it has GUIDs of its own.
        world.pass(100 * SECOND);
        assert_eq!(world.nodes[0].ports[3].state, PortState::Init, "{case}");
    }
}
