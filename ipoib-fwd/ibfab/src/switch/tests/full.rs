//! Receivers that accept nothing, or little: the senders that wait for them, and for how long.

use super::*;

/// Creates a group with these ports, multicast LID 0xc005.
fn group(bench: &mut Bench, ports: std::ops::RangeInclusive<usize>) {
    let mask = ports.fold(0, |mask, port| mask | 1 << port);
    let mut block = MulticastForwardingBlock::default();
    block.masks[5] = mask;
    assert!(bench.set(MulticastForwardingBlock::modifier(0, 0), &block).is_ok());
}

#[test]
fn receivers_that_take_nothing_hold_a_multicast_once_and_all_together() {
    // Ports 2 to 10 accept nothing, 11 and 12 do.
    let mut bench = Bench::active(12);
    group(&mut bench, 1..=12);
    let p = data(11, 0xc005, 4000);
    let mut sent = 0;
    let mut got = 0;
    while bench.ends[0].send_with(p.len(), |out| out.copy_from_slice(&p)).is_ok() {
        bench.step();
        sent += 1;
        got += bench.received(12).len();
        bench.received(11);
        assert!(sent < 10_000, "nothing holds the sender back");
    }
    let stuck = sent - got;
    assert!(stuck > 50, "{stuck}");
    // One deadline for all of them: then all waiting packets go to the receivers that accept them.
    bench.now += HEAD_OF_QUEUE_LIFE;
    bench.step();
    assert_eq!(bench.received(12).len(), stuck);
    assert_eq!(bench.received(11).len(), stuck);
    // From then on, neither this sender nor another one waits, however late it is.
    for from in [1, 12, 1, 12] {
        bench.now += Duration::from_secs(10);
        bench.send(from, &data(10 + from as u16, 0xc005, 4000));
        assert_eq!(bench.received(11).len(), 1, "from {from}");
    }
    assert!(bench.ends[0].has_room(p.len()));
    // A receiver that accepts packets again gets the following ones.
    assert!(bench.received(2).len() > 50);
    bench.send(12, &data(22, 0xc005, 4000));
    assert_eq!(bench.received(2).len(), 1);
}

#[test]
fn management_packets_pass_data_that_waits() {
    let mut bench = Bench::active(3);
    let numbered = |n: u16| packet(0, 11, Lid(12), Qpn::new(n.into()), QKey(1), &[0xa5; 4000]);
    let mut sent = 0;
    while bench.switch.ports[0].blocked.is_none() {
        bench.send(1, &numbered(sent));
        sent += 1;
    }
    for _ in 0..20 {
        bench.send(1, &numbered(sent));
        sent += 1;
    }
    let query = Smp::lid_routed(Method::Get, Tid(4), attribute::NODE_INFO, 0);
    bench.send(1, &smp(&query, Lid(11), Lid(1)));
    bench.now += PASSING;
    bench.step();
    assert_eq!(bench.received(1).len(), 1, "the answer");
    // Waiting packets keep their order and their deadline.
    bench.now += HEAD_OF_QUEUE_LIFE - PASSING - Duration::from_millis(1);
    bench.send(1, &smp(&query, Lid(11), Lid(1)));
    let mut got = Vec::new();
    for _ in 0..4 {
        got.extend(bench.received(2).iter().map(|p| Packet::parse(p).unwrap().bth().dest_qpn));
        bench.step();
    }
    assert_eq!(got, (0..sent).map(|n| Qpn::new(n.into())).collect::<Vec<Qpn>>());
    // With more than the switch keeps, the sender is held back.
    let p = numbered(0);
    let mut more = 0;
    while bench.ends[0].send_with(p.len(), |out| out.copy_from_slice(&p)).is_ok() {
        bench.step();
        bench.now += Duration::from_micros(100);
        more += 1;
        assert!(more < 10_000, "nothing holds the sender back");
    }
    bench.now += HEAD_OF_QUEUE_LIFE;
    bench.step();
    assert!(bench.dropped(1, DropReason::HeadOfQueue) > 100, "{more}");
    assert!(bench.switch.ports[0].waiting.is_empty() && bench.ends[0].has_room(p.len()));
}

