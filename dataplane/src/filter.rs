//! Packet filters for captures and traces, parsed from control socket requests.

use std::net::Ipv4Addr;

use tap::TapDirection;

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_VLAN: u16 = 0x8100;
/// Protocol numbers with ports.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Protocol of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    Arp,
    /// IPv4 with this protocol number.
    Ip(u8),
}

/// Conditions that a packet must meet. The default accepts all packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    host: Option<Ipv4Addr>,
    mac: Option<[u8; 6]>,
    protocol: Option<Protocol>,
    port: Option<u16>,
    vlan: Option<u16>,
    direction: Option<TapDirection>,
}

/// Filter view of a packet from either side.
#[derive(Clone, Copy, Debug)]
pub struct Look<'p> {
    /// From Ethernet, or to Ethernet.
    pub direction: TapDirection,
    /// Its current or future Ethernet addresses, if known.
    pub macs: [Option<[u8; 6]>; 2],
    /// VLAN ID; 0 without a tag.
    pub vlan: u16,
    /// EtherType of the payload.
    pub ethertype: u16,
    /// The packet after its link-layer headers, possibly truncated.
    pub packet: &'p [u8],
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

fn address(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let bytes: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(bytes.into())
}

impl<'p> Look<'p> {
    /// Creates the view of a frame.
    #[must_use]
    pub fn at_frame(direction: TapDirection, frame: &'p [u8]) -> Self {
        let mac = |at: usize| frame.get(at..at + 6).and_then(|bytes| bytes.try_into().ok());
        let (vlan, at) = match be16(frame, 12) {
            Some(ETHERTYPE_VLAN) => (be16(frame, 14).map_or(0, |control| control & 0xfff), 18),
            _ => (0, 14),
        };
        let ethertype = be16(frame, at - 2).unwrap_or_default();
        let packet = frame.get(at..).unwrap_or_default();
        Self { direction, macs: [mac(0), mac(6)], vlan, ethertype, packet }
    }

    /// Returns the protocol and the hosts that the packet refers to.
    fn protocol(&self) -> (Option<Protocol>, [Option<Ipv4Addr>; 2]) {
        let packet = self.packet;
        match self.ethertype {
            ETHERTYPE_ARP => {
                // The addresses follow the sender's hardware address, whose length depends on the side, and
                // the target's.
                let length = packet.get(4).map_or(0, |length| usize::from(*length));
                (Some(Protocol::Arp), [address(packet, 8 + length), address(packet, 12 + 2 * length)])
            }
            ETHERTYPE_IPV4 => {
                let number = packet.get(9).map(|number| Protocol::Ip(*number));
                (number, [address(packet, 12), address(packet, 16)])
            }
            _ => (None, [None, None]),
        }
    }

    /// Returns the ports of a packet that has them. Of a fragmented packet only the first fragment does.
    #[must_use]
    pub fn ports(&self) -> Option<[u16; 2]> {
        let has_ports = self.ethertype == ETHERTYPE_IPV4
            && matches!(self.packet.get(9), Some(&(TCP | UDP)))
            && be16(self.packet, 6).is_some_and(|offset| offset & 0x1fff == 0);
        let at = usize::from(self.packet.first()? & 0xf) * 4;
        if has_ports && at >= 20 { Some([be16(self.packet, at)?, be16(self.packet, at + 2)?]) } else { None }
    }
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() == 2)?;
        *byte = part.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u8::from_str_radix(part, 16).ok())??;
    }
    parts.next().is_none().then_some(bytes)
}

impl Filter {
    /// Parameters of a filter, with their valid values.
    pub const WORDS: &str = "host=ADDRESS, mac=ADDRESS, proto=arp|icmp|tcp|udp|0..255, port=1..65535 (of TCP or UDP), \
                             vlan=0..4094 (0: no tag), direction=in|out (from or to Ethernet)";

    /// Applies a parameter. Returns `None` if it is unknown or invalid.
    pub fn take(&mut self, key: &str, value: &str) -> Option<()> {
        let number = |range: std::ops::RangeInclusive<u16>| value.parse().ok().filter(|n| range.contains(n));
        match key {
            "host" => self.host = Some(value.parse().ok()?),
            "mac" => self.mac = Some(mac(value)?),
            "proto" => {
                self.protocol = Some(match value {
                    "arp" => Protocol::Arp,
                    "icmp" => Protocol::Ip(1),
                    "tcp" => Protocol::Ip(TCP),
                    "udp" => Protocol::Ip(UDP),
                    number => Protocol::Ip(number.parse().ok()?),
                });
            }
            "port" => self.port = Some(number(1..=u16::MAX)?),
            "vlan" => self.vlan = Some(number(0..=4094)?),
            "direction" => {
                self.direction = Some(match value {
                    "in" => TapDirection::Received,
                    "out" => TapDirection::Sent,
                    _ => return None,
                });
            }
            _ => return None,
        }
        Some(())
    }

