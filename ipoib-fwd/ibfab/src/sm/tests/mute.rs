//! Hosts that do not answer, or answer only in part: they are found again, and others do not wait for them.

use std::time::Duration;

use ib_wire::mad::Method;
use ib_wire::smp::{NodeType, PortState, attribute};
use ib_wire::{Guid, Lid};

use super::administration::{JOIN, broadcast, member};
use super::world::{SWITCH, World};
use super::{SECOND, config};
use crate::subnet::{OwnSwitches, SmConfig};

#[test]
fn a_mute_host_is_found_again_by_another_trunk() {
    // For a moment, and long enough that it counts as gone.
    for silence in [SECOND, 20 * SECOND] {
        let mut world = World::new(1, config());
        let far = world.add(NodeType::Switch, 0x200, 20);
        world.connect((0, 19), (far, 5));
        world.connect((0, 20), (far, 6));
        let host = world.add(NodeType::ChannelAdapter, 0x8000, 1);
        world.connect((far, 9), (host, 1));
        world.pump();
        assert_eq!(world.sm.ports().count(), 4);
        world.nodes[host].mute = true;
        world.sm.handle_port_change(world.now);
        world.pass(silence);
        world.disconnect((0, 19));
        world.nodes[host].mute = false;
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        assert!(world.sm.is_up(), "{silence:?}: {:?}", world.sm.counters());
        assert_eq!(world.sm.ports().count(), 4);
        assert_eq!(world.route(0, world.lid(host)), 20);
        world.pass(20 * SECOND);
        assert_eq!(world.sm.ports().count(), 4, "it stays");
    }
}

#[test]
fn a_host_that_answers_all_but_the_state_of_its_link_does_not_hold_up_each_sweep() {
    let mut world = World::new(1, config());
    let odd = world.add(NodeType::ChannelAdapter, 0x8000, 1);
    world.nodes[odd].never_arms = true;
    world.connect((0, 8), (odd, 1));
    world.pass(60 * SECOND);
    for (n, port) in (1..=5).zip(9..) {
        // It has just been tried once more.
        let before = world.sm.counters().smp_lost;
        while world.sm.counters().smp_lost == before {
            world.pass(Duration::from_millis(1));
        }
        for _ in 0..3 {
            world.pass(SECOND);
            world.sm.handle_port_change(world.now);
        }
        let host = world.add(NodeType::ChannelAdapter, 0x1_0000 * n, 1);
        world.connect((0, port), (host, 1));
        world.sm.handle_port_change(world.now);
        world.pass(Duration::from_millis(50));
        assert_eq!(world.nodes[host].ports[1].state, PortState::Active, "{:?}", world.sm.counters());
    }
    world.nodes[odd].never_arms = false;
    world.pass(6 * SECOND);
    assert!(world.nodes[odd].ports[1].state == PortState::Active && world.sm.is_up());
}

#[test]
fn a_host_whose_link_came_back_between_two_sweeps_is_asked_at_once() {
    let mut world = World::new(2, config());
    world.pump();
    world.nodes[2].mute = true;
    world.sm.handle_port_change(world.now);
    world.pass(60 * SECOND);
    assert_eq!(world.sm.ports().count(), 2);
    world.disconnect((0, 2));
    world.connect((0, 2), (2, 1));
    world.nodes[2].mute = false;
    world.sm.handle_port_change(world.now);
    world.pass(Duration::from_millis(50));
    assert_eq!(world.nodes[2].ports[1].state, PortState::Active, "{:?}", world.sm.counters());
}

/// A second switch behind port 20 of the first one, with two hosts that are in the broadcast group.
pub(super) fn with_far_switch(config: SmConfig) -> (World, usize, [usize; 2]) {
    let mut world = World::new(1, config);
    let far = world.add(NodeType::Switch, 0x200, 20);
    world.connect((0, 20), (far, 5));
    let hosts = [(0x8000, 7), (0x9000, 8)].map(|(guid, port)| {
        let host = world.add(NodeType::ChannelAdapter, guid, 1);
        world.connect((far, port), (host, 1));
        host
    });
    world.pump();
    world.inbox.clear();
    for host in hosts {
        let wanted = member(&world, host, broadcast());
        world.member(host, Method::Set, JOIN, &wanted).unwrap();
    }
    (world, far, hosts)
}

