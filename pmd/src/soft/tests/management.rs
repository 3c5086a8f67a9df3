//! Tests of two devices as adapters: datagrams of queue pair 1 through the driver's rings.

use std::time::Instant;

use ib_wire::mad::{Mad, MadAddress, MadHeader, Method, MgmtClass, Route};
use ib_wire::perf;
use ib_wire::smp::{self, Lmc, PortInfo, Smp, attribute};
use ib_wire::{Guid, Lid, Mtu, PKey, QKey, Qpn, Rate, ServiceLevel, Tid};

use super::PORT;
use crate::hca::{AddressVector, Backend, Control, GlobalRoute, PortNumber, PortState, UdDestination};
use crate::soft::{SoftConfig, SoftHca};
use connectx::DropReason;
use connectx::cable::CableEnd;

pub(super) fn device(lid: u16) -> SoftHca {
    SoftHca::new(&SoftConfig {
        name: format!("soft{lid}"),
        node_guid: Guid(0x100 + u64::from(lid)),
        port_guids: vec![Guid(0x1000 + u64::from(lid)), Guid(0x2000 + u64::from(lid))],
        max_mtu: Mtu::B4096,
        gid_table: 8,
        seed: 1,
    })
    .unwrap()
}

pub(super) fn joined() -> (SoftHca, SoftHca) {
    let (left, right) = CableEnd::pair().unwrap();
    let (mut a, mut b) = (device(1), device(2));
    for (lid, cable, hca) in [(1, left, &mut a), (2, right, &mut b)] {
        hca.set_cable(PORT, Some(cable)).unwrap();
        hca.engine().lock().activate(PORT, Lid(lid), Mtu::B4096).unwrap();
    }
    (a, b)
}

/// `from` assigns another LID and LID mask to the port at `to`, as a subnet manager does.
pub(super) fn mask_lid(from: &mut SoftHca, to: &SoftHca, lid: Lid, lmc: u8) {
    let at = to.port(PORT).unwrap().lid;
    let get = Smp::lid_routed(Method::Get, Tid(1), attribute::PORT_INFO, 1);
    from.send_mad(PORT, &get.to_mad(at)).unwrap();
    to.engine().lock().step(Instant::now());
    let answer = from.receive_mad(PORT).unwrap().expect("an answer");
    let info: PortInfo = Smp::from_mad(&answer.bytes).unwrap().attribute().unwrap();
    let info = PortInfo { lid, lmc: Lmc::new(lmc), state: smp::PortState::NoChange, ..info };
    let set = Smp::lid_routed(Method::Set, Tid(2), attribute::PORT_INFO, 1).with(&info);
    from.send_mad(PORT, &set.to_mad(at)).unwrap();
    to.engine().lock().step(Instant::now());
    assert_eq!((to.port(PORT).unwrap().lid, to.port(PORT).unwrap().lmc), (lid, lmc));
    assert!(from.receive_mad(PORT).unwrap().is_some());
}

fn mad(to: MadAddress, tid: u64) -> Mad {
    let mut bytes = Box::new([0; 256]);
    MadHeader::new(MgmtClass::ComMgt, 2, Method::Send, Tid(tid), 0x10).put(&mut bytes);
    bytes[255] = tid as u8;
    Mad { peer: to, bytes }
}

