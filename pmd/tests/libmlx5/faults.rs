//! Errors and destruction, with the real library in between.

use std::time::{Duration, Instant};

use pmd::hca::{
    AsyncEvent, Backend, Control, PortNumber, QpEvent, QpFault, QpTransition, Queues, QueuesConfig, QueuesId,
    RcSlot, UdConfig, WcStatus,
};
use pmd::verbs::{Adapter, Calls, DataPath, Rings};

use crate::fakekernel;
use crate::rig::{
    MESSAGE, Mlx5, Poll, ROOM, UD, config, connect, fresh_devices, open, other_world, pattern, to_lid,
    with_ud, world,
};

const SLOT: RcSlot = RcSlot(0);
const OTHER: RcSlot = RcSlot(1);

/// Returns the contents of all completion rings of a device, and their records.
fn completion_queues(device: usize) -> Vec<Vec<u8>> {
    let rings = fakekernel::with(device, |d| {
        d.cqs().map(|cq| [(cq.buf, cq.entries as usize * 64), (cq.dbrec, 8)]).collect::<Vec<_>>()
    });
    let bytes = |(address, len): (u64, usize)| -> Vec<u8> {
        // SAFETY: rings of queues that live.
        (0..len).map(|i| unsafe { ((address + i as u64) as *const u8).read_volatile() }).collect()
    };
    rings.into_iter().flatten().map(bytes).collect()
}

#[test]
fn destroying_a_queue_pair_leaves_the_completions_of_others_alone() {
    let mut world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    let pool = world.pool.clone();
    let (_, first) = connect(&mut a, &mut b, SLOT, false);
    let (_, second) = connect(&mut a, &mut b, OTHER, false);
    // Some are consumed, so that the library's view of the driver's position, the start, is wrong.
    for i in 0..10 {
        assert!(a.send_rc(&pool, SLOT, &pattern(i, 100)) && a.send_rc(&pool, OTHER, &pattern(i, 200)));
    }
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(b.received.len(), 20);
    b.received.clear();
    // More are in the ring, alternating between both.
    for i in 0..10 {
        assert!(a.send_rc(&pool, SLOT, &pattern(i, 100)) && a.send_rc(&pool, OTHER, &pattern(i, 200)));
        world.settle(&mut [&mut a]);
    }
    let before = completion_queues(1);
    b.hca.modify_qp(first, &QpTransition::ToReset).unwrap();
    b.destroy_rc(SLOT);
    assert_eq!(completion_queues(1), before);
    assert!(a.send_rc(&pool, OTHER, b"and on"));
    world.settle(&mut [&mut a, &mut b]);
    let of_second: Vec<_> = b.received.iter().filter(|m| m.qpn == second).map(|m| m.bytes.clone()).collect();
    let wanted: Vec<_> = (0..10).map(|i| pattern(i, 200)).chain([b"and on".to_vec()]).collect();
    assert_eq!(of_second, wanted);
    // Messages that arrived earlier are still delivered.
    assert_eq!(b.received.iter().filter(|m| m.qpn == first).count(), 10);
    assert_eq!(b.queues().anomalies(), Default::default());
    assert_eq!(b.queues().receives_posted(), (64, 63));
    a.destroy_rc(SLOT);
    a.destroy_rc(OTHER);
    b.destroy_rc(OTHER);
    world.end_with(a, b);
}

#[test]
fn the_library_does_clean_completions_where_it_polls_itself() {
    // The behavior that the test above guards against.
    let mut world = world();
    let (mut a, mut b) = (world.host::<Calls>(0), world.host::<Calls>(1));
    let pool = world.pool.clone();
    connect(&mut a, &mut b, SLOT, false);
    let (_, second) = connect(&mut a, &mut b, OTHER, false);
    for i in 0..4 {
        assert!(a.send_rc(&pool, OTHER, &pattern(i, 200)) && a.send_rc(&pool, SLOT, &pattern(i, 100)));
        world.settle(&mut [&mut a]);
    }
    let before = completion_queues(1);
    b.destroy_rc(SLOT);
    assert_ne!(completion_queues(1), before);
    world.settle(&mut [&mut a, &mut b]);
    assert!(b.received.iter().all(|m| m.qpn == second));
    assert_eq!(b.received.len(), 4);
    a.destroy_rc(SLOT);
    a.destroy_rc(OTHER);
    b.destroy_rc(OTHER);
    world.end_with(a, b);
}

