//! One test for each rule.

use ib_wire::cm::{
    AprStatus, Failover, LoadAlternatePath, MessageMraed, MessageRejected, Reject, RejectReason, SidrRequest,
};
use ib_wire::mad::{MadAddress, MadHeader};
use ib_wire::{CommId, Tid, TimeoutCode};

use super::*;

#[test]
fn handshake_gives_each_side_the_other_s_queue_pair_and_psn() {
    let mut p = Pair::new();
    let a = p.dial(0x11);
    let req = p.a.poll_transmit().unwrap();
    assert_eq!(req.peer, MadAddress::gsi(Lid(2), ServiceLevel::new(0)), "no GRH within the subnet");
    p.at_b(&req);
    let Some(Event::Requested { id: b, request }) = p.b.poll_event() else { panic!() };
    assert_eq!(request.remote_qpn, qpn(0x11));
    assert_eq!(request.path.dlid, Lid(1));
    assert_eq!(request.path.dgid, path(1, 2).sgid);
    assert_eq!(request.private_data[..4], [1, 2, 3, 0]);
    let at_b = request.qp_attributes(Psn::new(77));
    assert_eq!((at_b.dest_qpn, at_b.rq_psn, at_b.sq_psn), (qpn(0x11), Psn::new(77), Psn::new(0)));
    assert_eq!(at_b.ack_timeout.code(), 19, "the life time of 18 and one for the way back");
    p.b.accept(p.now, b, &AcceptParams { starting_psn: Psn::new(77), ..accept(0x22) }).unwrap();
    p.pump();
    let Some(Event::Replied { id, reply }) = p.a.poll_event() else { panic!() };
    assert_eq!(id, a);
    assert_eq!(reply.private_data[..4], [9, 8, 7, 0]);
    let at_a = reply.attributes;
    assert_eq!((at_a.dest_qpn, at_a.rq_psn, at_a.sq_psn), (qpn(0x22), Psn::new(0), Psn::new(77)));
    assert_eq!((at_a.path, at_a.path_mtu, at_a.min_rnr_timer), (path(1, 2), Mtu::B2048, 0));
    assert_eq!(p.b.state(b), Some(State::RepSent));
    p.a.ready(p.now, a).unwrap();
    p.pump();
    assert!(matches!(p.b.poll_event(), Some(Event::Established { id }) if id == b));
    assert_eq!((p.a.state(a), p.b.state(b)), (Some(State::Established), Some(State::Established)));
    assert_eq!((p.a.poll_timeout(), p.b.poll_timeout()), (None, None), "nothing is retransmitted");
}

#[test]
fn answers_carry_the_request_s_tid() {
    let mut p = Pair::new();
    let (a, b, [req, rep, rtu]) = p.established(0x11);
    let tid = |m: &Mad| m.header().tid;
    assert_eq!(tid(&rep), tid(&req));
    assert_eq!(tid(&rtu), tid(&rep));
    p.a.disconnect(p.now, a).unwrap();
    let dreq = p.a.poll_transmit().unwrap();
    p.at_b(&dreq);
    assert_eq!(tid(&p.b.poll_transmit().unwrap()), tid(&dreq));
    assert_eq!(p.b.state(b), Some(State::Timewait));
}

#[test]
fn disconnect_ends_both_ends_and_releases_them_after_timewait() {
    let mut p = Pair::new();
    let (a, b, _) = p.established(0x11);
    p.a.disconnect(p.now, a).unwrap();
    p.pump();
    assert!(matches!(events(&mut p.a)[..], [Event::Disconnected { cause: DisconnectCause::Us, .. }]));
    assert!(matches!(events(&mut p.b)[..], [Event::Disconnected { cause: DisconnectCause::Peer, .. }]));
    p.wait(Duration::from_millis(2047));
    assert_eq!((p.a.state(a), p.b.state(b)), (Some(State::Timewait), Some(State::Timewait)));
    p.wait(Duration::from_secs(4));
    assert!(matches!(events(&mut p.a)[..], [Event::Released { id }] if id == a));
    assert!(matches!(events(&mut p.b)[..], [Event::Released { id }] if id == b));
    assert_empty(&p.a);
    assert_empty(&p.b);
}

