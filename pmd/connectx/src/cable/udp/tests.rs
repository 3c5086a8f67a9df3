use super::super::tests::{own_address, ports};
use super::super::{CableEnd, CableUrl, Faults, Kind, MAX_PACKET, Transport};
use super::*;

fn url(local: SocketAddr, peer: SocketAddr) -> CableUrl {
    CableUrl {
        transport: Transport::Udp { local, peer },
        keeps_crcs: false,
        key_file: None,
        faults: Faults::default(),
    }
}

/// A hello without a key.
fn datagram(hello: Hello) -> Vec<u8> {
    Codec::new(None).hello(hello).to_vec()
}

/// Polls with a clock that advances 5 ms per round, until `done`.
fn run(now: &mut Instant, ends: &mut [&mut CableEnd], mut done: impl FnMut(&mut [&mut CableEnd]) -> bool) {
    for _ in 0..2_000 {
        *now += Duration::from_millis(5);
        for end in ends.iter_mut() {
            end.poll(*now);
        }
        if done(ends) {
            return;
        }
        std::thread::yield_now();
    }
    panic!("still not done after 10 s of the test's clock");
}

#[test]
fn two_ends_connect_carry_packets_and_detect_a_restart() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let mut two = CableEnd::connect(&url(b, a)).unwrap();
    run(now, &mut [&mut one, &mut two], |ends| ends.iter().all(|e| e.is_up()));
    for i in 0..100u8 {
        one.send_with(1000, |p| p.fill(i << 4)).unwrap();
    }
    one.flush();
    let mut got = Vec::new();
    run(now, &mut [&mut one, &mut two], |ends| {
        ends[1].receive(8, |p| got.push((p.len(), p[0])));
        got.len() == 100
    });
    assert!(got.iter().zip(0..).all(|(g, i): (_, u8)| *g == (1000, i << 4)));

    drop(two);
    run(now, &mut [&mut one], |ends| {
        ends[0].receive(8, |_| {});
        !ends[0].is_up()
    });
    assert_eq!(one.counters().downs, 1);
    let mut two = CableEnd::connect(&url(b, a)).unwrap();
    run(now, &mut [&mut one, &mut two], |ends| ends.iter().all(|e| e.is_up()));
    assert_eq!((one.counters().ups, two.counters().ups), (2, 1));
}

#[test]
fn silence_takes_the_link_down() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let mut two = CableEnd::connect(&url(b, a)).unwrap();
    run(now, &mut [&mut one, &mut two], |ends| ends.iter().all(|e| e.is_up()));
    let start = *now;
    run(now, &mut [&mut one], |ends| {
        ends[0].receive(8, |_| {});
        !ends[0].is_up()
    });
    assert!(*now - start >= SILENCE && *now - start < 2 * SILENCE);
    assert_eq!(one.trouble(), Some(CableTrouble::Silent));
}

#[test]
fn a_stalled_host_does_not_declare_a_live_peer_dead() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let mut two = CableEnd::connect(&url(b, a)).unwrap();
    run(now, &mut [&mut one, &mut two], |ends| ends.iter().all(|e| e.is_up()));
    for _ in 0..3 {
        *now += 3 * SILENCE;
        for _ in 0..400 {
            *now += Duration::from_millis(5);
            for e in [&mut one, &mut two] {
                e.poll(*now);
                e.receive(8, |_| {});
            }
        }
        assert_eq!([one.counters().downs, two.counters().downs], [0, 0]);
    }
    // A peer that has gone meanwhile is still detected, and repeated stalls are excused once.
    let begin = *now;
    while one.is_up() {
        *now += 2 * STILL;
        one.poll(*now);
        one.receive(8, |_| {});
        assert!(*now - begin < 3 * SILENCE);
    }
    assert_eq!(one.trouble(), Some(CableTrouble::Silent));
}

