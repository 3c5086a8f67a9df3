//! Messages from ports other than the peer's, and a port that requests everything.

use ib_wire::cm::{
    DisconnectReply, DisconnectRequest, InfoLength, LoadAlternatePath, MessageMraed, MessageReceiptAck,
    ReadyToUse, Reject, RejectReason, Reply, Request,
};
use ib_wire::mad::MadAddress;
use ib_wire::{CommId, Tid, TimeoutCode};

use super::*;
use crate::Subnet;

fn from(lid: u16) -> MadAddress {
    MadAddress::gsi(Lid(lid), ServiceLevel::new(0))
}

/// Returns every message that names a connection, with correct IDs, queue pairs and GUID.
fn messages(ours: CommId, theirs: CommId, qp: u32, guid: Guid) -> Vec<Message> {
    let ids = (theirs, ours);
    let (local_comm_id, remote_comm_id) = ids;
    let mut timeout = Reject { local_comm_id, remote_comm_id, ..Reject::default() };
    (timeout.reason, timeout.info_length) = (RejectReason::Timeout, InfoLength::new(8));
    timeout.info[..8].copy_from_slice(&guid.0.to_be_bytes());
    let reject = |reason| Reject { local_comm_id, remote_comm_id, reason, ..Reject::default() }.into();
    let mra = |message| {
        let service_timeout = TimeoutCode::new(20);
        MessageReceiptAck { local_comm_id, remote_comm_id, message, service_timeout, private_data: [0; 222] }
    };
    vec![
        ReadyToUse { local_comm_id, remote_comm_id, private_data: [0; 224] }.into(),
        DisconnectRequest { local_comm_id, remote_comm_id, remote_qpn: qpn(qp), private_data: [0; 220] }
            .into(),
        DisconnectReply { local_comm_id, remote_comm_id, private_data: [0; 224] }.into(),
        LoadAlternatePath {
            local_comm_id,
            remote_comm_id,
            ..LoadAlternatePath::parse(&[0; LoadAlternatePath::LEN])
        }
        .into(),
        Reply { local_comm_id, remote_comm_id, local_qpn: qpn(0x66), ca_guid: guid, ..Reply::default() }
            .into(),
        mra(MessageMraed::Request).into(),
        mra(MessageMraed::Reply).into(),
        timeout.into(),
        reject(RejectReason::InvalidMtu),
        reject(RejectReason::StaleConnection),
        reject(RejectReason::Consumer),
    ]
}

/// Sends all of them from another port to a connection in some state. The state must not change, and the
/// owner must get no event.
fn assert_deaf(table: &mut ConnectionTable, now: Instant, id: ConnId, qp: u32, guid: Guid, liar: MadAddress) {
    let (state, theirs) = (table.state(id), table.entries[&id.0].remote_comm_id);
    let until = table.entries[&id.0].deadline;
    for message in messages(id.0, theirs, qp, guid) {
        table.handle_mad(now, &Mad { peer: liar, bytes: message.to_bytes(Tid(1)) });
        assert_eq!(table.state(id), state, "{message:?}");
        assert_eq!(table.entries[&id.0].deadline, until, "{message:?}");
        assert_eq!(events(table).len(), 0, "{message:?}");
        let sent: Vec<_> =
            std::iter::from_fn(|| table.poll_transmit()).map(|mad| super::message(&mad)).collect();
        let says_nothing = |m: &Message| matches!(m, Message::DisconnectReply(r) if r.local_comm_id == id.0);
        assert!(sent.iter().all(says_nothing), "as for any unknown connection: {sent:?}");
    }
}

