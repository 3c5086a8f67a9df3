//! Tests of a worker's queues on a scripted device: buffer ownership over time.

use ib_wire::{Lid, QKey, Qpn, Rate, ServiceLevel};

use super::device::{Buffer, Depths, Device, PER_ENTRY, RECEIVE_ENTRIES, ROOM, TestQueues, UD};
use crate::hca::{
    AddressVector, PostError, QpEvent, QpFault, RcSlot, Source, UdDestination, UdSlot, WcStatus,
};
use crate::mlx5::av::Destination;
use crate::mlx5::queues::{Anomalies, Events};
use prm::Cqe;

const DEPTHS: Depths =
    Depths { send: 32, ud_receive: 8, shared: 8, signal_every: 4, sends: 1024, buffers: 200 };
const RC: u32 = 0x41;
const SLOT: RcSlot = RcSlot(0);
const UD_SLOT: UdSlot = UdSlot(0);
const FLUSHED: u8 = 0x05;
const RETRY: u8 = 0x15;
const NOP: u8 = 0;
const SEND: u8 = 0x0a;

pub(super) fn destination() -> Destination {
    let av = AddressVector {
        dlid: Lid(2),
        sl: ServiceLevel::new(0),
        src_path_bits: 0,
        rate: Rate::new(0),
        grh: None,
    };
    Destination::new(&UdDestination { av, qpn: Qpn::new(9), qkey: Some(QKey(0xb1b)) })
}

fn connected(depths: &Depths, wqebbs: u32) -> (Device, TestQueues) {
    let (mut device, mut queues) = Device::new(depths);
    queues.insert(SLOT, device.rc(RC, wqebbs, false, depths.signal_every)).unwrap();
    (device, queues)
}

fn send(device: &Device, queues: &mut TestQueues, bytes: &[u8]) -> Result<(), PostError> {
    queues.post_rc(SLOT, device.buffers.chain(bytes).unwrap()).map_err(|(_, error)| error)
}

fn reap(queues: &mut TestQueues) -> (usize, Vec<QpFault>) {
    let mut events = Events::new();
    let freed = queues.reap(&mut events);
    (freed, events.iter().map(|event| event.fault).collect())
}

fn receive(queues: &mut TestQueues) -> (Vec<(Buffer, Qpn, Source)>, Vec<QpEvent>) {
    let (mut all, mut events) = (vec![], Events::new());
    queues.receive(32, |r| all.push((r.buf, r.qpn, r.source)), &mut events);
    (all, events.to_vec())
}

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (seed.wrapping_mul(31) + i) as u8).collect()
}

#[test]
fn one_completion_frees_all_before_it() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    for i in 0..8 {
        // Some messages have 4 segments and take two WQEBBs.
        send(&device, &mut queues, &pattern(i, if i % 3 == 0 { 4 * ROOM } else { 10 })).unwrap();
    }
    assert!(queues.bus().rung.is_empty(), "no doorbell before the burst ends");
    queues.ring_all();
    assert_eq!(queues.bus().rung.len(), 1, "one doorbell per burst");
    let taken = device.take_sends(1);
    let signalled: Vec<usize> = (0..8).filter(|i| taken[*i].signalled).collect();
    assert_eq!(signalled, [3, 7], "one in four");
    let out = device.buffers.out();
    assert_eq!(reap(&mut queues), (0, vec![]));
    assert_eq!(queues.outstanding(SLOT), 8);
    device.sent(1, taken[3].index);
    assert_eq!(reap(&mut queues), (4, vec![]));
    assert_eq!((queues.outstanding(SLOT), device.buffers.out()), (4, out - 4 - 2 * 3));
    device.sent(1, taken[7].index);
    assert_eq!(reap(&mut queues), (4, vec![]));
    assert_eq!((queues.outstanding(SLOT), device.buffers.out()), (0, 0));
    queues.ring_all();
    assert_eq!(queues.bus().rung.len(), 1, "no doorbell without a post");
}

