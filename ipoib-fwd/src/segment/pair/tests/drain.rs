//! Out of service and back: a drained gateway hands over, and forwards nothing until it is put back.

use super::world::{HELLO, World, ms};
use crate::segment::pair::{Drain, Event, NoSuccessor, Role, Side, Why};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn drain(w: &mut World, index: usize, drained: bool) {
    let now = w.now;
    w.with(index, |pair| pair.set_drained(now, drained.then_some(Drain::HandOver)));
}

fn drain_as(w: &mut World, index: usize, requested: Drain) -> Drain {
    let now = w.now;
    let mut how = requested;
    w.with(index, |pair| how = pair.drain(now, requested));
    how
}

fn hands_over(w: &World, index: usize) -> bool {
    w.boxes[index].pair.as_ref().is_some_and(|pair| pair.hands_over())
}

#[test]
fn a_drained_gateway_hands_over_at_once_and_forwards_late_packets_for_three_seconds() {
    for keyed in [false, true] {
        let mut w = World::new(&[200, 100], keyed);
        w.run(SECOND * 8);
        assert_eq!(w.forwarders(), [0]);
        drain(&mut w, 0, true);
        assert_eq!(w.role(0), Some(Role::Drained));
        assert!(hands_over(&w, 0));
        assert!(w.until_forwards(1, SECOND) <= ms(20));
        w.run_looking(SECOND * 2, |w| assert!(hands_over(w, 0) && w.doubled.is_none()));
        w.run(SECOND * 2);
        assert!(!hands_over(&w, 0));
        assert_eq!(w.boxes[0].events.iter().filter(|e| matches!(e, Event::HandedOver)).count(), 1);
        // The higher priority does not bring it back, and the other gateway handles it like one that exits.
        w.run_looking(SECOND * 30, |w| assert_eq!(w.forwarders(), [1]));
        let now = w.now;
        assert!(w.boxes[1].pair.as_ref().unwrap().peers(now).all(|p| p.leaves && p.role == Role::Standby));
        // Nor does the other one's death.
        w.crash(1);
        w.run_looking(SECOND * 10, |w| assert!(w.forwarders().is_empty()));
        w.start(1);
        w.run(SECOND * 8);
        // Back in service it stands by, becomes warm, and takes over as the better gateway.
        drain(&mut w, 0, false);
        assert_eq!(w.role(0), Some(Role::Standby));
        w.run_looking(HELLO * 19, |w| assert_eq!(w.forwarders(), [1]));
        assert!(w.until_forwards(0, SECOND * 2) > Duration::ZERO);
    }
}

#[test]
fn a_standby_is_drained_and_put_back_without_a_change() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 8);
    drain(&mut w, 1, true);
    assert!(!hands_over(&w, 1), "it had nothing to hand over");
    w.run_looking(SECOND * 5, |w| assert_eq!((w.forwarders(), w.role(1)), (vec![0], Some(Role::Drained))));
    drain(&mut w, 1, false);
    w.run_looking(SECOND * 5, |w| assert_eq!((w.forwarders(), w.role(1)), (vec![0], Some(Role::Standby))));
}

/// The fallback of the first drain remains: the other gateway goes while it takes over.
#[test]
fn a_gateway_drained_twice_forwards_again_without_a_successor() {
    for (second, forwards) in [(Drain::HandOver, vec![0]), (Drain::Alone, vec![])] {
        let mut w = World::new(&[200, 100], true);
        w.run(SECOND * 8);
        assert_eq!(drain_as(&mut w, 0, Drain::HandOver), Drain::HandOver);
        w.crash(1);
        assert_eq!(drain_as(&mut w, 0, second), second);
        w.run(SECOND * 8);
        assert_eq!(w.forwarders(), forwards);
    }
    // Nor does the second drain wait for a successor if the first one had nothing to hand over.
    let mut w = World::new(&[100], true);
    w.run(SECOND * 8);
    w.set_side(0, Side::InfiniBand, false);
    for _ in 0..2 {
        assert_eq!(drain_as(&mut w, 0, Drain::HandOver), Drain::Alone);
    }
}

/// `ctl drain` waits for no successor if there is nothing to hand over.
#[test]
fn a_gateway_without_a_side_hands_nothing_over_and_stays_drained_when_it_is_back() {
    let could = |w: &World, i: usize| w.boxes[i].pair.as_ref().unwrap().could_forward();
    let mut w = World::new(&[100], true);
    assert!(could(&w, 0), "it is about to forward");
    w.run(SECOND * 8);
    assert!(could(&w, 0));
    w.set_side(0, Side::InfiniBand, false);
    assert!(!could(&w, 0));
    assert_eq!(drain_as(&mut w, 0, Drain::HandOver), Drain::Alone);
    w.run(SECOND * 5);
    w.set_side(0, Side::InfiniBand, true);
    w.run_looking(SECOND * 8, |w| assert_eq!((w.forwarders(), w.role(0)), (vec![], Some(Role::Drained))));
    assert!(!could(&w, 0));
    drain(&mut w, 0, false);
    w.run(SECOND * 8);
    assert_eq!(w.forwarders(), [0]);
}

