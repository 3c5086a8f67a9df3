use std::net::Ipv4Addr;

use super::*;
use crate::packet::{Bth, EncodeError, Extended, Opcode};
use crate::{PKey, Psn, Qpn, Rkey};

fn v4(last: u8) -> Gid {
    Gid(Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets())
}

fn headers(network: RoceNetwork) -> RoceHeaders {
    let bth = Bth {
        opcode: Opcode::RcSendOnly,
        solicited: false,
        migrated: true,
        pkey: PKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: Qpn::new(0x11),
        ack_request: true,
        psn: Psn::new(9),
    };
    RoceHeaders { network, source_port: 0xc001, bth, extended: Extended::Bare }
}

#[test]
fn ipv4_where_both_gids_stand_for_it() {
    let six = Gid(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
    for (a, b, len) in [(v4(1), v4(2), 20), (v4(1), six, 40), (six, v4(1), 40), (six, six, 40)] {
        let network = RoceNetwork::between(a, b, 7, 0xfff_ffff, 64);
        assert_eq!(network.header_len(), len);
        let mut out = [0; 256];
        let len = headers(network).write_packet(b"hello", &mut out).unwrap();
        let packet = RocePacket::parse(&out[..len + 3]).unwrap();
        assert_eq!(packet.bytes().len(), len, "bytes after the packet do not count");
        assert_eq!((packet.sgid(), packet.dgid()), (a, b));
        assert_eq!(packet.headers(), headers(network));
        assert_eq!(packet.transport().payload, b"hello");
        assert_eq!(packet.network_bytes(), &out[..network.header_len()]);
        assert!(packet.icrc_is_right());
    }
}

#[test]
fn the_area_in_front_of_a_datagram_identifies_its_sender() {
    let six = Gid(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
    for (a, b) in [(v4(1), v4(2)), (six, six)] {
        let network = RoceNetwork::between(a, b, 7, 0, 64);
        let mut out = [0; 256];
        let len = headers(network).write_packet(b"hello", &mut out).unwrap();
        let packet = RocePacket::parse(&out[..len]).unwrap();
        // The previous contents may look like anything.
        let mut area = [0x66; 40];
        let header = packet.network_bytes();
        area[40 - header.len()..].copy_from_slice(header);
        assert_eq!(RoceNetwork::of_area(&area), Some(network));
        assert_eq!(RoceNetwork::of_area(&area).map(|n| n.hints()), Some((7, 0, 64)));
    }
    assert_eq!(RoceNetwork::of_area(&[0; 40]), None);
}

/// The ICRC leaves out the fields that routers change and covers all others (IBA annex A17).
#[test]
fn the_icrc_covers_what_stays() {
    let network = RoceNetwork::between(v4(1), v4(2), 0, 0, 64);
    let mut out = [0; 256];
    let len = headers(network).write_packet(&[3; 16], &mut out).unwrap();
    for at in 0..len {
        let mut changed = out;
        changed[at] ^= 0x10;
        // Version and header length decide which fields are masked; the sum alone detects a change of any
        // other byte.
        let masked = matches!(at, 1 | 8 | 10 | 11 | 26 | 27 | 32);
        assert_eq!(crc::verify_icrc_rocev2(&changed[..len]), masked, "byte {at}");
    }
}

#[test]
fn what_lies_is_refused() {
    let network = RoceNetwork::between(v4(1), v4(2), 0, 0, 64);
    let mut out = [0; 256];
    let len = headers(network).write_packet(&[3; 16], &mut out).unwrap();
    let resum = |b: &mut Vec<u8>| {
        b[10..12].fill(0);
        let sum: u32 = b[..20].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        b[10..12].copy_from_slice(&sum.to_be_bytes());
    };
    let broken = |at: usize, value: u8| {
        let mut b = out[..len].to_vec();
        b[at] = value;
        resum(&mut b);
        RocePacket::parse(&b).unwrap_err()
    };
    assert_eq!(broken(0, 0x46), ParseError::NotRoce("IPv4 options"));
    assert_eq!(broken(0, 0x15), ParseError::NotRoce("IP version"));
    assert_eq!(broken(9, 6), ParseError::OtherTraffic);
    assert_eq!(broken(6, 0x20), ParseError::NotRoce("IPv4 fragment"));
    assert_eq!(broken(7, 1), ParseError::NotRoce("IPv4 fragment"));
    assert_eq!(broken(2, 1), ParseError::TooShort(len));
    assert_eq!(broken(3, 27), ParseError::TooShort(len));
    assert_eq!(broken(23, 0), ParseError::OtherTraffic);
    assert_eq!(broken(25, 200), ParseError::NotRoce("UDP length"));
    assert_eq!(broken(29, 1), ParseError::TransportVersion(1));
    let mut b = out[..len].to_vec();
    b[11] ^= 1;
    assert_eq!(RocePacket::parse(&b).unwrap_err(), ParseError::NotRoce("IPv4 header checksum"));
    for short in 0..len {
        assert!(RocePacket::parse(&out[..short]).is_err());
    }
}

#[test]
fn what_cannot_be_a_packet_is_not_written() {
    let h = headers(RoceNetwork::between(v4(1), v4(2), 0, 0, 64));
    let mut out = vec![0; 1 << 17];
    assert!(matches!(h.write(8, &mut out[..51]), Err(EncodeError::NoRoom { need: 52, have: 51 })));
    assert!(matches!(h.write(65_500, &mut out), Err(EncodeError::TooLong(_))));
    assert!(matches!(h.write(usize::MAX, &mut out), Err(EncodeError::TooLong(_))));
    let wrong = RoceHeaders { extended: Extended::Ieth(Rkey(1)), ..h };
    assert!(matches!(wrong.write(8, &mut out), Err(EncodeError::Layout { opcode: 4 })));
}

#[test]
fn a_transport_part_of_odd_length_is_no_packet() {
    let six = Gid(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
    let mut out = [0; 256];
    let len = headers(RoceNetwork::between(six, six, 0, 0, 64)).write_packet(b"12345678", &mut out).unwrap();
    assert!(RocePacket::parse(&out[..len]).is_ok());
    for cut in 1..4 {
        // The lengths of IPv6 and UDP match each other.
        let body = (len - 40 - cut) as u16;
        out[4..6].copy_from_slice(&body.to_be_bytes());
        out[44..46].copy_from_slice(&body.to_be_bytes());
        assert!(matches!(RocePacket::parse(&out[..len - cut]), Err(ParseError::NotRoce(_))), "{cut}");
    }
}
