//! Whole packets, captured and generated: each parses and is rebuilt byte for byte, and its CRCs are correct.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]
use std::path::PathBuf;

use ib_wire::crc;
use ib_wire::ipoib::{self, Arp, EtherType, LinkOption, NdOptions};
use ib_wire::mad::MAD_LEN;
use ib_wire::packet::{Opcode, Packet, RoceNetwork, RocePacket, Syndrome, Transport};
use ib_wire::smp::{
    Attribute, GuidBlock, LinearForwardingBlock, MulticastForwardingBlock, NodeDescription, NodeInfo,
    PKeyBlock, PortInfo, SmInfo, Smp, SwitchInfo,
};

/// Records of a little-endian pcap file.
fn records(file: &[u8]) -> Vec<&[u8]> {
    assert_eq!(file[..4], 0xa1b2_c3d4u32.to_le_bytes(), "a little-endian pcap");
    let mut rest = &file[24..];
    let mut out = Vec::new();
    while let Some((header, tail)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (record, tail) = tail.split_at(len);
        out.push(record);
        rest = tail;
    }
    out
}

/// InfiniBand packets in ERF records: a header of 16 bytes, then extension headers of 8 bytes as long as bit
/// 7 is set.
fn infiniband(file: &[u8]) -> Vec<&[u8]> {
    records(file)
        .into_iter()
        .map(|r| {
            let on_wire = usize::from(u16::from_be_bytes([r[14], r[15]]));
            let mut at = 16;
            let mut more = r[8] & 0x80 != 0;
            while more {
                more = r[at] & 0x80 != 0;
                at += 8;
            }
            // The card pads its records.
            &r[at..at + on_wire.min(r.len() - at)]
        })
        .collect()
}

/// Cuts padding that a card may have added after the packet.
fn exact(bytes: &[u8]) -> &[u8] {
    let words = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]) & 0x7ff);
    &bytes[..words * 4 + crc::VCRC_LEN]
}

/// Parses a packet and builds it again from its headers and payload.
fn rebuild(bytes: &[u8]) -> (Packet<'_>, Vec<u8>) {
    let packet = Packet::parse(bytes).unwrap_or_else(|e| panic!("{e}: {bytes:02x?}"));
    let mut out = vec![0xa5; bytes.len()];
    let len = packet.headers().write_packet(packet.payload(), &mut out).unwrap();
    assert_eq!(len, bytes.len());
    (packet, out)
}

/// Parses an IPoIB message as far as this crate can and checks that it is rebuilt unchanged. Returns its
/// kind.
fn check_ipoib(message: &[u8]) -> &'static str {
    let Some((ethertype, content)) = ipoib::decapsulate(message) else { panic!("too short for IPoIB") };
    assert_eq!(ipoib::encapsulation(ethertype), message[..4]);
    match ethertype {
        EtherType::Arp => {
            let arp = Arp::parse(content).unwrap();
            assert_eq!(arp.to_bytes()[..], content[..ipoib::ARP_LEN]);
            "arp"
        }
        // ICMPv6 neighbor solicitation or advertisement: 24 bytes, then options.
        EtherType::Ipv6 if content[6] == 58 && matches!(content[40], 135 | 136) => {
            for option in NdOptions::new(&content[64..]) {
                if matches!(option[0], 1 | 2) {
                    assert_eq!(LinkOption::parse(option).unwrap().to_bytes()[..], *option);
                }
            }
            "nd"
        }
        EtherType::Ipv4 => "ipv4",
        _ => "other",
    }
}

fn starts_ipoib(t: &Transport<'_>) -> bool {
    match t.extended.deth() {
        Some(deth) => t.bth.dest_qpn.get() > 1 && deth.src_qpn.get() > 1,
        None => matches!(t.bth.opcode, Opcode::RcSendOnly | Opcode::RcSendFirst),
    }
}

#[test]
#[ignore = "reads a recording that is not ours to pass on: IB_CAPTURES names its folder"]
fn packets_of_a_real_fabric() {
    let folder =
        std::env::var_os("IB_CAPTURES").expect("IB_CAPTURES names the folder of wireshark-infiniband.pcap");
    let file = std::fs::read(PathBuf::from(folder).join("wireshark-infiniband.pcap")).expect("the recording");
    let mut kinds = Vec::new();
    let packets = infiniband(&file);
    for bytes in &packets {
        let bytes = exact(bytes);
        let (packet, again) = rebuild(bytes);
        assert_eq!(again, bytes);
        assert!(packet.icrc_is_right() && packet.vcrc_is_right());
        if starts_ipoib(packet.transport()) {
            kinds.push(check_ipoib(packet.payload()));
        }
    }
    assert_eq!(packets.len(), 43);
    for kind in ["arp", "nd", "ipv4"] {
        assert!(kinds.contains(&kind), "{kind} is not in the capture");
    }
}

#[test]
fn generated_packets() {
    let packets = infiniband(include_bytes!("data/generated-packets.erf.pcap"));
    assert_eq!(packets.len(), 18);
    for (i, bytes) in packets.iter().enumerate() {
        let (packet, again) = rebuild(bytes);
        // The last packet has wrong CRCs on purpose.
        let good = i != 17;
        assert_eq!(packet.icrc_is_right(), good);
        assert_eq!(packet.vcrc_is_right(), good);
        if good {
            assert_eq!(again, **bytes);
        } else {
            assert_eq!(again[..again.len() - 6], bytes[..bytes.len() - 6]);
        }
    }
}