#[test]
fn an_idle_queue_pair_does_not_keep_its_last_buffers() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    send(&device, &mut queues, b"last words").unwrap();
    queues.post_ud(UD_SLOT, &destination(), device.buffers.chain(b"datagram").unwrap()).unwrap();
    queues.ring_all();
    assert!(!device.take_sends(1)[0].signalled);
    assert!(!device.take_sends(0)[0].signalled);
    let mut nops = 0;
    for _ in 0..100 {
        assert_eq!(reap(&mut queues).1, []);
        for qp in [0, 1] {
            for nop in device.take_sends(qp) {
                assert_eq!((nop.opcode, nop.signalled, nop.pieces.len()), (NOP, true, 0));
                device.sent(qp, nop.index);
                nops += 1;
            }
        }
    }
    assert_eq!((nops, device.buffers.out()), (2, 0), "one NOP each, and no more when nothing is outstanding");
}

#[test]
fn a_failed_connection_flushes_and_takes_nothing_more() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    for i in 0..6 {
        send(&device, &mut queues, &pattern(i, 10)).unwrap();
    }
    queues.ring_all();
    let taken = device.take_sends(1);
    device.send_failed(1, taken[0].index, RETRY);
    for entry in &taken[1..5] {
        device.send_failed(1, entry.index, FLUSHED);
    }
    let (freed, events) = reap(&mut queues);
    assert_eq!((freed, events), (5, vec![QpFault::Send(WcStatus::RetryExceeded)]));
    assert_eq!(send(&device, &mut queues, b"more"), Err(PostError::NoConnection));
    assert_eq!(device.buffers.out(), 1, "a rejected buffer went back to its owner, one is outstanding");
    device.send_failed(1, taken[5].index, FLUSHED);
    assert_eq!(reap(&mut queues), (1, vec![QpFault::Flushed]));
    assert_eq!(reap(&mut queues), (0, vec![]));
    assert_eq!(device.buffers.out(), 0);
}

#[test]
fn a_datagram_queue_pair_comes_back_from_an_error() {
    let (mut device, mut queues) = Device::new(&DEPTHS);
    for round in 0..2 {
        for i in 0..2 {
            queues.post_ud(UD_SLOT, &destination(), device.buffers.chain(&pattern(i, 20)).unwrap()).unwrap();
        }
        queues.ring_all();
        let taken = device.take_sends(0);
        device.send_failed(0, taken[0].index, 0x02);
        device.send_failed(0, taken[1].index, FLUSHED);
        let expected = vec![QpFault::Send(WcStatus::LocalQpOperation), QpFault::Flushed];
        assert_eq!(reap(&mut queues), (2, expected), "round {round}");
    }
    for i in 0..4 {
        queues.post_ud(UD_SLOT, &destination(), device.buffers.chain(&pattern(i, 20)).unwrap()).unwrap();
    }
    queues.ring_all();
    let last = device.take_sends(0).pop().unwrap();
    assert!(last.signalled);
    device.sent(0, last.index);
    assert_eq!(reap(&mut queues), (4, vec![]));
}

#[test]
fn a_drain_completes_behind_the_last_receive() {
    let (mut device, mut queues) = Device::new(&DEPTHS);
    let passive = device.rc(RC, 1, true, 1);
    assert!(passive.is_passive());
    queues.insert(SLOT, passive).unwrap();
    queues.fill();
    assert_eq!(send(&device, &mut queues, b"x"), Err(PostError::NoConnection), "it only receives");
    let slot = device.scatter(b"last").unwrap();
    device.received(RC, slot, 4);
    queues.drain(SLOT).unwrap();
    assert_eq!(queues.drain(SLOT), Err(PostError::Full), "one at a time");
    let drain = device.take_sends(1).pop().unwrap();
    assert_eq!((drain.opcode, drain.signalled), (SEND, true));
    device.send_failed(1, drain.index, FLUSHED);
    let (received, events) = receive(&mut queues);
    assert_eq!(received[0].0.bytes(), b"last");
    let qpn = Qpn::new(RC);
    let expected = [QpFault::Drained, QpFault::Flushed].map(|fault| QpEvent { qpn, fault });
    assert_eq!(events, expected);
    assert_eq!(queues.remove(SLOT).unwrap().qpn(), qpn);
    assert!(queues.remove(SLOT).is_none());
    assert_eq!(queues.drain(SLOT), Err(PostError::NoConnection));
}

