//! Any course of losses, delays, splits and crashes: two that hear each other never both forward, and when
//! the networks are whole again, exactly one forwards.

use super::election::boast;
use super::world::{HELLO, World, ms};
use crate::segment::pair::message::MessageError;
use crate::segment::pair::{Key, Role, SegmentId, Side};
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    Part(usize, usize, u8),
    Side(usize, usize, bool),
    Blink(usize, usize, u64),
    Crash(usize),
    Start(usize),
    Loss(u32),
    Delay(u64),
    Forge(usize, usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (gateway, side) = (0usize..3, 0usize..2);
    prop_oneof![
        4 => (1u64..3000).prop_map(Step::Wait),
        2 => (gateway.clone(), side.clone(), 0u8..3).prop_map(|(g, s, p)| Step::Part(g, s, p)),
        1 => (gateway.clone(), side.clone(), any::<bool>()).prop_map(|(g, s, up)| Step::Side(g, s, up)),
        1 => (gateway.clone(), side.clone(), 1u64..1500).prop_map(|(g, s, n)| Step::Blink(g, s, n)),
        1 => gateway.clone().prop_map(Step::Crash),
        1 => gateway.clone().prop_map(Step::Start),
        1 => (0u32..60).prop_map(Step::Loss),
        1 => (1u64..100).prop_map(Step::Delay),
        1 => (gateway.clone(), side.clone(), any::<u64>()).prop_map(|(g, s, n)| Step::Forge(g, s, n)),
    ]
}

/// The world itself asserts that no two gateways forward and know it of each other.
fn act(w: &mut World, step: Step) {
    match step {
        Step::Wait(n) => w.run(ms(n)),
        Step::Part(g, s, part) => w.boxes[g].part[s] = part,
        Step::Side(g, s, up) => w.set_side(g, Side::BOTH[s], up),
        Step::Blink(g, s, n) => {
            w.set_side(g, Side::BOTH[s], false);
            w.run(ms(n));
            w.set_side(g, Side::BOTH[s], true);
        }
        Step::Crash(g) => w.crash(g),
        Step::Start(g) if w.boxes[g].pair.is_none() => w.start(g),
        Step::Start(_) => {}
        Step::Loss(percent) => w.loss = percent,
        Step::Delay(n) => w.delay = ms(n),
        // A stranger that claims to forward and to be the best: with another key than the gateways have, or
        // with one where they have none.
        Step::Forge(g, s, sequence) => {
            let (now, side) = (w.now, Side::BOTH[s]);
            let bytes = boast(SegmentId(1), sequence, side, Some(Key::new([8; 16])));
            let before = w.role(g);
            w.with(g, |pair| assert_eq!(pair.handle_message(now, side, &bytes), Err(MessageError::Key)));
            assert_eq!(w.role(g), before);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn never_two_that_hear_each_other_and_in_the_end_one(
        priorities in prop::array::uniform3(prop_oneof![Just(100u8), Just(200)]),
        keyed: bool,
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut w = World::new(&priorities, keyed);
        for step in steps {
            act(&mut w, step);
        }
        w.loss = 0;
        w.delay = ms(5);
        for g in 0..3 {
            w.boxes[g].part = [0; 2];
        }
        // After one hello interval and the messages in transit there is no second one.
        w.run(HELLO + ms(120));
        // Two may start at the same moment, when one has died in the last; their first hellos settle it.
        w.run_looking(Duration::from_secs(12), |w| {
            let since = w.doubled.map(|since| w.now - since);
            assert!(since.is_none_or(|since| since <= HELLO), "two forward for {since:?}");
        });
        let able: Vec<usize> =
            (0..3).filter(|g| w.boxes[*g].pair.is_some() && w.boxes[*g].up == [true; 2]).collect();
        let best = able.iter().map(|g| priorities[*g]).max();
        let forwarders = w.forwarders();
        prop_assert_eq!(forwarders.len(), usize::from(!able.is_empty()));
        for g in &forwarders {
            prop_assert_eq!(Some(priorities[*g]), best);
        }
        for g in able {
            prop_assert!(forwarders.contains(&g) || w.role(g) == Some(Role::Standby));
        }
        // It dies: within three seconds there is another one, if there is one.
        if let [g] = forwarders[..] {
            w.crash(g);
            w.run(Duration::from_secs(3));
            let rest = (0..3).any(|g| w.boxes[g].pair.is_some() && w.boxes[g].up == [true; 2]);
            prop_assert_eq!(w.forwarders().len(), usize::from(rest));
        }
    }
}
