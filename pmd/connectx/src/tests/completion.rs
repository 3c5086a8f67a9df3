//! Completion queues that move to another ring, and event moderation.

use std::time::Duration;

use super::events::Datagrams;
use super::rig::{CQ, Memory};
use crate::engine::ResizeError;
use crate::event::DeviceEvent;

const PERIOD: Duration = Duration::from_micros(100);

#[test]
fn a_queue_moves_to_rings_of_other_sizes() {
    let mut d = Datagrams::new();
    let mut passed = 0u16;
    // Read and unread entries, across the ends of all rings. A driver reports its move to the new ring at its
    // next poll; until then the device counts one more entry as unread.
    for (round, (entries, unread)) in
        [(2048, 0), (64, 3), (64, 62), (8, 6), (8, 0), (1024, 5), (4, 2), (2, 0), (256, 1), (16, 14)]
            .into_iter()
            .cycle()
            .take(200)
            .enumerate()
    {
        let Datagrams { rig, .. } = &mut d;
        rig.b.rcq.resize(&mut rig.b.engine, 256).unwrap();
        for n in 0..round % 7 + unread {
            d.pass(false);
            if n >= unread {
                assert_eq!(d.rig.b.rcq.poll().map(|wc| wc.counter), Some(passed));
                passed = passed.wrapping_add(1);
            }
        }
        let Datagrams { rig, .. } = &mut d;
        rig.b.rcq.resize(&mut rig.b.engine, entries).unwrap();
        for wc in rig.b.rcq.all() {
            assert_eq!(wc.counter, passed);
            passed = passed.wrapping_add(1);
        }
        d.rig.a.scq.all();
    }
    let events: Vec<_> = std::iter::from_fn(|| d.rig.b.engine.next_event()).collect();
    assert!(!events.iter().any(|event| matches!(event, DeviceEvent::CqOverrun(_))));
}