#[test]
fn a_short_message_takes_only_what_it_fills() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    assert_eq!(queues.fill(), 8 + 7);
    assert_eq!(queues.posted_receives(), (8, 7));
    let full = device.buffers.out();
    let lengths = [0, 1, ROOM, ROOM + 1, 2 * ROOM, PER_ENTRY * ROOM];
    for (seed, len) in lengths.into_iter().enumerate() {
        let bytes = pattern(seed as u32, len);
        let slot = device.scatter(&bytes).unwrap();
        device.received(RC, slot, len as u32);
    }
    let (received, events) = receive(&mut queues);
    assert_eq!((received.len(), events.len()), (6, 0));
    for (seed, ((buf, qpn, source), len)) in received.iter().zip(lengths).enumerate() {
        assert_eq!(buf.bytes(), pattern(seed as u32, len));
        assert_eq!((*qpn, *source), (Qpn::new(RC), Source::Rc));
        assert_eq!(crate::mem::packet::Packet::segments(buf), len.div_ceil(ROOM).max(1));
    }
    assert_eq!(queues.posted_receives(), (8, 1), "underrun is visible");
    assert_eq!(queues.fill(), 6);
    drop(received);
    // The pool replaces only buffers that left, and the stash between pool and ring is bounded.
    assert!(device.buffers.out() <= full.max(8 + 7 * PER_ENTRY) + crate::mem::packet::STASH);
    drop(queues);
    assert_eq!(device.buffers.out(), 0);
}

#[test]
fn a_receive_that_fails_costs_no_buffer() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    queues.fill();
    let slot = device.scatter(&[]).unwrap();
    device.receive_failed(RC, slot, FLUSHED);
    let slot = device.scatter(&[]).unwrap();
    device.receive_failed(RC, slot, 0x01);
    device.datagram_failed(FLUSHED);
    let out = device.buffers.out();
    let (received, events) = receive(&mut queues);
    assert!(received.is_empty());
    let fault = QpFault::Receive(WcStatus::LocalLength);
    assert_eq!(events, [QpEvent { qpn: Qpn::new(RC), fault }]);
    assert_eq!(device.buffers.out(), out, "the queues keep their buffers");
    assert_eq!(queues.posted_receives(), (7, 5));
    assert_eq!(queues.fill(), 3);
    for seed in 0..7 {
        let bytes = pattern(seed, PER_ENTRY * ROOM);
        let slot = device.scatter(&bytes).unwrap();
        device.received(RC, slot, bytes.len() as u32);
        assert_eq!(receive(&mut queues).0[0].0.bytes(), bytes);
    }
    assert_eq!(device.scatter(&[]), None, "dry");
    assert_eq!(queues.anomalies(), Anomalies::default());
}

#[test]
fn datagrams_carry_their_source() {
    let (mut device, mut queues) = Device::new(&DEPTHS);
    queues.fill();
    let mut grh = [0; 40];
    grh[24] = 0xff;
    assert!(device.datagram(Some(grh), b"to all"));
    grh[24] = 0xfe;
    assert!(device.datagram(Some(grh), b"to one"));
    assert!(device.datagram(None, b"no GRH"));
    let (received, _) = receive(&mut queues);
    let sources: Vec<_> = received
        .iter()
        .map(|(buf, qpn, source)| {
            let Source::Ud(ud) = source else { panic!("{source:?}") };
            assert_eq!((*qpn, ud.qpn, ud.slid), (Qpn::new(UD), Qpn::new(0x456), Lid(17)));
            assert_eq!((ud.sl, ud.pkey_index), (ServiceLevel::new(3), 1));
            (buf.bytes(), ud.has_grh, ud.multicast)
        })
        .collect();
    let expected = [(b"to all", true, true), (b"to one", true, false), (b"no GRH", false, false)];
    assert_eq!(sources, expected.map(|(bytes, grh, multicast)| (bytes.to_vec(), grh, multicast)));
}