#[test]
fn a_multicast_goes_at_once_to_those_that_have_room() {
    let mut bench = Bench::active(3);
    group(&mut bench, 1..=3);
    let fill = data(13, 12, 4000);
    while bench.ends[2].send_with(fill.len(), |out| out.copy_from_slice(&fill)).is_ok() {
        bench.step();
    }
    bench.send(1, &data(11, 0xc005, 4000));
    assert_eq!(bench.received(3).len(), 1, "port 2 is full");
    bench.step();
    assert!(bench.received(3).is_empty(), "once");
    bench.received(2);
    bench.step();
    let multicasts = bench.received(2).iter().filter(|p| p[2..4] == [0xc0, 0x05]).count();
    assert_eq!(multicasts, 1);
    assert_eq!(bench.dropped(1, DropReason::HeadOfQueue), 0);
}

#[test]
fn a_receiver_that_takes_a_packet_now_and_then_does_not_hold_every_multicast() {
    // Packets wait for 10 ms and more; where they come in by a link between switches, for 1 ms and more.
    for (is_trunk, pace) in [(false, 200), (false, 11), (true, 200), (true, 9), (true, 2)] {
        let mut bench = Bench::active(3);
        group(&mut bench, 1..=3);
        if is_trunk {
            bench.switch.set_trunk(SwitchPort(1));
        }
        let p = data(11, 0xc005, 4000);
        let mut got = 0;
        for n in 1..=1000 {
            let _ = bench.ends[0].send_with(p.len(), |out| out.copy_from_slice(&p));
            bench.step();
            got += bench.received(3).len();
            bench.now += Duration::from_millis(1);
            if n % pace == 0 {
                bench.ends[1].receive(1, |_| {});
            }
        }
        assert!(got > 800, "{got} of 1000 reach the other receiver: {is_trunk} {pace}");
        let dropped = bench.dropped(1, DropReason::HeadOfQueue);
        assert!(dropped > 300, "{dropped}: {is_trunk} {pace}");
    }
}

#[test]
fn a_multicast_that_does_not_wait_for_a_slow_receiver_waits_for_the_others() {
    let mut bench = Bench::active(4);
    group(&mut bench, 1..=4);
    let p = data(11, 0xc005, 4000);
    // Port 2 is full, and accepts a packet after a long wait.
    while bench.switch.ports[0].blocked.is_none() {
        bench.send(1, &p);
        bench.received(3);
        bench.received(4);
    }
    bench.now += 2 * LONG_WAIT;
    bench.ends[1].receive(1, |_| {});
    bench.step();
    assert!(bench.switch.ports[0].blocked.is_none());
    bench.received(3);
    bench.received(4);
    // Port 3 is full for a moment.
    let fill = data(14, 13, 4000);
    while bench.ends[3].send_with(fill.len(), |out| out.copy_from_slice(&fill)).is_ok() {
        bench.step();
    }
    bench.send(1, &p);
    assert_eq!(bench.received(4).len(), 1);
    assert_eq!(bench.dropped(1, DropReason::HeadOfQueue), 1, "port 2 is full again");
    bench.received(3);
    bench.step();
    let multicasts = bench.received(3).iter().filter(|p| p[2..4] == [0xc0, 0x05]).count();
    assert_eq!((multicasts, bench.dropped(1, DropReason::HeadOfQueue)), (1, 1));
}

/// Alternates packets for ports 2 and 3, as fast as port 1 takes them, for `span` milliseconds; port 2
/// accepts a packet every `pace` milliseconds. Returns the number of packets that port 3 gets, and of those
/// dropped.
fn share(bench: &mut Bench, span: u32, pace: u32) -> (usize, u64) {
    let packets = [data(11, 12, 4000), data(11, 13, 4000)];
    let (mut got, mut next, before) = (0, 0, bench.dropped(1, DropReason::HeadOfQueue));
    for ms in 1..=span {
        for _ in 0..2 {
            let packet = &packets[next % 2];
            next +=
                usize::from(bench.ends[0].send_with(packet.len(), |out| out.copy_from_slice(packet)).is_ok());
        }
        bench.step();
        got += bench.received(3).len();
        bench.now += Duration::from_millis(1);
        if ms % pace == 0 {
            bench.ends[1].receive(1, |_| {});
        }
    }
    (got, bench.dropped(1, DropReason::HeadOfQueue) - before)
}