#[test]
fn a_ring_without_room_for_unread_entries_is_refused_and_nothing_is_lost() {
    let mut d = Datagrams::new();
    for _ in 0..8 {
        d.pass(false);
    }
    let Datagrams { rig, .. } = &mut d;
    let number = rig.b.rcq.number;
    for entries in [2, 4, 8] {
        let refused = rig.b.rcq.resize(&mut rig.b.engine, entries);
        assert_eq!(refused, Err(ResizeError::Outstanding { outstanding: 8, entries: entries as u32 }));
    }
    let memory = Memory::new(64 * 24);
    for bytes in [0, 63, 64 * 24, 65] {
        let refused = rig.b.engine.resize_cq(number, memory.part(0, bytes));
        assert_eq!(refused, Err(ResizeError::Ring(bytes as u64)));
    }
    assert_eq!(rig.b.engine.resize_cq(99, memory.part(0, 64)), Err(ResizeError::NotFound(99)));
    rig.b.rcq.resize(&mut rig.b.engine, 16).unwrap();
    assert_eq!(rig.b.rcq.all().iter().map(|wc| wc.counter).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
    // A full ring has no slot for the entry that announces the move.
    for _ in 0..16 {
        d.pass(false);
    }
    let Datagrams { rig, .. } = &mut d;
    let refused = rig.b.rcq.resize(&mut rig.b.engine, 64);
    assert_eq!(refused, Err(ResizeError::Outstanding { outstanding: 16, entries: 16 }));
    // One more than fits.
    d.pass(false);
    let Datagrams { rig, .. } = &mut d;
    let events: Vec<_> = std::iter::from_fn(|| rig.b.engine.next_event()).collect();
    assert_eq!(
        events[events.len() - 2..],
        [DeviceEvent::CqOverrun(number), DeviceEvent::Async(hca::AsyncEvent::QpFatal(d.rx.qpn))]
    );
    let Datagrams { rig, .. } = &mut d;
    assert_eq!(rig.b.rcq.resize(&mut rig.b.engine, 64), Err(ResizeError::Overrun));
    assert_eq!(rig.b.rcq.all().len(), 16);
}

#[test]
fn the_old_ring_is_not_touched_and_arming_continues() {
    let mut d = Datagrams::new();
    d.pass(false);
    let number = d.rig.b.rcq.number;
    let other = Memory::new(64 * 32);
    d.arm(1, false);
    d.rig.b.engine.resize_cq(number, other.part(0, 64 * 32)).unwrap();
    assert!(!d.has_event(), "the entry that leads out of a ring is no completion");
    let before = d.rig.b.rcq.ring.get(0, CQ * 64);
    assert_eq!((before[63] >> 4, before[64 + 63], before[2 * 64 + 63]), (2, 0x50, 0xf0));
    d.pass(false);
    assert!(d.has_event());
    assert_eq!(d.rig.b.rcq.ring.get(0, CQ * 64), before);
    assert_eq!(other.get(2 * 64 + 63, 1)[0] >> 4, 2);
    let now = d.rig.b.engine.query_cq(number).unwrap();
    assert_eq!((now.entries, now.consumer, now.producer, now.overrun), (32, 0, 3, false));
}

#[test]
fn one_event_for_several_completions() {
    let mut d = Datagrams::new();
    let number = d.rig.b.rcq.number;
    d.rig.b.engine.moderate_cq(number, 4, PERIOD).unwrap();
    for lap in 0..50 {
        d.arm(lap * 4, false);
        for n in 0..4 {
            assert!(!d.has_event(), "{n}");
            d.pass(false);
        }
        assert!(d.has_event());
        // It is not armed again, and no timer runs.
        assert_eq!(d.rig.b.engine.next_deadline(d.rig.now), None);
        assert_eq!((d.rig.a.scq.all().len(), d.rig.b.rcq.all().len()), (4, 4));
    }
    // Two are there when it is armed, and the host has read one.
    for _ in 0..3 {
        d.pass(false);
    }
    d.arm(201, false);
    assert!(!d.has_event());
    d.pass(false);
    assert!(!d.has_event());
    d.pass(false);
    assert!(d.has_event());
    // More than enough are there.
    d.arm(200, false);
    assert!(d.has_event());
}

#[test]
fn an_event_waits_for_the_period_at_most() {
    let mut d = Datagrams::new();
    let number = d.rig.b.rcq.number;
    d.rig.b.engine.moderate_cq(number, 1000, PERIOD).unwrap();
    d.rig.settle();
    for lap in 0..3 {
        d.arm(2 * lap, false);
        assert_eq!(d.rig.b.engine.next_deadline(d.rig.now), None, "no completion yet");
        let first = d.rig.now;
        d.pass(false);
        assert_eq!(d.rig.b.engine.next_deadline(d.rig.now), Some(first + PERIOD));
        d.rig.now += PERIOD / 2;
        d.pass(false);
        assert!(!d.has_event());
        assert_eq!(
            d.rig.b.engine.next_deadline(d.rig.now),
            Some(first + PERIOD),
            "from the first completion on"
        );
        d.rig.now = first + PERIOD - Duration::from_nanos(1);
        d.rig.settle();
        assert!(!d.has_event());
        d.rig.now = first + PERIOD;
        d.rig.settle();
        assert!(d.has_event());
        assert_eq!(d.rig.b.engine.next_deadline(d.rig.now), None);
        d.rig.b.rcq.all();
    }
    // Completions present when it is armed are delayed as well. A host that has read them and arms again gets
    // no event.
    d.pass(false);
    d.arm(6, false);
    assert_eq!(d.rig.b.engine.next_deadline(d.rig.now), Some(d.rig.now), "the next step computes the time");
    d.rig.settle();
    assert_eq!(d.rig.b.engine.next_deadline(d.rig.now), Some(d.rig.now + PERIOD));
    d.arm(7, false);
    d.rig.now += 2 * PERIOD;
    d.rig.settle();
    assert!(!d.has_event());
    assert_eq!(d.rig.b.engine.next_deadline(d.rig.now), None);
}

#[test]
fn moderation_of_solicited_completions_its_end_and_invalid_settings() {
    let mut d = Datagrams::new();
    let number = d.rig.b.rcq.number;
    d.rig.b.engine.moderate_cq(number, 2, PERIOD).unwrap();
    d.arm(0, true);
    for _ in 0..5 {
        d.pass(false);
    }
    assert_eq!(d.rig.b.engine.next_deadline(d.rig.now), None, "it is not armed for any of them");
    d.pass(true);
    assert!(!d.has_event());
    d.pass(false);
    assert!(!d.has_event());
    d.pass(true);
    assert!(d.has_event());
    // A delayed event is raised when moderation ends.
    d.rig.b.rcq.all();
    d.arm(8, false);
    d.pass(false);
    assert!(!d.has_event());
    d.rig.b.engine.moderate_cq(number, 0, PERIOD).unwrap();
    assert!(d.has_event());
    d.rig.now += 2 * PERIOD;
    d.rig.settle();
    assert!(!d.has_event(), "once");
    for (count, period) in [(0, PERIOD), (7, Duration::ZERO)] {
        d.rig.b.engine.moderate_cq(number, count, period).unwrap();
        d.rig.b.rcq.all();
        d.arm(d.rig.b.engine.query_cq(number).unwrap().producer, false);
        d.pass(false);
        assert!(d.has_event(), "not moderated");
    }
    assert!(d.rig.b.engine.moderate_cq(99, 1, PERIOD).is_err());
}