#[test]
fn a_full_queue_hands_back_and_always_has_a_completion_coming() {
    // Signaled so rarely that only the half-ring rule requests completions.
    let depths = Depths { signal_every: 1000, ..DEPTHS };
    let (mut device, mut queues) = connected(&depths, 16);
    let mut sent = 0;
    for lap in 0..50 {
        let mut size = 1;
        loop {
            let out = device.buffers.out();
            let buf = device.buffers.chain(&pattern(sent, ROOM * size)).unwrap();
            match queues.post_rc(SLOT, buf) {
                Ok(()) => sent += 1,
                Err((buf, error)) => {
                    assert_eq!((error, buf.bytes()), (PostError::Full, pattern(sent, ROOM * size)));
                    drop(buf);
                    assert_eq!(device.buffers.out(), out);
                    break;
                }
            }
            size = size % 6 + 1;
        }
        queues.ring_all();
        let taken = device.take_sends(1);
        let signalled: Vec<_> = taken.iter().filter(|t| t.signalled).collect();
        assert!(!signalled.is_empty(), "lap {lap}: a full ring without a pending completion");
        signalled.iter().for_each(|t| device.sent(1, t.index));
        assert!(reap(&mut queues).0 > 0);
    }
    let long = device.buffers.chain(&pattern(0, ROOM * 37)).unwrap();
    assert_eq!(queues.post_rc(SLOT, long).unwrap_err().1, PostError::TooManySegments);
    assert_eq!(queues.anomalies(), Anomalies::default());
    drop(queues);
    assert_eq!(device.buffers.out(), 0);
}

#[test]
fn a_buffer_from_elsewhere_is_handed_back() {
    let (device, mut queues) = connected(&DEPTHS, 32);
    let (other, _queues) = Device::new(&DEPTHS);
    let error = queues.post_rc(SLOT, other.buffers.chain(b"x").unwrap()).unwrap_err().1;
    assert_eq!(error, PostError::NotRegistered);
    let error = queues.post_ud(UD_SLOT, &destination(), other.buffers.chain(b"x").unwrap()).unwrap_err().1;
    assert_eq!(error, PostError::NotRegistered);
    queues.ring_all();
    assert!(queues.bus().rung.is_empty());
    assert_eq!((device.buffers.out(), other.buffers.out()), (0, 0));
}

#[test]
fn a_taken_place_hands_the_queue_pair_back() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    let other = device.rc(0x42, 8, false, 4);
    assert_eq!(queues.insert(SLOT, other).unwrap_err().qpn(), Qpn::new(0x42));
    let other = device.rc(0x43, 8, false, 4);
    assert!(queues.insert(RcSlot(8), other).is_err(), "beyond the table");
    // Posted and removed before the doorbell: its buffers are freed with it, and the doorbell is not rung.
    send(&device, &mut queues, b"x").unwrap();
    let removed = queues.remove(SLOT).unwrap();
    queues.ring_all();
    assert!(queues.bus().rung.is_empty());
    assert_eq!(device.buffers.out(), 1);
    drop(removed);
    assert_eq!(device.buffers.out(), 0);
}

