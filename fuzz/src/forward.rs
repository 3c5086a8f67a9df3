//! The forwarding step on arbitrary frames and messages. Forwarded packets fit the path that the step names,
//! and fragments are valid packets with the whole payload. The fast path gives the same results as the slow
//! path.

use std::net::Ipv4Addr;
use std::sync::Arc;

use ib_wire::{Lid, Qpn, ServiceLevel};
use ipoib::drop_reason::DropReason;
use ipoib::link::{RcPath, WorkerIndex};
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, MacAddress};
use ipoib::net::fragment::fragments;
use ipoib::net::ipv4::Ipv4View;
use ipoib::net::{IPOIB_HEADER_LEN, checksum};
use ipoib_fwd::forward::{
    Draft, EndpointIndex, EthNeighbour, EthVerdict, EthernetIndex, FrameHead, GatewayAddress, IbNeighbour,
    IbVerdict, Plain, Prefix, RcPaths, Role, Route, Routes, SegmentIndex, SegmentTable, Settings, ShortWay,
    Tables, ToEthernet, ToInfiniBand, Via, eth_to_ib, ib_to_eth,
};
use pmd::hca::{Checksum, RcSlot, Source, UdSource};
use pmd::mem::{FrameFacts, FrameTag};

const OWN_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);
const HOST_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// The segment of a verdict.
const WORKER: WorkerIndex = WorkerIndex(0);

/// The part of a packet that a worker passes to the step.
const HEAD: usize = 128;
/// Largest message of a connection in the table.
const RC_MTU: u32 = 4096;

/// 10.77.0.1 is on Ethernet; 10.77.0.2 to .4 are on InfiniBand: with a connection, without, and without a
/// path. Behind 10.77.0.2 and 10.77.0.1 are other networks.
fn draft(role: Role) -> Option<Draft<u8>> {
    let host = |n| Ipv4Addr::new(10, 77, 0, n);
    let mut settings = Settings::new(OWN_MAC);
    settings.address = GatewayAddress::new(host(254), 24);
    let route = |to: [u8; 4], len, via| Some(Route { to: Prefix::of(to.into(), len)?, via: host(via) });
    let routes = [route([192, 0, 2, 0], 24, 1)?, route([0, 0, 0, 0], 0, 2)?];
    settings.routes = Routes::new(&[Prefix::of(Ipv4Addr::new(10, 78, 0, 0), 16)?], &routes).ok()?;
    settings.role = role;
    settings.broadcast = Some(0);
    settings.groups = vec![(Ipv4Addr::new(224, 0, 0, 251), 1), (Ipv4Addr::new(239, 1, 1, 1), 2)];
    settings.own_lid = Lid(7);
    settings.own_qpns.push(Qpn::new(0x48));
    let mut draft = Draft::new(1, settings, 16, 1);
    let rc = RcPaths::new(&[Some(RcPath { slot: RcSlot(5), mtu: RC_MTU })]);
    draft.set_ib(host(2), IbNeighbour { ud: Some(3), rc, dial: true }).ok()?;
    draft.set_ib(host(3), IbNeighbour { ud: Some(4), rc: RcPaths::default(), dial: true }).ok()?;
    draft.set_ib(host(4), IbNeighbour { ud: None, rc: RcPaths::default(), dial: false }).ok()?;
    draft.set_eth(host(1), EthNeighbour { mac: HOST_MAC }).ok()?;
    Some(draft)
}

/// `packet` with a correct checksum, as only one input in 65,536 would pass otherwise.
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

/// The port and the number of the segment.
const PORT: EthernetIndex = EthernetIndex(0);
const SEGMENT: SegmentIndex = SegmentIndex(0);

/// The segment as the only one, of this VLAN.
fn tables(table: &Arc<SegmentTable<u8>>, vid: u16) -> Tables<u8> {
    let mut tables = Tables::default();
    tables.set_segment(SEGMENT, Some(Arc::clone(table)));
    tables.join_vlan(PORT, vid, Some(SEGMENT));
    tables.join_link(EndpointIndex(0), 0, Some(SEGMENT));
    tables
}