#[test]
fn a_session_that_one_end_ends_ends_at_both() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let mut two = CableEnd::connect(&url(b, a)).unwrap();
    run(now, &mut [&mut one, &mut two], |ends| ends.iter().all(|e| e.is_up()));
    // One end receives nothing for too long, for example because its process had no CPU. By the other's clock
    // the time was shorter.
    let mut others = *now;
    run(now, &mut [&mut one], |ends| !ends[0].is_up());
    let mut was_down = false;
    for _ in 0..2_000 {
        *now += Duration::from_millis(5);
        others += Duration::from_millis(5);
        one.poll(*now);
        two.poll(others);
        // As a port sees it.
        was_down |= !two.is_up();
        one.receive(8, |_| {});
        two.receive(8, |_| {});
        if was_down && one.is_up() && two.is_up() {
            break;
        }
    }
    assert!(was_down && one.is_up() && two.is_up());
    // Each went down once, and they stay up.
    for _ in 0..400 {
        *now += Duration::from_millis(5);
        others += Duration::from_millis(5);
        one.poll(*now);
        two.poll(others);
        one.receive(8, |_| {});
        two.receive(8, |_| {});
    }
    assert_eq!([one.counters().downs, two.counters().downs], [1, 1]);
    assert!(one.is_up() && two.is_up());
}

#[test]
fn strangers_and_odd_datagrams_do_no_harm() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let partner = UdpSocket::bind(b).unwrap();
    let stranger = UdpSocket::bind(own_address()).unwrap();
    let hello = Hello { session: 5, heard: 0, bye: false };
    stranger.send_to(&datagram(hello), a).unwrap();
    partner.send_to(b"\x00 a packet before any hello", a).unwrap();
    partner.send_to(b"\xff no hello", a).unwrap();
    partner.send_to(b"", a).unwrap();
    partner.send_to(&[0; MAX_PACKET + MAX_TRAILER + 1], a).unwrap();
    run(now, &mut [&mut one], |ends| ends[0].counters().rx_invalid == 3);
    assert!(!one.is_up());
    // A hello that repeats an earlier session of ours does not bring the cable up either.
    partner.send_to(&datagram(Hello { heard: 99, ..hello }), a).unwrap();
    partner.send_to(b"\xff", a).unwrap();
    run(now, &mut [&mut one], |ends| ends[0].counters().rx_invalid == 4);
    assert!(!one.is_up());
    assert_eq!(one.counters().rx_packets, 0);
}

#[test]
fn a_flood_of_odd_datagrams_ends_a_turn_as_packets_do() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let mut two = CableEnd::connect(&url(b, a)).unwrap();
    run(now, &mut [&mut one, &mut two], |ends| ends.iter().all(|e| e.is_up()));
    drop(two);
    let flood = UdpSocket::bind(b).unwrap();
    for _ in 0..10 * BATCH {
        flood.send_to(b"\xff no hello", a).unwrap();
    }
    one.receive(4, |_| {});
    assert!((1..=4).contains(&one.counters().rx_invalid), "{:?}", one.counters());
    // All are eventually consumed.
    while one.counters().rx_invalid < 10 * BATCH as u64 {
        let before = one.counters().rx_invalid;
        one.receive(BATCH, |_| {});
        assert!(one.counters().rx_invalid > before);
    }
}

