//! Fragments, ICMP, ARP and checksums, compared with etherparse.

use proptest::prelude::*;

use super::*;
use ipoib::drop_reason::DropReason;
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::checksum;
use ipoib::net::ipv4::Ipv4View;

/// Adds options, padded to 4-byte words, to a packet.
fn with_options(packet: &[u8], options: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let total = (packet.len() + options.len()) as u16;
    let mut out = [&packet[..20], options, &packet[20..]].concat();
    out[0] = 0x45 + (options.len() / 4) as u8;
    out[2..4].copy_from_slice(&total.to_be_bytes());
    with(out, |_| ())
}

#[test]
fn only_copied_options_go_into_later_fragments() {
    // No operation, record route (not copied), loose source route (copied), end.
    let options = [1, 7, 3, 4, 0x83, 7, 4, 10, 0, 0, 1, 0];
    let packet = with_options(&ip(IB_RC, ETH, 3000), &options);
    let pieces = cut(&packet, 1500);
    assert_eq!(pieces[0][20..32], options);
    assert_eq!(pieces[1][20..28], [0x83, 7, 4, 10, 0, 0, 1, 0]);
    assert_eq!(pieces[1][0], 0x47);
    assert_eq!(reassemble(&packet, &pieces)[32..], packet[32..]);
}

#[test]
fn a_fragment_is_fragmented_again_and_keeps_its_offset() {
    let whole = ip(IB_RC, ETH, 9000);
    let halves = cut(&whole, 4000);
    let quarters: Vec<_> = halves.iter().flat_map(|half| cut(half, 1500)).collect();
    assert_eq!(reassemble(&whole, &quarters)[20..], whole[20..]);
    assert_eq!(quarters.iter().filter(|q| q[6] & 0x20 == 0).count(), 1);
}

#[test]
fn an_mtu_without_room_for_payload_gives_no_fragments() {
    let packet = ip(IB_RC, ETH, 100);
    let view = Ipv4View::parse(&packet, packet.len()).unwrap();
    assert!(fragment::fragments(&view, 27).is_none());
    assert!(fragment::fragments(&view, 28).is_some());
}

#[test]
fn fragmentation_needed_quotes_the_packet_and_has_the_mtu() {
    let packet = dont_fragment(ip(ETH, IB_UD, 3000));
    let mut out = [0; 576];
    let len = icmp::fragmentation_needed(&mut out, &packet[..64], GATEWAY, 2044).unwrap();
    let sliced = etherparse::SlicedPacket::from_ip(&out[..len]).unwrap();
    let Some(etherparse::NetSlice::Ipv4(v4)) = &sliced.net else { panic!("is IPv4") };
    assert_eq!(v4.header().destination_addr(), ETH);
    assert_eq!(v4.header().source_addr(), GATEWAY);
    assert_eq!(v4.header().header_checksum(), v4.header().to_header().calc_header_checksum());
    let Some(etherparse::TransportSlice::Icmpv4(message)) = &sliced.transport else { panic!("is ICMP") };
    assert_eq!(message.checksum(), message.icmp_type().calc_checksum(message.payload()));
    assert_eq!(
        message.icmp_type(),
        etherparse::Icmpv4Type::DestinationUnreachable(
            etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 2044 }
        )
    );
    assert_eq!(message.payload(), &packet[..64]);
    assert_eq!(icmp::fragmentation_needed(&mut [0; 576], &packet, GATEWAY, 2044), Some(576));
}

#[test]
fn no_error_about_errors_fragments_and_broadcasts() {
    let answer = |p: &[u8]| icmp::may_answer(p, p.len());
    assert!(answer(&ip(ETH, IB_RC, 60)));
    assert!(!answer(&with(ip(ETH, IB_RC, 60), |p| p[7] = 1)));
    assert!(!answer(&ip(ETH, Ipv4Addr::BROADCAST, 60)));
    assert!(!answer(&ip(Ipv4Addr::UNSPECIFIED, IB_RC, 60)));
    let mut error = [0; 576];
    let len = icmp::fragmentation_needed(&mut error, &ip(ETH, IB_RC, 60), GATEWAY, 1500).unwrap();
    assert!(!answer(&error[..len]));
    let mut ping = Vec::new();
    PacketBuilder::ipv4(ETH.octets(), IB_RC.octets(), 64)
        .icmpv4_echo_request(1, 2)
        .write(&mut ping, &[0; 8])
        .unwrap();
    assert!(answer(&ping));
}