#[test]
fn completions_of_an_older_queue_pair_of_the_same_number_free_nothing_of_the_new_one() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    for _ in 0..4 {
        send(&device, &mut queues, b"old").unwrap();
    }
    queues.ring_all();
    let old = device.take_sends(1);
    // It is removed, its sends still complete, and the device reuses its number immediately.
    drop(queues.remove(SLOT).unwrap());
    assert_eq!(device.buffers.out(), 0);
    device.sent(1, old[3].index);
    let again = device.rc(RC, 32, false, 1);
    queues.insert(SLOT, again).unwrap();
    assert_eq!(send(&device, &mut queues, b"new"), Err(PostError::Full));
    assert_eq!(queues.drain(SLOT), Err(PostError::Full));
    assert_eq!(reap(&mut queues), (0, vec![]));
    // Both completion queues have been read up to their state at that time.
    receive(&mut queues);
    for _ in 0..4 {
        send(&device, &mut queues, b"new").unwrap();
    }
    queues.ring_all();
    let new = device.take_sends(2);
    assert_eq!((reap(&mut queues), device.buffers.out()), ((0, vec![]), 4), "the device owns them all");
    device.sent(2, new[3].index);
    assert_eq!((reap(&mut queues), device.buffers.out()), ((4, vec![]), 0));
}

#[test]
fn an_entry_that_does_not_fit_fails_its_queue_pair_and_the_device_gets_nothing_of_it() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    queues.post_too_long(SLOT);
    queues.ring_all();
    assert!(queues.bus().rung.is_empty() && device.take_sends(1).is_empty());
    assert_eq!(reap(&mut queues), (0, vec![QpFault::Send(WcStatus::LocalQpOperation)]));
    assert_eq!(reap(&mut queues), (0, vec![]), "reported once");
    assert_eq!(queues.anomalies(), Anomalies { out_of_range: 1, ..Anomalies::default() });
    assert_eq!(send(&device, &mut queues, b"x"), Err(PostError::NoConnection));
    // Other queue pairs continue.
    queues.post_ud(UD_SLOT, &destination(), device.buffers.chain(b"y").unwrap()).unwrap();
    queues.ring_all();
    assert_eq!(queues.bus().rung.len(), 1);
}

#[test]
fn a_lying_device_is_counted_and_gets_nothing() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    queues.fill();
    let mut expected = Anomalies::default();
    send(&device, &mut queues, b"x").unwrap();
    queues.ring_all();
    let out = device.buffers.out();

    device.sent(1, 7);
    expected.unknown_entry += 1;
    assert_eq!(reap(&mut queues), (0, vec![]));
    device.received(RC, 0x7fff, 4);
    expected.unknown_entry += 1;
    device.received(RC, 7, 4);
    expected.unknown_entry += 1;
    device.received(RC, 0, (PER_ENTRY * ROOM) as u32 + 1);
    expected.bad_length += 1;
    device.received(RC, 0, 4);
    expected.unknown_entry += 1;
    device.received(RC, 1, u32::MAX);
    expected.bad_length += 1;
    let mut short = Cqe::default();
    short.sop_drop_qpn.set(UD);
    short.byte_cnt.set(39);
    device.raw(short, 2);
    expected.bad_length += 1;
    short.byte_cnt.set(40 + ROOM as u32 + 1);
    device.raw(short, 2);
    expected.unknown_entry += 1;
    short.wqe_counter.set(1);
    device.raw(short, 2);
    expected.bad_length += 1;
    device.raw(Cqe::default(), 9);
    expected.unknown_opcode += 1;
    let mut stranger = Cqe::default();
    stranger.sop_drop_qpn.set(0x99);
    device.raw(stranger, 0);
    expected.unknown_qp += 1;
    let (received, events) = receive(&mut queues);
    assert_eq!((received.len(), events.len()), (0, 0));
    assert_eq!(queues.anomalies(), expected);
    assert_eq!(
        device.buffers.out(),
        out - 4,
        "the buffers of two datagrams and the first buffers of two messages were freed"
    );
    assert_eq!(queues.fill(), 2 + 2);
    drop(queues);
    assert_eq!(device.buffers.out(), 0);
}