#[test]
fn a_hello_without_our_session_number_does_not_take_the_cable_down() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let partner = UdpSocket::bind(b).unwrap();
    partner.connect(a).unwrap();
    partner.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let heard = |one: &mut CableEnd, now: &mut Instant| {
        *now += HELLO;
        one.poll(*now);
        let mut bytes = [0; 100];
        let n = partner.recv(&mut bytes).unwrap();
        Codec::new(None).parse_hello(&bytes[..n]).unwrap()
    };
    let ours = heard(&mut one, now).session;
    let say = |hello: Hello| partner.send(&datagram(hello)).unwrap();
    say(Hello { session: 5, heard: ours, bye: false });
    run(now, &mut [&mut one], |ends| ends[0].is_up());
    // With the correct source address, but without the session number that only the other end knows.
    for (session, heard, bye) in [(6, 0, false), (6, 99, false), (6, 0, true), (5, 0, true), (5, 99, true)] {
        say(Hello { session, heard, bye });
    }
    say(Hello { session: 5, heard: ours, bye: false });
    for _ in 0..20 {
        one.poll(*now);
        one.receive(8, |_| {});
    }
    assert!(one.is_up());
    assert_eq!(one.counters().downs, 0);
    // An end that restarted silently has received our next hello, and then the one of our next session. It
    // repeats itself, because the cable must first be seen down.
    partner.set_nonblocking(true).unwrap();
    let mut ours = ours;
    run(now, &mut [&mut one], |ends| {
        let mut bytes = [0; 100];
        while let Ok(n) = partner.recv(&mut bytes) {
            ours = Codec::new(None).parse_hello(&bytes[..n]).unwrap().session;
        }
        say(Hello { session: 7, heard: ours, bye: false });
        ends[0].receive(8, |_| {});
        ends[0].counters().ups == 2
    });
    // A goodbye of the real peer counts.
    say(Hello { session: 7, heard: ours, bye: true });
    run(now, &mut [&mut one], |ends| {
        ends[0].receive(8, |_| {});
        !ends[0].is_up()
    });
}

/// An end whose peer is the test, and the session numbers that the peer sends.
fn with_partner(key: Option<CableKey>) -> (CableEnd, UdpSocket, Sessions) {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let end = UdpEnd::open(a, b, key.clone()).unwrap();
    let mut one = CableEnd::new(Kind::Udp(Box::new(end)));
    let partner = UdpSocket::bind(b).unwrap();
    partner.connect(a).unwrap();
    partner.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    one.poll(*now);
    let mut bytes = [0; 100];
    let n = partner.recv(&mut bytes).unwrap();
    let codec = Codec::new(key);
    let ours = codec.parse_hello(&bytes[..n]).unwrap().session;
    partner.send(&codec.hello(Hello { session: 5, heard: ours, bye: false })).unwrap();
    run(now, &mut [&mut one], |ends| ends[0].is_up());
    (one, partner, Sessions { sender: 5, receiver: ours })
}

/// Receives until this number of datagrams was taken or dropped; returns the packets taken.
fn take(end: &mut CableEnd, datagrams: u64) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    while taken.len() as u64 + end.counters().rx_forged + end.counters().rx_invalid < datagrams {
        end.receive(8, |packet| taken.push(packet.to_vec()));
        std::thread::yield_now();
    }
    taken
}

#[test]
fn a_forged_packet_is_dropped_and_counted_while_the_cable_is_up() {
    let (mut one, partner, sessions) = with_partner(None);
    let packet = [0x70; 60];
    let send = |trailer: &[u8]| partner.send(&[&packet[..], trailer].concat()).unwrap();
    let codec = Codec::new(None);
    let trailer = |sender, receiver| codec.trailer(&packet, Sessions { sender, receiver });
    send(&[]);
    send(&trailer(0, 0));
    send(&trailer(sessions.sender, 1));
    send(&trailer(1, sessions.receiver));
    send(&trailer(sessions.receiver, sessions.sender));
    send(&trailer(sessions.sender, sessions.receiver));
    assert_eq!(take(&mut one, 6), [packet]);
    assert_eq!((one.counters().rx_forged, one.counters().rx_packets), (5, 1));
    assert!(one.is_up());
}

