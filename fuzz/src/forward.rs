//! The forwarding step on any frame and any message: what it lets through fits the way that it names, and the pieces of
//! what it cuts are good packets that together carry the whole payload.

use std::net::Ipv4Addr;

use ib_wire::{Lid, Qpn, ServiceLevel};
use ipoib::link::RcPath;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, MacAddress};
use ipoib::net::fragment::fragments;
use ipoib::net::ipv4::Ipv4View;
use ipoib::net::{IPOIB_HEADER_LEN, checksum};
use ipoib_fwd::forward::{
    EthNeighbour, EthVerdict, GatewayAddress, IbNeighbour, IbVerdict, Settings, Tables, Via, eth_to_ib,
    ib_to_eth,
};
use pmd::hca::{RcSlot, Source, UdSource};

const OWN_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);
const HOST_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// What a worker shows of a packet to the step.
const HEAD: usize = 128;
/// Largest message of a connection in the table.
const RC_MTU: u32 = 4096;

/// 10.77.0.1 is on Ethernet; 10.77.0.2 to .4 are on InfiniBand: with a connection, without, and without a path.
fn tables() -> Option<Tables<u8>> {
    let host = |n| Ipv4Addr::new(10, 77, 0, n);
    let mut settings = Settings::new(OWN_MAC);
    settings.address = GatewayAddress::new(host(254), 24);
    settings.broadcast = Some(0);
    settings.groups = vec![(Ipv4Addr::new(224, 0, 0, 251), 1), (Ipv4Addr::new(239, 1, 1, 1), 2)];
    settings.own_lid = Lid(7);
    settings.own_qpns.push(Qpn::new(0x48));
    let mut tables = Tables::new(1, settings);
    let rc = Some(RcPath { slot: RcSlot(5), mtu: RC_MTU });
    tables.set_ib(host(2), IbNeighbour { ud: Some(3), rc, dial: true }).ok()?;
    tables.set_ib(host(3), IbNeighbour { ud: Some(4), rc: None, dial: true }).ok()?;
    tables.set_ib(host(4), IbNeighbour { ud: None, rc: None, dial: false }).ok()?;
    tables.set_eth(host(1), EthNeighbour { mac: HOST_MAC }).ok()?;
    Some(tables)
}

/// `packet` with a checksum that is right, so that more than one input in 65,536 comes past it.
fn mend_checksum(packet: &mut [u8]) {
    let header_len = packet.first().map_or(0, |b| usize::from(b & 0xf) * 4);
    let Some(header) = packet.get_mut(..header_len).filter(|h| h.len() >= 20) else { return };
    header[10..12].fill(0);
    let sum = checksum::checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn check_pieces(head: &[u8], packet_len: usize, mtu: u16) {
    let view = Ipv4View::parse(head, packet_len).expect("was forwarded");
    assert!(view.total_len() > mtu && !view.dont_fragment());
    let mut end = view.header_len();
    let mut last = None;
    for piece in fragments(&view, mtu).expect("an MTU that carries something") {
        assert_eq!(piece.offset, end);
        assert!(piece.len > 0 && piece.header.len() + piece.len <= usize::from(mtu));
        let parsed = Ipv4View::parse(&piece.header, piece.header.len() + piece.len).expect("a good header");
        assert_eq!(parsed.fragment_offset(), view.fragment_offset() + end - view.header_len());
        assert_eq!(parsed.payload_len(), piece.len);
        last = Some(parsed.more_fragments());
        end += piece.len;
    }
    assert_eq!(end, usize::from(view.total_len()));
    assert_eq!(last, Some(view.more_fragments()));
}

fn ethernet(head: &[u8], frame_len: usize, tables: &Tables<u8>) {
    let way = |via: Via<'_, u8>| match via {
        Via::Rc(_) => RC_MTU as u16 - IPOIB_HEADER_LEN as u16,
        Via::Ud(_) | Via::Group(_) => tables.settings.ud_ip_mtu(),
    };
    match eth_to_ib(head, frame_len, tables) {
        EthVerdict::Forward { via, ip_len, .. } => {
            assert!(ip_len <= way(via) && usize::from(ip_len) + ETHERNET_HEADER_LEN <= frame_len);
        }
        EthVerdict::Fragment { via, ip_len, mtu, .. } => {
            assert!(mtu <= way(via) && usize::from(ip_len) + ETHERNET_HEADER_LEN <= frame_len);
            check_pieces(&head[ETHERNET_HEADER_LEN..], frame_len - ETHERNET_HEADER_LEN, mtu);
        }
        EthVerdict::TooBig { mtu, .. } => assert!(usize::from(mtu) + ETHERNET_HEADER_LEN < frame_len),
        EthVerdict::Punt(_) | EthVerdict::Drop(_) => {}
    }
}

fn infiniband(head: &[u8], message_len: usize, source: &Source, tables: &Tables<u8>) {
    match ib_to_eth(head, message_len, source, tables) {
        IbVerdict::Forward { header, ip_len, .. } => {
            assert!(
                ip_len <= tables.settings.eth_mtu && usize::from(ip_len) + IPOIB_HEADER_LEN <= message_len
            );
            assert!(header.starts_with(&HOST_MAC.0) || header[0] & 1 == 1, "to a host or a group");
            assert_eq!(header[6..12], OWN_MAC.0);
        }
        IbVerdict::Fragment { ip_len, mtu, .. } => {
            assert!(mtu <= tables.settings.eth_mtu && usize::from(ip_len) + IPOIB_HEADER_LEN <= message_len);
            check_pieces(&head[IPOIB_HEADER_LEN..], message_len - IPOIB_HEADER_LEN, mtu);
        }
        IbVerdict::TooBig { mtu } => assert!(usize::from(mtu) + IPOIB_HEADER_LEN < message_len),
        IbVerdict::Punt(_) | IbVerdict::Drop(_) => {}
    }
}

/// One input.
pub fn run(bytes: &[u8]) {
    let [flags, l0, l1, packet @ ..] = bytes else { return };
    let (flags, longer, mut packet) = (*flags, u16::from_le_bytes([*l0, *l1]), packet.to_vec());
    let Some(tables) = tables() else { return };
    let header = if flags & 1 == 0 { ETHERNET_HEADER_LEN } else { IPOIB_HEADER_LEN };
    if flags & 2 == 0
        && let Some(ip) = packet.get_mut(header..)
    {
        mend_checksum(ip);
    }
    let head = packet.get(..HEAD).unwrap_or(&packet);
    // The rest of a long packet lies in other segments.
    let len = if flags & 4 == 0 { packet.len() } else { head.len().max(usize::from(longer)) };
    if flags & 1 == 0 {
        ethernet(head, len, &tables);
    } else {
        let datagram = UdSource {
            qpn: Qpn::new(u32::from(longer)),
            slid: Lid(u16::from(flags >> 4)),
            sl: ServiceLevel::new(0),
            pkey_index: 0,
            has_grh: flags & 16 != 0,
            multicast: flags & 16 != 0,
        };
        let source = if flags & 8 == 0 { Source::Ud(datagram) } else { Source::Rc };
        infiniband(head, len, &source, &tables);
    }
}
