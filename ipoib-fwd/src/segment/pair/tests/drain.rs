//! Out of service and back: who is drained hands over, and forwards nothing until that is undone.

use super::world::{HELLO, World, ms};
use crate::segment::pair::{Drain, Event, NoSuccessor, Role, Side, Why};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn drain(w: &mut World, index: usize, drained: bool) {
    let now = w.now;
    w.with(index, |pair| pair.set_drained(now, drained.then_some(Drain::HandOver)));
}

fn ask(w: &mut World, index: usize, asked: Drain) -> Drain {
    let now = w.now;
    let mut how = asked;
    w.with(index, |pair| how = pair.drain(now, asked));
    how
}

fn hands_over(w: &World, index: usize) -> bool {
    w.boxes[index].pair.as_ref().is_some_and(|pair| pair.hands_over())
}

#[test]
fn who_is_drained_hands_over_at_once_and_forwards_what_comes_late_for_three_seconds() {
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
        // The higher priority does not bring it back, and the other one is told of it as of one that ends.
        w.run_looking(SECOND * 30, |w| assert_eq!(w.forwarders(), [1]));
        let now = w.now;
        assert!(w.boxes[1].pair.as_ref().unwrap().peers(now).all(|p| p.leaves && p.role == Role::Standby));
        // Nor does the other one's death.
        w.crash(1);
        w.run_looking(SECOND * 10, |w| assert!(w.forwarders().is_empty()));
        w.start(1);
        w.run(SECOND * 8);
        // Back in service it stands by, becomes warm, and takes over as the better one does.
        drain(&mut w, 0, false);
        assert_eq!(w.role(0), Some(Role::Standby));
        w.run_looking(HELLO * 19, |w| assert_eq!(w.forwarders(), [1]));
        assert!(w.until_forwards(0, SECOND * 2) > Duration::ZERO);
    }
}

#[test]
fn who_stands_by_is_drained_and_put_back_without_a_change() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 8);
    drain(&mut w, 1, true);
    assert!(!hands_over(&w, 1), "it had nothing to hand over");
    w.run_looking(SECOND * 5, |w| assert_eq!((w.forwarders(), w.role(1)), (vec![0], Some(Role::Drained))));
    drain(&mut w, 1, false);
    w.run_looking(SECOND * 5, |w| assert_eq!((w.forwarders(), w.role(1)), (vec![0], Some(Role::Standby))));
}

/// The net under the first drain holds still: the other one goes while it takes over.
#[test]
fn who_is_drained_twice_forwards_again_if_nobody_takes_over() {
    for (second, forwards) in [(Drain::HandOver, vec![0]), (Drain::Alone, vec![])] {
        let mut w = World::new(&[200, 100], true);
        w.run(SECOND * 8);
        assert_eq!(ask(&mut w, 0, Drain::HandOver), Drain::HandOver);
        w.crash(1);
        assert_eq!(ask(&mut w, 0, second), second);
        w.run(SECOND * 8);
        assert_eq!(w.forwarders(), forwards);
    }
    // Nor is one that had nothing to hand over asked to wait for somebody by the second.
    let mut w = World::new(&[100], true);
    w.run(SECOND * 8);
    w.set_side(0, Side::InfiniBand, false);
    for _ in 0..2 {
        assert_eq!(ask(&mut w, 0, Drain::HandOver), Drain::Alone);
    }
}

/// `ctl drain` asks nobody to take over what is not there.
#[test]
fn who_has_lost_a_side_has_nothing_to_hand_over_and_stays_drained_when_it_is_back() {
    let could = |w: &World, i: usize| w.boxes[i].pair.as_ref().unwrap().could_forward();
    let mut w = World::new(&[100], true);
    assert!(could(&w, 0), "it is about to forward");
    w.run(SECOND * 8);
    assert!(could(&w, 0));
    w.set_side(0, Side::InfiniBand, false);
    assert!(!could(&w, 0));
    assert_eq!(ask(&mut w, 0, Drain::HandOver), Drain::Alone);
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
    assert_eq!(successor(&w, 1), Ok(1), "who forwards knows the hosts");
    w.run(SECOND * 6);
    assert_eq!(successor(&w, 0), Ok(2));
    // One that has lost a side is none, and neither is one that is drained, or gone.
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
fn who_is_drained_in_the_moment_in_which_the_other_one_dies_forwards_again() {
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
fn who_is_drained_although_it_is_alone_stays_so() {
    let mut w = World::new(&[100], true);
    w.run(SECOND * 8);
    let now = w.now;
    w.with(0, |pair| pair.set_drained(now, Some(Drain::Alone)));
    w.run_looking(SECOND * 20, |w| assert_eq!(w.role(0), Some(Role::Drained)));
    drain(&mut w, 0, false);
    assert!(
        w.until_forwards(0, SECOND) <= ms(10),
        "nobody is waited for: it has heard all the time that there is none"
    );
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
fn who_loses_a_side_or_is_blocked_hands_nothing_over() {
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
fn who_is_put_back_while_it_hands_over_goes_on_with_that() {
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