#[test]
fn a_missing_peer_is_reported_and_every_buffer_is_returned() {
    let mut world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    let pool = world.pool.clone();
    let (qpn, _) = connect(&mut a, &mut b, SLOT, false);
    b.destroy_rc(SLOT);
    for i in 0..20 {
        assert!(a.send_rc(&pool, SLOT, &pattern(i, 5000)));
    }
    world.pass(Duration::from_secs(2), &mut [&mut a, &mut b]);
    let event = |fault| QpEvent { qpn, fault };
    assert_eq!(a.events, [event(QpFault::Send(WcStatus::RetryExceeded)), event(QpFault::Flushed)]);
    assert_eq!((a.freed, a.queues().rc_outstanding(SLOT)), (20, 0));
    assert!(!a.send_rc(&pool, SLOT, b"no more"));
    a.destroy_rc(SLOT);
    world.end_with(a, b);
}

#[test]
fn a_message_that_is_too_long_fails_at_both_ends() {
    let mut world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    let pool = world.pool.clone();
    let (from, to) = connect(&mut a, &mut b, SLOT, false);
    let room = MESSAGE.next_multiple_of(ROOM.into());
    assert!(a.send_rc(&pool, SLOT, &pattern(0, room)));
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(b.received.len(), 1);
    assert!(a.send_rc(&pool, SLOT, &pattern(0, room + 1)));
    world.settle(&mut [&mut a, &mut b]);
    let fault = |qpn, fault| QpEvent { qpn, fault };
    assert!(b.events.contains(&fault(to, QpFault::Receive(WcStatus::LocalLength))), "{:?}", b.events);
    assert!(a.events.contains(&fault(from, QpFault::Send(WcStatus::RemoteInvalidRequest))), "{:?}", a.events);
    assert_eq!(b.queues().receives_posted(), (64, 63), "the entry is posted again");
    a.destroy_rc(SLOT);
    b.destroy_rc(SLOT);
    world.end_with(a, b);
}

#[test]
fn a_passive_queue_pair_is_drained_and_its_events_come() {
    let mut world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    let pool = world.pool.clone();
    let (_, passive) = connect(&mut a, &mut b, SLOT, true);
    assert!(a.send_rc(&pool, SLOT, b"one"));
    world.settle(&mut [&mut a]);
    b.hca.modify_qp(passive, &QpTransition::ToError).unwrap();
    world.settle(&mut [&mut a]);
    assert_eq!(b.async_events(), [AsyncEvent::LastWqeReached(passive)]);
    b.queues().post_drain(SLOT).unwrap();
    world.settle(&mut [&mut a, &mut b]);
    // After the last message.
    assert_eq!(b.received.len(), 1);
    let event = |fault| QpEvent { qpn: passive, fault };
    assert_eq!(b.events, [event(QpFault::Drained), event(QpFault::Flushed)]);
    a.destroy_rc(SLOT);
    b.destroy_rc(SLOT);

    // The port's events use the same path.
    fakekernel::with(1, |d| d.engine.set_cable(PortNumber(1), None)).unwrap();
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(b.async_events(), [AsyncEvent::PortError(PortNumber(1))]);
    world.end_with(a, b);
}

fn sleepers<P: DataPath>()
where
    Adapter<P>: Backend,
{
    let mut world = world();
    let (mut a, mut b) = (world.host::<P>(0), world.host::<P>(1));
    let pool = world.pool.clone();
    let moment = Duration::from_millis(1);
    // The event count wraps around.
    for i in 0..10 {
        assert!(b.queues().arm());
        fakekernel::turn(|| world.now);
        assert!(!b.queues().wait(moment), "nothing has arrived");
        a.send_ud(&pool, to_lid(b.lid), b.ud, &pattern(i, 50));
        world.settle(&mut [&mut a]);
        assert!(b.queues().wait(moment), "message {i}");
        assert!(!b.queues().wait(moment), "once");
        world.settle(&mut [&mut a, &mut b]);
        assert_eq!(b.received.len(), i + 1);
    }
    // An event that nobody waits for any more.
    assert!(b.queues().arm());
    a.send_ud(&pool, to_lid(b.lid), b.ud, b"last");
    world.settle(&mut [&mut a]);
    world.end_with(a, b);
}