#[test]
fn with_a_key_a_packet_of_a_host_that_reads_the_cable_is_dropped_and_counted() {
    let key = CableKey::new([7; 16]);
    let (mut one, partner, sessions) = with_partner(Some(key.clone()));
    let packet = [0x70; 60];
    for key in [None, Some(CableKey::new([8; 16])), Some(key)] {
        let trailer = Codec::new(key).trailer(&packet, sessions);
        partner.send(&[&packet[..], &trailer].concat()).unwrap();
    }
    // It cannot take the cable down either.
    let bye = Hello { session: sessions.sender, heard: sessions.receiver, bye: true };
    partner.send(&datagram(bye)).unwrap();
    assert_eq!(take(&mut one, 4), [packet]);
    assert_eq!((one.counters().rx_forged, one.counters().rx_packets), (3, 1));
    assert!(one.is_up());
}

#[test]
fn an_end_of_another_version_or_key_is_refused_and_named() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let partner = UdpSocket::bind(b).unwrap();
    let hello = Hello { session: 5, heard: 0, bye: false };
    let mut first_version = datagram(hello);
    first_version[7] = 1;
    let keyed = Codec::new(Some(CableKey::new([7; 16]))).hello(hello);
    for (bytes, trouble, advice) in [
        (&first_version[..], CableTrouble::Version, "same release"),
        (&keyed[..], CableTrouble::Key, "key-file"),
    ] {
        let seen = one.counters().rx_forged;
        partner.send_to(bytes, a).unwrap();
        run(now, &mut [&mut one], |ends| ends[0].counters().rx_forged > seen);
        assert_eq!(one.trouble(), Some(trouble));
        assert!(trouble.to_string().contains(advice), "{trouble}");
    }
    assert!(!one.is_up());
}

#[test]
fn a_recording_of_an_earlier_session_is_worth_nothing() {
    let key = CableKey::new([7; 16]);
    let codec = Codec::new(Some(key.clone()));
    let (mut one, partner, sessions) = with_partner(Some(key));
    let packet = [0x70; 60];
    let recorded = [
        codec.hello(Hello { session: sessions.sender, heard: sessions.receiver, bye: false }).to_vec(),
        [&packet[..], &codec.trailer(&packet, sessions)].concat(),
    ];
    partner.send(&recorded[1]).unwrap();
    assert_eq!(take(&mut one, 1), [packet]);
    // The other end leaves.
    partner.send(&codec.hello(Hello { session: 5, heard: sessions.receiver, bye: true })).unwrap();
    let now = &mut Instant::now();
    run(now, &mut [&mut one], |ends| {
        ends[0].receive(8, |_| {});
        !ends[0].is_up()
    });
    let stale = one.counters().rx_stale;
    for _ in 0..3 {
        for datagram in &recorded {
            partner.send(datagram).unwrap();
        }
    }
    run(now, &mut [&mut one], |ends| {
        ends[0].receive(8, |_| panic!("a packet of an earlier session"));
        assert!(!ends[0].is_up());
        ends[0].counters().rx_stale == stale + 6
    });
    assert_eq!(one.counters().ups, 1);
}

#[test]
fn an_icmp_error_is_counted_and_does_not_take_the_cable_down() {
    for key in [None, Some(CableKey::new([7; 16]))] {
        let (mut one, partner, sessions) = with_partner(key.clone());
        let (address, peer) = (partner.local_addr().unwrap(), partner.peer_addr().unwrap());
        // No process listens there for a while: the network reports each packet as undeliverable, as a forger
        // could.
        drop(partner);
        while one.counters().socket_errors < 3 {
            one.send_with(60, |packet| packet.fill(0x70)).unwrap();
            one.flush();
            one.receive(8, |_| {});
            assert!(one.is_up(), "{:?}", one.counters());
        }
        let partner = UdpSocket::bind(address).unwrap();
        let packet = [0x70; 60];
        let trailer = Codec::new(key).trailer(&packet, sessions);
        partner.send_to(&[&packet[..], &trailer].concat(), peer).unwrap();
        assert_eq!(take(&mut one, 1), [packet]);
        let c = one.counters();
        assert_eq!((c.downs, c.tx_errors, c.lost_going_down), (0, 0, 0));
    }
}