#[test]
fn a_pool_that_runs_dry_leaves_whole_entries_only() {
    let depths = Depths { buffers: 8 + 2 * PER_ENTRY + 2, ..DEPTHS };
    let (mut device, mut queues) = connected(&depths, 32);
    assert_eq!(queues.fill(), 8 + 2);
    assert_eq!(queues.posted_receives(), (8, 2));
    let slot = device.scatter(&pattern(1, PER_ENTRY * ROOM)).unwrap();
    device.received(RC, slot, (PER_ENTRY * ROOM) as u32);
    let (received, _) = receive(&mut queues);
    assert_eq!(queues.fill(), 0);
    drop(received);
    assert_eq!(queues.fill(), 1);
    drop(queues);
    assert_eq!(device.buffers.out(), 0);
}

#[test]
fn a_receive_that_failed_wants_no_buffer_of_a_dry_pool() {
    let whole = connected(&DEPTHS, 32).1.fill();
    // Buffers for one more entry: that entry is never posted and follows the first one that fails.
    let depths = Depths { buffers: 8 + (whole - 8 + 1) * PER_ENTRY, ..DEPTHS };
    let (mut device, mut queues) = connected(&depths, 32);
    assert_eq!(queues.fill(), whole);
    let posted = queues.posted_receives();
    for _ in 0..3 {
        let slot = device.scatter(b"too long").unwrap();
        device.receive_failed(RC, slot, 0x01);
        receive(&mut queues);
        queues.fill();
        assert_eq!(queues.posted_receives(), posted);
    }
}

#[test]
fn what_is_outstanding_on_all_queue_pairs_together_is_bounded() {
    let (mut device, mut queues) = Device::new(&Depths { buffers: 2000, signal_every: 1, ..DEPTHS });
    let mut rcs = vec![];
    for n in 0..8_u16 {
        queues.insert(RcSlot(n), device.rc(RC + u32::from(n), 256, false, 1)).unwrap();
        rcs.push(RcSlot(n));
    }
    let mut sent = 0;
    'full: loop {
        for slot in &rcs {
            match queues.post_rc(*slot, device.buffers.chain(b"x").unwrap()) {
                Ok(()) => sent += 1,
                Err((_, error)) => {
                    assert_eq!(error, PostError::Full);
                    break 'full;
                }
            }
        }
    }
    // The completion queue has 1,024 entries, and the rings have room for twice that. 768 are not reserved.
    // No connection holds more than it leaves to all others: eight hold 85 each, and the first holds one
    // more.
    assert_eq!(sent, 8 * 85 + 4);
    queues.post_ud(UD_SLOT, &destination(), device.buffers.chain(b"x").unwrap()).unwrap();
    queues.ring_all();
    let taken = device.take_sends(1);
    device.sent(1, taken[9].index);
    assert_eq!(reap(&mut queues).0, 10);
    // A removed one leaves its share to others once its completions cannot arrive any more.
    drop(queues.remove(RcSlot(1)).unwrap());
    assert_eq!(reap(&mut queues).0, 0);
    let mut more = 0;
    while queues.post_rc(RcSlot(0), device.buffers.chain(b"z").unwrap()).is_ok() {
        more += 1;
    }
    // It still holds 76 and 178 are free: it may post until it holds more than it leaves.
    assert_eq!(more, 52);
}

/// Posts to a connection, or datagrams, until no more are accepted. Returns their number.
fn fill_up(device: &Device, queues: &mut TestQueues, slot: Option<RcSlot>) -> usize {
    let mut count = 0;
    loop {
        let buf = device.buffers.chain(b"x").unwrap();
        let posted = match slot {
            Some(slot) => queues.post_rc(slot, buf),
            None => queues.post_ud(UD_SLOT, &destination(), buf),
        };
        if let Err((_, error)) = posted {
            assert_eq!(error, PostError::Full);
            queues.ring_all();
            return count;
        }
        count += 1;
    }
}