/// Returns the ports with a LID, the members of the broadcast group, and how often the far hosts were
/// requested to register again.
fn state(world: &World, hosts: [usize; 2]) -> (usize, usize, [u32; 2]) {
    let members = world.sm.groups().find(|(mgid, ..)| *mgid == broadcast()).unwrap().2;
    (world.sm.ports().count(), members, hosts.map(|host| world.nodes[host].reregistered))
}

#[test]
fn a_switch_whose_answers_are_late_keeps_its_hosts() {
    // It answers nothing, or only NodeInfo.
    for answers in [None, Some(attribute::NODE_INFO)] {
        let trunks = [(SWITCH, 20), (Guid(0x200), 5)].into();
        let own = OwnSwitches { guids: [SWITCH, Guid(0x200)].into(), trunks, others: [].into() };
        let (mut world, far, hosts) = with_far_switch(SmConfig { own, ..config() });
        let before = state(&world, hosts);
        assert_eq!((before.0, before.1), (5, 2));
        world.nodes[far].mute = answers.is_none();
        world.nodes[far].answers_only = answers;
        world.sm.handle_port_change(world.now);
        for _ in 0..60 {
            world.pass(SECOND);
            assert_eq!(state(&world, hosts), before, "{answers:?}");
        }
        // Others wait for it only now and then.
        let new = world.add(NodeType::ChannelAdapter, 0x1_0000, 1);
        world.connect((0, 9), (new, 1));
        world.sm.handle_port_change(world.now);
        world.pass(if answers.is_none() { SECOND / 10 } else { 2 * SECOND });
        assert_eq!(world.nodes[new].ports[1].state, PortState::Active, "{:?}", world.sm.counters());
        let wanted = member(&world, new, broadcast());
        world.member(new, Method::Set, JOIN, &wanted).unwrap();
        world.pass(SECOND / 100);
        assert_eq!(world.multicast(0, Lid(0xc000)) & 1 << 9, 1 << 9);
        world.nodes[far].mute = false;
        world.nodes[far].answers_only = None;
        world.pass(10 * SECOND);
        assert!(world.sm.is_up(), "{:?}", world.sm.counters());
        assert_eq!(state(&world, hosts), (6, 3, before.2), "{answers:?}");
        assert_ne!(world.multicast(far, Lid(0xc000)) & 1 << 5, 0, "it learned of the new member");
        // Without its cable it is gone at once.
        world.nodes[far].mute = true;
        world.disconnect((0, 20));
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        assert_eq!(world.sm.ports().count(), 3);
    }
}

#[test]
fn a_switch_of_others_that_no_longer_answers_counts_as_gone_after_a_time() {
    let (mut world, far, hosts) = with_far_switch(config());
    world.nodes[far].mute = true;
    world.sm.handle_port_change(world.now);
    world.pass(2 * SECOND);
    assert_eq!(state(&world, hosts), (5, 2, [1, 1]));
    world.pass(18 * SECOND);
    assert_eq!(state(&world, hosts), (2, 0, [1, 1]));
}

#[test]
fn a_port_of_an_adapter_is_kept_though_another_one_answers() {
    let mut world = World::new(1, config());
    let both = world.add(NodeType::ChannelAdapter, 0x8000, 2);
    world.connect((0, 8), (both, 1));
    world.connect((0, 9), (both, 2));
    world.pump();
    assert_eq!(world.sm.ports().count(), 4);
    world.nodes[both].mute_port = Some(2);
    world.sm.handle_port_change(world.now);
    world.pass(2 * SECOND);
    assert_eq!(world.sm.ports().count(), 4);
    world.pass(18 * SECOND);
    assert_eq!(world.sm.ports().count(), 3);
}

#[test]
fn a_link_that_bounced_stays_down_until_what_is_there_answers() {
    let mut world = World::new(2, config());
    world.pump();
    // Between two sweeps, another device is plugged in, which does not answer.
    world.disconnect((0, 2));
    world.connect((0, 2), (2, 1));
    world.nodes[2].mute = true;
    world.sm.handle_port_change(world.now);
    for _ in 0..200 {
        world.pass(SECOND / 100);
        assert_eq!(world.nodes[0].ports[2].state, PortState::Init);
    }
    world.nodes[2].mute = false;
    world.pass(6 * SECOND);
    assert_eq!(world.nodes[0].ports[2].state, PortState::Active);
}

