//! A control core that does not run: its workers stop forwarding before another gateway starts.

use std::time::Duration;

use super::election::boast;
use super::world::{HELLO, World, ms};
use crate::segment::pair::message::MessageError;
use crate::segment::pair::{Drain, Event, Key, Pair, Role, SegmentId, Side, Transmit, Why, shortest_stall};

const SECOND: Duration = Duration::from_secs(1);

/// Runs for a while; at no moment do the workers of two gateways forward.
fn run(w: &mut World, time: Duration) {
    w.run_looking(time, |w| assert!(w.at_work().len() <= 1, "{:?} forward", w.at_work()));
}

fn resigned_by_silence(w: &World, index: usize) -> bool {
    w.boxes[index].events.iter().any(|event| matches!(event, Event::Role { why: Why::Silent, .. }))
}

#[test]
fn a_gateway_whose_control_core_hangs_stops_before_another_one_forwards() {
    for (keyed, priorities) in [(false, [100, 100]), (true, [100, 100]), (true, [200, 100])] {
        // At any moment between two hellos.
        for phase in (0..HELLO.as_millis() as u64).step_by(20) {
            let mut w = World::new(&priorities, keyed);
            w.run(SECOND * 3 + ms(phase));
            assert_eq!(w.at_work(), [0]);
            w.hang(0, true);
            run(&mut w, SECOND * 3);
            assert_eq!(w.at_work(), [1]);
            assert_eq!(w.role(0), Some(Role::Forwarding), "its role was not evaluated since then");
            w.hang(0, false);
            assert!(resigned_by_silence(&w, 0));
            run(&mut w, SECOND * 3);
            assert_eq!(w.at_work(), [1]);
            assert_eq!(w.forwarders(), [1]);
        }
    }
}

#[test]
fn no_stall_that_is_too_short_for_a_report_ends_a_lease() {
    for hello in [50, 300, 1000, 5000].map(ms) {
        let mut shortest = SECOND * 60;
        // Alone between strangers, and with another one.
        for (others, phase) in (0..40).map(|n| (n as usize % 2, n / 2)) {
            let mut w = World::with_hello(&[100; 2][..=others], true, hello);
            w.run(hello * 9 + SECOND);
            strangers(&mut w, if others == 0 { &Side::BOTH } else { &[] }, 1..3);
            w.run(hello.min(SECOND) * phase / 20);
            let end = w.boxes[0].pair.as_ref().and_then(Pair::lease_end).unwrap();
            shortest = shortest.min(end - w.now);
        }
        let reported = shortest_stall(hello);
        assert!(shortest >= reported && shortest < reported * 3 / 2, "{hello:?}: {shortest:?}, {reported:?}");
    }
}

#[test]
fn a_gateway_without_others_forwards_on_while_its_control_core_hangs() {
    let mut w = World::new(&[100, 100], false);
    w.run(SECOND * 3);
    w.crash(1);
    w.run(SECOND * 3);
    w.hang(0, true);
    w.run(SECOND * 30);
    assert_eq!(w.at_work(), [0], "no gateway would take over");
    w.hang(0, false);
    assert_eq!(w.at_work(), [0]);
    assert!(!resigned_by_silence(&w, 0));
    // The next one binds it again.
    w.start(1);
    w.run(SECOND * 3);
    w.hang(0, true);
    run(&mut w, SECOND * 3);
    assert_eq!(w.at_work(), [1]);
}

/// Messages with another key on some sides, once a second from `seconds`.
fn strangers(w: &mut World, sides: &[Side], seconds: std::ops::Range<u64>) {
    for sequence in seconds {
        for side in sides {
            let (now, bytes) = (w.now, boast(SegmentId(1), sequence, *side, Some(Key::new([8; 16]))));
            w.with(0, |pair| {
                assert_eq!(pair.handle_message(now, *side, &bytes), Err(MessageError::Key));
            });
        }
        w.run(SECOND);
    }
}

#[test]
fn strangers_do_not_stop_a_gateway_that_runs_whatever_its_time_between_hellos() {
    for hello in [50, 300, 1000, 2000, 3400, 5000, 10_000].map(ms) {
        let mut w = World::with_hello(&[100], true, hello);
        w.run(hello * 3 + SECOND);
        assert_eq!(w.role(0), Some(Role::Forwarding));
        strangers(&mut w, &Side::BOTH, 1..2);
        let end = |w: &World| w.boxes[0].pair.as_ref().and_then(Pair::lease_end);
        assert!(end(&w).is_some(), "one of them may take over");
        // A second late is no stall.
        let spare = SECOND.min(hello * 2);
        w.run_looking(SECOND * 60, |w| {
            let timeout = w.boxes[0].pair.as_ref().map(Pair::poll_timeout);
            assert!(
                end(w).is_none_or(|end| timeout.is_some_and(|at| at.max(w.now) + spare <= end)),
                "{hello:?}"
            );
            assert_eq!(w.role(0), Some(Role::Forwarding), "{hello:?}");
        });
    }
}