#[test]
fn a_known_request_is_ignored_while_the_rep_is_on_its_way() {
    let mut p = Pair::new();
    let (_, _, req) = p.requested(0x11);
    p.at_b(&req);
    assert_eq!((p.b.poll_transmit(), p.b.len()), (None, 1));
    assert!(p.b.poll_event().is_none());
    assert_eq!(p.b.counters().dropped(Dropped::Duplicate), 1);
}

#[test]
fn a_known_request_gets_the_mra_again() {
    let mut p = Pair::new();
    let (a, b, req) = p.requested(0x11);
    p.b.delay(p.now, b, TimeoutCode::new(21)).unwrap();
    let mra = p.b.poll_transmit().unwrap();
    p.at_b(&req);
    assert_eq!(p.b.poll_transmit().as_ref(), Some(&mra));
    p.at_a(&mra);
    assert_eq!(p.a.state(a), Some(State::MraReqRcvd));
    p.wait(Duration::from_millis(8192));
    assert_eq!(p.a.poll_transmit(), None, "waits for the service time and the transit");
    p.wait(Duration::from_millis(2048));
    assert!(matches!(only(&mut p.a), Message::Request(_)));
    p.b.accept(p.now, b, &accept(0x22)).unwrap();
    p.pump();
    assert_eq!(p.a.state(a), Some(State::RepRcvd));
}

#[test]
fn a_known_request_in_timewait_is_stale() {
    let mut p = Pair::new();
    let (a, _, [req, ..]) = p.established(0x11);
    p.a.disconnect(p.now, a).unwrap();
    p.pump();
    p.at_b(&req);
    let Message::Reject(reject) = only(&mut p.b) else { panic!() };
    assert_eq!((reject.reason, reject.message), (RejectReason::StaleConnection, MessageRejected::Request));
}

#[test]
fn a_request_from_a_queue_pair_in_use_is_stale_and_ends_the_old_connection() {
    let mut p = Pair::new();
    let (_, b, _) = p.established(0x11);
    // The peer has restarted: same adapter and queue pair, another communication ID.
    p.a = ConnectionTable::new(Config::new(99, Guid(1 << 8)));
    let again = p.dial(0x11);
    let req = p.a.poll_transmit().unwrap();
    p.at_b(&req);
    let sent: Vec<Mad> = std::iter::from_fn(|| p.b.poll_transmit()).collect();
    assert!(matches!(message(&sent[0]), Message::DisconnectRequest(_)));
    assert!(matches!(message(&sent[1]), Message::Reject(r) if r.reason == RejectReason::StaleConnection));
    assert_eq!(p.b.state(b), Some(State::DreqSent));
    sent.iter().for_each(|m| p.at_a(m));
    assert_eq!(p.a.state(again), Some(State::Timewait), "stale leads to TIMEWAIT");
    p.pump();
    assert!(matches!(events(&mut p.b)[..], [Event::Disconnected { cause: DisconnectCause::Stale, .. }]));
    assert_eq!(p.b.state(b), Some(State::Timewait), "the peer's DREP for an unknown connection ends it");
    assert!(matches!(events(&mut p.a)[..], [Event::Rejected { .. }]));
}

#[test]
fn nobody_listens() {
    let mut p = Pair::new();
    p.b.unlisten(SERVICE);
    let a = p.dial(0x11);
    p.pump();
    let all = events(&mut p.a);
    let [Event::Rejected { id, reject }, Event::Released { .. }] = &all[..] else { panic!("{all:?}") };
    assert_eq!((*id, reject.reason), (a, RejectReason::InvalidServiceId));
    assert_eq!(p.b.counters().rejects_sent(RejectReason::InvalidServiceId), 1);
    assert_eq!(p.a.counters().rejects_received(RejectReason::InvalidServiceId), 1);
    assert_empty(&p.a);
    assert_empty(&p.b);
}

