use super::*;
use pmd::hca::{Queues, RcSlot, RxBurst, Source};
use pmd::mem::PoolConfig;

fn pool(name: &str) -> Pool {
    eal::for_tests();
    Pool::create(name, &PoolConfig { count: 1024, data_room: 2048, cache: 0, socket: -1 }).unwrap()
}

fn config(connections: u16, messages: &[&[u8]]) -> SinkConfig {
    SinkConfig {
        connections,
        send_depth: 64,
        srq_depth: 100,
        srq_message: 5000,
        signal_every: 16,
        max_sends: u32::MAX,
        messages: messages.iter().map(|m| m.to_vec()).collect(),
        datagrams: false,
        receives_per_turn: 7,
    }
}

#[test]
fn every_send_is_taken_once_and_every_buffer_comes_home() {
    let pool = pool("sink-sends");
    let made = Sink::create(&config(3, &[]), &pool).unwrap();
    let (mut queues, stats) = (made.queues, made.stats);
    for (slot, rc) in made.connections.into_iter().enumerate() {
        assert!(queues.insert_rc(RcSlot(slot as u16), rc).is_ok());
    }
    let mut events = arrayvec::ArrayVec::new();
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
        // Now and then the device comes late: queues fill up and refuse.
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
    assert!(refused > 0, "a device that lags must show as a full queue");
    assert_eq!((stats.bad(), events.len()), (0, 0));
    assert_eq!(stats.send_bytes(), bytes);
    // What is over are the driver's NOPs, which fetch the last completions.
    assert!(stats.sends() >= posted && stats.sends() <= posted + 1000);
    assert!(stats.completions() < posted / 4, "few sends are signalled");
    assert_eq!((0..3).map(|s| queues.rc_outstanding(RcSlot(s))).sum::<usize>(), 0);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn messages_arrive_in_turn_and_whole_and_every_buffer_comes_home() {
    let pool = pool("sink-receives");
    let made = Sink::create(&config(2, &[b"first", b"the second", b"3"]), &pool).unwrap();
    let (mut queues, stats) = (made.queues, made.stats);
    for (slot, rc) in made.connections.into_iter().enumerate() {
        assert!(queues.insert_rc(RcSlot(slot as u16), rc).is_ok());
    }
    assert!(!queues.turn(), "nothing is posted yet");
    let mut events = arrayvec::ArrayVec::new();
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
    let mut events = arrayvec::ArrayVec::new();
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
    // A doorbell for a queue pair that is not there, then one for an entry that was never written.
    queues.bus().ring(&mut Register::new(0, 0), [0, 0, 0, 0, 0, 0, 9, 0]);
    assert_eq!(stats.bad(), 1);
    let sink = queues.bus();
    sink.sends[1].dbrec.write(&[0, 0, 0, 0, 0, 0, 0, 5]);
    sink.ring(&mut Register::new(0, 0), [0, 0, 0, 0, 0, 0, FIRST_QPN as u8 + 1, 0]);
    assert!(sink.turn());
    assert_eq!((stats.bad(), stats.sends()), (2, 0));
    assert!(!queues.turn(), "once");
}
