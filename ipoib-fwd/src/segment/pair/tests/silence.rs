//! A control core that does not run: its workers stop forwarding before another gateway starts.

use std::time::Duration;

use super::world::{HELLO, World, ms};
use crate::segment::pair::{Event, Role, Why};

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
            assert_eq!(w.role(0), Some(Role::Forwarding), "nobody has asked it since then");
            w.hang(0, false);
            assert!(resigned_by_silence(&w, 0));
            run(&mut w, SECOND * 3);
            assert_eq!(w.at_work(), [1]);
            assert_eq!(w.forwarders(), [1]);
        }
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
    assert_eq!(w.at_work(), [0], "nobody would take over");
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
