//! The packets of the benchmarks, and a pcap file of them.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;

/// Ethernet address of the gateway.
pub(crate) const GATEWAY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
/// Bytes of the IPv4 packet in a frame of 60 bytes, the shortest that Ethernet has.
pub(crate) const SHORTEST: usize = 46;
/// The first VLAN where frames have tags.
pub(crate) const FIRST_VLAN: u16 = 100;

/// The kind of packets, and the number of their endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Load {
    /// Flows, each with its own Ethernet host as source or destination.
    pub(crate) flows: u32,
    /// InfiniBand hosts; the flows rotate over them.
    pub(crate) hosts: u32,
    /// Connections, which the hosts share.
    pub(crate) connections: u16,
    /// Segments; the flows, and incoming connections, rotate over them. All segments know all hosts.
    pub(crate) segments: u8,
    /// Frames have a VLAN tag, which identifies segments.
    pub(crate) tagged: bool,
    /// Bytes of an IPv4 packet.
    pub(crate) packet: usize,
}

impl Load {
    /// The shortest packets of 256 flows to 8 hosts with a connection each.
    pub(crate) const PLAIN: Self =
        Self { flows: 256, hosts: 8, connections: 8, segments: 1, tagged: false, packet: SHORTEST };

    /// The connection to a host.
    pub(crate) fn slot(&self, host: u32) -> u16 {
        (host % u32::from(self.connections.max(1))) as u16
    }

    /// The VLAN of a segment, or of a flow; 0 for frames without a tag.
    pub(crate) fn vlan(&self, n: u32) -> u16 {
        if self.tagged { FIRST_VLAN + (n % u32::from(self.segments.max(1))) as u16 } else { 0 }
    }
}

/// Host `n` of the Ethernet side.
pub(crate) fn ethernet_host(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 64, 1, 0).to_bits() + n)
}

/// Ethernet address of host `n`.
pub(crate) fn ethernet_mac(n: u32) -> [u8; 6] {
    let [a, b, c, d] = n.to_be_bytes();
    [0x02, 1, a, b, c, d]
}

/// Host `n` of the InfiniBand side.
pub(crate) fn infiniband_host(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 2, 0).to_bits() + n)
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

