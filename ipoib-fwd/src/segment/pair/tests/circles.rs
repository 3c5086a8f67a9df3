//! Two and three gateways between two networks, that believe each other or not, in any course of splits,
//! deaths and replays. No broadcast or multicast packet passes a gateway twice, and no station on one side
//! alone can block a gateway. Two that join the same networks forward at the same time only for a moment,
//! where networks have met again. Except in that moment no unicast packet passes a gateway twice, whatever
//! the tables contain.

use std::time::Duration;

use proptest::prelude::*;

use super::nets::{Cargo, Nets, SETUPS, Step, act, believe, mend, setup};
use super::world::{HELLO, ms};
use crate::segment::pair::rivals::PROOF;
use crate::segment::pair::{Role, Side};

fn step() -> impl Strategy<Value = Step> {
    let (gateway, side) = (0usize..3, 0usize..2);
    prop_oneof![
        5 => (1u64..3000).prop_map(Step::Wait),
        4 => (gateway.clone(), side.clone(), 0u8..2).prop_map(|(g, s, p)| Step::Part(g, s, p)),
        1 => (gateway.clone(), side, any::<bool>()).prop_map(|(g, s, up)| Step::Side(g, s, up)),
        1 => gateway.clone().prop_map(Step::Crash),
        2 => gateway.clone().prop_map(Step::Start),
        1 => (gateway, 0usize..3).prop_map(|(g, kind)| Step::Reload(g, kind)),
        2 => (any::<u64>(), any::<bool>()).prop_map(|(n, flip)| Step::Replay(n, flip)),
    ]
}

#[test]
fn two_of_any_configurations_never_forward_together_and_the_survivor_takes_over() {
    for a in 0..SETUPS {
        for b in 0..SETUPS {
            for (priorities, keyed) in [([100, 100], false), ([100, 200], true), ([200, 100], true)] {
                let setups = [setup(a, priorities[0], keyed), setup(b, priorities[1], keyed)];
                let mut nets = Nets::new(&setups, Side::Ethernet, 1);
                nets.run(Duration::from_secs(15));
                let forwarders = nets.forwarders();
                assert_eq!(forwarders.len(), 1, "{setups:?}");
                let other = 1 - forwarders[0];
                let role = if believe(setups[0], setups[1]) { Role::Standby } else { Role::Blocked };
                assert_eq!(nets.role(other), Some(role), "{setups:?}");
                nets.gateways[forwarders[0]].pair = None;
                let pair = believe(setups[0], setups[1]);
                nets.run(if pair { ms(1100) } else { PROOF + HELLO * 4 + ms(500) });
                assert_eq!(nets.forwarders(), [other], "{setups:?}");
            }
        }
    }
}

/// A liar on one side alone repeats and changes what it hears. With a key this has no effect; without one no
/// gateway is blocked.
#[test]
fn no_station_on_one_side_can_block_a_gateway() {
    for (keyed, liar) in [false, true].into_iter().flat_map(|keyed| Side::BOTH.map(|liar| (keyed, liar))) {
        for kinds in [&[0][..], &[0, 0], &[0, 1], &[0, 0, 0], &[0, 1, 2]] {
            let setups: Vec<_> = kinds.iter().map(|kind| setup(*kind, 100, keyed)).collect();
            let mut nets = Nets::new(&setups, liar, 5);
            for n in 0..300 {
                nets.run(ms(40));
                nets.replay(n * 7919, n % 2 == 0);
                nets.replay(nets.recorded.len() as u64 - 1, n % 3 == 0);
            }
            assert!(!nets.blocked, "{setups:?}");
            assert!(!keyed || nets.forwarders().len() == 1, "{setups:?}");
        }
    }
}

/// Two gateways that do not believe each other, and a station on one side that changes each echo: one gateway
/// continues.
#[test]
fn changed_echoes_on_one_side_leave_one_forwarder() {
    for liar in Side::BOTH {
        let mut nets = Nets::new(&[setup(0, 100, true), setup(3, 200, true)], liar, 5);
        for _ in 0..600 {
            nets.run(ms(20));
            let echoes: Vec<_> =
                nets.recorded.drain(..).filter(|(_, bytes)| bytes.starts_with(b"IPGE")).collect();
            for (version, mut bytes) in echoes {
                // Another gateway of the best rank.
                (bytes[20], bytes[32]) = (bytes[20] ^ 1, 255);
                nets.broadcast(liar, 0, None, &Cargo::Message { version, bytes });
            }
        }
        assert_eq!(nets.forwarders().len(), 1, "{liar:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn no_course_lets_a_packet_pass_twice_and_in_the_end_one_forwards(
        kinds in prop::collection::vec((0..SETUPS, prop_oneof![Just(100u8), Just(200)]), 2..4),
        keyed: bool,
        ethernet: bool,
        steps in prop::collection::vec(step(), 0..60),
        seed: u64,
    ) {
        let setups: Vec<_> = kinds.iter().map(|(kind, priority)| setup(*kind, *priority, keyed)).collect();
        let liar = if ethernet { Side::Ethernet } else { Side::InfiniBand };
        let mut nets = Nets::new(&setups, liar, seed);
        for step in steps {
            act(&mut nets, step);
        }
        mend(&mut nets);
        nets.run(Duration::from_secs(16));
        prop_assert_eq!(nets.forwarders().len(), 1);
    }
}