#[test]
fn echo_requests_are_answered() {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(ETH.octets(), GATEWAY.octets(), 3)
        .icmpv4_echo_request(0x1234, 7)
        .write(&mut packet, b"payload")
        .unwrap();
    let mut wrong = packet.clone();
    wrong[30] ^= 1;
    assert_eq!(icmp::echo_reply(&mut wrong), Err(DropReason::NotHandled));
    icmp::echo_reply(&mut packet).unwrap();
    let reply_bytes = packet.clone();
    let sliced = etherparse::SlicedPacket::from_ip(&reply_bytes).unwrap();
    let Some(etherparse::NetSlice::Ipv4(v4)) = &sliced.net else { panic!("is IPv4") };
    assert_eq!((v4.header().source_addr(), v4.header().destination_addr()), (GATEWAY, ETH));
    assert_eq!(v4.header().header_checksum(), v4.header().to_header().calc_header_checksum());
    let Some(etherparse::TransportSlice::Icmpv4(reply)) = &sliced.transport else { panic!("is ICMP") };
    assert_eq!(reply.checksum(), reply.icmp_type().calc_checksum(reply.payload()));
    assert!(
        matches!(reply.icmp_type(), etherparse::Icmpv4Type::EchoReply(echo) if echo.id == 0x1234 && echo.seq == 7)
    );
    assert_eq!(icmp::echo_reply(&mut packet), Err(DropReason::NotHandled), "a reply is not answered");
}

#[test]
fn an_all_zero_echo_is_answered_with_a_valid_checksum() {
    let mut packet = Vec::new();
    PacketBuilder::ipv4(ETH.octets(), GATEWAY.octets(), 3)
        .icmpv4_echo_request(0, 0)
        .write(&mut packet, &[0; 16])
        .unwrap();
    icmp::echo_reply(&mut packet).unwrap();
    assert!(checksum::is_valid(&packet[20..]));
}

fn arp(operation: ArpOperation, sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> EthernetArp {
    EthernetArp { operation, sender_mac: ETH_MAC, sender_ip, target_mac: MacAddress::ZERO, target_ip }
}

#[test]
fn ethernet_arp_equals_etherparse() {
    let request = arp(ArpOperation::Request, ETH, IB_RC);
    let f = request.to_frame(MacAddress::BROADCAST);
    assert_eq!(EthernetArp::parse(&f), Ok(request));
    let sliced = etherparse::SlicedPacket::from_ethernet(&f).unwrap();
    let Some(etherparse::NetSlice::Arp(read)) = sliced.net else { panic!("is ARP") };
    assert_eq!((read.sender_hw_addr(), read.target_protocol_addr()), (&ETH_MAC.0[..], &IB_RC.octets()[..]));
    for (at, value) in [(15, 32), (17, 1), (18, 20), (19, 16), (21, 3)] {
        let mut bad = f;
        bad[at] = value;
        assert_eq!(EthernetArp::parse(&bad), Err(DropReason::BadArp), "byte {at}");
    }
    assert_eq!(EthernetArp::parse(&f[..41]), Err(DropReason::Truncated));
}

proptest! {
    #[test]
    fn fragments_put_together_are_the_packet(len in 28usize..20_000, mtu in 68u16..9000) {
        let packet = ip(IB_RC, ETH, len);
        let pieces = cut(&packet, mtu);
        prop_assert!(pieces.iter().all(|p| p.len() <= usize::from(mtu)));
        prop_assert!(pieces[..pieces.len() - 1].iter().all(|p| p[6] & 0x20 != 0));
        prop_assert_eq!(pieces[pieces.len() - 1][6] & 0x20, 0);
        prop_assert_eq!(&reassemble(&packet, &pieces)[20..], &packet[20..]);
    }

    #[test]
    fn arbitrary_options_never_break_a_fragment(options in prop::collection::vec(any::<[u8; 4]>(), 0..=10), mtu in 68u16..1500) {
        let packet = with_options(&ip(IB_RC, ETH, 2000), options.as_flattened());
        let header_len = 20 + 4 * options.len();
        prop_assert_eq!(&reassemble(&packet, &cut(&packet, mtu))[header_len..], &packet[header_len..]);
    }

    #[test]
    fn checksums_equal_etherparse(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let theirs = etherparse::checksum::Sum16BitWords::new().add_slice(&bytes).ones_complement();
        prop_assert_eq!(checksum::checksum(&bytes).to_be_bytes(), theirs.to_ne_bytes());
    }
}