/// An IPv4 packet of `len` bytes with a UDP datagram of a flow, with correct checksums.
pub(crate) fn udp_packet(from: Ipv4Addr, to: Ipv4Addr, flow: u32, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len.max(SHORTEST)];
    let ip_len = packet.len() as u16;
    let udp_len = ip_len - 20;
    let (ip, udp) = packet.split_at_mut(20);
    ip[..2].copy_from_slice(&[0x45, 0]);
    ip[2..4].copy_from_slice(&ip_len.to_be_bytes());
    ip[8..10].copy_from_slice(&[64, 17]);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let sum = !(internet_checksum(0, ip) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    udp[..2].copy_from_slice(&(0x4000 + (flow % 0x8000) as u16).to_be_bytes());
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

/// The frame of a flow from Ethernet: each flow has its own source host, and destinations rotate over the
/// InfiniBand hosts.
pub(crate) fn frame(load: &Load, flow: u32) -> Vec<u8> {
    let mut frame = [GATEWAY_MAC, ethernet_mac(flow)].concat();
    if load.tagged {
        frame.extend([0x81, 0x00]);
        frame.extend(load.vlan(flow).to_be_bytes());
    }
    frame.extend([0x08, 0x00]);
    let to = infiniband_host(flow % load.hosts.max(1));
    frame.extend(udp_packet(ethernet_host(flow), to, flow, load.packet));
    frame
}

/// The message of a flow to Ethernet: the reversed packet, after the encapsulation header.
pub(crate) fn message(load: &Load, flow: u32) -> Vec<u8> {
    let from = infiniband_host(flow % load.hosts.max(1));
    let packet = udp_packet(from, ethernet_host(flow), flow, load.packet);
    [[0x08, 0x00, 0, 0].as_slice(), &packet].concat()
}

/// The frames of all flows.
pub(crate) fn frames(load: &Load) -> impl Iterator<Item = Vec<u8>> {
    (0..load.flows).map(|flow| frame(load, flow))
}

/// The messages of all flows.
pub(crate) fn messages(load: &Load) -> Vec<Vec<u8>> {
    (0..load.flows).map(|flow| message(load, flow)).collect()
}

/// The header of a pcap file (Ethernet, microseconds).
fn pcap_header() -> Vec<u8> {
    let mut header = Vec::with_capacity(24);
    header.extend(0xa1b2_c3d4_u32.to_le_bytes());
    header.extend([2, 0, 4, 0]);
    header.extend([0; 8]);
    header.extend(65_535_u32.to_le_bytes());
    header.extend(1_u32.to_le_bytes());
    header
}

/// Writes a pcap file of frames, without keeping all of them in memory.
pub(crate) fn write_pcap(path: &Path, frames: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&pcap_header())?;
    for (n, frame) in (0_u32..).zip(frames) {
        let len = frame.len() as u32;
        for word in [0, n, len, len] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(&frame)?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use std::collections::HashSet;

    #[test]
    fn flows_differ_and_each_packet_is_right_down_to_its_checksums() {
        for load in [
            Load::PLAIN,
            Load { tagged: true, segments: 16, ..Load::PLAIN },
            Load { flows: 70_000, hosts: 70_000, ..Load::PLAIN },
            Load { hosts: 3, packet: 1500, ..Load::PLAIN },
        ] {
            let (mut seen, mut vlans) = (HashSet::new(), HashSet::new());
            for flow in 0..load.flows {
                let frame = frame(&load, flow);
                let packet = SlicedPacket::from_ethernet(&frame).unwrap();
                let Some(NetSlice::Ipv4(ip)) = &packet.net else { panic!("no IPv4") };
                assert_eq!(usize::from(ip.header().total_len()), load.packet);
                assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
                let Some(TransportSlice::Udp(udp)) = &packet.transport else { panic!("no UDP") };
                let sum =
                    udp.to_header().calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap();
                assert_eq!(udp.checksum(), sum);
                seen.insert((ip.header().source(), ip.header().destination()));
                vlans.extend(packet.vlan_ids().iter().map(|id| id.value()));
            }
            assert_eq!(seen.len(), load.flows as usize);
            let sources: HashSet<_> = seen.iter().map(|(from, _)| *from).collect();
            let targets: HashSet<_> = seen.iter().map(|(_, to)| *to).collect();
            assert_eq!((sources.len(), targets.len()), (load.flows as usize, load.hosts as usize));
            assert!(sources.is_disjoint(&targets));
            assert_eq!(vlans.len(), if load.tagged { load.segments.into() } else { 0 });
        }
    }

    #[test]
    fn the_way_back_has_the_same_flows() {
        let load = Load { hosts: 3, ..Load::PLAIN };
        let messages = messages(&load);
        assert_eq!(messages.len(), load.flows as usize);
        for (n, message) in messages.iter().enumerate() {
            assert_eq!(message[..4], [8, 0, 0, 0]);
            let ip = etherparse::Ipv4HeaderSlice::from_slice(&message[4..]).unwrap();
            assert_eq!(ip.source_addr(), infiniband_host(n as u32 % 3));
            assert_eq!(ip.destination_addr(), ethernet_host(n as u32));
            assert_eq!(usize::from(ip.total_len()) + 4, message.len());
        }
    }

    #[test]
    fn a_pcap_file_has_a_header_and_a_record_for_each_frame() {
        let path = std::env::temp_dir().join(format!("bench-frames-{}.pcap", std::process::id()));
        write_pcap(&path, frames(&Load::PLAIN)).unwrap();
        let file = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.len(), 24 + 256 * (16 + 60));
        assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
        assert_eq!(file[20..24], [1, 0, 0, 0], "link type Ethernet");
        let last = &file[24 + 255 * 76..];
        assert_eq!(last[8..12], last[12..16]);
        assert_eq!(last[16..], frame(&Load::PLAIN, 255));
    }
}