#[test]
fn management_datagrams_come_with_the_address_of_their_sender() {
    let (mut a, mut b) = joined();
    let to = MadAddress::gsi(Lid(2), ServiceLevel::new(3));
    // More than the rings have room for, over several rounds.
    for round in 0..40u64 {
        for i in 0..20 {
            a.send_mad(PORT, &mad(to, round * 20 + i)).unwrap();
        }
        for i in 0..20 {
            let got = b.receive_mad(PORT).unwrap().expect("a datagram");
            assert_eq!(got.header().tid, Tid(round * 20 + i));
            assert_eq!(got.bytes[255], (round * 20 + i) as u8);
            let expected = MadAddress {
                lid: Lid(1),
                qpn: Qpn::GSI,
                qkey: QKey(0),
                sl: ServiceLevel::new(3),
                path_bits: 0,
                pkey_index: 0,
                route: None,
            };
            assert_eq!(got.peer, expected);
        }
        assert!(b.receive_mad(PORT).unwrap().is_none());
        assert!(a.receive_mad(PORT).unwrap().is_none());
    }
    assert!(b.receive_mad(PortNumber(3)).is_err());
    assert_eq!(b.port(PORT).unwrap().state, PortState::Active);
    assert_eq!(b.port(PortNumber(2)).unwrap().state, PortState::Down);
}

#[test]
fn a_port_reports_its_counters_and_users_do_not_see_the_query() {
    let (mut a, mut b) = joined();
    let to = MadAddress::gsi(Lid(2), ServiceLevel::new(0));
    for tid in 0..5 {
        a.send_mad(PORT, &mad(to, tid)).unwrap();
        assert!(b.receive_mad(PORT).unwrap().is_some());
    }
    let mut question = mad(to, 0x77);
    MadHeader::new(MgmtClass::Perf, 1, Method::Get, Tid(0x77), perf::attribute::PORT_COUNTERS)
        .put(&mut question.bytes);
    question.bytes[perf::DATA + 1] = 1;
    a.send_mad(PORT, &question).unwrap();
    a.send_mad(PORT, &mad(to, 6)).unwrap();
    assert_eq!(b.receive_mad(PORT).unwrap().expect("the next datagram").header().tid, Tid(6));
    let answer = a.receive_mad(PORT).unwrap().expect("an answer");
    assert_eq!((answer.header().method, answer.header().tid), (Method::GetResp, Tid(0x77)));
    let counters = perf::PortCounters::parse(answer.bytes[perf::DATA..].first_chunk().unwrap());
    assert_eq!(counters.receive_packets, 7);
    // Any other datagram goes to the listener.
    MadHeader::new(MgmtClass::Perf, 1, Method::GetResp, Tid(0x78), perf::attribute::PORT_COUNTERS)
        .put(&mut question.bytes);
    a.send_mad(PORT, &question).unwrap();
    assert_eq!(b.receive_mad(PORT).unwrap().expect("an unexpected response").header().tid, Tid(0x78));
}

#[test]
fn route_and_partition_of_a_datagram_are_kept() {
    let (mut a, mut b) = joined();
    for hca in [&a, &b] {
        hca.engine().lock().set_pkey(PORT, 4, PKey(0x8777)).unwrap();
    }
    let gid = b.gid(PORT, 0).unwrap();
    let route = Route { gid, sgid_index: 0, flow_label: 0x777, hop_limit: 1, traffic_class: 2 };
    let to =
        MadAddress { pkey_index: 4, route: Some(route), ..MadAddress::gsi(Lid(2), ServiceLevel::new(0)) };
    a.send_mad(PORT, &mad(to, 1)).unwrap();
    let got = b.receive_mad(PORT).unwrap().expect("a datagram");
    assert_eq!(got.peer.pkey_index, 4);
    assert_eq!(got.peer.route, Some(Route { gid: a.gid(PORT, 0).unwrap(), ..route }));
    // The response uses the address of the query.
    b.send_mad(PORT, &Mad { peer: got.peer.reply(), ..got }).unwrap();
    assert_eq!(a.receive_mad(PORT).unwrap().expect("a response").peer.pkey_index, 4);
    b.engine().lock().set_pkey(PORT, 4, PKey(0)).unwrap();
    a.send_mad(PORT, &mad(to, 2)).unwrap();
    assert!(b.receive_mad(PORT).unwrap().is_none());
    assert_eq!(b.counters().drops(DropReason::PartitionKey), 1);
}