/// In each state of either side, and also from a virtual port with the peer's LID.
#[test]
fn only_the_peers_port_moves_a_connection() {
    let with_gid = |lid, n| from(lid).with_gid(Gid::new(Gid::DEFAULT_PREFIX, Guid(n)));
    for (peer, liar) in [
        (None, from(9)),
        (Some((1, 2)), with_gid(1, 77)),
        (Some((1, 2)), with_gid(9, 2)),
        (None, with_gid(9, 1)),
        // For the passive end, which has seen the peer's LID and GRH. The active end only has its own choice
        // of path.
        (Some((1, 2)), from(1)),
        (None, from(0)),
        (Some((1, 2)), with_gid(0, 1)),
    ] {
        let arrive = |mad: &Mad, lid| {
            let mut mad = arrived(mad, lid);
            if let Some((one, two)) = peer {
                let gid = if lid == 1 { one } else { two };
                mad.peer = with_gid(lid, gid);
            }
            mad
        };
        // At LID 1, a path with a GRH is used if the peer is a virtual port.
        let mut p = Pair::new();
        let hop_limit = u8::from(peer.is_some());
        let way = Path { hop_limit, ..path(1, 2) };
        let a = p.a.connect(p.now, ConnectRequest::ipoib(SERVICE, qpn(0x11), way, &[])).unwrap();
        let (guid_a, guid_b) = (Guid(1 << 8), Guid(2 << 8));
        let at_a = match (liar.lid, liar.route) {
            (Lid(0), _) | (Lid(1), None) => from(9),
            (Lid(1), _) => MadAddress { lid: Lid(2), ..liar },
            _ => liar,
        };
        let req = p.a.poll_transmit().unwrap();
        assert_deaf(&mut p.a, p.now, a, 0x11, guid_b, at_a);
        p.b.handle_mad(p.now, &arrive(&req, 1));
        let Some(Event::Requested { id: b, .. }) = p.b.poll_event() else { panic!("no request") };
        assert_deaf(&mut p.b, p.now, b, 0, guid_a, liar);
        p.b.accept(p.now, b, &accept(0x22)).unwrap();
        let rep = p.b.poll_transmit().unwrap();
        assert_deaf(&mut p.b, p.now, b, 0x22, guid_a, liar);
        p.a.handle_mad(p.now, &arrive(&rep, 2));
        assert!(matches!(p.a.poll_event(), Some(Event::Replied { .. })));
        assert_deaf(&mut p.a, p.now, a, 0x11, guid_b, at_a);
        p.a.ready(p.now, a).unwrap();
        let rtu = p.a.poll_transmit().unwrap();
        p.b.handle_mad(p.now, &arrive(&rtu, 1));
        assert!(matches!(p.b.poll_event(), Some(Event::Established { .. })), "{peer:?}");
        assert_deaf(&mut p.a, p.now, a, 0x11, guid_b, at_a);
        assert_deaf(&mut p.b, p.now, b, 0x22, guid_a, liar);
        p.a.disconnect(p.now, a).unwrap();
        let dreq = p.a.poll_transmit().unwrap();
        assert_deaf(&mut p.a, p.now, a, 0x11, guid_b, at_a);
        p.b.handle_mad(p.now, &arrive(&dreq, 1));
        assert_eq!(p.b.state(b), Some(State::Timewait));
    }
}

#[test]
fn all_lids_of_the_peers_port_are_the_peers() {
    for (lmc, lid, is_peer) in [(0, 8, true), (0, 9, false), (2, 11, true), (2, 12, false), (2, 7, false)] {
        let mut p = Pair::new();
        p.b.set_subnet(Subnet { lmc, ..Subnet::default() });
        let a = p.dial(0x11);
        let req = p.a.poll_transmit().unwrap();
        p.b.handle_mad(p.now, &arrived(&req, 8));
        let Some(Event::Requested { id: b, .. }) = p.b.poll_event() else { panic!("no request") };
        p.b.handle_mad(p.now, &arrived(&req, lid));
        assert_eq!(p.b.poll_event().is_none(), is_peer, "a duplicate, or another port's request");
        p.b.accept(p.now, b, &accept(0x22)).unwrap();
        let rtu = ReadyToUse { local_comm_id: a.0, remote_comm_id: b.0, private_data: [0; 224] };
        p.b.handle_mad(p.now, &Mad { peer: from(lid), bytes: Message::from(rtu).to_bytes(Tid(1)) });
        assert_eq!(p.b.state(b) == Some(State::Established), is_peer, "LMC {lmc}, LID {lid}");
    }
}

/// The peer's next message may come through another router with its own LID.
#[test]
fn behind_a_router_the_gid_identifies_the_peer() {
    let (far, other) = (Gid::new(7, Guid(1)), Gid::new(7, Guid(3)));
    for (lid, gid, is_peer) in [(20, far, true), (21, far, true), (20, other, false), (21, other, false)] {
        let mut p = Pair::new();
        let a = p.dial(0x11);
        let req = p.a.poll_transmit().unwrap();
        p.b.handle_mad(p.now, &Mad { peer: from(20).with_gid(far), bytes: req.bytes });
        let Some(Event::Requested { id: b, .. }) = p.b.poll_event() else { panic!("no request") };
        p.b.accept(p.now, b, &accept(0x22)).unwrap();
        let rtu = ReadyToUse { local_comm_id: a.0, remote_comm_id: b.0, private_data: [0; 224] };
        let peer = from(lid).with_gid(gid);
        p.b.handle_mad(p.now, &Mad { peer, bytes: Message::from(rtu).to_bytes(Tid(1)) });
        assert_eq!(p.b.state(b) == Some(State::Established), is_peer, "LID {lid}, {gid:?}");
    }
}

/// Returns a request of the hosts at a port, by number.
fn request(n: u32, guid: u64) -> Message {
    let mut request = Request {
        local_comm_id: CommId(n),
        service_id: SERVICE,
        ca_guid: Guid(guid),
        local_qpn: qpn(0x1000 + n),
        path_mtu: Mtu::B2048.into(),
        pkey: PKey::DEFAULT,
        local_response_timeout: TimeoutCode::new(31),
        remote_response_timeout: TimeoutCode::new(31),
        ..Request::default()
    };
    request.primary.ack_timeout = TimeoutCode::new(31);
    request.primary.subnet_local = true;
    request.into()
}

