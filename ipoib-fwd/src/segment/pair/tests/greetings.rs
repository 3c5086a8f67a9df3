//! Where networks meet, gateways learn of each other at once.

use std::time::Duration;

use super::election::boast;
use super::world::{HELLO, World, ms};
use crate::segment::pair::message::MessageError;
use crate::segment::pair::{Key, Pair, Role, SegmentId, Side};

const SECOND: Duration = Duration::from_secs(1);

fn sent(w: &World, index: usize) -> u64 {
    w.boxes[index].pair.as_ref().map_or(0, |pair| pair.statistics().sent)
}

#[test]
fn a_forwarder_greets_an_unknown_station_at_once_and_often_only_every_50_ms() {
    let mut w = World::new(&[200, 100], true);
    w.run(SECOND * 8);
    assert_eq!((w.role(0), w.role(1)), (Some(Role::Forwarding), Some(Role::Standby)));
    // At least 50 ms after its last hello.
    w.run(HELLO - ms(1));
    let before = sent(&w, 0);
    w.run(ms(1));
    while sent(&w, 0) == before {
        w.run(ms(1));
    }
    w.run(ms(51));
    for (index, hellos) in [(0, 1), (1, 0)] {
        let (now, before) = (w.now, sent(&w, index));
        w.with(index, |pair| pair.greet(now));
        assert_eq!(sent(&w, index) - before, 2 * hellos, "on both sides, by the forwarder alone");
    }
    let before = sent(&w, 0);
    for _ in 0..1000 {
        let now = w.now;
        w.with(0, |pair| pair.greet(now));
        w.run(ms(1));
    }
    assert!((38..=42).contains(&(sent(&w, 0) - before)), "{}", sent(&w, 0) - before);
}

#[test]
fn a_gateway_that_is_not_believed_is_probed_for_at_once_where_it_is_heard_on_another_side() {
    for side in Side::BOTH {
        for phase in (0..300).step_by(20) {
            let mut w = World::new(&[100], true);
            w.run(SECOND * 3);
            let hear = |w: &mut World, sequence, side| {
                let (now, bytes) = (w.now, boast(SegmentId(1), sequence, side, Some(Key::new([8; 16]))));
                w.with(0, |pair| {
                    assert_eq!(pair.handle_message(now, side, &bytes), Err(MessageError::Key));
                });
            };
            for sequence in 1..5 {
                hear(&mut w, sequence, side);
                w.run(HELLO);
            }
            w.run(ms(phase));
            let before = w.probes;
            hear(&mut w, 9, side.other());
            // Any station can make it probe, so not more often than that.
            w.run(ms(100));
            assert!(w.probes > before, "{side:?}, {phase} ms");
            assert_eq!(w.boxes[0].pair.as_ref().map(Pair::role), Some(Role::Forwarding));
        }
    }
}