#[test]
fn service_ids_are_compared_exactly() {
    let mut p = Pair::new();
    let near = ServiceId(SERVICE.0 ^ 1);
    p.a.connect(p.now, ConnectRequest::ipoib(near, qpn(1 << 8), path(1, 2), &[])).unwrap();
    p.pump();
    assert!(matches!(events(&mut p.a)[0], Event::Rejected { .. }));
    assert_eq!(p.b.listen(SERVICE), Err(TableError::ServiceTaken(SERVICE)));
}

#[test]
fn a_full_table_does_not_reject() {
    let mut p = Pair::new();
    p.b.config.max_connections = 1;
    p.requested(0x11);
    p.dial(0x12);
    p.pump();
    assert_eq!((p.b.len(), p.b.poll_transmit()), (1, None));
    assert_eq!(p.b.counters().dropped(Dropped::NoRoom), 1);
    p.a.config.max_connections = 2;
    let third = ConnectRequest::ipoib(SERVICE, qpn(0x13), path(1, 2), &[]);
    assert_eq!(p.a.connect(p.now, third), Err(TableError::Full(2)));
}

#[test]
fn a_repeated_reply_gets_the_rtu_again() {
    let mut p = Pair::new();
    let (_, _, [_, rep, rtu]) = p.established(0x11);
    p.at_a(&rep);
    assert_eq!(p.a.poll_transmit(), Some(rtu));
}

#[test]
fn a_repeated_reply_gets_the_mra_again() {
    let mut p = Pair::new();
    let (a, b, _, rep) = p.accepted(0x11);
    p.at_a(&rep);
    p.at_a(&rep);
    assert_eq!(p.a.poll_transmit(), None, "the owner is still changing its queue pair's state");
    p.a.delay(p.now, a, TimeoutCode::new(20)).unwrap();
    let mra = p.a.poll_transmit().unwrap();
    assert!(matches!(message(&mra), Message::MessageReceiptAck(m) if m.message == MessageMraed::Reply));
    p.at_a(&rep);
    assert_eq!(p.a.poll_transmit(), Some(mra.clone()));
    p.at_b(&mra);
    assert_eq!(p.b.state(b), Some(State::MraRepRcvd));
    p.a.ready(p.now, a).unwrap();
    p.pump();
    assert_eq!(p.b.state(b), Some(State::Established));
}

#[test]
fn a_reply_from_a_queue_pair_in_use_is_stale() {
    let mut p = Pair::new();
    let (old, ..) = p.established(0x11);
    // The listener has restarted, and its queue pair has the old number.
    p.b = ConnectionTable::new(Config::new(77, Guid(2 << 8)));
    p.b.listen(SERVICE).unwrap();
    let (new, b, _) = p.requested(0x12);
    p.b.accept(p.now, b, &accept(0x1011)).unwrap();
    let rep = p.b.poll_transmit().unwrap();
    p.at_a(&rep);
    let reject = p.a.poll_transmit().unwrap();
    let Message::Reject(r) = message(&reject) else { panic!() };
    assert_eq!((r.reason, r.message), (RejectReason::StaleConnection, MessageRejected::Reply));
    assert_eq!((p.a.state(old), p.a.state(new)), (Some(State::DreqSent), None));
    p.at_b(&reject);
    assert_eq!(p.b.state(b), Some(State::Timewait));
}

#[test]
fn dreq_for_an_unknown_connection_gets_a_drep() {
    let mut p = Pair::new();
    let (a, ..) = p.established(0x11);
    p.a.disconnect(p.now, a).unwrap();
    let dreq = p.a.poll_transmit().unwrap();
    let mut stranger = table(3);
    stranger.handle_mad(p.now, &arrived(&dreq, 1));
    let drep = stranger.poll_transmit().unwrap();
    assert_eq!(drep.header().tid, dreq.header().tid);
    let (Message::DisconnectRequest(q), Message::DisconnectReply(r)) = (message(&dreq), message(&drep))
    else {
        panic!()
    };
    assert_eq!((r.local_comm_id, r.remote_comm_id), (q.remote_comm_id, q.local_comm_id));
    assert_empty(&stranger);
}