/// Counts the sweeps in a minute in which links change ten times a second, by `change`.
fn sweeps(world: &mut World, mut change: impl FnMut(&mut World)) -> u64 {
    let before = world.sm.counters().sweeps;
    for _ in 0..600 {
        change(world);
        world.sm.handle_port_change(world.now);
        world.pass(SECOND / 20);
    }
    world.sm.counters().sweeps - before
}

#[test]
fn a_host_that_answers_late_holds_up_others_now_and_then() {
    let mut world = World::new(2, config());
    world.pump();
    world.nodes[2].delay = Duration::from_millis(790);
    let count = sweeps(&mut world, |world| world.pass(SECOND / 20));
    assert!(count > 300, "{count} {:?}", world.sm.counters());
    assert_eq!(world.sm.ports().count(), 3, "it stays");
    // Once it answers in time, it is treated as any other.
    world.nodes[2].delay = Duration::ZERO;
    world.pass(6 * SECOND);
    assert!(world.sm.is_up());
}

#[test]
fn a_link_that_goes_and_comes_with_a_mute_host_holds_up_others_now_and_then() {
    let mut world = World::new(2, config());
    world.pump();
    world.nodes[2].mute = true;
    let count = sweeps(&mut world, |world| {
        world.disconnect((0, 2));
        world.sm.handle_port_change(world.now);
        world.pass(SECOND / 20);
        world.connect((0, 2), (2, 1));
    });
    assert!(count > 300, "{count} {:?}", world.sm.counters());
    world.nodes[2].mute = false;
    world.pass(6 * SECOND);
    assert!(world.sm.is_up() && world.nodes[2].ports[1].state == PortState::Active);
}

#[test]
fn a_host_that_answers_late_comes_up() {
    for delay in [250, 450, 790] {
        let mut world = World::new(1, config());
        let late = world.add(NodeType::ChannelAdapter, 0x8000, 1);
        world.nodes[late].partition_cap = 128;
        world.nodes[late].delay = Duration::from_millis(delay);
        world.connect((0, 8), (late, 1));
        world.pass(5 * SECOND);
        assert_eq!(world.nodes[late].ports[1].state, PortState::Active, "{delay}: {:?}", world.sm.counters());
        // Also after it has delayed others, and after a restart.
        for _ in 0..30 {
            world.sm.handle_port_change(world.now);
            world.pass(SECOND);
        }
        world.disconnect((0, 8));
        world.sm.handle_port_change(world.now);
        world.pass(SECOND / 10);
        world.connect((0, 8), (late, 1));
        world.sm.handle_port_change(world.now);
        world.pass(15 * SECOND);
        assert_eq!(world.nodes[late].ports[1].state, PortState::Active, "{delay}: {:?}", world.sm.counters());
    }
}

#[test]
fn a_host_that_leaves_its_groups_behind_a_late_switch_holds_up_no_joins() {
    let trunks = [(SWITCH, 20), (Guid(0x200), 5)].into();
    let own = OwnSwitches { guids: [SWITCH, Guid(0x200)].into(), trunks, others: [].into() };
    let (mut world, far, [host, _]) = with_far_switch(SmConfig { own, ..config() });
    world.nodes[far].mute = true;
    world.sm.handle_port_change(world.now);
    world.pass(2 * SECOND);
    let wanted = member(&world, host, broadcast());
    world.member(host, Method::Delete, JOIN, &wanted).unwrap();
    world.sm.handle_port_change(world.now);
    world.pass(2 * SECOND);
    let wanted = member(&world, 1, broadcast());
    world.member(1, Method::Set, JOIN, &wanted).unwrap();
    world.pass(SECOND);
    assert_eq!(world.multicast(0, Lid(0xc000)) & 0b10, 0b10, "{:?}", world.sm.counters());
    assert_ne!(world.multicast(far, Lid(0xc000)) & 1 << 7, 0, "the cut waits");
    world.nodes[far].mute = false;
    world.pass(10 * SECOND);
    assert_eq!(world.multicast(far, Lid(0xc000)), 1 << 5 | 1 << 8);
}