#[test]
fn strangers_bind_a_gateway_only_where_they_are_heard_on_both_sides() {
    for (sides, at_work) in [(&Side::BOTH[..], 0), (&[Side::Ethernet], 1), (&[Side::InfiniBand], 1)] {
        let mut w = World::new(&[100], true);
        w.run(SECOND * 3);
        strangers(&mut w, sides, 1..9);
        w.hang(0, true);
        w.run(SECOND * 30);
        assert_eq!(w.at_work().len(), at_work, "{sides:?}");
        w.hang(0, false);
        assert_eq!(resigned_by_silence(&w, 0), at_work == 0, "{sides:?}");
    }
}

type Act = fn(&mut World);

/// Takes gateway 1 out of service, and puts it back.
const ABSENCES: [(Act, Act); 3] = [
    (
        |w| {
            let now = w.now;
            w.with(1, |pair| pair.set_drained(now, Some(Drain::Alone)));
        },
        |w| {
            let now = w.now;
            w.with(1, |pair| pair.set_drained(now, None));
        },
    ),
    (|w| w.set_side(1, Side::InfiniBand, false), |w| w.set_side(1, Side::InfiniBand, true)),
    (
        // Another one is started, and its port is slow.
        |w| {
            w.crash(1);
            w.boxes[1].up = [true, false];
            w.start(1);
        },
        |w| w.set_side(1, Side::InfiniBand, true),
    ),
];

/// The lease of a gateway whose peers are out of service.
const LONG: Duration = ms(6000);

#[test]
fn a_gateway_forwards_on_for_longer_while_its_control_core_hangs_if_the_other_one_is_out_of_service() {
    for (leave, _) in ABSENCES {
        let mut w = World::new(&[100, 100], true);
        w.run(SECOND * 3);
        leave(&mut w);
        w.run(SECOND * 5);
        w.hang(0, true);
        run(&mut w, LONG - HELLO);
        assert_eq!(w.at_work(), [0]);
        w.hang(0, false);
        assert_eq!(w.at_work(), [0]);
        assert!(!resigned_by_silence(&w, 0));
        w.run(SECOND);
        w.hang(0, true);
        run(&mut w, LONG);
        assert_eq!(w.at_work(), [0; 0]);
        w.hang(0, false);
        assert!(resigned_by_silence(&w, 0));
        w.run(SECOND * 3);
        assert_eq!(w.at_work(), [0]);
    }
}

#[test]
fn a_gateway_that_comes_back_while_the_other_one_hangs_waits_until_that_one_has_stopped() {
    for (leave, come_back) in ABSENCES {
        for after in [10, 100, 280, 300, 900, 1100, 2000, 5000, 5900, 6100, 9000].map(ms) {
            for phase in [0, 100, 299].map(ms) {
                let mut w = World::new(&[100, 100], true);
                w.run(SECOND * 3);
                leave(&mut w);
                w.run(SECOND * 5 + phase);
                assert_eq!(w.at_work(), [0]);
                w.hang(0, true);
                run(&mut w, after);
                come_back(&mut w);
                run(&mut w, LONG.saturating_sub(after) + SECOND * 2);
                assert_eq!(w.at_work(), [1], "{after:?} after the other one hung");
                w.hang(0, false);
                run(&mut w, SECOND * 3);
                assert_eq!(w.at_work(), [1]);
            }
        }
    }
}

#[test]
fn a_gateway_that_bounces_while_the_other_one_hangs_waits_until_that_one_has_stopped() {
    // A newly started gateway does not know the forwarder, so it cannot wait for it.
    for (leave, come_back) in &ABSENCES[..2] {
        // The second absence begins while the gateway listens, or while it already stands by.
        for (up, down) in [(50, 50), (200, 200), (1500, 50), (1500, 1500)] {
            for after in (0..4000).step_by(200).map(ms) {
                let mut w = World::new(&[100, 100], true);
                w.run(SECOND * 3);
                leave(&mut w);
                w.run(SECOND * 5);
                assert_eq!(w.at_work(), [0]);
                w.hang(0, true);
                run(&mut w, after);
                come_back(&mut w);
                run(&mut w, ms(up));
                leave(&mut w);
                run(&mut w, ms(down));
                come_back(&mut w);
                run(&mut w, LONG + SECOND * 2);
                assert_eq!(w.at_work(), [1], "{up} ms up {after:?} after the other one hung");
            }
        }
    }
}