/// IBA 13.5.4: a response comes from the LID that the query was sent to.
#[test]
fn responses_come_from_the_queried_lid() {
    let (mut a, mut b) = joined();
    mask_lid(&mut b, &a, Lid(4), 2);
    for lid in 4..8 {
        b.send_mad(PORT, &mad(MadAddress::gsi(Lid(lid), ServiceLevel::new(0)), 1)).unwrap();
        let got = a.receive_mad(PORT).unwrap().expect("a datagram");
        assert_eq!((got.peer.lid, got.peer.path_bits), (Lid(2), lid as u8 - 4));
        a.send_mad(PORT, &Mad { peer: got.peer.reply(), ..got }).unwrap();
        let answer = b.receive_mad(PORT).unwrap().expect("an answer");
        assert_eq!((answer.peer.lid, answer.peer.path_bits), (Lid(lid), 0));
        // The agent does the same.
        let get = Smp::lid_routed(Method::Get, Tid(3), attribute::PORT_INFO, 1);
        b.send_mad(PORT, &get.to_mad(Lid(lid))).unwrap();
        a.engine().lock().step(Instant::now());
        assert_eq!(b.receive_mad(PORT).unwrap().expect("an answer").peer.lid, Lid(lid));
    }
}

#[test]
fn a_full_queue_says_so() {
    let (mut a, _b) = joined();
    let to = MadAddress::gsi(Lid(2), ServiceLevel::new(0));
    // The completions are not fetched.
    let sent = (0..1000).take_while(|&i| a.send_mad(PORT, &mad(to, i)).is_ok()).count();
    assert_eq!(sent, 128);
    assert!(a.receive_mad(PORT).unwrap().is_none());
    a.send_mad(PORT, &mad(to, 0)).unwrap();
}

/// The kernel does the same at the port of a virtual function.
#[test]
fn a_port_that_requires_a_grh_refuses_addresses_without() {
    let (mut a, mut b) = joined();
    b.require_grh(PORT).unwrap();
    assert!(b.port(PORT).unwrap().grh_required && !a.port(PORT).unwrap().grh_required);
    let plain = MadAddress::gsi(Lid(1), ServiceLevel::new(0));
    let routed = plain.with_gid(a.gid(PORT, 0).unwrap());
    let refused = b.send_mad(PORT, &mad(plain, 1)).unwrap_err().to_string();
    assert!(refused.contains("requires a GRH") && refused.contains("hop limit"), "{refused}");
    b.send_mad(PORT, &mad(routed, 2)).unwrap();
    a.engine().lock().step(Instant::now());
    let arrived = a.receive_mad(PORT).unwrap().expect("the second one");
    assert_eq!((arrived.bytes[255], arrived.peer.route.map(|r| r.gid)), (2, Some(b.gid(PORT, 0).unwrap())));
    // The response uses the same GIDs and arrives.
    a.send_mad(PORT, &Mad { peer: arrived.peer.reply(), bytes: arrived.bytes }).unwrap();
    b.engine().lock().step(Instant::now());
    assert!(b.receive_mad(PORT).unwrap().is_some());
    a.send_mad(PORT, &mad(MadAddress::gsi(Lid(2), ServiceLevel::new(0)), 3)).unwrap();
    b.engine().lock().step(Instant::now());
    assert!(b.receive_mad(PORT).unwrap().is_none(), "the LID alone belongs to another port");

    let destination = |grh| UdDestination {
        av: AddressVector { dlid: Lid(1), sl: plain.sl, src_path_bits: 0, rate: Rate::new(0), grh },
        qpn: Qpn::new(7),
        qkey: None,
    };
    let dgid = a.gid(PORT, 0).unwrap();
    let route = GlobalRoute { dgid, sgid_index: 0, flow_label: 0, hop_limit: 0, traffic_class: 0 };
    assert!(b.destination(PORT, &destination(None)).is_err());
    assert!(b.destination(PORT, &destination(Some(route))).is_ok());
    assert!(a.destination(PORT, &destination(None)).is_ok());
}