#[test]
fn dreq_for_another_queue_pair_is_ignored() {
    let mut p = Pair::new();
    let (a, b, _) = p.established(0x11);
    p.a.disconnect(p.now, a).unwrap();
    let mut dreq = p.a.poll_transmit().unwrap();
    dreq.bytes[24 + 10] ^= 1;
    p.at_b(&dreq);
    assert_eq!((p.b.poll_transmit(), p.b.state(b)), (None, Some(State::Established)));
    assert_eq!(p.b.counters().dropped(Dropped::WrongQp), 1);
}

#[test]
fn dreq_in_timewait_gets_the_drep_again() {
    let mut p = Pair::new();
    let (a, _, _) = p.established(0x11);
    p.a.disconnect(p.now, a).unwrap();
    let dreq = p.a.poll_transmit().unwrap();
    p.at_b(&dreq);
    let drep = p.b.poll_transmit().unwrap();
    p.at_b(&dreq);
    assert_eq!(p.b.poll_transmit(), Some(drep));
}

#[test]
fn crossing_dreqs_end_both() {
    let mut p = Pair::new();
    let (a, b, _) = p.established(0x11);
    p.a.disconnect(p.now, a).unwrap();
    p.b.disconnect(p.now, b).unwrap();
    p.pump();
    assert_eq!((p.a.state(a), p.b.state(b)), (Some(State::Timewait), Some(State::Timewait)));
    assert!(matches!(events(&mut p.a)[..], [Event::Disconnected { cause: DisconnectCause::Us, .. }]));
    assert!(matches!(events(&mut p.b)[..], [Event::Disconnected { cause: DisconnectCause::Us, .. }]));
}

#[test]
fn data_counts_as_rtu() {
    let mut p = Pair::new();
    let (_, b, ..) = p.accepted(0x11);
    p.b.communication_established(p.now, qpn(0x9999));
    assert_eq!(p.b.state(b), Some(State::RepSent));
    p.b.communication_established(p.now, qpn(0x1011));
    assert!(matches!(events(&mut p.b)[..], [Event::Established { id }] if id == b));
    assert_eq!(p.b.poll_timeout(), None, "the REP is not retransmitted");
    p.b.communication_established(p.now, qpn(0x1011));
    assert!(p.b.poll_event().is_none());
}

#[test]
fn reject_with_timeout_is_found_by_guid_and_peer_id() {
    let mut p = Pair::new();
    let (a, b, _) = p.requested(0x11);
    p.a.abandon(p.now, a).unwrap();
    let reject = p.a.poll_transmit().unwrap();
    let Message::Reject(r) = message(&reject) else { panic!() };
    assert_eq!((r.reason, r.remote_comm_id), (RejectReason::Timeout, CommId(0)));
    assert_eq!(r.used_info(), (1u64 << 8).to_be_bytes());
    assert!(matches!(events(&mut p.a)[..], [Event::Released { .. }]));
    p.at_b(&reject);
    assert!(matches!(events(&mut p.b)[..], [Event::Rejected { id, .. }, Event::Released { .. }] if id == b));
    assert_empty(&p.a);
    assert_empty(&p.b);
}

#[test]
fn reject_of_a_request_names_no_id_of_ours() {
    let mut p = Pair::new();
    let (a, b, _) = p.requested(0x11);
    p.b.reject(p.now, b, RejectReason::Consumer, &[5; 148]).unwrap();
    let reject = p.b.poll_transmit().unwrap();
    let Message::Reject(r) = message(&reject) else { panic!() };
    assert_eq!((r.local_comm_id, r.remote_comm_id), (CommId(0), a.comm_id()));
    p.at_a(&reject);
    let all = events(&mut p.a);
    assert!(matches!(&all[0], Event::Rejected { reject, .. } if reject.private_data == [5; 148]));
    assert_empty(&p.a);
    assert_empty(&p.b);

    assert!(matches!(events(&mut p.b)[..], [Event::Released { .. }]));
    let (_, b, _) = p.requested(0x12);
    p.b.delay(p.now, b, TimeoutCode::new(20)).unwrap();
    p.b.poll_transmit();
    p.b.reject(p.now, b, RejectReason::Consumer, &[]).unwrap();
    assert!(matches!(only(&mut p.b), Message::Reject(r) if r.local_comm_id == b.comm_id()));
}