#[test]
fn a_sleeper_on_the_rings_is_woken_by_an_event() {
    sleepers::<Rings>();
}

#[test]
fn a_sleeper_by_the_calls_of_the_library_is_woken_by_an_event() {
    sleepers::<Calls>();
}

#[test]
fn a_datagram_queue_pair_comes_back_by_way_of_reset() {
    let mut world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    let pool = world.pool.clone();
    for round in 0..4 {
        // Afterwards the indices are in the middle of the rings. RESET, in the library, zeroes their records.
        for i in 0..21 {
            a.send_ud(&pool, to_lid(b.lid), b.ud, &pattern(i, 300));
        }
        world.settle(&mut [&mut a, &mut b]);
        assert_eq!(b.received.len(), 21, "round {round}");
        b.received.clear();
        for host in [&mut a, &mut b] {
            let ud = host.ud;
            host.hca.modify_qp(ud, &QpTransition::ToError).unwrap();
            host.queues().close_ud(UD);
        }
        world.pass(Duration::from_millis(1), &mut [&mut a, &mut b]);
        for host in [&mut a, &mut b] {
            assert_eq!((host.queues().ud_outstanding(UD), host.queues().receives_posted().0), (0, 64));
            let ud = host.ud;
            host.hca.modify_qp(ud, &QpTransition::ToReset).unwrap();
            host.open_ud();
            host.queues().refill();
            assert_eq!(host.queues().receives_posted().0, 64);
        }
    }
    assert_eq!((a.queues().anomalies(), b.queues().anomalies()), Default::default());
    world.end_with(a, b);
}

#[test]
fn a_low_and_an_empty_shared_queue_are_reported() {
    let mut world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    let pool = world.pool.clone();
    // Another worker, with a limit.
    let low = QueuesConfig { srq_limit: 40, ..config(1) };
    let queues = b.queues.take().unwrap();
    b.hca.destroy_queues(queues).unwrap();
    b.queues = Some(b.hca.create_queues(&QueuesConfig { id: QueuesId(0), ..low }, &world.pool).unwrap());
    b.ud = with_ud(&mut b.hca, b.queues.as_mut().unwrap());
    b.queues().refill();
    b.refilling = false;
    let (from, _) = connect(&mut a, &mut b, SLOT, false);
    for i in 0..24 {
        assert_eq!(b.async_events(), [], "message {i}");
        assert!(a.send_rc(&pool, SLOT, &pattern(i, 10)));
        world.settle(&mut [&mut a, &mut b]);
    }
    assert_eq!(b.async_events(), [AsyncEvent::SrqLimitReached(QueuesId(0))]);
    for i in 24..63 {
        assert!(a.send_rc(&pool, SLOT, &pattern(i, 10)));
        world.settle(&mut [&mut a, &mut b]);
    }
    assert_eq!((b.received.len(), b.queues().receives_posted().1), (63, 0));
    assert!(a.send_rc(&pool, SLOT, b"too much"));
    world.pass(Duration::from_millis(3), &mut [&mut a, &mut b]);
    // The peer waits and retries three times; room comes too late.
    world.pass(Duration::from_secs(3), &mut [&mut a, &mut b]);
    let fault = QpEvent { qpn: from, fault: QpFault::Send(WcStatus::RnrRetryExceeded) };
    assert_eq!(a.events.first(), Some(&fault), "{:?}", a.events);
    a.destroy_rc(SLOT);
    b.destroy_rc(SLOT);
    world.end_with(a, b);
}

#[test]
fn queues_that_are_dropped_give_everything_back() {
    let world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    let pool = world.pool.clone();
    connect(&mut a, &mut b, SLOT, false);
    for i in 0..10 {
        assert!(a.send_rc(&pool, SLOT, &pattern(i, 3000)));
    }
    a.ring();
    fakekernel::turn(|| world.now);
    // During operation, with the connected queue pairs in their tables.
    drop((a, b));
    world.end();
}

