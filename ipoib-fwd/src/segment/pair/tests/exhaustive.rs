//! All courses of a few steps of two and of three gateways: networks that are split and joined, sides that go
//! down, deaths, restarts with another configuration, reloads, and replays by a station on one side. No
//! packet passes a gateway twice, in the end one gateway forwards, and gateways of the same segment are never
//! blocked.

use std::collections::HashSet;
use std::time::Duration;

use super::nets::{Nets, SETUPS, Setup, Step, act, believe, mend, setup};
use super::world::ms;
use crate::segment::pair::{Role, Side};

/// A gateway that has not settled by then never does: longer than a block by a loop, and than the proof of a
/// rival.
const SETTLED: Duration = Duration::from_secs(14);

/// Counts of visited courses and states.
#[derive(Default)]
struct Visited {
    courses: usize,
    states: HashSet<u64>,
}

impl Visited {
    /// Printed for the page on the models.
    fn print(&self, name: &str) {
        println!("figure: {name}: {} courses, {} states", self.courses, self.states.len());
    }

    /// Takes all courses of `depth` steps, each step followed by 1.3 s.
    fn take_all(&mut self, setups: &[Setup], steps: &[Step], depth: u32, liar: Side) {
        for course in 0..steps.len().pow(depth) {
            let mut nets = Nets::new(setups, liar, course as u64);
            let mut are_alike = agree(&nets, |a, b| a.segment == b.segment);
            nets.run(ms(2500));
            let (mut rest, mut taken) = (course, Vec::new());
            for _ in 0..depth {
                let step = steps[rest % steps.len()];
                taken.push(step);
                rest /= steps.len();
                act(&mut nets, step);
                are_alike &= agree(&nets, |a, b| a.segment == b.segment);
                nets.run(ms(1300));
            }
            mend(&mut nets);
            nets.run(SETTLED);
            let forwarders = nets.forwarders();
            assert_eq!(forwarders.len(), 1, "{setups:?}, {taken:?}: {forwarders:?}");
            assert!(!are_alike || !nets.blocked, "{setups:?}, {taken:?}: one of a pair was blocked");
            // Those that name different subnets are strangers until they hear each other on both sides.
            let is_blocked = (0..setups.len()).any(|n| nets.role(n) == Some(Role::Blocked));
            let are_a_pair = agree(&nets, |_, _| true);
            assert!(!are_a_pair || !is_blocked, "{setups:?}, {taken:?}: one of a pair stays blocked");
            self.courses += 1;
            self.states.extend(nets.states);
        }
    }
}

/// True if all gateways are a pair, and `also` holds for each two.
fn agree(nets: &Nets, also: impl Fn(Setup, Setup) -> bool) -> bool {
    let all: Vec<_> = nets.gateways.iter().map(|gateway| gateway.setup).collect();
    all.iter().all(|a| all.iter().all(|b| believe(*a, *b) && also(*a, *b)))
}

/// Steps of the networks, of gateway 1, and of a station on one side.
fn steps_of_two(keyed: bool) -> [Step; 14] {
    [
        Step::Part(0, 0, 1),
        Step::Part(0, 0, 0),
        Step::Part(0, 1, 1),
        Step::Part(0, 1, 0),
        Step::Crash(1),
        Step::Start(1),
        Step::Reload(1, 2),
        Step::Blink(0, 1),
        Step::Blink(1, 0),
        Step::Side(0, 0, false),
        Step::Replay(0, true),
        Step::Replay(1, false),
        // The change of a key or of the version is half done, or it is undone.
        Step::Restart(1, setup(3, 0, keyed)),
        Step::Restart(1, setup(4, 0, keyed)),
    ]
}

/// The same with three; gateway 0 is the one whose networks are cut.
fn steps_of_three(keyed: bool) -> [Step; 11] {
    [
        Step::Part(0, 0, 1),
        Step::Part(0, 1, 1),
        Step::Part(2, 0, 1),
        Step::Part(0, 0, 0),
        Step::Crash(0),
        Step::Start(0),
        Step::Side(2, 1, false),
        Step::Blink(1, 1),
        Step::Replay(0, true),
        Step::Restart(1, setup(3, 0, keyed)),
        Step::Restart(2, setup(4, 0, keyed)),
    ]
}

#[test]
fn no_short_course_of_cuts_and_deaths_lets_a_packet_pass_twice() {
    let mut visited = Visited::default();
    for other in 0..SETUPS {
        let setups = [setup(0, 100, true), setup(other, 200, true)];
        visited.take_all(&setups, &steps_of_two(true)[..8], 3, Side::InfiniBand);
    }
    visited.print("two gateways, three steps of cuts and deaths");
}