#[test]
fn abandoning_an_established_connection_disconnects_quietly() {
    let mut p = Pair::new();
    let (a, ..) = p.established(0x11);
    p.a.abandon(p.now, a).unwrap();
    assert!(matches!(only(&mut p.a), Message::DisconnectRequest(_)));
    p.run_out();
    assert!(matches!(events(&mut p.a)[..], [Event::Released { .. }]));
    assert_empty(&p.a);
}

#[test]
fn a_request_without_answer_is_sent_sixteen_times() {
    let mut p = Pair::new();
    let start = p.now;
    p.dial(0x11);
    p.run_out();
    use ib_wire::cm::AttributeId as A;
    assert_eq!((p.a.counters().sent(A::Request), p.a.counters().retransmitted(A::Request)), (16, 15));
    assert!(matches!(events(&mut p.a)[..], [Event::TimedOut { .. }, Event::Released { .. }]));
    // 4096 ms for the peer, twice 1024 ms for the transit.
    assert_eq!(p.now - start, Duration::from_millis(16 * 6144));
    assert_eq!(p.a.counters().rejects_sent(RejectReason::Timeout), 1);
    assert_empty(&p.a);
}

#[test]
fn a_reply_without_answer_is_given_up_and_an_owner_that_never_answers_too() {
    let mut p = Pair::new();
    p.accepted(0x11);
    p.requested(0x12);
    p.run_out();
    use ib_wire::cm::AttributeId as A;
    assert_eq!(p.b.counters().sent(A::Reply), 16);
    let all = events(&mut p.b);
    assert_eq!(all.iter().filter(|e| matches!(e, Event::TimedOut { .. })).count(), 2, "{all:?}");
    assert_empty(&p.b);
}

#[test]
fn a_reject_for_a_given_up_reply_reaches_an_established_peer() {
    let mut p = Pair::new();
    let (a, _, _, rep) = p.accepted(0x11);
    p.at_a(&rep);
    p.a.poll_event();
    p.a.ready(p.now, a).unwrap();
    p.a.poll_transmit();
    let mut last = None;
    while p.b.counters().rejects_sent(RejectReason::Timeout) == 0 {
        p.now = p.b.poll_timeout().unwrap();
        p.b.handle_timeout(p.now);
        last = p.b.poll_transmit();
    }
    p.at_a(&last.unwrap());
    assert_eq!(p.a.state(a), Some(State::Timewait));
}

#[test]
fn a_permissive_lid_is_replaced_by_the_datagram_s() {
    let mut p = Pair::new();
    p.dial(0x11);
    let mut req = p.a.poll_transmit().unwrap();
    req.bytes[24 + 52..24 + 54].copy_from_slice(&[0xff, 0xff]);
    p.at_b(&req);
    let Some(Event::Requested { request, .. }) = p.b.poll_event() else { panic!() };
    assert_eq!(request.path.dlid, Lid(1));
}

#[test]
fn unusable_requests_are_rejected_with_their_reason() {
    let cases: [(usize, u8, RejectReason); 3] = [
        (43, 1 << 1, RejectReason::InvalidTransport),
        (50, 0, RejectReason::InvalidMtu),
        (50, 6 << 4, RejectReason::InvalidMtu),
    ];
    for (at, value, reason) in cases {
        let mut p = Pair::new();
        p.dial(0x11);
        let mut req = p.a.poll_transmit().unwrap();
        req.bytes[24 + at] = value;
        p.at_b(&req);
        assert!(matches!(only(&mut p.b), Message::Reject(r) if r.reason == reason), "{reason:?}");
        assert_empty(&p.b);
    }
}

