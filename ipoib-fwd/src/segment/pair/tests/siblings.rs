//! Two segments of one gateway whose networks have been joined.

use std::time::{Duration, Instant};

use ib_wire::Guid;

use super::world::{HELLO, World};
use crate::segment::pair::{Event, Identity, Pair, Role, SegmentId, Settings, Side, Sign, Transmit};

const STEP: Duration = Duration::from_millis(20);

/// Two segments of these numbers, on ports of one gateway.
struct Two {
    now: Instant,
    pairs: [Pair; 2],
    /// Sides on which each hears the other.
    joined: Vec<Side>,
    events: [Vec<Event>; 2],
}

impl Two {
    fn new(segments: [u64; 2], joined: &[Side]) -> Self {
        let now = Instant::now();
        let pair = |index: usize| {
            let own = Identity { guid: Guid(index as u64 + 1), instance: 7 };
            let segment = SegmentId(segments[index]);
            let settings = Settings { priority: 100, hello: HELLO, segment, key: None };
            let mut pair = Pair::new(now, settings, own, World::station(index));
            Side::BOTH.into_iter().for_each(|side| pair.handle_side(now, side, true));
            pair
        };
        Self { now, pairs: [pair(0), pair(1)], joined: joined.to_vec(), events: [vec![], vec![]] }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            for from in [0, 1] {
                self.pairs[from].handle_timeout(self.now);
                while let Some(transmit) = self.pairs[from].poll_transmit() {
                    if let Transmit::Message(side, bytes) = transmit
                        && self.joined.contains(&side)
                    {
                        self.pairs[1 - from].handle_message(self.now, side, &bytes).unwrap();
                    }
                }
            }
            for (pair, events) in self.pairs.iter_mut().zip(&mut self.events) {
                events.extend(std::iter::from_fn(|| pair.poll_event()));
            }
        }
    }

    fn roles(&self) -> [Role; 2] {
        [self.pairs[0].role(), self.pairs[1].role()]
    }

    fn loops(&self) -> [usize; 2] {
        let is_loop = |event: &&Event| matches!(event, Event::Loop { sign: Sign::Sibling, .. });
        [0, 1].map(|n| self.events[n].iter().filter(is_loop).count())
    }
}

#[test]
fn strangers_that_meet_on_both_sides_are_a_loop_and_one_is_blocked_before_it_forwards() {
    let mut two = Two::new([1, 2], &Side::BOTH);
    two.run(Duration::from_secs(30));
    assert_eq!(two.roles(), [Role::Forwarding, Role::Blocked]);
    assert_eq!(two.loops(), [0, 1]);
    let forwarded = |e: &Event| matches!(e, Event::Role { to: Role::Forwarding, .. });
    assert!(!two.events[1].iter().any(forwarded));
    two.joined.clear();
    two.run(Duration::from_secs(15));
    assert_eq!(two.roles(), [Role::Forwarding; 2], "apart again");
}

#[test]
fn strangers_that_meet_on_one_side_are_reported_and_continue() {
    for side in Side::BOTH {
        let mut two = Two::new([1, 2], &[side]);
        two.run(Duration::from_secs(5));
        assert_eq!((two.roles(), two.loops()), ([Role::Forwarding; 2], [0, 0]));
        for (events, other) in two.events.iter().zip([2, 1]) {
            assert!(events.contains(&Event::Sibling { guid: Guid(other), side }), "{events:?}");
        }
        assert!(two.pairs[0].statistics().siblings > 5);
    }
}

#[test]
fn segments_of_one_partition_and_subnet_elect_one() {
    let mut two = Two::new([1, 1], &Side::BOTH);
    two.run(Duration::from_secs(5));
    assert_eq!((two.roles(), two.loops()), ([Role::Forwarding, Role::Standby], [0, 0]));
    assert!(two.events[1].iter().any(|e| matches!(e, Event::Sibling { .. })), "and it is reported");
}