#[test]
fn a_packet_that_its_receiver_refuses_is_one_sign_of_life() {
    for key in [None, Some(CableKey::new([7; 16]))] {
        let (mut one, partner, sessions) = with_partner(key.clone());
        let packet = [0x70; 60];
        let trailer = Codec::new(key).trailer(&packet, sessions);
        partner.send(&[&packet[..], &trailer].concat()).unwrap();
        let refuse = |one: &mut CableEnd| {
            let mut seen = false;
            one.receive_as_sent(8, |bytes, _| {
                assert_eq!(bytes, packet);
                seen = true;
                false
            });
            seen
        };
        while !refuse(&mut one) {
            std::thread::yield_now();
        }
        // Later than the clock that brought it up, which ran for at most 10 s.
        let mut now = Instant::now() + Duration::from_secs(10);
        partner.send(&[&packet[..], &trailer].concat()).unwrap();
        one.poll(now);
        assert_eq!(take(&mut one, 2), [packet; 2], "it is finally taken");
        partner.send(&[&packet[..], &trailer].concat()).unwrap();
        while !refuse(&mut one) {
            std::thread::yield_now();
        }
        for _ in 0..8 {
            now += SILENCE / 4;
            one.poll(now);
            let was_up = one.is_up();
            assert_eq!(refuse(&mut one), was_up, "it waits as long as the cable is up");
        }
        assert_eq!(one.trouble(), Some(CableTrouble::Silent));
    }
}

#[test]
fn packets_alone_keep_the_cable_up() {
    for key in [None, Some(CableKey::new([7; 16]))] {
        let (mut one, partner, sessions) = with_partner(key.clone());
        let packet = [0x70; 60];
        let trailer = Codec::new(key).trailer(&packet, sessions);
        // Later than the clock that brought it up, which ran for at most 10 s.
        let mut now = Instant::now() + Duration::from_secs(10);
        for _ in 0..30 {
            now += SILENCE / 4;
            one.poll(now);
            // Its hellos are lost.
            partner.send(&[&packet[..], &trailer].concat()).unwrap();
            assert_eq!(take(&mut one, 1), [packet]);
        }
        assert_eq!((one.is_up(), one.counters().downs), (true, 0));
        // Packets of another session do not prove that the peer is alive.
        for _ in 0..8 {
            now += SILENCE / 4;
            one.poll(now);
            partner.send(&[&packet[..], &[0; 24]].concat()).unwrap();
            one.receive(8, |_| {});
        }
        assert_eq!(one.trouble(), Some(CableTrouble::Silent));
    }
}

#[test]
fn a_restart_is_no_forgery_and_a_refused_hello_no_lasting_reason() {
    let (a, b) = ports();
    let now = &mut Instant::now();
    let mut one = CableEnd::listen(&url(a, b)).unwrap();
    let partner = UdpSocket::bind(b).unwrap();
    let mut other_version = datagram(Hello { session: 5, heard: 0, bye: false });
    other_version[7] = 1;
    partner.send_to(&other_version, a).unwrap();
    run(now, &mut [&mut one], |ends| ends[0].trouble() == Some(CableTrouble::Version));
    drop(partner);
    let mut two = CableEnd::connect(&url(b, a)).unwrap();
    run(now, &mut [&mut one, &mut two], |ends| ends.iter().all(|e| e.is_up()));
    let forged = one.counters().rx_forged;
    assert_eq!(one.trouble(), None);
    // It restarts without a goodbye while packets are in flight.
    let Kind::Udp(end) = &mut two.kind else { panic!() };
    end.session = life();
    end.peer = Peer::Unknown;
    run(now, &mut [&mut one, &mut two], |ends| {
        ends[0].receive(8, |_| {});
        ends[1].receive(8, |_| {});
        ends.iter().all(|e| e.is_up()) && ends[0].counters().ups == 2
    });
    assert_eq!((one.counters().rx_forged, two.counters().rx_forged), (forged, 0));
    assert!(one.counters().rx_stale + two.counters().rx_stale > 0);
}
