mod beyond;
mod packets;
mod short;
mod step;
mod tables;

use std::net::Ipv4Addr;

use etherparse::PacketBuilder;
use ib_wire::{Lid, Qpn, ServiceLevel};
use pmd::hca::{Checksum, RcSlot, Source, UdSource};
use pmd::mem::{FrameFacts, FrameTag};

use super::*;
use ipoib::link::{RcPath, WorkerIndex};
use ipoib::net::ethernet::MacAddress;
use ipoib::net::{fragment, icmp};

const GATEWAY_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);
const ETH_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);
const ETH: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Has a connection that takes 65,520 bytes.
const IB_RC: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Datagram only; needs a connection.
const IB_UD: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
/// Its path is being resolved.
const IB_PATHLESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 4);
const UNKNOWN_HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);

/// The worker of the verdicts.
const WORKER: WorkerIndex = WorkerIndex(0);

/// The verdict on a whole frame.
fn eth<'t>(t: &'t Draft<&'static str>, frame: &[u8]) -> EthVerdict<'t, &'static str> {
    eth_of(t, frame, frame.len())
}

/// The verdict on a frame that starts with `head`.
fn eth_of<'t, D: Clone>(t: &'t Draft<D>, head: &[u8], len: usize) -> EthVerdict<'t, D> {
    match FrameHead::parse(head, FrameFacts::default()) {
        Ok(front) => eth_to_ib(head, &front, len, t.table(), WORKER),
        Err(reason) => EthVerdict::Drop(reason),
    }
}

fn tables() -> Draft<&'static str> {
    let mut settings = Settings::new(GATEWAY_MAC);
    settings.address = GatewayAddress::new(GATEWAY, 24);
    settings.broadcast = Some("broadcast");
    settings.groups = vec![(Ipv4Addr::new(224, 0, 0, 251), "mdns"), (Ipv4Addr::new(239, 1, 1, 1), "joined")];
    settings.own_lid = Lid(7);
    settings.own_qpns.push(Qpn::new(0x48));
    let mut tables = Draft::new(1, settings, MAX_NEIGHBOURS, 1);
    let connected = rc(Some(RcPath { slot: RcSlot(5), mtu: 65_524 }));
    tables.set_ib(IB_RC, IbNeighbour { ud: Some("rc-host"), rc: connected, dial: true }).unwrap();
    tables.set_ib(IB_UD, IbNeighbour { ud: Some("ud-host"), rc: rc(None), dial: true }).unwrap();
    tables.set_ib(IB_PATHLESS, IbNeighbour { ud: None, rc: rc(None), dial: false }).unwrap();
    tables.set_eth(ETH, EthNeighbour { mac: ETH_MAC }).unwrap();
    tables
}

/// The first worker's connection.
fn rc(path: Option<RcPath>) -> RcPaths {
    RcPaths::new(&[path])
}

/// A UDP packet with a total length of `len` bytes.
fn ip(source: Ipv4Addr, destination: Ipv4Addr, len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len - 28).map(|i| (i * 7) as u8).collect();
    let mut out = Vec::new();
    PacketBuilder::ipv4(source.octets(), destination.octets(), 64)
        .udp(1000, 2000)
        .write(&mut out, &payload)
        .unwrap();
    // The builder sets DF.
    with(out, |p| p[6] = 0)
}

/// Changes a header and updates its checksum.
fn with(mut packet: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut packet);
    let header_len = usize::from(packet[0] & 0xf) * 4;
    packet[10..12].fill(0);
    let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&packet[..header_len]).ones_complement();
    packet[10..12].copy_from_slice(&sum.to_ne_bytes());
    packet
}

fn dont_fragment(packet: Vec<u8>) -> Vec<u8> {
    with(packet, |p| p[6] |= 0x40)
}

fn frame(destination: MacAddress, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&destination.0[..], &ETH_MAC.0, &ethertype.to_be_bytes(), payload].concat()
}

fn message(payload: &[u8]) -> Vec<u8> {
    [&[0x08, 0, 0, 0], payload].concat()
}

fn ud(multicast: bool) -> Source {
    let (qpn, slid, sl) = (Qpn::new(0x99), Lid(9), ServiceLevel::default());
    Source::Ud(UdSource { qpn, slid, sl, dlid_path_bits: 0, pkey_index: 0, has_grh: multicast, multicast })
}

fn reassemble(packet: &[u8], pieces: &[Vec<u8>]) -> Vec<u8> {
    let header_len = usize::from(packet[0] & 0xf) * 4;
    let mut out = packet[..header_len].to_vec();
    for piece in pieces {
        let parsed = etherparse::Ipv4Slice::from_slice(piece).unwrap();
        let header = parsed.header();
        assert_eq!(header.fragments_offset().byte_offset() as usize, out.len() - header_len);
        assert_eq!(header.header_checksum(), header.to_header().calc_header_checksum());
        assert_eq!(header.identification(), u16::from_be_bytes([packet[4], packet[5]]));
        out.extend_from_slice(parsed.payload().payload);
    }
    out
}

fn cut(packet: &[u8], mtu: u16) -> Vec<Vec<u8>> {
    let view = ipoib::net::ipv4::Ipv4View::parse(packet, packet.len()).unwrap();
    fragment::fragments(&view, mtu)
        .unwrap()
        .map(|f| [&f.header[..], &packet[f.offset..f.offset + f.len]].concat())
        .collect()
}