#[test]
fn buffers_of_a_shared_queue_that_somebody_can_still_fill_are_not_given_back() {
    let mut world = world();
    let mut a = world.host::<Rings>(0);
    let pool = world.pool.clone();
    let of_a = pool.in_use();
    let mut b = world.host::<Rings>(1);
    connect(&mut a, &mut b, SLOT, false);
    let rc = b.queues().remove_rc(SLOT).unwrap();
    let queues = b.queues.take().unwrap();
    let text = b.hca.destroy_queues(queues).unwrap_err().to_string();
    assert!(text.contains("shared receive queue is still in use"), "{text}");
    let per_entry = MESSAGE.div_ceil(ROOM.into()) as u32;
    let lost = 63 * per_entry;
    assert_eq!(pool.in_use(), lost + of_a, "its queue pair exists and may still fill these");
    // And the device does so.
    assert!(a.send_rc(&pool, SLOT, &pattern(0, 4000)));
    world.pass(Duration::from_millis(1), &mut [&mut a]);
    assert_eq!(a.freed, 1);
    b.hca.destroy_rc(rc).unwrap();
    a.destroy_rc(SLOT);
    a.end();
    drop(b);
    assert_eq!(pool.in_use(), lost);
    for device in 0..2 {
        assert_eq!(fakekernel::with(device, |d| d.census()), [0; 6]);
    }
}

/// A kernel that fails to destroy a queue pair: the device still owns its buffers.
fn destroys_that_fail<P: DataPath>()
where
    Adapter<P>: Backend,
{
    let mut world = world();
    let (mut a, mut b) = (world.host::<P>(0), world.host::<P>(1));
    let pool = world.pool.clone();
    connect(&mut a, &mut b, SLOT, false);
    let at_rest = pool.in_use();
    // The device is not advanced, so the sends stay.
    for i in 0..3 {
        assert!(a.send_rc(&pool, SLOT, &pattern(i, 100)));
    }
    a.ring();
    let rc = a.queues().remove_rc(SLOT).unwrap();
    fakekernel::with(0, |d| d.keeps_queue_pairs = true);
    let text = a.hca.destroy_rc(rc).unwrap_err().to_string();
    assert!(text.contains("destroying a queue pair"), "{text}");
    assert_eq!(pool.in_use(), at_rest + 3, "the device may still read these");
    world.settle(&mut [&mut b]);
    assert_eq!(b.received.len(), 3, "it did");
    b.received.clear();
    let before = pool.in_use();
    let queues = a.queues.take().unwrap();
    assert!(a.hca.destroy_queues(queues).is_err());
    // Only the stash, and the buffers of the last refill, are returned.
    assert!(before - pool.in_use() < 64, "receives of an existing queue: {} of {before}", pool.in_use());
    // The worker's number is free again, and the device works.
    fakekernel::with(0, |d| d.keeps_queue_pairs = false);
    let queues = a.hca.create_queues(&config(0), &world.pool).unwrap();
    a.hca.destroy_queues(queues).unwrap();
    b.destroy_rc(SLOT);
    b.end();
}

#[test]
fn unreleased_objects_are_reported_and_leaked() {
    destroys_that_fail::<Rings>();
}

#[test]
fn unreleased_objects_are_reported_and_leaked_with_library_calls_too() {
    destroys_that_fail::<Calls>();
}

#[test]
fn unsupported_settings_are_rejected_with_a_remedy() {
    for (variable, value, words) in [
        ("MLX5_CQE_SIZE", "128", ["completions of 128 bytes", "unset MLX5_CQE_SIZE"]),
        ("MLX5_QP_SIGNATURE", "1", ["sign entries", "unset MLX5_QP_SIGNATURE"]),
        ("MLX5_SRQ_SIGNATURE", "1", ["sign entries", "unset MLX5_SRQ_SIGNATURE"]),
    ] {
        let world = world();
        let mut hca: Mlx5 = open(0);
        // SAFETY: tests run one at a time, and nobody else reads the environment meanwhile.
        unsafe { std::env::set_var(variable, value) };
        let refused = hca.create_queues(&config(0), &world.pool).map(drop);
        // SAFETY: as above.
        unsafe { std::env::remove_var(variable) };
        let text = refused.unwrap_err().to_string();
        assert!(words.iter().chain(&["--hca-driver verbs"]).all(|word| text.contains(word)), "{text}");
        assert_eq!(hca.create_queues(&config(0), &world.pool).map(drop).map_err(|e| e.to_string()), Ok(()));
        drop(hca);
        world.end();
    }
}

