//! Packets that the control lcore writes: ARP of either side, ICMP errors for packets that are too big, echo
//! replies.

use std::net::Ipv4Addr;

use ib_wire::ipoib::Arp;
use ipoib::net::arp::EthernetArp;
use ipoib::net::checksum;
use ipoib::net::ethernet::{EthernetHeader, MacAddress};
use ipoib::net::icmp::{ICMP_ERROR_MAX, echo_reply, fragmentation_needed, may_answer};
use ipoib::net::ipv4::{Ipv4View, is_unicast};
use ipoib_fwd::forward::{GatewayAddress, Settings};
use ipoib_fwd::segment::{ArpMeaning, Own, answer_ethernet, check_ethernet, check_infiniband};

const OWN_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xfe]);
const OWN_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

/// A learned sender has a valid host address.
fn check_sender(meaning: ArpMeaning, sender: Ipv4Addr) {
    assert!(matches!(meaning, ArpMeaning::Probe { .. }) || is_unicast(sender) && sender != OWN_IP);
}

fn arp(bytes: &[u8], own: &Own) {
    if let (Ok(arp), Ok(header)) = (EthernetArp::parse(bytes), EthernetHeader::parse(bytes)) {
        assert_eq!(EthernetArp::parse(&arp.to_frame(header.destination)), Ok(arp));
        if let Ok(meaning) = check_ethernet(&arp, header.source, own) {
            check_sender(meaning, arp.sender_ip);
            let answer = answer_ethernet(&arp, OWN_MAC);
            assert_eq!(EthernetArp::parse(&answer.to_frame(arp.sender_mac)), Ok(answer));
            assert_eq!((answer.target_ip, answer.target_mac), (arp.sender_ip, arp.sender_mac));
        }
    }
    if let Ok(arp) = Arp::parse(bytes)
        && let Ok(meaning) = check_infiniband(&arp, &[], own)
    {
        check_sender(meaning, arp.sender_ip);
    }
}

fn icmp(packet: &[u8], mtu: u16) {
    let mut out = [0; ICMP_ERROR_MAX];
    if may_answer(packet, packet.len()) {
        let len = fragmentation_needed(&mut out, packet, OWN_IP, mtu).expect("has a header and fits");
        let answer = Ipv4View::parse(&out[..len], len).expect("a good header");
        assert_eq!(usize::from(answer.total_len()), len);
        assert!(checksum::is_valid(&out[answer.header_len()..len]));
        assert!(!may_answer(&out[..len], len), "no error about an error");
    }
    let mut reply = packet.to_vec();
    if echo_reply(&mut reply).is_ok() {
        let (asked, said) = (Ipv4View::parse(packet, packet.len()), Ipv4View::parse(&reply, reply.len()));
        let (asked, said) = (asked.expect("was answered"), said.expect("a good header"));
        assert_eq!((said.source(), said.destination()), (asked.destination(), asked.source()));
        assert!(checksum::is_valid(&reply[said.header_len()..usize::from(said.total_len())]));
        assert!(echo_reply(&mut reply).is_err(), "a reply is not answered");
    } else {
        assert_eq!(reply, packet, "unchanged");
    }
}

/// One input.
pub fn run(bytes: &[u8]) {
    let [flags, m0, m1, bytes @ ..] = bytes else { return };
    let (flags, mtu, mut bytes) = (*flags, u16::from_le_bytes([*m0, *m1]), bytes.to_vec());
    let mut settings = Settings::new(OWN_MAC);
    settings.address = GatewayAddress::new(OWN_IP, 24);
    arp(&bytes, &Own { settings, workers: 1 });
    // Correct most checksums, as hardly any input would pass otherwise.
    if flags & 1 == 0
        && let Some((header, message)) = bytes.split_at_mut_checked(20)
    {
        header[10..12].fill(0);
        let sum = checksum::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let end = usize::from(u16::from_be_bytes([header[2], header[3]])).saturating_sub(20);
        if let Some(message) = message.get_mut(..end).filter(|m| m.len() >= 4) {
            message[2..4].fill(0);
            let sum = checksum::checksum(message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
    }
    icmp(&bytes, mtu);
}
