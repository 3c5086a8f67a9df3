//! Loop probes of gateways: small IPv4 broadcasts that any plain bridge or relay forwards, and that gateways
//! of this program do not.
//!
//! A probe that comes back on the other side reveals a foreign path between the networks.

use std::net::Ipv4Addr;

use super::checksum;

/// The UDP port of probes, source and destination: discard (RFC 863), so that no host answers.
pub const PROBE_PORT: u16 = 9;
/// Bytes of a probe's IPv4 packet.
pub const PROBE_LEN: usize = 48;

const PAYLOAD: usize = 28;
const MAGIC: [u8; 8] = *b"IPGWprob";

/// A number known only to those that received the probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonce(pub u64);

/// The IPv4 packet of a probe: UDP from 0.0.0.0 to 255.255.255.255 like DHCP's first packet, so that a relay
/// forwards both.
#[must_use]
pub fn probe_packet(nonce: Nonce) -> [u8; PROBE_LEN] {
    let mut p = [0; PROBE_LEN];
    p[..10].copy_from_slice(&[0x45, 0xc0, 0, PROBE_LEN as u8, 0, 0, 0, 0, 64, 17]);
    p[4..6].copy_from_slice(&(nonce.0 as u16).to_be_bytes());
    p[16..20].copy_from_slice(&Ipv4Addr::BROADCAST.octets());
    let sum = checksum::checksum(&p[..20]);
    p[10..12].copy_from_slice(&sum.to_be_bytes());
    p[20..22].copy_from_slice(&PROBE_PORT.to_be_bytes());
    p[22..24].copy_from_slice(&PROBE_PORT.to_be_bytes());
    // No UDP checksum: zero says so (RFC 768).
    p[24..26].copy_from_slice(&((PROBE_LEN - 20) as u16).to_be_bytes());
    p[PAYLOAD..PAYLOAD + 8].copy_from_slice(&MAGIC);
    p[PAYLOAD + 8..PAYLOAD + 16].copy_from_slice(&nonce.0.to_be_bytes());
    p
}

/// The nonce of an IPv4 packet that is a probe of this gateway or another one; no gateway forwards it.
///
/// Probes have no options. A relay may have changed the source and the time to live, so these are not
/// checked.
#[must_use]
pub fn probe_nonce(packet: &[u8]) -> Option<Nonce> {
    let p = packet.first_chunk::<{ PAYLOAD + 16 }>()?;
    let is_probe = p[0] == 0x45
        && p[9] == 17
        && p[22..24] == PROBE_PORT.to_be_bytes()
        && p[PAYLOAD..PAYLOAD + 8] == MAGIC;
    if !is_probe {
        return None;
    }
    p.last_chunk().map(|nonce| Nonce(u64::from_be_bytes(*nonce)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ipv4::Ipv4View;

    #[test]
    fn probe_is_a_valid_broadcast_and_other_packets_are_not_recognised() {
        let packet = probe_packet(Nonce(0x0123_4567_89ab_cdef));
        let view =
            Ipv4View::parse(&packet, packet.len()).map(|v| (v.destination(), v.protocol(), v.payload_len()));
        assert_eq!(view, Ok((Ipv4Addr::BROADCAST, 17, PROBE_LEN - 20)));
        assert_eq!(probe_nonce(&packet), Some(Nonce(0x0123_4567_89ab_cdef)));
        for end in 0..PAYLOAD + 16 {
            assert_eq!(probe_nonce(&packet[..end]), None);
        }
        for at in [0, 9, 22, 23, 28, 35] {
            let mut other = packet;
            other[at] ^= 1;
            assert_eq!(probe_nonce(&other), None, "byte {at}");
        }
    }
}
