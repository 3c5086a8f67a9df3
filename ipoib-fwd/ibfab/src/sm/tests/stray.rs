//! A switch whose answers become late at any moment of a sweep, while a host leaves or a trunk changes. No
//! multicast loops, and joins wait for the switch only if a branch of it could close a loop.

use ib_wire::mad::{Method, MgmtClass};
use ib_wire::smp::{NodeType, PortState, Smp};
use ib_wire::{Guid, Lid};

use super::super::sweep::Phase;
use super::administration::{JOIN, broadcast, member};
use super::mute::with_far_switch;
use super::switches::{check, copies, join, own_ring};
use super::world::{SWITCH, World};
use super::{SECOND, config};
use crate::subnet::{OwnSwitches, SmConfig};

const BROADCAST: Lid = Lid(0xc000);

/// Starts a sweep and delivers this number of its packets. Returns the current phase; `None` if the sweep
/// ended before.
fn sweep_until(world: &mut World, packets: usize) -> Option<Phase> {
    world.sm.handle_port_change(world.now);
    world.now += SECOND / 20;
    world.sm.handle_timeout(world.now);
    for _ in 0..packets {
        let mad = world.sm.poll_transmit()?;
        assert_eq!(mad.header().class, MgmtClass::SubnDirected);
        world.carry_out(Smp::from_mad(&mad.bytes).unwrap());
    }
    let phase = world.sm.sweep.phase;
    (phase != Phase::Rest).then_some(phase)
}

/// Runs `case` with a sweep after each number of packets, by `step`, until it returns `None` because the
/// sweep ended before. Checks that each phase was tried.
fn at_each_moment(step: usize, case: impl FnMut(usize) -> Option<Phase>) {
    let phases: Vec<Phase> = (0..).step_by(step).map_while(case).collect();
    for phase in [Phase::Discover, Phase::Prune, Phase::Configure] {
        assert!(phases.contains(&phase), "{phase:?} of {phases:?}");
    }
}

#[test]
fn a_host_that_goes_as_its_switch_gets_late_holds_up_no_joins() {
    // Its link is gone, or it only stops to answer, and counts as gone after a time.
    for is_unplugged in [true, false] {
        at_each_moment(1, |packets| {
            let trunks = [(SWITCH, 20), (Guid(0x200), 5)].into();
            let own = OwnSwitches { guids: [SWITCH, Guid(0x200)].into(), trunks, others: [].into() };
            let (mut world, far, [_, host]) = with_far_switch(SmConfig { own, ..config() });
            world.watch = Some(BROADCAST);
            if is_unplugged {
                world.disconnect((far, 8));
            } else {
                world.nodes[host].mute = true;
                // It is about to be removed.
                world.sm.handle_port_change(world.now);
                let gone = |world: &World| world.sm.sweep.mute.is_gone((Guid(0x200), 8));
                while !gone(&world) {
                    world.now = world.sm.poll_timeout().unwrap().max(world.now);
                    world.sm.handle_timeout(world.now);
                    if !gone(&world) {
                        world.pump();
                    }
                }
            }
            let phase = sweep_until(&mut world, packets)?;
            world.nodes[far].mute = true;
            world.pass(5 * SECOND);
            let wanted = member(&world, 1, broadcast());
            world.member(1, Method::Set, JOIN, &wanted).unwrap();
            world.pass(SECOND);
            let case = format!("{is_unplugged} {packets} {phase:?}");
            assert_eq!(world.multicast(0, BROADCAST) & 0b10, 0b10, "{case}: {:?}", world.sm.counters());
            world.nodes[far].mute = false;
            world.pass(10 * SECOND);
            assert_eq!(world.multicast(far, BROADCAST), 1 << 5 | 1 << 7, "{case}");
            Some(phase)
        });
    }
}

#[test]
fn a_trunk_that_comes_as_a_switch_gets_late_closes_no_loop() {
    change_a_trunk(true);
}

#[test]
fn a_trunk_that_goes_as_a_switch_gets_late_closes_no_loop() {
    change_a_trunk(false);
}

