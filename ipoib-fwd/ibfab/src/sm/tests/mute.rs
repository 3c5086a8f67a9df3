//! Hosts that do not answer, or not everything: they are found again, and others do not wait for them.

use std::time::Duration;

use ib_wire::smp::{NodeType, PortState};

use super::world::World;
use super::{SECOND, config};

#[test]
fn a_mute_host_is_found_again_by_another_trunk() {
    // For a moment, and for so long that it counts as gone.
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