#[test]
fn peers_that_take_nothing_stop_neither_datagrams_nor_other_connections() {
    let (mut device, mut queues) = Device::new(&Depths { send: 512, buffers: 2000, ..DEPTHS });
    for n in 0..8_u16 {
        queues.insert(RcSlot(n), device.rc(RC + u32::from(n), 256, false, 4)).unwrap();
    }
    let stalled: Vec<_> = (0..7).map(|n| fill_up(&device, &mut queues, Some(RcSlot(n)))).collect();
    assert_eq!(stalled, [255, 255, 130, 65, 32, 16, 16]);
    for round in 0..100 {
        let messages = fill_up(&device, &mut queues, Some(RcSlot(7)));
        let datagrams = fill_up(&device, &mut queues, None);
        // Reserved for datagrams, and the remainder.
        assert!(messages == 16 && datagrams >= 128, "{round}: {messages}, {datagrams}");
        for qp in [0, 8] {
            for entry in device.take_sends(qp).iter().filter(|entry| entry.signalled) {
                device.sent(qp, entry.index);
            }
        }
        while reap(&mut queues).0 > 0 {}
    }
}

#[test]
fn completion_requests_for_stalled_peers_leave_room_for_datagrams() {
    let depths = Depths { send: 512, signal_every: 1000, sends: 32, ..DEPTHS };
    let (mut device, mut queues) = Device::new(&depths);
    for n in 0..8_u16 {
        queues.insert(RcSlot(n), device.rc(RC + u32::from(n), 256, false, 1000)).unwrap();
        queues.post_rc(RcSlot(n), device.buffers.chain(b"x").unwrap()).unwrap();
    }
    queues.ring_all();
    // The complete share of connections.
    while (0..8).any(|n| queues.post_rc(RcSlot(n), device.buffers.chain(b"x").unwrap()).is_ok()) {}
    queues.ring_all();
    (0..100).for_each(|_| assert_eq!(reap(&mut queues), (0, vec![])));
    let nops = (1..9).flat_map(|qp| device.take_sends(qp)).filter(|entry| entry.opcode == NOP).count();
    assert_eq!((nops, fill_up(&device, &mut queues, None)), (2, 2));
}

#[test]
fn closing_a_queue_pair_requests_its_completions_at_once() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    queues.post_ud(UD_SLOT, &destination(), device.buffers.chain(b"datagram").unwrap()).unwrap();
    queues.ring_all();
    assert!(!device.take_sends(0)[0].signalled);
    queues.close_datagrams(UD_SLOT);
    let nops = device.take_sends(0);
    assert_eq!(nops.iter().map(|entry| (entry.opcode, entry.signalled)).collect::<Vec<_>>(), [(NOP, true)]);
    device.sent(0, nops[0].index);
    assert_eq!(reap(&mut queues), (1, vec![]));
    // One without outstanding sends posts no NOP.
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    queues.close_datagrams(UD_SLOT);
    assert!(device.take_sends(0).is_empty());
}

#[test]
fn a_closed_queue_pair_is_given_back_while_others_keep_the_completion_queue_full() {
    let (mut device, mut queues) = connected(&DEPTHS, 32);
    queues.close_datagrams(UD_SLOT);
    let mut message = |count| {
        for _ in 0..count {
            let slot = device.scatter(b"x").unwrap();
            device.received(RC, slot, 1);
        }
    };
    let mut taken = 0;
    while queues.datagrams_outstanding(UD_SLOT) > 0 {
        queues.fill();
        // Keep it from becoming empty: add one more message than is taken.
        message(if taken == 0 { 4 } else { 3 });
        let mut events = Events::new();
        queues.receive(3, |_| taken += 1, &mut events);
        assert!(taken <= 2 * RECEIVE_ENTRIES, "closed forever");
    }
    assert!(taken >= RECEIVE_ENTRIES, "completions at that time may be unread");
}
