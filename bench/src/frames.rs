//! The packets of the benchmarks, and a pcap file of them.

use std::net::Ipv4Addr;

/// Ethernet address of the gateway.
pub(crate) const GATEWAY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
/// Bytes of a frame, without frame check sequence: the shortest that Ethernet has.
pub(crate) const FRAME_LEN: usize = 60;
/// Bytes of the IPv4 packet in it.
pub(crate) const PACKET_LEN: usize = FRAME_LEN - 14;
/// Flows in a file.
pub(crate) const FLOWS: u16 = 256;

/// Host `n` of the Ethernet side.
pub(crate) fn ethernet_host(n: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 1, 0).to_bits() + u32::from(n))
}

/// Ethernet address of host `n`.
pub(crate) fn ethernet_mac(n: u16) -> [u8; 6] {
    let [a, b] = n.to_be_bytes();
    [0x02, 0, 0, 1, a, b]
}

/// Host `n` of the InfiniBand side.
pub(crate) fn infiniband_host(n: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 2, 0).to_bits() + u32::from(n))
}

fn internet_checksum(sum: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|w| match w {
        [a, b] => u32::from(u16::from_be_bytes([*a, *b])),
        [a] => u32::from(*a) << 8,
        _ => 0,
    });
    let sum = sum + words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

/// An IPv4 packet with a UDP datagram of a flow, both checksums right.
pub(crate) fn udp_packet(from: Ipv4Addr, to: Ipv4Addr, flow: u16) -> [u8; PACKET_LEN] {
    let mut packet = [0; PACKET_LEN];
    let udp_len = (PACKET_LEN - 20) as u16;
    let (ip, udp) = packet.split_at_mut(20);
    ip[..4].copy_from_slice(&[0x45, 0, 0, PACKET_LEN as u8]);
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let sum = !(internet_checksum(0, ip) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    udp[..2].copy_from_slice(&(0x4000 + flow).to_be_bytes());
    udp[2..4].copy_from_slice(&5001_u16.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    for (byte, value) in udp[8..].iter_mut().zip(b"gateway benchmark.".iter().cycle()) {
        *byte = *value;
    }
    let pseudo = internet_checksum(17 + u32::from(udp_len), &ip[12..20]);
    let sum = match !(internet_checksum(pseudo, udp) as u16) {
        0 => 0xffff,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The frames of the way from Ethernet: each flow from a host of its own to one of `peers` InfiniBand hosts in turn.
pub(crate) fn frames(peers: u16) -> Vec<[u8; FRAME_LEN]> {
    (0..FLOWS)
        .map(|flow| {
            let mut frame = [0; FRAME_LEN];
            frame[..6].copy_from_slice(&GATEWAY_MAC);
            frame[6..12].copy_from_slice(&ethernet_mac(flow));
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            let to = infiniband_host(flow % peers.max(1));
            frame[14..].copy_from_slice(&udp_packet(ethernet_host(flow), to, flow));
            frame
        })
        .collect()
}

/// The messages of the way to Ethernet: the same packets, the other way round, behind the encapsulation header.
pub(crate) fn messages(peers: u16) -> Vec<Vec<u8>> {
    (0..FLOWS)
        .map(|flow| {
            let from = infiniband_host(flow % peers.max(1));
            let packet = udp_packet(from, ethernet_host(flow), flow);
            [[0x08, 0x00, 0, 0].as_slice(), &packet].concat()
        })
        .collect()
}

/// A pcap file (Ethernet, microseconds) of frames.
pub(crate) fn pcap(frames: &[[u8; FRAME_LEN]]) -> Vec<u8> {
    let mut file = Vec::with_capacity(24 + frames.len() * (16 + FRAME_LEN));
    file.extend(0xa1b2_c3d4_u32.to_le_bytes());
    file.extend([2, 0, 4, 0]);
    file.extend([0; 8]);
    file.extend(65_535_u32.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    for (n, frame) in frames.iter().enumerate() {
        file.extend(0_u32.to_le_bytes());
        file.extend((n as u32).to_le_bytes());
        file.extend((FRAME_LEN as u32).to_le_bytes());
        file.extend((FRAME_LEN as u32).to_le_bytes());
        file.extend(frame);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use std::collections::HashSet;

    #[test]
    fn flows_differ_and_each_packet_is_right_down_to_its_checksums() {
        let mut seen = HashSet::new();
        for frame in frames(8) {
            let packet = SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(NetSlice::Ipv4(ip)) = &packet.net else { panic!("no IPv4") };
            assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
            let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!("no UDP") };
            let sum = udp.to_header().calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap();
            assert_eq!(udp.checksum(), sum);
            seen.insert((ip.header().source(), ip.header().destination(), udp.source_port()));
        }
        assert_eq!(seen.len(), usize::from(FLOWS));
        let targets: HashSet<_> = seen.iter().map(|(_, to, _)| *to).collect();
        assert_eq!(targets.len(), 8);
    }

    #[test]
    fn the_way_back_has_the_same_flows() {
        let messages = messages(3);
        assert_eq!(messages.len(), usize::from(FLOWS));
        for (n, message) in messages.iter().enumerate() {
            assert_eq!(message[..4], [8, 0, 0, 0]);
            let ip = etherparse::Ipv4HeaderSlice::from_slice(&message[4..]).unwrap();
            assert_eq!(ip.source_addr(), infiniband_host(n as u16 % 3));
            assert_eq!(ip.destination_addr(), ethernet_host(n as u16));
            assert_eq!(usize::from(ip.total_len()) + 4, message.len());
        }
    }

    #[test]
    fn a_pcap_file_has_a_header_and_a_record_for_each_frame() {
        let frames = frames(1);
        let file = pcap(&frames);
        assert_eq!(file.len(), 24 + 256 * (16 + 60));
        assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
        assert_eq!(file[20..24], [1, 0, 0, 0], "link type Ethernet");
        let last = &file[24 + 255 * 76..];
        assert_eq!(last[8..12], last[12..16]);
        assert_eq!(&last[16..], &frames[255]);
    }
}
