//! Hostile datagrams.

use proptest::prelude::*;

use ib_wire::cm::{MessageMraed, MessageReceiptAck, Reject, RejectReason, Reply};
use ib_wire::mad::{MAD_LEN, MadAddress};
use ib_wire::{CommId, Tid, TimeoutCode};

use super::*;

const MAX: usize = 8;

/// A CM datagram with few different IDs and GUIDs, so that it often matches a connection.
fn datagram() -> impl Strategy<Value = Vec<u8>> {
    (0x0fu8..=0x1b, 0u8..6, 0u8..6, any::<u8>(), proptest::collection::vec(any::<u8>(), MAD_LEN)).prop_map(
        |(attribute, mine, yours, flags, mut bytes)| {
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16..18].copy_from_slice(&[0, attribute]);
            bytes[24..28].copy_from_slice(&[0, 0, 0, mine]);
            if attribute != 0x10 {
                bytes[28..32].copy_from_slice(&[0xff, 0, 0, yours]);
            } else if flags & 1 == 0 {
                // A valid request.
                bytes[32..40].copy_from_slice(&SERVICE.0.to_be_bytes());
                bytes[40..48].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, flags >> 6]);
                bytes[24 + 43] &= !6;
                bytes[24 + 50] = 4 << 4;
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn tables_stay_bounded_and_empty_themselves(
        datagrams in proptest::collection::vec((datagram(), 0u64..40_000, 0u8..4), 1..120)
    ) {
        let mut p = Pair::new();
        p.b.config.max_connections = MAX;
        p.b.config.max_transmit = 64;
        let mut qp = 0x100;
        // Some local connections as targets.
        for n in 0..4 {
            let request = ConnectRequest::ipoib(SERVICE, qpn(0x10 + n), path(2, 1), &[]);
            p.b.connect(p.now, request).unwrap();
        }
        let mut requested = Vec::new();
        for (bytes, ms, act) in datagrams {
            let mut mad = Mad { peer: MadAddress::gsi(Lid(1), ServiceLevel::new(0)), bytes: Box::new([0; MAD_LEN]) };
            mad.bytes.copy_from_slice(&bytes);
            if bytes[28] == 0xff {
                // Use the ID of an existing connection.
                let mut ids: Vec<_> = p.b.entries.keys().copied().collect();
                ids.sort_unstable();
                if let Some(id) = ids.get(usize::from(bytes[31])) {
                    mad.bytes[28..32].copy_from_slice(&id.0.to_be_bytes());
                }
            }
            p.b.handle_mad(p.now, &mad);
            for event in events(&mut p.b) {
                if let Event::Requested { id, .. } = event {
                    requested.push(id);
                }
            }
            if let Some(id) = requested.pop() {
                qp += 1;
                let _ = match act {
                    0 => p.b.accept(p.now, id, &accept(qp)),
                    1 => p.b.reject(p.now, id, RejectReason::Consumer, &[]),
                    2 => p.b.delay(p.now, id, TimeoutCode::new(31)),
                    _ => Ok(()),
                };
            }
            p.wait(Duration::from_millis(ms));
            prop_assert!(p.b.len() <= MAX);
            prop_assert!(p.b.transmit.len() <= 64);
            let sizes = p.b.index_sizes();
            prop_assert!(sizes.iter().all(|n| *n <= MAX), "{:?}", sizes);
            if act == 3 {
                while p.b.poll_transmit().is_some() {}
            }
        }
        let mut left: Vec<_> = p.b.entries.keys().copied().collect();
        left.sort_unstable();
        for id in left {
            let _ = p.b.abandon(p.now, ConnId(id));
        }
        p.run_out();
        assert_empty(&p.b);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), MAD_LEN)) {
        let mut p = Pair::new();
        let mut mad = Mad { peer: MadAddress::gsi(Lid(9), ServiceLevel::new(0)), bytes: Box::new([0; MAD_LEN]) };
        mad.bytes.copy_from_slice(&bytes);
        p.at_b(&mad);
        prop_assert_eq!(p.b.counters().dropped(Dropped::Malformed), 1);
    }
}

#[test]
fn a_peer_that_never_stops_asking_fills_no_queue() {
    let mut p = Pair::new();
    p.b.config.max_connections = 4;
    p.b.config.max_transmit = 16;
    for n in 0..200 {
        p.dial(0x100 + n);
        let req = p.a.poll_transmit().unwrap();
        p.at_b(&req);
        p.wait(Duration::from_secs(120));
        while p.a.poll_transmit().is_some() {}
    }
    assert!(p.b.len() <= 4);
    assert!(events(&mut p.b).len() <= 4 * 4, "unread events are bounded too");
}

#[test]
fn an_mra_cannot_hold_a_connection_longer_than_the_bound() {
    let mut p = Pair::new();
    let (a, b, _) = p.requested(0x11);
    p.b.delay(p.now, b, TimeoutCode::new(31)).unwrap();
    let mra = p.b.poll_transmit().unwrap();
    p.at_a(&mra);
    assert_eq!(p.a.state(a), Some(State::MraReqRcvd));
    assert!(p.a.poll_timeout().unwrap() <= p.now + Duration::from_secs(60));
}

#[test]
fn nobody_answers_in_anothers_name() {
    let mut p = Pair::new();
    let (a, _, _, rep) = p.accepted(0x11);
    let id = a.0;
    let answers: [Message; 3] = [
        Reject { remote_comm_id: id, reason: RejectReason::InvalidMtu, ..Reject::default() }.into(),
        MessageReceiptAck {
            local_comm_id: CommId(7),
            remote_comm_id: id,
            message: MessageMraed::Request,
            service_timeout: TimeoutCode::new(20),
            private_data: [0; 222],
        }
        .into(),
        Reply { local_comm_id: CommId(7), remote_comm_id: id, local_qpn: qpn(0x66), ..Reply::default() }
            .into(),
    ];
    for answer in answers {
        let mad = Mad { peer: MadAddress::gsi(Lid(9), ServiceLevel::new(0)), bytes: answer.to_bytes(Tid(1)) };
        p.a.handle_mad(p.now, &mad);
        assert_eq!((p.a.state(a), events(&mut p.a).len()), (Some(State::ReqSent), 0), "{answer:?}");
    }
    assert_eq!(p.a.counters().dropped(Dropped::UnknownConnection), 3);
    p.at_a(&rep);
    assert!(matches!(events(&mut p.a)[..], [Event::Replied { .. }]));
}

#[test]
fn nobody_holds_anothers_queue_pairs_and_ids() {
    let mut p = Pair::new();
    // LID 9 sends the request that the host at LID 1 will send.
    p.dial(0x11);
    let req = p.a.poll_transmit().unwrap();
    p.b.handle_mad(p.now, &arrived(&req, 9));
    assert!(matches!(events(&mut p.b)[..], [Event::Requested { .. }]));
    p.at_b(&req);
    let [Event::Requested { id, .. }] = events(&mut p.b)[..] else {
        panic!("the genuine request is accepted")
    };
    p.b.accept(p.now, id, &accept(0x12)).unwrap();
    p.at_b(&req);
    assert!(events(&mut p.b).is_empty(), "a duplicate has no effect");
    p.run_out();
    assert_empty(&p.b);
}