/// Parses a RoCEv2 packet, builds it again from its headers and payload, and compares all bytes including the
/// ICRC. Returns the packet.
fn rebuild_roce(frame: &[u8]) -> RocePacket<'_> {
    let packet = RocePacket::parse(&frame[14..]).unwrap_or_else(|e| panic!("{e}: {frame:02x?}"));
    assert!(packet.icrc_is_right());
    let mut out = vec![0xa5; packet.bytes().len()];
    let len = packet.headers().write_packet(packet.transport().payload, &mut out).unwrap();
    assert_eq!(len, packet.bytes().len());
    assert_eq!(out, packet.bytes());
    packet
}

#[test]
fn packets_between_two_kernels_over_roce() {
    let frames = records(include_bytes!("data/linux-ipoib-cm-rocev2.pcap"));
    assert_eq!(frames.len(), 132);
    let mut kinds = Vec::new();
    for frame in frames {
        let packet = rebuild_roce(frame);
        if starts_ipoib(packet.transport()) {
            kinds.push(check_ipoib(packet.transport().payload));
        }
        let mut broken = packet.bytes().to_vec();
        *broken.last_mut().unwrap() ^= 1;
        assert!(!RocePacket::parse(&broken).unwrap().icrc_is_right());
    }
    for kind in ["arp", "nd", "ipv4"] {
        assert!(kinds.contains(&kind), "{kind} is not in the capture");
    }
}

/// `ibv_rc_pingpong` and `ibv_ud_pingpong` on the kernel's soft-RoCE with `ibpingpong` as the peer, over a
/// link that lost packets.
#[test]
fn pingpong_of_soft_roce_over_ipv4() {
    let frames = records(include_bytes!("data/soft-roce-pingpong-ipv4.pcap"));
    let mut met = std::collections::BTreeMap::new();
    for frame in frames.iter().filter(|frame| frame[12..14] == [8, 0]) {
        let packet = rebuild_roce(frame);
        let RoceNetwork::V4 { source, .. } = packet.network() else { panic!("{frame:02x?}") };
        let kernel = source.octets() == [10, 0, 0, 1];
        assert!(kernel || source.octets() == [10, 0, 0, 2]);
        let nak = packet.transport().extended.aeth().is_some_and(|a| !matches!(a.syndrome, Syndrome::Ack(_)));
        *met.entry((kernel, packet.transport().bth.opcode.to_byte(), nak)).or_insert(0) += 1;
    }
    println!("{met:?}");
    for kernel in [false, true] {
        // SEND first, middle and last, an acknowledge, a NAK, a datagram.
        for (opcode, nak) in
            [(0x00, false), (0x01, false), (0x02, false), (0x11, false), (0x11, true), (0x64, false)]
        {
            assert!(met.contains_key(&(kernel, opcode, nak)), "{kernel} {opcode:#x} {nak}: {met:?}");
        }
    }
}

fn rebuild_attribute<A: Attribute>(smp: &Smp) -> bool {
    let Some(attribute) = smp.attribute::<A>() else { return false };
    let mut data = [0; 64];
    attribute.to_data(&mut data);
    assert_eq!(data, smp.data, "{:?}", smp.header);
    true
}

/// The packets of a real subnet manager: no bit of any attribute is lost, even if it is rebuilt from zeros.
#[test]
fn subnet_management_of_opensm() {
    let mut met = [0; 10];
    for bytes in infiniband(include_bytes!("data/opensm-ibsim-mads.erf.pcap")) {
        let packet = Packet::parse(bytes).unwrap();
        assert!(packet.icrc_is_right() && packet.vcrc_is_right());
        let mad: &[u8; MAD_LEN] = packet.payload().try_into().unwrap();
        let Ok(smp) = Smp::from_mad(mad) else { continue };
        let mut again = *mad;
        smp.write(&mut again);
        assert_eq!(&again, mad);
        if smp.is_directed() {
            assert_eq!(*smp.to_bytes(), *mad);
        }
        met[9] += 1;
        for (n, hit) in [
            rebuild_attribute::<NodeInfo>(&smp),
            rebuild_attribute::<NodeDescription>(&smp),
            rebuild_attribute::<PortInfo>(&smp),
            rebuild_attribute::<SwitchInfo>(&smp),
            rebuild_attribute::<GuidBlock>(&smp),
            rebuild_attribute::<PKeyBlock>(&smp),
            rebuild_attribute::<LinearForwardingBlock>(&smp),
            rebuild_attribute::<MulticastForwardingBlock>(&smp),
            rebuild_attribute::<SmInfo>(&smp),
        ]
        .into_iter()
        .enumerate()
        {
            met[n] += u32::from(hit);
        }
    }
    println!("{met:?}");
    // GUIDInfo and SMInfo need not be there; all others must be.
    for n in [0, 1, 2, 3, 5, 6, 7, 9] {
        assert!(met[n] > 0, "attribute {n} was not met: {met:?}");
    }
}