/// Adds or removes a trunk of a ring, at the switch that becomes late or elsewhere.
fn change_a_trunk(comes: bool) {
    let (_, _, [a, b, c]) = own_ring();
    for (late, end) in [(b, (a, 3)), (c, (a, 2)), (c, (a, 3))] {
        at_each_moment(if comes { 3 } else { 2 }, |packets| {
            let (mut world, mut adapters, _) = own_ring();
            let other = world.peer(end).unwrap();
            if comes {
                world.disconnect(end);
                world.sm.handle_port_change(world.now);
                world.pass(SECOND);
                world.connect(end, other);
            } else {
                world.disconnect(end);
            }
            world.watch = Some(BROADCAST);
            let phase = sweep_until(&mut world, packets)?;
            world.nodes[late].mute = true;
            world.pass(5 * SECOND);
            let case = format!("{late} {end:?} {comes} {packets} {phase:?}");
            if comes {
                // Those at the other switches reach each other as before. A switch that lost its old branch
                // and cannot get the new one has none.
                for &home in adapters.keys().filter(|&&home| home != late) {
                    let mut got = copies(&world, &adapters, home);
                    let there = got.remove(&adapters[&late]).unwrap_or_default();
                    let others = adapters.iter().filter(|&(&at, _)| at != home && at != late);
                    assert_eq!(got, others.map(|(_, &adapter)| (adapter, 1)).collect(), "{case}");
                    assert!(there <= 1, "{case}");
                }
            }
            let host = world.add(NodeType::ChannelAdapter, 0x1_0000, 1);
            world.connect((a, 15), (host, 1));
            world.sm.handle_port_change(world.now);
            world.pass(SECOND);
            join(&mut world, host);
            world.pass(SECOND);
            world.nodes[late].mute = false;
            world.pass(6 * SECOND);
            assert!(world.sm.is_up(), "{case}: {:?}", world.sm.counters());
            assert_ne!(world.multicast(a, BROADCAST) & 1 << 15, 0, "{case}: the join has taken effect");
            world.disconnect((a, 15));
            adapters.retain(|_, adapter| *adapter != host);
            world.sm.handle_port_change(world.now);
            world.pass(SECOND);
            check(&world, &adapters);
            Some(phase)
        });
    }
}

#[test]
fn a_trunk_that_comes_back_as_a_second_switch_gets_late_closes_no_loop() {
    // The first switch keeps its branch to the trunk that goes, for it is late. It answers before that trunk
    // comes back, or after it.
    let (_, _, [a, b, c]) = own_ring();
    for (first, second, end) in [(b, c, (a, 2)), (c, b, (a, 3))] {
        at_each_moment(2, |packets| bring_a_trunk_back([first, second], end, Some(packets)));
        bring_a_trunk_back([first, second], end, None);
    }
}

/// A trunk of a ring is pulled while the first of two switches is late, and plugged in again. The second switch
/// gets late after this number of packets of the sweep that finds the trunk. With `None` it is late before that
/// sweep, and the first one answers only after it.
fn bring_a_trunk_back(
    [first, second]: [usize; 2],
    end: (usize, u8),
    packets: Option<usize>,
) -> Option<Phase> {
    let (mut world, adapters, _) = own_ring();
    let other = world.peer(end).unwrap();
    world.watch = Some(BROADCAST);
    world.nodes[first].mute = true;
    world.disconnect(end);
    world.sm.handle_port_change(world.now);
    world.pass(5 * SECOND);
    world.connect(end, other);
    world.nodes[first].mute = packets.is_none();
    let phase = packets.map(|packets| sweep_until(&mut world, packets));
    if phase == Some(None) {
        return None;
    }
    world.nodes[second].mute = true;
    world.sm.handle_port_change(world.now);
    world.pass(5 * SECOND);
    world.nodes[first].mute = false;
    world.pass(5 * SECOND);
    let case = format!("{first} {second} {packets:?} {phase:?}");
    // The trunk is of use for other packets.
    for (node, port) in [end, other] {
        assert_eq!(world.nodes[node].ports[usize::from(port)].state, PortState::Active, "{case}");
    }
    world.nodes[second].mute = false;
    world.pass(20 * SECOND);
    assert!(world.sm.is_up(), "{case}: {:?}", world.sm.counters());
    check(&world, &adapters);
    phase.flatten()
}