#[test]
fn no_course_of_two_steps_of_two_gateways_lets_a_packet_pass_twice_keyed_or_not() {
    let mut visited = Visited::default();
    // Alike; with other subnets; strangers.
    for other in [0, 2, 3] {
        for (keyed, liar) in [(true, Side::InfiniBand), (false, Side::Ethernet)] {
            let setups = [setup(0, 100, keyed), setup(other, 200, keyed)];
            visited.take_all(&setups, &steps_of_two(keyed), 2, liar);
        }
    }
    visited.print("two gateways, two steps of all kinds");
}

#[test]
fn no_course_of_two_steps_of_three_gateways_lets_a_packet_pass_twice() {
    let mut visited = Visited::default();
    // Three that agree; a pair and a stranger; three strangers.
    for kinds in [[0, 0, 0], [0, 3, 0], [5, 3, 4]] {
        for (keyed, liar) in [(true, Side::Ethernet), (false, Side::InfiniBand)] {
            visited.take_all(&three(kinds, keyed), &steps_of_three(keyed), 2, liar);
        }
    }
    visited.print("three gateways, two steps");
}

/// A forged hello makes the gateways probe. When the networks meet again, echoes may overtake the first
/// hello.
#[test]
fn an_echo_that_overtakes_the_first_hello_blocks_no_gateway_of_a_pair() {
    for course in [97, 973, 986] {
        let mut nets = Nets::new(&three([0, 0, 0], true), Side::InfiniBand, course);
        nets.run(ms(2500));
        for step in [Step::Replay(0, true), Step::Part(0, 1, 1), Step::Part(2, 0, 1)] {
            act(&mut nets, step);
            nets.run(ms(1300));
        }
        mend(&mut nets);
        nets.run(ms(2000));
        assert!(!nets.blocked, "{course}: {:?}", nets.forwarders());
    }
}

fn three(kinds: [usize; 3], keyed: bool) -> [Setup; 3] {
    [setup(kinds[0], 150, keyed), setup(kinds[1], 100, keyed), setup(kinds[2], 200, keyed)]
}

/// Runs all configurations, and deeper.
mod slow {
    use super::*;

    /// All choices of configurations of two gateways.
    fn pairings() -> impl Iterator<Item = [usize; 2]> {
        (0..SETUPS).flat_map(|a| (a..SETUPS).map(move |b| [a, b]))
    }

    #[test]
    #[ignore = "slow: run by scripts/test --full cargo-slow"]
    fn no_course_of_two_steps_of_two_gateways_of_all_configurations_lets_a_packet_pass_twice() {
        let mut visited = Visited::default();
        for [a, b] in pairings() {
            for (keyed, liar) in [(true, Side::Ethernet), (false, Side::InfiniBand)] {
                let setups = [setup(a, 200, keyed), setup(b, 100, keyed)];
                visited.take_all(&setups, &steps_of_two(keyed), 2, liar);
            }
        }
        visited.print("two gateways of all configurations, two steps");
    }

    #[test]
    #[ignore = "slow: run by scripts/test --full cargo-slow"]
    fn no_course_of_three_steps_of_two_gateways_lets_a_packet_pass_twice_keyed_or_not() {
        let mut visited = Visited::default();
        for other in 0..SETUPS {
            for (keyed, liar) in [(true, Side::Ethernet), (false, Side::InfiniBand)] {
                let setups = [setup(0, 200, keyed), setup(other, 100, keyed)];
                visited.take_all(&setups, &steps_of_two(keyed), 3, liar);
            }
        }
        visited.print("two gateways, three steps of all kinds");
    }

    #[test]
    #[ignore = "slow: run by scripts/test --full cargo-slow"]
    fn no_course_of_two_steps_of_three_gateways_of_all_configurations_lets_a_packet_pass_twice() {
        let mut visited = Visited::default();
        for [a, b] in pairings() {
            for c in b..SETUPS {
                for (keyed, liar) in [(true, Side::InfiniBand), (false, Side::Ethernet)] {
                    visited.take_all(&three([a, b, c], keyed), &steps_of_three(keyed), 2, liar);
                }
            }
        }
        visited.print("three gateways of all configurations, two steps");
    }

    #[test]
    #[ignore = "slow: run by scripts/test --full cargo-slow"]
    fn no_course_of_three_steps_of_three_gateways_lets_a_packet_pass_twice() {
        let mut visited = Visited::default();
        for kinds in [[0, 0, 0], [0, 3, 0]] {
            for (keyed, liar) in [(true, Side::InfiniBand), (false, Side::Ethernet)] {
                visited.take_all(&three(kinds, keyed), &steps_of_three(keyed), 3, liar);
            }
        }
        visited.print("three gateways, three steps");
    }
}