fn ethernet(head: &[u8], stripped: Option<u16>, frame_len: usize, table: &Arc<SegmentTable<u8>>) {
    let way = |via: Via<'_, u8>| match via {
        Via::Rc(_) => RC_MTU as u16 - IPOIB_HEADER_LEN as u16,
        Via::Ud(_) | Via::Group(_) => table.settings.ud_ip_mtu(),
    };
    let facts =
        FrameFacts { tag: stripped.map_or(FrameTag::InFrame, FrameTag::Taken), ..FrameFacts::default() };
    let front = match FrameHead::parse(head, facts) {
        Ok(front) => front,
        Err(reason) => return assert!(matches!(reason, DropReason::Truncated | DropReason::VlanStacked)),
    };
    assert!(front.vid < 4096 && (front.len == 14 || front.len == 18));
    let verdict = eth_to_ib(head, &front, frame_len, table, WORKER);
    // The fast path gives the same result.
    let tables = tables(table, front.vid);
    if let Some(Plain { front: len, how, .. }) =
        ShortWay::new(&tables, WORKER).frame(PORT, head, frame_len, facts)
    {
        let ToInfiniBand { via, ip_len, neighbour, dial } = how;
        assert_eq!((len, verdict), (front.len, EthVerdict::Forward { via, ip_len, neighbour, dial }));
    }
    match verdict {
        EthVerdict::Forward { via, ip_len, .. } => {
            assert!(ip_len <= way(via) && usize::from(ip_len) + front.len <= frame_len);
        }
        EthVerdict::Fragment { via, ip_len, mtu, .. } => {
            assert!(mtu <= way(via) && usize::from(ip_len) + front.len <= frame_len);
            check_pieces(&head[front.len..], frame_len - front.len, mtu);
        }
        EthVerdict::TooBig { mtu, .. } => assert!(usize::from(mtu) + front.len < frame_len),
        EthVerdict::Punt(_) | EthVerdict::Drop(_) => {}
    }
}

fn infiniband(head: &[u8], message_len: usize, source: &Source, table: &Arc<SegmentTable<u8>>) {
    let verdict = ib_to_eth(head, message_len, source, Checksum::Unknown, table);
    let tables = tables(table, 0);
    let place = (EndpointIndex(0), 0);
    if let Some(Plain { how, .. }) =
        ShortWay::new(&tables, WORKER).message(place, head, message_len, source, Checksum::Unknown)
    {
        let ToEthernet { to, ip_len, neighbour } = how;
        assert_eq!(verdict, IbVerdict::Forward { to: *to, ip_len, neighbour });
    }
    match verdict {
        IbVerdict::Forward { to, ip_len, .. } => {
            assert!(
                ip_len <= table.settings.eth_mtu && usize::from(ip_len) + IPOIB_HEADER_LEN <= message_len
            );
            assert!(to == HOST_MAC || to.is_multicast(), "to a host or a group");
        }
        IbVerdict::Fragment { ip_len, mtu, .. } => {
            assert!(mtu <= table.settings.eth_mtu && usize::from(ip_len) + IPOIB_HEADER_LEN <= message_len);
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
    let role = match flags >> 5 {
        0 => Role::Standby,
        1 => Role::Blocked,
        _ => Role::Forwarding,
    };
    let Some(draft) = draft(role) else { return };
    let table = draft.table();
    let header = match flags & 1 {
        0 => FrameHead::parse(&packet, FrameFacts::default()).map_or(ETHERNET_HEADER_LEN, |front| front.len),
        _ => IPOIB_HEADER_LEN,
    };
    if flags & 2 == 0
        && let Some(ip) = packet.get_mut(header..)
    {
        mend_checksum(ip);
    }
    let head = packet.get(..HEAD).unwrap_or(&packet);
    // The rest of a long packet is in other mbuf segments.
    let len = if flags & 4 == 0 { packet.len() } else { head.len().max(usize::from(longer)) };
    if flags & 1 == 0 {
        ethernet(head, (flags & 8 != 0).then_some(longer), len, table);
    } else {
        let datagram = UdSource {
            qpn: Qpn::new(u32::from(longer)),
            slid: Lid(u16::from(flags >> 4)),
            sl: ServiceLevel::new(0),
            dlid_path_bits: 0,
            pkey_index: 0,
            has_grh: flags & 16 != 0,
            multicast: flags & 16 != 0,
        };
        let source = if flags & 8 == 0 { Source::Ud(datagram) } else { Source::Rc };
        infiniband(head, len, &source, table);
    }
}
