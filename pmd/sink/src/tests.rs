use super::*;
use pmd::hca::{Queues, RcSlot, RxBurst, Source};
use pmd::mem::PoolConfig;
use prm::DataSegment;

fn pool(name: &str) -> Pool {
    eal::for_tests();
    Pool::create(name, &PoolConfig { count: 1024, data_room: 2048, cache: 0, socket: -1 }).unwrap()
}

fn config(connections: u16, messages: &[&[u8]]) -> SinkConfig {
    SinkConfig {
        connections,
        links: 1,
        send_depth: 64,
        srq_depth: 100,
        srq_message: 5000,
        signal_every: 16,
        max_sends: u32::MAX,
        messages: messages.iter().map(|m| m.to_vec()).collect(),
        datagrams: false,
        receives_per_turn: 7,
        inspector: None,
    }
}

#[test]
fn every_send_is_consumed_once_and_every_buffer_is_returned() {
    let pool = pool("sink-sends");
    let made = Sink::create(&config(3, &[]), &pool).unwrap();
    let (mut queues, stats) = (made.queues, made.stats);
    for (slot, rc) in made.connections.into_iter().enumerate() {
        assert!(queues.insert_rc(RcSlot(slot as u16), rc).is_ok());
    }
    let mut events = ArrayVec::new();
    let (mut posted, mut bytes, mut refused) = (0u64, 0u64, 0u64);
    for round in 0..500usize {
        for n in 0..32 {
            // Every tenth message has three segments and takes two blocks.
            let len = if n % 10 == 0 { 5000 } else { 46 + n };
            let buf = pool.copy_from_slice(&vec![7; len]).unwrap();
            match queues.send_rc(RcSlot(((n + round) % 3) as u16), buf) {
                Ok(()) => (posted, bytes) = (posted + 1, bytes + len as u64),
                Err(_) => refused += 1,
            }
        }
        queues.ring();
        // Sometimes the device is late: queues fill up and refuse.
        if round % 10 == 9 {
            queues.turn();
        }
        queues.poll_send(&mut events);
    }
    queues.turn();
    for _ in 0..1000 {
        queues.poll_send(&mut events);
        queues.turn();
    }
    assert!(refused > 0, "a slow device must fill the queue");
    assert_eq!((stats.bad(), events.len()), (0, 0));
    assert_eq!(stats.send_bytes(), bytes);
    // The excess are the driver's NOPs, which fetch the last completions.
    assert!(stats.sends() >= posted && stats.sends() <= posted + 1000);
    assert!(stats.completions() < posted / 4, "few sends are signaled");
    assert_eq!((0..3).map(|s| queues.rc_outstanding(RcSlot(s))).sum::<usize>(), 0);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn messages_arrive_in_order_and_complete_and_every_buffer_is_returned() {
    let pool = pool("sink-receives");
    let made = Sink::create(&config(2, &[b"first", b"the second", b"3"]), &pool).unwrap();
    let (mut queues, stats) = (made.queues, made.stats);
    for (slot, rc) in made.connections.into_iter().enumerate() {
        assert!(queues.insert_rc(RcSlot(slot as u16), rc).is_ok());
    }
    assert!(!queues.turn(), "nothing is posted yet");
    let mut events = ArrayVec::new();
    let mut expected = [b"first".as_slice(), b"the second", b"3"].into_iter().cycle();
    let mut received = 0u64;
    for _ in 0..300 {
        queues.refill();
        assert!(queues.turn());
        let mut burst = RxBurst::new();
        queues.poll_receive(&mut burst, &mut events);
        assert_eq!(burst.len(), 7);
        for message in burst {
            assert_eq!(message.source, Source::Rc);
            assert_eq!(message.qpn.get(), FIRST_QPN + 1 + (received % 2) as u32);
            assert_eq!(message.buf.data(), expected.next().unwrap());
            received += 1;
        }
    }
    assert_eq!((stats.receives(), stats.bad(), events.len()), (received, 0, 0));
    assert_eq!(queues.anomalies(), pmd::mlx5::queues::Anomalies::default());
    assert!(pool.in_use() > 0, "receives are posted");
    drop(queues);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn messages_may_come_as_datagrams() {
    let pool = pool("sink-datagrams");
    let config = SinkConfig { datagrams: true, ..config(2, &[b"one", b"the other"]) };
    let Made { mut queues, stats, .. } = Sink::create(&config, &pool).unwrap();
    let mut events = ArrayVec::new();
    let mut expected = [b"one".as_slice(), b"the other"].into_iter().cycle();
    for _ in 0..300 {
        queues.refill();
        assert!(queues.turn());
        let mut burst = RxBurst::new();
        queues.poll_receive(&mut burst, &mut events);
        assert_eq!(burst.len(), 7);
        for message in burst {
            assert_eq!(message.ud, Some(UdSlot(0)));
            let Source::Ud(source) = message.source else { panic!("{:?}", message.source) };
            assert!([1, 2].contains(&source.slid.0) && source.qpn.get() == REMOTE_QPN && !source.multicast);
            assert_eq!(message.buf.data(), expected.next().unwrap());
        }
    }
    assert_eq!((stats.receives(), stats.bad(), events.len()), (2100, 0, 0));
    assert_eq!(queues.anomalies(), pmd::mlx5::queues::Anomalies::default());
    drop(queues);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn an_entry_out_of_step_is_bad_and_not_taken() {
    let pool = pool("sink-bad");
    let made = Sink::create(&config(1, &[]), &pool).unwrap();
    let (mut queues, stats) = (made.queues, made.stats);
    // A doorbell for a nonexistent queue pair, then one for an entry that was never written.
    queues.bus().ring(&mut Register::new(0, 0), [0, 0, 0, 0, 0, 0, 9, 0]);
    assert_eq!(stats.bad(), 1);
    let sink = queues.bus();
    sink.sends[1].dbrec.write(&[0, 0, 0, 0, 0, 0, 0, 5]);
    sink.ring(&mut Register::new(0, 0), [0, 0, 0, 0, 0, 0, FIRST_QPN as u8 + 1, 0]);
    assert!(sink.turn());
    assert_eq!((stats.bad(), stats.sends()), (2, 0));
    assert!(!queues.turn(), "once");
}

/// The packet that [`a_sample_of_sent_packets_is_compared`] sends: bytes and destination.
#[derive(Debug)]
struct Sent {
    connection: Option<u16>,
}

const MESSAGE: [u8; 60] = [7; 60];

impl Inspector for Sent {
    fn is_right(&self, seen: &Seen<'_>) -> bool {
        let Seen::Sent { connection, to, message } = *seen else { return false };
        let goes_right = match to {
            None => connection.is_some(),
            Some(to) => to.rlid.get() == 9 && to.qkey.get() == 0x0b1b,
        };
        goes_right && connection == self.connection && message == MESSAGE
    }
}

fn destination(lid: u16) -> pmd::mlx5::av::Destination {
    pmd::mlx5::av::Destination::new(&pmd::hca::UdDestination {
        av: pmd::hca::AddressVector {
            dlid: ib_wire::Lid(lid),
            sl: ib_wire::ServiceLevel::new(0),
            src_path_bits: 0,
            rate: ib_wire::Rate::default(),
            grh: None,
        },
        qpn: ib_wire::Qpn::new(0x123),
        qkey: Some(ib_wire::QKey(0x0b1b)),
    })
}

#[test]
fn a_sample_of_sent_packets_is_compared() {
    let pool = pool("sink-compares");
    let mut wrong = MESSAGE;
    wrong[59] ^= 1;
    // Each byte matters, and the connection, and the destination of a datagram.
    let cases = [
        (Some(0), 0, MESSAGE, true),
        (Some(0), 0, wrong, false),
        (Some(1), 0, MESSAGE, false),
        (None, 9, MESSAGE, true),
        (None, 9, wrong, false),
        (None, 8, MESSAGE, false),
    ];
    for (connection, lid, message, right) in cases {
        let inspector: Arc<dyn Inspector> = Arc::new(Sent { connection });
        let config = SinkConfig { inspector: Some(inspector), ..config(1, &[]) };
        let Made { mut queues, connections, stats } = Sink::create(&config, &pool).unwrap();
        for (slot, rc) in connections.into_iter().enumerate() {
            assert!(queues.insert_rc(RcSlot(slot as u16), rc).is_ok());
        }
        let mut events = ArrayVec::new();
        for _ in 0..3 * SAMPLE_EVERY {
            let buf = pool.copy_from_slice(&message).unwrap();
            let sent = match connection {
                Some(_) => queues.send_rc(RcSlot(0), buf),
                None => queues.send_ud(UdSlot(0), &destination(lid), buf),
            };
            assert!(sent.is_ok());
            queues.ring();
            queues.turn();
            queues.poll_send(&mut events);
        }
        let wrong = if right { 0 } else { stats.compared() };
        assert!((2..=3).contains(&stats.compared()), "{}", stats.compared());
        assert_eq!((stats.wrong(), stats.bad()), (wrong, 0), "{connection:?} {lid} {right}");
    }
}

#[test]
fn one_in_each_interval_is_compared_for_any_burst() {
    let pool = pool("sink-bursts");
    for burst in [1, 7, 32] {
        let inspector: Arc<dyn Inspector> = Arc::new(Sent { connection: Some(0) });
        let config = SinkConfig { inspector: Some(inspector), ..config(1, &[]) };
        let Made { mut queues, connections, stats } = Sink::create(&config, &pool).unwrap();
        for (slot, rc) in connections.into_iter().enumerate() {
            assert!(queues.insert_rc(RcSlot(slot as u16), rc).is_ok());
        }
        let mut events = ArrayVec::new();
        while stats.sends() < 20 * u64::from(SAMPLE_EVERY) {
            for _ in 0..burst {
                assert!(queues.send_rc(RcSlot(0), pool.copy_from_slice(&MESSAGE).unwrap()).is_ok());
            }
            queues.ring();
            queues.turn();
            queues.poll_send(&mut events);
        }
        // The driver's own NOPs, which are skipped, count as sends.
        assert!((18..=20).contains(&stats.compared()), "{burst}: {}", stats.compared());
        assert_eq!((stats.wrong(), stats.bad()), (0, 0));
    }
}

#[test]
fn a_send_from_memory_that_is_not_registered_is_wrong() {
    let (pool, other) = (pool("sink-region"), pool("sink-other"));
    let inspector: Arc<dyn Inspector> = Arc::new(Sent { connection: Some(0) });
    let mut sample = Sample::new(Some(inspector));
    let made = Sink::create(&config(1, &[]), &pool).unwrap();
    let mut queues = made.queues;
    let regions = std::mem::take(&mut queues.bus().regions);
    let mut data = DataSegment::default();
    let mut look = |lkey, buf: &Mbuf, address: u64| {
        data.byte_count.set(buf.len() as u32);
        data.lkey.set(lkey);
        data.address.set(address);
        sample.look_at_send(&regions, Some(0), None, [data].into_iter());
        sample.wrong
    };
    let buf = pool.copy_from_slice(&MESSAGE).unwrap();
    let stranger = other.copy_from_slice(&MESSAGE).unwrap();
    let at = |buf: &Mbuf| buf.data().as_ptr().addr() as u64;
    assert_eq!(look(FIRST_LKEY, &buf, at(&buf)), 0);
    assert_eq!(look(FIRST_LKEY + 77, &buf, at(&buf)), 1, "an unused key");
    assert_eq!(look(FIRST_LKEY, &stranger, at(&stranger)), 2, "memory of another owner");
    assert_eq!(look(FIRST_LKEY, &buf, 0), 3);
}

/// Expects a header of four bytes in front of each message, as a forwarder writes it.
#[derive(Debug)]
struct Passed;

impl Inspector for Passed {
    fn is_right(&self, seen: &Seen<'_>) -> bool {
        let Seen::Forwarded { message, place } = *seen else { return false };
        let behind = [b"number 0".as_slice(), b"number one"][message];
        place[ROOM_BEFORE - 4..] == [b"head", behind].concat()
    }
}

#[test]
fn a_sample_of_packets_forwarded_in_place_is_compared() {
    let pool = pool("sink-forwards");
    for (datagrams, header, right) in
        [(false, b"head", true), (true, b"head", true), (false, b"heat", false), (true, b"heat", false)]
    {
        let inspector: Arc<dyn Inspector> = Arc::new(Passed);
        let config = config(2, &[b"number 0", b"number one"]);
        let config = SinkConfig { inspector: Some(inspector), datagrams, ..config };
        let Made { mut queues, connections, stats } = Sink::create(&config, &pool).unwrap();
        for (slot, rc) in connections.into_iter().enumerate() {
            assert!(queues.insert_rc(RcSlot(slot as u16), rc).is_ok());
        }
        let mut events = ArrayVec::new();
        // Seven messages per iteration, from the second on.
        for _ in 0..3 * SAMPLE_EVERY / 7 + 2 {
            queues.refill();
            queues.turn();
            let mut burst = RxBurst::new();
            queues.poll_receive(&mut burst, &mut events);
            for mut message in burst {
                message.buf.prepend(4).unwrap().copy_from_slice(header);
            }
        }
        let wrong = if right { 0 } else { stats.compared() };
        assert!((2..=3).contains(&stats.compared()), "{}", stats.compared());
        assert_eq!((stats.wrong(), stats.bad()), (wrong, 0), "{datagrams} {right}");
    }
}