/// A port that sends requests continuously, sets maximum times and ends each connection: the table contains
/// only its share.
#[test]
fn one_port_cannot_fill_the_table() {
    let mut p = Pair::new();
    (p.b.config.max_connections, p.b.config.max_from_port) = (64, 16);
    let subnet = Subnet { lmc: 2, ..Subnet::default() };
    p.b.set_subnet(subnet);
    for n in 0..4000u32 {
        // From each of its LIDs, as one adapter and as several.
        let mad = Mad { peer: from(8 + n as u16 % 4), bytes: request(n, u64::from(n % 3)).to_bytes(Tid(1)) };
        p.b.handle_mad(p.now, &mad);
        for event in events(&mut p.b) {
            if let Event::Requested { id, .. } = event {
                p.b.accept(p.now, id, &accept(0x1_0000 + n)).unwrap();
                if n % 2 == 0 {
                    p.b.disconnect(p.now, id).unwrap();
                }
            }
        }
        p.wait(Duration::from_millis(1));
        while p.b.poll_transmit().is_some() {}
        assert!(p.b.len() <= 16, "{}", p.b.len());
    }
    assert!(p.b.counters().dropped(Dropped::OverShare) > 3000);
    assert_eq!(p.b.counters().dropped(Dropped::NoRoom), 0);
    // Neighboring ports have their own shares.
    for (n, lid) in [(1, 7), (2, 12)] {
        p.b.handle_mad(p.now, &Mad { peer: from(lid), bytes: request(n, 1).to_bytes(Tid(1)) });
        assert!(matches!(events(&mut p.b)[..], [Event::Requested { .. }]), "{lid}");
    }
    p.run_out();
    assert_empty(&p.b);
}

/// Many ports, each within its share.
#[test]
fn all_ports_together_leave_room_for_our_own_connections() {
    let mut p = Pair::new();
    (p.b.config.max_connections, p.b.config.max_begun, p.b.config.max_from_port) = (64, 48, 16);
    for n in 0..200u32 {
        let mad = Mad { peer: from(8 + n as u16), bytes: request(n, 1).to_bytes(Tid(1)) };
        p.b.handle_mad(p.now, &mad);
        events(&mut p.b);
    }
    assert_eq!((p.b.len(), p.b.counters().dropped(Dropped::NoRoom)), (48, 152));
    for n in 0..16 {
        p.b.connect(p.now, ConnectRequest::ipoib(SERVICE, qpn(0x11 + n), path(2, 1), &[])).unwrap();
    }
    p.run_out();
    assert_empty(&p.b);
}

#[test]
fn a_peer_cannot_choose_how_long_timewait_takes() {
    let mut p = Pair::new();
    p.b.handle_mad(p.now, &Mad { peer: from(8), bytes: request(1, 1).to_bytes(Tid(1)) });
    let Some(Event::Requested { id, .. }) = p.b.poll_event() else { panic!("no request") };
    p.b.accept(p.now, id, &accept(0x22)).unwrap();
    p.b.disconnect(p.now, id).unwrap();
    assert_eq!(p.b.state(id), Some(State::Timewait));
    assert!(p.b.poll_timeout().unwrap() <= p.now + p.b.config.max_timewait);
    assert!(p.b.config.max_timewait < p.b.config.max_wait);
}

/// The peer set maximum times. If the table is half full of peers' connections, the peer does not choose the
/// number of retransmissions either.
#[test]
fn a_peer_cannot_choose_how_long_its_drep_is_waited_for() {
    for (max_begun, repetitions) in [(1, 1), (2, 2)] {
        let mut p = Pair::new();
        p.b.config.max_begun = max_begun;
        p.b.handle_mad(p.now, &Mad { peer: from(8), bytes: request(1, 1).to_bytes(Tid(1)) });
        let Some(Event::Requested { id, .. }) = p.b.poll_event() else { panic!("no request") };
        p.b.accept(p.now, id, &accept(0x22)).unwrap();
        p.b.data_arrived(p.now, id);
        while p.b.poll_transmit().is_some() {}
        p.b.entries.get_mut(&id.0).unwrap().max_retries = 2;
        p.b.disconnect(p.now, id).unwrap();
        for n in 0..=repetitions {
            p.b.handle_timeout(p.now + n * Duration::from_secs(1));
            let dreqs = std::iter::from_fn(|| p.b.poll_transmit()).count();
            assert_eq!((p.b.state(id), dreqs), (Some(State::DreqSent), 1), "{n}");
        }
        p.b.handle_timeout(p.now + (repetitions + 1) * Duration::from_secs(1));
        assert_eq!(p.b.state(id), Some(State::Timewait));
    }
}

/// Peers see transaction IDs.
#[test]
fn transaction_ids_disclose_nothing_of_the_key_of_communication_ids() {
    let table = ConnectionTable::new(Config::new(3, Guid(1)));
    let high = table.tid(CommId(0)).0 >> 32;
    let mut random = crate::random::Random::new(3);
    assert!((0..16).all(|_| random.next_u64() >> 32 != high));
}