#[test]
fn a_slow_receiver_holds_up_a_link_between_switches_for_a_ninth_of_the_time() {
    // It accepts a packet in time, and just in time.
    for pace in [20, 100, 249] {
        let mut bench = Bench::active(3);
        bench.switch.set_trunk(SwitchPort(1));
        share(&mut bench, 2000, pace);
        let (got, dropped) = share(&mut bench, 9000, pace);
        assert!(got > 7800, "{got} of 9000 reach the other receiver, {pace}");
        assert!(dropped > 7000, "{dropped}");
        assert_eq!(bench.dropped(1, DropReason::HeadOfQueue), bench.switch.ports[1].discards);
        // Once it accepts packets again, nothing more is lost.
        bench.received(2);
        bench.step();
        bench.received(2);
        assert_eq!(share(&mut bench, 1000, 1), (1000, 0), "{pace}");
    }
    // A sender of its own is held back as before.
    let mut bench = Bench::active(3);
    let (got, dropped) = share(&mut bench, 2000, 100);
    assert!(got < 200 && dropped == 0, "{got} {dropped}");
}

#[test]
fn a_receiver_that_pauses_or_is_always_full_loses_nothing_by_a_link_between_switches() {
    let mut bench = Bench::active(3);
    bench.switch.set_trunk(SwitchPort(1));
    let fill = data(13, 12, 4000);
    let (mut got, mut sent) = (0, [0; 2]);
    for _ in 0..20 {
        // It accepts nothing for a tenth of a second, then four packets a millisecond while two ports send at
        // their limit.
        share(&mut bench, 100, u32::MAX);
        for _ in 0..3600 {
            for (n, (from, packet)) in [(0, &data(11, 12, 4000)), (2, &fill)].into_iter().enumerate() {
                let taken = bench.ends[from].send_with(packet.len(), |out| out.copy_from_slice(packet));
                sent[n] += u32::from(taken.is_ok());
            }
            bench.step();
            bench.now += Duration::from_micros(250);
            got += bench.ends[1].receive(1, |_| {});
        }
    }
    assert_eq!((got, bench.switch.ports[1].discards), (20 * 3600, 0), "it was full all the time");
    // Both get the same share.
    let [one, other] = sent;
    assert!(one.abs_diff(other) < one / 4, "{sent:?}");
}

#[test]
fn ports_take_turns_at_a_full_receiver_though_another_port_is_always_busy() {
    // The ports before and behind the busy one, in both orders.
    for senders in [[1, 3], [3, 1]] {
        let mut bench = Bench::active(5);
        bench.switch.set_trunk(SwitchPort(1));
        let packets = senders.map(|port| data(10 + port, 14, 4000));
        let busy = data(12, 15, 100);
        let mut sent = [0_u32; 2];
        for n in 0..20_000 {
            for (sent, (port, packet)) in sent.iter_mut().zip(senders.into_iter().zip(&packets)) {
                let end = &mut bench.ends[usize::from(port) - 1];
                while end.send_with(packet.len(), |out| out.copy_from_slice(packet)).is_ok() {
                    *sent += u32::from(n >= 2000);
                }
            }
            bench.ends[1].send_with(busy.len(), |out| out.copy_from_slice(&busy)).unwrap();
            // The receiver takes fewer packets per iteration than a port is given.
            bench.switch.step(bench.now);
            bench.now += Duration::from_micros(100);
            bench.ends[3].receive(4, |_| {});
            bench.received(5);
        }
        let [one, other] = sent;
        assert!(one.abs_diff(other) < one.max(other) / 4, "{sent:?}");
        assert_eq!(bench.switch.ports[3].discards, 0);
    }
}