#[test]
fn a_gateway_that_bounces_before_a_hello_arrives_waits_as_long_as_its_sender_may_forward() {
    for (leave, come_back) in &ABSENCES[..2] {
        for phase in (0..300).step_by(5).map(ms) {
            let mut w = World::new(&[100, 100], true);
            w.delay = ms(50);
            w.run(SECOND * 3);
            leave(&mut w);
            w.run(SECOND * 5 + phase);
            come_back(&mut w);
            // The forwarder hangs before it hears of that, and its last hello is on its way.
            run(&mut w, ms(15));
            w.hang(0, true);
            leave(&mut w);
            run(&mut w, SECOND);
            come_back(&mut w);
            run(&mut w, LONG + SECOND * 2);
            assert_eq!(w.at_work(), [1], "{phase:?}");
        }
    }
}

#[test]
fn a_hello_that_was_sent_before_three_seconds_of_absence_does_not_lengthen_the_lease() {
    for (leave, come_back) in ABSENCES {
        // Between two hellos of the forwarder, whatever its phase is.
        for phase in [0, 75, 150, 225].map(ms) {
            for after in (2500..3700).step_by(50).map(ms) {
                let mut w = World::new(&[100, 100], true);
                w.run(SECOND * 3 + phase);
                leave(&mut w);
                w.run(after);
                w.hang(0, true);
                run(&mut w, ms(500));
                come_back(&mut w);
                run(&mut w, LONG + SECOND * 2);
                assert_eq!(w.at_work(), [1], "hung {after:?} after the other one had left, {phase:?}");
            }
        }
    }
}

#[test]
fn a_gateway_that_comes_back_and_is_heard_takes_over_after_a_short_lease() {
    for (leave, come_back) in ABSENCES {
        let mut w = World::new(&[100, 100], true);
        w.run(SECOND * 3);
        leave(&mut w);
        w.run(SECOND * 5);
        come_back(&mut w);
        w.run(SECOND * 3);
        w.hang(0, true);
        run(&mut w, ms(1100));
        assert_eq!(w.at_work(), [1]);
    }
}

#[test]
fn a_blocked_peer_binds_a_gateway_whose_control_core_hangs() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 3);
    // A hello of its own comes back on the other side.
    let (now, mut sent) = (w.now, Vec::new());
    w.with(1, |pair| {
        pair.set_priority(now, 99);
        sent.extend(std::iter::from_fn(|| pair.poll_transmit()));
        for transmit in &sent {
            if let Transmit::Message(side, bytes) = transmit {
                pair.handle_message(now, side.other(), bytes).unwrap();
            }
        }
    });
    w.run(SECOND * 5);
    assert_eq!((w.at_work(), w.role(1)), (vec![0], Some(Role::Blocked)));
    w.hang(0, true);
    run(&mut w, SECOND * 30);
    assert_eq!(w.at_work(), [1], "its block has ended");
}

#[test]
fn a_gateway_that_hangs_after_a_handover_stops_before_the_drained_one_forwards_again() {
    for after in (0..4000).step_by(100).map(ms) {
        let mut w = World::new(&[200, 100], true);
        w.run(SECOND * 8);
        let now = w.now;
        w.with(0, |pair| pair.set_drained(now, Some(Drain::HandOver)));
        w.run(ms(20) + after);
        assert_eq!(w.at_work(), [1]);
        w.hang(1, true);
        run(&mut w, SECOND * 5);
        // In between the drained one has already seen that it forwards.
        let (is_early, is_late) = (after < ms(1900), after >= SECOND * 3 + HELLO);
        let at_work: &[usize] = if is_late { &[1] } else { &[0] };
        assert!(!is_early && !is_late || w.at_work() == at_work, "hung {after:?} after the handover");
    }
}

#[test]
fn of_gateways_whose_control_cores_hang_at_once_one_forwards_again() {
    let mut w = World::new(&[100, 100], true);
    w.run(SECOND * 3);
    (0..2).for_each(|index| w.hang(index, true));
    w.run(SECOND * 5);
    assert_eq!(w.at_work(), [0; 0], "the machine of both was suspended");
    (0..2).for_each(|index| w.hang(index, false));
    run(&mut w, SECOND * 3);
    assert_eq!(w.at_work().len(), 1);
}
