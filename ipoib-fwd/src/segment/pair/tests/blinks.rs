//! Sides that are down for a moment, as when a subnet manager moves. A gateway that no other one can have
//! replaced forwards again at once.

use std::time::Duration;

use super::election::boast;
use super::world::{HELLO, World, ms};
use crate::segment::pair::message::MessageError;
use crate::segment::pair::{Drain, Event, Key, Pair, Role, SegmentId, Side, lease};

const SECOND: Duration = Duration::from_secs(1);
/// The longest absence after which a gateway need not listen.
const LONGEST: Duration = ms(700);

fn blink(w: &mut World, index: usize, side: Side, time: Duration) {
    w.set_side(index, side, false);
    assert_eq!(w.role(index), Some(Role::Standby));
    w.run(time);
    w.set_side(index, side, true);
}

#[test]
fn a_gateway_alone_forwards_at_once_after_a_side_was_down_for_a_moment() {
    assert_eq!(LONGEST, lease(HELLO) - HELLO);
    for side in Side::BOTH {
        for phase in [0, 1, 150, 299] {
            for (away, role) in [
                (ms(1), Role::Forwarding),
                (ms(50), Role::Forwarding),
                (LONGEST - ms(1), Role::Forwarding),
                (LONGEST, Role::Listening),
                (SECOND * 5, Role::Listening),
            ] {
                let mut w = World::new(&[100], true);
                w.run(SECOND * 3 + ms(phase));
                for _ in 0..3 {
                    blink(&mut w, 0, side, away);
                    assert_eq!(w.role(0), Some(role), "{side:?}, {away:?} away");
                    w.run(SECOND * 2);
                    assert_eq!(w.forwarders(), [0]);
                }
            }
        }
    }
}

#[test]
fn a_gateway_that_has_not_listened_or_lost_both_sides_listens() {
    let mut w = World::new(&[100], true);
    w.run(HELLO);
    blink(&mut w, 0, Side::InfiniBand, ms(50));
    assert_eq!(w.role(0), Some(Role::Listening));
    w.run(HELLO * 3 - ms(1));
    assert_eq!(w.role(0), Some(Role::Listening), "from the beginning");
    w.run(SECOND);
    assert_eq!(w.forwarders(), [0]);
    w.set_side(0, Side::Ethernet, false);
    blink(&mut w, 0, Side::InfiniBand, ms(50));
    w.set_side(0, Side::Ethernet, true);
    assert_eq!(w.role(0), Some(Role::Listening));
}

#[test]
fn a_gateway_whose_peer_has_taken_over_meanwhile_stands_by() {
    for keyed in [false, true] {
        for (side, away) in
            Side::BOTH.into_iter().flat_map(|side| [1, 3, 50, 500].map(|away| (side, ms(away))))
        {
            let mut w = World::new(&[100, 100], keyed);
            w.run(SECOND * 8);
            assert_eq!(w.forwarders(), [0]);
            w.set_side(0, side, false);
            w.run_looking(away, |w| assert!(w.doubled.is_none()));
            w.set_side(0, side, true);
            w.run_looking(SECOND * 5, |w| assert!(w.doubled.is_none()));
            assert_eq!(w.forwarders(), [1], "{side:?}, {away:?} away");
        }
    }
}

#[test]
fn a_gateway_whose_peer_is_out_of_service_forwards_at_once() {
    type Act = fn(&mut World);
    let acts: [Act; 3] = [
        |w| {
            let now = w.now;
            w.with(1, |pair| _ = pair.drain(now, Drain::Alone));
        },
        |w| w.set_side(1, Side::InfiniBand, false),
        // Its hello is still in transit.
        |w| w.set_side(1, Side::Ethernet, false),
    ];
    for act in acts {
        for side in Side::BOTH {
            let mut w = World::new(&[100, 100], true);
            w.run(SECOND * 8);
            act(&mut w);
            w.run(SECOND);
            blink(&mut w, 0, side, ms(50));
            assert_eq!(w.forwarders(), [0], "{side:?}");
            w.run_looking(SECOND * 3, |w| assert_eq!(w.forwarders(), [0]));
        }
    }
}

#[test]
fn gateways_that_lose_the_same_side_for_a_moment_never_both_forward_and_one_does_soon() {
    // The subnet manager takes both ports down, in any order.
    for (first, second) in [(0, 1), (1, 0)] {
        for after in [0, 1, 3, 20] {
            for back in [[30, 30], [30, 45], [45, 30]] {
                let mut w = World::new(&[100, 100], true);
                w.run(SECOND * 8);
                w.set_side(first, Side::InfiniBand, false);
                w.run(ms(after));
                w.set_side(second, Side::InfiniBand, false);
                let (start, mut up) = (w.now, [false; 2]);
                for step in 0..100 {
                    for n in 0..2 {
                        if !up[n] && step >= back[n] {
                            up[n] = true;
                            w.set_side(n, Side::InfiniBand, true);
                        }
                    }
                    w.run_looking(ms(1), |w| assert!(w.doubled.is_none()));
                }
                let which = format!("{first} first, {after} ms, {back:?}");
                assert_eq!(w.forwarders().len(), 1, "{which}: after {:?}", w.now - start);
                w.run_looking(SECOND * 5, |w| assert!(w.doubled.is_none()));
                assert_eq!(w.forwarders().len(), 1, "{which}");
            }
        }
    }
}

#[test]
fn a_gateway_listens_after_a_moment_without_a_side_where_others_are_not_believed() {
    for heard_on in Side::BOTH {
        let mut w = World::new(&[100], true);
        w.run(SECOND * 3);
        w.set_side(0, heard_on.other(), false);
        let (now, bytes) = (w.now, boast(SegmentId(1), 1, heard_on, Some(Key::new([8; 16]))));
        w.with(0, |pair| assert_eq!(pair.handle_message(now, heard_on, &bytes), Err(MessageError::Key)));
        w.run(ms(50));
        w.set_side(0, heard_on.other(), true);
        assert_eq!(w.role(0), Some(Role::Listening));
    }
}

#[test]
fn a_moment_without_a_side_is_two_changes_of_the_role_with_their_reasons() {
    let mut w = World::new(&[100], true);
    w.run(SECOND * 3);
    w.boxes[0].events.clear();
    blink(&mut w, 0, Side::InfiniBand, ms(50));
    let roles = w.boxes[0].events.iter().filter_map(|event| match event {
        Event::Role { to, why, .. } => Some((*to, why.to_string())),
        _ => None,
    });
    let roles: Vec<_> = roles.collect();
    assert_eq!(
        roles,
        [(Role::Standby, "a side is down".to_owned()), (Role::Forwarding, "both sides are up".to_owned())]
    );
    assert_eq!(w.boxes[0].pair.as_ref().map(Pair::role), Some(Role::Forwarding));
}
