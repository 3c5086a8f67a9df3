//! Packets in both directions, and a file of frames.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use etherparse::PacketBuilder;

/// Hosts on each side.
pub(crate) const HOSTS: u8 = 8;
pub(crate) const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

pub(crate) fn ethernet_host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, n)
}

pub(crate) fn ethernet_mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 1, 0, n]
}

pub(crate) fn infiniband_host(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, n)
}

/// Frames from each Ethernet host to one on InfiniBand, in a VLAN or untagged.
pub(crate) fn frames(vlan: Option<u16>) -> Vec<Vec<u8>> {
    (0..HOSTS)
        .map(|n| {
            let mut frame = Vec::new();
            PacketBuilder::ethernet2(ethernet_mac(n), GATEWAY_MAC)
                .ipv4(ethernet_host(n).octets(), infiniband_host(n).octets(), 64)
                .udp(4000, 5001)
                .write(&mut frame, b"steady as she goes")
                .unwrap();
            if let Some(vid) = vlan {
                frame.splice(12..12, [[0x81, 0], vid.to_be_bytes()].concat());
            }
            frame
        })
        .collect()
}

/// Messages from each InfiniBand host to one on Ethernet, behind the IPoIB header.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    (0..HOSTS)
        .map(|n| {
            let mut message = vec![8, 0, 0, 0];
            PacketBuilder::ipv4(infiniband_host(n).octets(), ethernet_host(n).octets(), 64)
                .udp(4000, 5001)
                .write(&mut message, b"steady as she goes")
                .unwrap();
            message
        })
        .collect()
}

/// Writes a pcap file (Ethernet, microseconds) of frames.
pub(crate) fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let mut file = std::fs::File::create(path).unwrap();
    let words = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65_535, 1];
    for word in words {
        file.write_all(&word.to_le_bytes()).unwrap();
    }
    for frame in frames {
        let len = frame.len() as u32;
        for word in [0, 0, len, len] {
            file.write_all(&word.to_le_bytes()).unwrap();
        }
        file.write_all(frame).unwrap();
    }
}