#[test]
fn a_successor_is_able_hears_us_and_knows_the_hosts() {
    let successor =
        |w: &World, i: usize| w.boxes[i].pair.as_ref().unwrap().successor(w.now).map(|who| who.guid.0);
    let mut w = World::new(&[100], true);
    w.run(SECOND * 8);
    assert_eq!(successor(&w, 0), Err(NoSuccessor::Alone));
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 2);
    assert_eq!(successor(&w, 0), Err(NoSuccessor::Cold));
    assert_eq!(successor(&w, 1), Ok(1), "a forwarder knows the hosts");
    w.run(SECOND * 6);
    assert_eq!(successor(&w, 0), Ok(2));
    // A gateway that has lost a side is no successor, and neither is one that is drained, or gone.
    w.set_side(1, Side::InfiniBand, false);
    w.run(SECOND);
    assert_eq!(successor(&w, 0), Err(NoSuccessor::Alone));
    w.set_side(1, Side::InfiniBand, true);
    w.run(SECOND * 8);
    drain(&mut w, 1, true);
    w.run(SECOND);
    assert_eq!(successor(&w, 0), Err(NoSuccessor::Alone));
    drain(&mut w, 1, false);
    w.run(SECOND * 2);
    assert_eq!(successor(&w, 0), Ok(2));
    w.crash(1);
    w.run(SECOND * 2);
    assert_eq!(successor(&w, 0), Err(NoSuccessor::Alone));
}

#[test]
fn a_gateway_drained_at_the_moment_of_the_others_death_forwards_again() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 8);
    w.crash(1);
    drain(&mut w, 0, true);
    w.run(SECOND * 2);
    assert_eq!(w.role(0), Some(Role::Drained));
    w.run(SECOND * 2);
    assert_eq!(w.forwarders(), [0]);
    let is_why = |e: &&Event| matches!(e, Event::Role { why: Why::NoSuccessor, .. });
    assert_eq!(w.boxes[0].events.iter().filter(is_why).count(), 1);
    assert!(!w.boxes[0].pair.as_ref().unwrap().is_drained());
    assert!(!w.boxes[0].events.contains(&Event::HandedOver), "it forwards, so it drops nothing");
}

#[test]
fn a_gateway_drained_without_a_peer_stays_drained() {
    let mut w = World::new(&[100], true);
    w.run(SECOND * 8);
    let now = w.now;
    w.with(0, |pair| pair.set_drained(now, Some(Drain::Alone)));
    w.run_looking(SECOND * 20, |w| assert_eq!(w.role(0), Some(Role::Drained)));
    drain(&mut w, 0, false);
    assert!(w.until_forwards(0, SECOND) <= ms(10), "no wait: it has listened all the time and heard none");
}

#[test]
fn a_drained_gateway_that_loses_a_side_listens_before_it_serves_again() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 8);
    drain(&mut w, 0, true);
    w.run(SECOND * 5);
    w.set_side(0, Side::Ethernet, false);
    w.run(SECOND);
    w.set_side(0, Side::Ethernet, true);
    assert_eq!(w.role(0), Some(Role::Drained));
    drain(&mut w, 0, false);
    w.run(ms(1));
    assert_eq!(w.role(0), Some(Role::Listening));
    w.run(SECOND * 5);
    assert_eq!((w.forwarders(), w.role(0)), (vec![1], Some(Role::Standby)));
}

#[test]
fn a_gateway_that_loses_a_side_or_is_blocked_hands_nothing_over() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 8);
    w.set_side(0, Side::Ethernet, false);
    assert!(!hands_over(&w, 0));
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 8);
    w.bridge = true;
    w.run(SECOND * 3);
    assert_eq!(w.role(0), Some(Role::Blocked));
    assert!(!hands_over(&w, 0));
}

#[test]
fn a_gateway_put_back_during_its_handover_continues_it() {
    let mut w = World::new(&[200, 100], true);
    w.run(SECOND * 8);
    drain(&mut w, 0, true);
    w.run(SECOND);
    drain(&mut w, 0, false);
    assert_eq!(w.role(0), Some(Role::Standby));
    w.run_looking(ms(1900), |w| assert!(hands_over(w, 0) || w.role(0) == Some(Role::Forwarding)));
    w.run(SECOND);
    assert!(!hands_over(&w, 0));
}
