//! Comparison with the requests of two Linux kernels to subnet administration: ours in the same situation,
//! byte for byte.

use std::net::Ipv4Addr;
use std::time::Instant;

use hca::PortState;
use ib_wire::ipoib::{GroupScope, multicast_gid};
use ib_wire::mad::{MAD_LEN, Mad, Method};
use ib_wire::sa::{McMemberRecord, PathRecord, SaMad};
use ib_wire::{Guid, Lid, Mtu, Qpn, ServiceLevel};

use super::fabric::OneLink;
use crate::link::{LinkSettings, PortFacts};

const CAPTURE: &[u8] = include_bytes!("../../../../../cm/wire/tests/data/linux-ipoib-cm-rocev2.pcap");

/// The SA datagrams of the capture: Ethernet, IPv6, UDP, BTH, DETH, MAD.
fn subnet_mads() -> Vec<[u8; MAD_LEN]> {
    let mut rest = &CAPTURE[24..];
    let mut out = Vec::new();
    while let Some((header, tail)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (p, tail) = tail.split_at(len);
        let datagram = p[12..14] == [0x86, 0xdd] && p[56..58] == 4791u16.to_be_bytes() && p[62] == 0x64;
        if datagram && p[67..70] == [0, 0, 1] && p[83] == 3 {
            out.push(p[82..82 + MAD_LEN].try_into().unwrap());
        }
        rest = tail;
    }
    out
}

fn method(mad: &[u8; MAD_LEN]) -> u8 {
    mad[3]
}

fn join_of(mad: &[u8; MAD_LEN]) -> Option<McMemberRecord> {
    (method(mad) == Method::Set.code()).then(|| SaMad::parse(mad).record()).flatten()
}

fn query_of(mad: &[u8; MAD_LEN]) -> Option<PathRecord> {
    (method(mad) == Method::Get.code()).then(|| SaMad::parse(mad).record()).flatten()
}

/// The next request of ours; its transaction ID need not agree.
fn next_request(link: &mut OneLink, now: Instant) -> Option<Mad> {
    while link.0.poll_action(now).is_some() {}
    link.0.poll_transmit(now)
}

fn assert_same(ours: &Mad, theirs: &[u8; MAD_LEN], what: &str) {
    let differences: Vec<usize> =
        (0..MAD_LEN).filter(|i| !(8..16).contains(i) && ours.bytes[*i] != theirs[*i]).collect();
    assert!(
        differences.is_empty(),
        "{what}: bytes {differences:?}; ours {:02x?}, theirs {theirs:02x?}",
        ours.bytes
    );
}

fn answer(link: &mut OneLink, now: Instant, to: &Mad, with: &[u8; MAD_LEN]) {
    let mut bytes = *with;
    bytes[8..16].copy_from_slice(&to.bytes[8..16]);
    assert!(link.0.handle_mad(now, &Mad { peer: to.peer, bytes: Box::new(bytes) }));
}

#[test]
fn joins_and_path_queries_are_linux_s() {
    let now = Instant::now();
    let mads = subnet_mads();
    let at = mads.iter().position(|m| join_of(m).is_some()).unwrap();
    let broadcast = join_of(&mads[at]).unwrap();
    let granted = mads[at..].iter().find(|m| method(m) == Method::GetResp.code()).unwrap();

    let settings = LinkSettings::new(broadcast.pkey, Qpn::new(0x11), 1);
    let mut link = OneLink::new(settings, Guid(1), 0, 8, now);
    let facts = PortFacts {
        state: PortState::Active,
        lid: Lid(1),
        lmc: 0,
        gid: broadcast.port_gid,
        sm_lid: Lid(1),
        sm_sl: ServiceLevel::new(0),
        mtu: Mtu::B4096,
        grh_required: false,
        default_pkey_index: 0,
        pkey_index: Some(0),
        limited: false,
    };
    link.handle_port(now, facts);
    let ours = next_request(&mut link, now).unwrap();
    assert_same(&ours, &mads[at], "join of the broadcast group");
    answer(&mut link, now, &ours, granted);

    let all_systems = Ipv4Addr::new(224, 0, 0, 1);
    let scope = GroupScope::new(link.settings().scope);
    let mgid = multicast_gid(all_systems.into(), broadcast.pkey, scope).unwrap();
    let joins =
        |m: &&[u8; MAD_LEN]| join_of(m).is_some_and(|r| r.mgid == mgid && r.port_gid == broadcast.port_gid);
    assert!(link.join(now, all_systems));
    let ours = next_request(&mut link, now).unwrap();
    assert_same(&ours, mads.iter().find(joins).unwrap(), "join of all systems");

    let asks = |m: &&[u8; MAD_LEN]| query_of(m).is_some_and(|r| r.sgid == broadcast.port_gid);
    let query = mads.iter().find(asks).unwrap();
    assert!(link.at_paths().want(now, query_of(query).unwrap().dgid, crate::link::paths::Reason::Needed));
    let ours = next_request(&mut link, now).unwrap();
    assert_same(&ours, query, "path query");
}
