//! Requests of a host to the agents of its own port.

use ib_wire::mad::{MAD_LEN, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::perf::{self, PortCounters, PortCountersExtended};
use ib_wire::smp::{NodeInfo, PortInfo, Smp, attribute};
use ib_wire::{Lid, Tid};

use super::rig::{PORT, Rig, To, data};
use crate::MKeyCheck;
use crate::engine::Engine;

fn counters(engine: &mut Engine, method: Method, id: u16, port: u8, select: u16) -> (MadStatus, [u8; 192]) {
    let mut mad = [0; MAD_LEN];
    MadHeader::new(MgmtClass::Perf, perf::CLASS_VERSION, method, Tid(7), id).put(&mut mad);
    mad[perf::DATA + 1] = port;
    mad[perf::DATA + 2..perf::DATA + 4].copy_from_slice(&select.to_be_bytes());
    let answer = engine.management(PORT, &mad, MKeyCheck::Due).unwrap();
    let header = MadHeader::of(&answer);
    assert_eq!((header.method, header.tid), (Method::GetResp, Tid(7)));
    (header.status, *answer[perf::DATA..].first_chunk().unwrap())
}

#[test]
fn the_subnet_management_agent_answers_its_host() {
    let mut rig = Rig::new();
    let ask = |engine: &mut Engine, id| {
        let smp = Smp::lid_routed(Method::Get, Tid(5), id, 0);
        let answer = engine.management(PORT, &smp.to_bytes(), MKeyCheck::Due).unwrap();
        Smp::from_mad(&answer).unwrap()
    };
    let port = ask(&mut rig.a.engine, attribute::PORT_INFO).attribute::<PortInfo>().unwrap();
    assert_eq!((port.lid, port.local_port), (Lid(1), 1));
    let node = ask(&mut rig.a.engine, attribute::NODE_INFO).attribute::<NodeInfo>().unwrap();
    assert_eq!(node.port_guid, rig.a.engine.port_attributes(PORT).unwrap().guid);
    assert_eq!(ask(&mut rig.a.engine, 0x7777).status(), MadStatus::UNSUPPORTED_ATTRIBUTE);
}

#[test]
fn other_mads_than_requests_of_served_classes_have_no_response() {
    let mut rig = Rig::new();
    for (class, method) in [
        (MgmtClass::SubnLid, Method::GetResp),
        (MgmtClass::SubnLid, Method::Trap),
        (MgmtClass::Perf, Method::GetResp),
        (MgmtClass::SubnAdm, Method::Get),
    ] {
        let mut mad = [0; MAD_LEN];
        MadHeader::new(class, 1, method, Tid(1), attribute::PORT_INFO).put(&mut mad);
        assert!(rig.a.engine.management(PORT, &mad, MKeyCheck::Due).is_none(), "{class:?} {method:?}");
    }
}

#[test]
fn a_ports_counters_are_those_of_its_cable_since_they_were_cleared() {
    let mut rig = Rig::new();
    let mut tx = rig.a.ud(3, 1);
    let mut rx = rig.b.ud(3, 2);
    let (m, key) = rig.a.memory(64);
    let (into, into_key) = rig.b.memory(256);
    let to = To { lid: Lid(2), qpn: rx.qpn, qkey: 3, grh: None };
    for round in 1..=2 {
        for _ in 0..5 {
            rig.b.receive(&mut rx, &[data(256, into_key, into.address())]);
            rig.a.send_ud(&mut tx, &to, &[data(32, key, m.address())]);
        }
        rig.settle();
        // LRH, BTH, DETH, payload, ICRC, VCRC.
        let words = 5 * (8 + 12 + 8 + 32 + 4 + 2) / 4;
        let (status, bytes) = counters(&mut rig.a.engine, Method::Get, perf::attribute::PORT_COUNTERS, 1, 0);
        let sent = PortCounters::parse(&bytes);
        assert_eq!((status, sent.send_packets, sent.send_data), (MadStatus::OK, 5, words), "{round}");
        let id = perf::attribute::PORT_COUNTERS_EXTENDED;
        let (_, bytes) = counters(&mut rig.b.engine, Method::Get, id, 255, 0);
        let received = PortCountersExtended::parse(&bytes);
        assert_eq!((received.receive_packets, received.receive_data), (5, words.into()));
        for engine in [&mut rig.a.engine, &mut rig.b.engine] {
            let (_, bytes) = counters(engine, Method::Set, id, 1, 0xff);
            let cleared = PortCountersExtended::parse(&bytes);
            assert_eq!((cleared.send_packets, cleared.receive_packets), (0, 0));
        }
    }
    let (status, _) = counters(&mut rig.a.engine, Method::Get, perf::attribute::PORT_COUNTERS, 2, 0);
    assert_eq!(status, MadStatus::INVALID_FIELD);
    let (status, _) = counters(&mut rig.a.engine, Method::Get, 0x99, 1, 0);
    assert_eq!(status, MadStatus::UNSUPPORTED_ATTRIBUTE);
}