    /// True if a packet meets all conditions.
    #[must_use]
    pub fn wants(&self, packet: &Look<'_>) -> bool {
        let (protocol, hosts) = packet.protocol();
        self.direction.is_none_or(|wanted| wanted == packet.direction)
            && self.vlan.is_none_or(|wanted| wanted == packet.vlan)
            && self.protocol.is_none_or(|wanted| Some(wanted) == protocol)
            && self.host.is_none_or(|wanted| hosts.contains(&Some(wanted)))
            && self.mac.is_none_or(|wanted| packet.macs.contains(&Some(wanted)))
            && self.port.is_none_or(|wanted| packet.ports().is_some_and(|ports| ports.contains(&wanted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(words: &str) -> Option<Filter> {
        let mut filter = Filter::default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=')?;
            filter.take(key, value)?;
        }
        Some(filter)
    }

    fn frame(tag: Option<u16>, ethertype: u16, packet: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xab];
        if let Some(vid) = tag {
            bytes.extend(ETHERTYPE_VLAN.to_be_bytes());
            bytes.extend((0xe000 | vid).to_be_bytes());
        }
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(packet);
        bytes
    }

    fn ip(protocol: u8, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend(from);
        packet.extend(to);
        packet.extend([0x30, 0x39, 0, 80]);
        packet
    }

    const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];

    #[test]
    fn packets_are_wanted_by_what_they_are() {
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
        arp.resize(28, 0);
        arp[14..18].copy_from_slice(&A);
        arp[24..28].copy_from_slice(&B);
        let frames = [
            frame(None, ETHERTYPE_ARP, &arp),
            frame(Some(100), ETHERTYPE_IPV4, &ip(1, A, B)),
            frame(None, ETHERTYPE_IPV4, &ip(6, B, A)),
        ];
        for (words, wanted) in [
            ("", [true, true, true]),
            ("host=10.0.0.2", [true, true, true]),
            ("host=10.0.0.3", [false, false, false]),
            ("proto=arp", [true, false, false]),
            ("proto=icmp", [false, true, false]),
            ("proto=6", [false, false, true]),
            ("port=80", [false, false, true]),
            ("port=12345,proto=tcp", [false, false, true]),
            ("port=81", [false, false, false]),
            ("mac=02:00:00:00:00:AB", [true, true, true]),
            ("mac=02:00:00:00:00:ac", [false, false, false]),
            ("vlan=100", [false, true, false]),
            ("vlan=0,host=10.0.0.1", [true, false, true]),
            ("direction=out", [false, false, false]),
            ("direction=in,proto=tcp", [false, false, true]),
        ] {
            let filter = filter(words).unwrap();
            let wants = frames.each_ref().map(|f| filter.wants(&Look::at_frame(TapDirection::Received, f)));
            assert_eq!(wants, wanted, "{words}");
        }
        // Truncated at every byte: no panic, and no incomplete address.
        let (whole, icmp) = (&frames[1], filter("host=10.0.0.1,proto=icmp").unwrap());
        let ports = filter("port=80").unwrap();
        for n in 0..whole.len() {
            let look = |frame| Look::at_frame(TapDirection::Sent, frame);
            assert_eq!(icmp.wants(&look(&whole[..n])), n >= 34, "{n}");
            let tcp = frames[2].get(..n).unwrap_or(&frames[2]);
            assert_eq!(ports.wants(&look(tcp)), tcp.len() >= 38, "{n}");
        }
    }

    #[test]
    fn arp_of_infiniband_has_its_addresses_elsewhere_and_later_fragments_have_no_ports() {
        let mut arp = vec![0, 32, 8, 0, 20, 4, 0, 1];
        arp.resize(56, 0);
        arp[28..32].copy_from_slice(&A);
        arp[52..56].copy_from_slice(&B);
        let mut look = Look {
            direction: TapDirection::Sent,
            macs: [None; 2],
            vlan: 0,
            ethertype: ETHERTYPE_ARP,
            packet: &arp,
        };
        for host in ["10.0.0.1", "10.0.0.2"] {
            assert!(filter(&format!("host={host}")).unwrap().wants(&look));
        }
        assert!(!filter("mac=00:00:00:00:00:00").unwrap().wants(&look), "it has no MAC address");
        let mut later = ip(17, A, B);
        later[7] = 1;
        (look.ethertype, look.packet) = (ETHERTYPE_IPV4, &later);
        assert!(filter("proto=udp").unwrap().wants(&look) && !filter("port=80").unwrap().wants(&look));
    }

    #[test]
    fn words_are_known_and_values_within_bounds() {
        for word in [
            "host=::1",
            "host=10.0.0.256",
            "proto=256",
            "port=0",
            "port=65536",
            "vlan=4095",
            "direction=up",
            "mac=",
            "mac=02:00:00:00:00",
            "mac=02:00:00:00:00:01:02",
            "mac=02:00:00:00:00:+1",
            "mac=2:0:0:0:0:1",
            "mac=\u{e9}\u{e9}:00:00:00:00:00",
            "nonsense=1",
        ] {
            assert_eq!(filter(word), None, "{word}");
        }
    }
}
