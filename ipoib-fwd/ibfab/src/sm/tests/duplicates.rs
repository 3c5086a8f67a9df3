//! Two nodes with one GUID: the first one keeps its traffic, the second one's port stays down.

use ib_wire::Guid;
use ib_wire::smp::{NodeType, PortState};

use super::mute::with_far_switch;
use super::world::{SWITCH, World};
use super::{SECOND, config};
use crate::subnet::{OwnSwitches, SmConfig};

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
    // In front of the first one in the order of discovery, and behind it.
    for port in [1, 5] {
        let (mut world, clone) = with_clone(port);
        let (lid, registrations) = (world.lid(1), world.nodes[1].reregistered);
        for _ in 0..3 {
            sweep(&mut world);
            assert_eq!(world.route(0, lid), 3, "the way to the first one");
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
    // The first one keeps its link, and answers no more.
    world.nodes[1].mute = true;
    sweep_silent(&mut world);
    assert_eq!(world.nodes[clone].ports[1].state, PortState::Init);
    world.pass(5 * SECOND);
    assert_eq!(world.nodes[clone].ports[1].state, PortState::Active);
}

/// A sweep in which somebody does not answer.
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
    // Without the cable to its switch the first one is gone.
    world.disconnect((0, 20));
    sweep(&mut world);
    assert_eq!((world.nodes[clone].ports[1].state, world.lid(clone)), (PortState::Active, lid));
}