#[test]
fn a_missing_doorbell_register_is_reported() {
    // One page: the library's own one for events.
    let world = other_world(1, 1);
    let mut hca: Mlx5 = open(0);
    let text = hca.create_queues(&config(0), &world.pool).unwrap_err().to_string();
    assert!(text.contains("doorbell register") && text.contains("--hca-driver verbs"), "{text}");
    drop(hca);
    world.end();
}

#[test]
fn sizes_beyond_the_device_are_refused() {
    let world = world();
    let mut hca: Mlx5 = open(0);
    for (request, what) in [
        (QueuesConfig { ud_recv_depth: 40_000, ..config(0) }, "depth of the receive queue"),
        (QueuesConfig { srq_depth: 40_000, ..config(0) }, "depth of the shared receive queue"),
        (QueuesConfig { srq_message: 100_000, ..config(0) }, "segments of a shared receive queue's entry"),
    ] {
        let text = hca.create_queues(&request, &world.pool).unwrap_err().to_string();
        assert!(text.contains(what), "{text}");
    }
    assert_eq!(fakekernel::with(0, |d| d.census()), [1, 0, 0, 0, 0, 0], "nothing is left");
    drop(hca);
    world.end();
}

/// The port's MTU is 4096, and a receive buffer has room for 2048 bytes of a datagram.
fn datagrams_that_do_not_fit<P: DataPath>()
where
    Adapter<P>: Backend,
{
    let world = world();
    let mut a = world.host::<P>(0);
    fakekernel::with(0, |d| d.activate(ib_wire::Mtu::B4096));
    let request = UdConfig { queues: QueuesId(0), port: PortNumber(1), send_depth: 64 };
    let text = a.hca.create_ud(&request).map(drop).unwrap_err().to_string();
    assert!(text.contains("an MTU of 4096 bytes") && text.contains("data-room = 4096"), "{text}");
    // A queue pair created when the port had another MTU, or none.
    a.hca.modify_qp(a.ud, &QpTransition::ToReset).unwrap();
    a.hca.modify_qp(a.ud, &QpTransition::UdToInit { pkey_index: 0, qkey: crate::rig::QKEY }).unwrap();
    let text = a.hca.modify_qp(a.ud, &QpTransition::UdToReceive).unwrap_err().to_string();
    assert!(text.contains("data-room = 4096"), "{text}");
    a.end();
    world.end();
}

#[test]
fn buffers_that_a_datagram_of_the_mtu_does_not_fit_are_refused() {
    datagrams_that_do_not_fit::<Rings>();
    datagrams_that_do_not_fit::<Calls>();
}

#[test]
fn datagram_queue_pairs_have_no_more_receives_of_their_own_than_there_are_buffers_for() {
    let world = world();
    fakekernel::with(0, |d| d.shares_no_datagrams = true);
    let mut hca: Adapter<Calls> = open(0);
    hca.register_pool(&world.pool).unwrap();
    let request = QueuesConfig { ud_recv_depth: 64, ud_recv_most: 150, ..config(0) };
    let mut queues = hca.create_queues(&request, &world.pool).unwrap();
    let ud = UdConfig { queues: QueuesId(0), port: PortNumber(1), send_depth: 64 };
    let place = |n| pmd::hca::UdSlot(n);
    for n in 0..2 {
        queues.insert_ud(place(n), hca.create_ud(&ud).unwrap()).unwrap();
    }
    let text = hca.create_ud(&ud).map(drop).unwrap_err().to_string();
    let said = "another queue pair needs 64 in addition to 2 of a worker, which exceeds the 150 for which there are packet buffers";
    assert!(text.contains(said) && text.contains("restart"), "{text}");
    // A removed one makes room.
    hca.destroy_ud(queues.remove_ud(place(0)).unwrap()).unwrap();
    queues.insert_ud(place(0), hca.create_ud(&ud).unwrap()).unwrap();
    hca.destroy_queues(queues).unwrap();
    drop(hca);
    world.end();
}

#[test]
fn what_was_rung_at_devices_that_are_no_more_is_nobodys() {
    let world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    connect(&mut a, &mut b, SLOT, false);
    assert!(a.send_rc(&world.pool, SLOT, b"late"));
    a.ring();
    // The thread that advances the devices runs after these were destroyed and others exist.
    a.end();
    b.end();
    fresh_devices();
    assert_eq!(fakekernel::turn(Instant::now).0, []);
    world.end();
}
