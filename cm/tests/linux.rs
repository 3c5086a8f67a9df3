//! Comparison with a capture of two Linux kernels: our messages in the same situation, byte for byte.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::time::Instant;

use cm::Path;
use cm::connection::{AcceptParams, Config, ConnectRequest, ConnectionTable, Event};
use ib_wire::cm::{Message, Reply, Request};
use ib_wire::mad::{MAD_LEN, Mad, MadAddress};
use ib_wire::sa::LifeTime;
use ib_wire::{Lid, TimeoutCode};

const CAPTURE: &[u8] = include_bytes!("../wire/tests/data/linux-ipoib-cm-rocev2.pcap");

/// Returns the MADs of the capture: Ethernet, IPv6, UDP, BTH, DETH, MAD.
fn mads() -> Vec<[u8; MAD_LEN]> {
    let mut rest = &CAPTURE[24..];
    let mut out = Vec::new();
    while let Some((header, tail)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (p, tail) = tail.split_at(len);
        if p[12..14] == [0x86, 0xdd]
            && p[56..58] == 4791u16.to_be_bytes()
            && p[62] == 0x64
            && p[67..70] == [0, 0, 1]
        {
            out.push(p[82..82 + MAD_LEN].try_into().unwrap());
        }
        rest = tail;
    }
    out
}

/// Returns a REQ and its REP.
fn handshake() -> ([u8; MAD_LEN], Request, [u8; MAD_LEN], Reply) {
    let messages: Vec<_> = mads().into_iter().filter_map(|b| Some((b, Message::parse(&b).ok()?.1))).collect();
    let (req_bytes, req) = messages
        .iter()
        .find_map(|(b, m)| if let Message::Request(r) = m { Some((*b, *r)) } else { None })
        .unwrap();
    let (rep_bytes, rep) = messages
        .iter()
        .find_map(|(b, m)| match m {
            Message::Reply(r) if r.remote_comm_id == req.local_comm_id => Some((*b, *r)),
            _ => None,
        })
        .unwrap();
    (req_bytes, req, rep_bytes, rep)
}

fn path_of(req: &Request) -> Path {
    Path {
        sgid: req.primary.local_gid,
        dgid: req.primary.remote_gid,
        slid: req.primary.local_lid,
        dlid: req.primary.remote_lid,
        pkey: req.pkey,
        sl: req.primary.sl,
        mtu: req.path_mtu.mtu().unwrap(),
        rate: req.primary.rate,
        life_time: LifeTime::new(req.primary.ack_timeout.code() - 1),
        flow_label: req.primary.flow_label,
        hop_limit: req.primary.hop_limit,
        traffic_class: req.primary.traffic_class,
    }
}

fn table(seed: u64, ca_guid: ib_wire::Guid) -> ConnectionTable {
    // The virtual device of the capture has an ACK delay that is negligible compared with the path's
    // lifetime.
    ConnectionTable::new(Config { ack_delay: TimeoutCode::new(0), ..Config::new(seed, ca_guid) })
}

/// Returns the offsets at which two datagrams differ, except for the transaction ID.
fn differences(a: &[u8; MAD_LEN], b: &[u8; MAD_LEN]) -> Vec<usize> {
    (0..MAD_LEN).filter(|i| !(8..16).contains(i) && a[*i] != b[*i]).collect()
}

#[test]
fn our_request_is_linux_s() {
    let (bytes, req, ..) = handshake();
    let mut table = table(1, req.ca_guid);
    let mut request = ConnectRequest::ipoib(req.service_id, req.local_qpn, path_of(&req), &req.private_data);
    request.srq = req.srq;
    let id = table.connect(Instant::now(), request).unwrap();
    let mut ours = table.poll_transmit().unwrap();
    assert_eq!(ours.bytes[24..28], id.comm_id().0.to_be_bytes());
    ours.bytes[24..28].copy_from_slice(&req.local_comm_id.0.to_be_bytes());
    assert_eq!(differences(&ours.bytes, &bytes), [], "ours {:02x?}\nLinux {:02x?}", ours.bytes, bytes);
}

#[test]
fn our_reply_to_linux_is_linux_s() {
    let (req_bytes, req, rep_bytes, rep) = handshake();
    let mut table =
        ConnectionTable::new(Config { ack_delay: rep.target_ack_delay, ..Config::new(1, rep.ca_guid) });
    table.listen(req.service_id).unwrap();
    let now = Instant::now();
    let peer = MadAddress::gsi(Lid(7), ib_wire::ServiceLevel::new(0));
    table.handle_mad(now, &Mad { peer, bytes: Box::new(req_bytes) });
    let Some(Event::Requested { id, request }) = table.poll_event() else { panic!("no request") };
    assert_eq!(request.remote_qpn, req.local_qpn);
    assert_eq!(request.path.dgid, req.primary.local_gid);
    let mut params = AcceptParams::ipoib(rep.local_qpn, rep.starting_psn, &request, &rep.private_data);
    params.srq = rep.srq;
    table.accept(now, id, &params).unwrap();
    let mut ours = table.poll_transmit().unwrap();
    assert_eq!(ours.header().tid, Mad { peer, bytes: Box::new(req_bytes) }.header().tid);
    ours.bytes[24..28].copy_from_slice(&rep.local_comm_id.0.to_be_bytes());
    assert_eq!(
        differences(&ours.bytes, &rep_bytes),
        [],
        "ours {:02x?}\nLinux {:02x?}",
        ours.bytes,
        rep_bytes
    );
}