#[test]
fn alternate_paths_and_service_resolution_are_declined() {
    let mut p = Pair::new();
    let (a, b, _) = p.established(0x11);
    let body = {
        let mut bytes = [0; LoadAlternatePath::LEN];
        bytes[..4].copy_from_slice(&a.comm_id().0.to_be_bytes());
        bytes[4..8].copy_from_slice(&b.comm_id().0.to_be_bytes());
        LoadAlternatePath::parse(&bytes)
    };
    let peer = MadAddress::gsi(Lid(2), ServiceLevel::new(0));
    p.at_b(&Mad { peer, bytes: Message::from(body).to_bytes(Tid(5)) });
    let answer = only(&mut p.b);
    assert!(matches!(answer, Message::AlternatePathResponse(r) if r.status == AprStatus::Unsupported));
    let sidr =
        SidrRequest { request_id: 3, pkey: PKey::DEFAULT, service_id: SERVICE, private_data: [0; 216] };
    p.at_b(&Mad { peer, bytes: Message::from(sidr).to_bytes(Tid(6)) });
    assert!(matches!(only(&mut p.b), Message::SidrReply(r) if r.request_id == 3));
}

#[test]
fn an_alternate_path_in_a_request_is_declined() {
    for (lid, failover) in [(0, Failover::Accepted), (9, Failover::NotSupported)] {
        let mut p = Pair::new();
        p.dial(0x11);
        let mut req = p.a.poll_transmit().unwrap();
        req.bytes[24 + 96 + 1] = lid;
        p.at_b(&req);
        let Some(Event::Requested { id, .. }) = p.b.poll_event() else { panic!() };
        p.b.accept(p.now, id, &accept(0x22)).unwrap();
        assert!(matches!(only(&mut p.b), Message::Reply(r) if r.failover == failover));
    }
}

#[test]
fn calls_in_the_wrong_state_are_refused() {
    let mut p = Pair::new();
    let (a, b, _) = p.established(0x11);
    assert_eq!(p.a.ready(p.now, a), Err(TableError::State(State::Established)));
    assert_eq!(p.b.accept(p.now, b, &accept(0x99)), Err(TableError::State(State::Established)));
    let long = ConnectRequest::ipoib(SERVICE, qpn(0x12), path(1, 2), &[0; 93]);
    assert_eq!(p.a.connect(p.now, long), Err(TableError::PrivateData { len: 93, max: 92 }));
    let taken = ConnectRequest::ipoib(SERVICE, qpn(0x11), path(1, 2), &[]);
    assert_eq!(p.a.connect(p.now, taken), Err(TableError::QpInUse(qpn(0x11))));
    assert_eq!(p.b.ready(p.now, a), Err(TableError::Unknown(a)));
}

#[test]
fn communication_ids_differ_from_start_to_start() {
    let first = |seed| {
        let mut t = ConnectionTable::new(Config::new(seed, Guid(1)));
        let request = ConnectRequest::ipoib(SERVICE, qpn(0x11), path(1, 2), &[]);
        t.connect(Instant::now(), request).unwrap().comm_id()
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
}

#[test]
fn what_is_not_of_the_cm_is_counted() {
    let mut p = Pair::new();
    p.dial(0x11);
    let mut mad = p.a.poll_transmit().unwrap();
    let mut header: MadHeader = mad.header();
    header.class_version = 1;
    header.put(&mut mad.bytes);
    p.at_b(&mad);
    let stray = Reject { remote_comm_id: CommId(5), ..Reject::default() };
    p.at_b(&Mad { peer: mad.peer, bytes: Message::from(stray).to_bytes(Tid(0)) });
    assert_eq!(p.b.counters().dropped(Dropped::Malformed), 1);
    assert_eq!(p.b.counters().dropped(Dropped::UnknownConnection), 1);
    assert_empty(&p.b);
}
