//! Which frames a recording wants, and how much of them: words that a control socket's client sends.

use std::net::Ipv4Addr;
use std::time::Duration;

use tap::TapDirection;

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_VLAN: u16 = 0x8100;
/// Most files that a recording keeps, and bytes of one.
const MAX_FILES: u32 = 64;
const MAX_SIZE: u64 = 64 << 20;
/// Longest name.
const MAX_NAME: usize = 64;

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    Arp,
    /// IPv4 with this protocol number.
    Ip(u8),
}

/// What a recording is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// What its files begin with; no path.
    pub name: String,
    host: Option<Ipv4Addr>,
    protocol: Option<Protocol>,
    vlan: Option<u16>,
    direction: Option<TapDirection>,
    /// Files that are kept, the newest, and bytes of each.
    pub(super) files: u32,
    pub(super) size: u64,
    /// It ends after so many packets, and after this time.
    pub(super) packets: u64,
    pub(super) time: Duration,
}

impl Order {
    /// From `NAME,key=value,…`; an error says what it may be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or_default();
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if name.is_empty()
            || name.len() > MAX_NAME
            || name.starts_with(['.', '-'])
            || !name.bytes().all(is_plain)
        {
            return Err(format!(
                "a capture's name has at most {MAX_NAME} letters, digits, dots, dashes and underscores, and begins with none of the \
                 first two signs: it is no path, the directory is gateway.captures'"
            ));
        }
        let mut order = Self {
            name: name.to_owned(),
            host: None,
            protocol: None,
            vlan: None,
            direction: None,
            files: 4,
            size: 16 << 20,
            packets: u64::MAX,
            time: Duration::from_secs(600),
        };
        for word in words {
            let may_be = order.take(word).ok_or(()).err();
            if may_be.is_some() {
                return Err(format!("`{}` is none of: {}", word.escape_debug(), Self::WORDS));
            }
        }
        Ok(order)
    }

    /// What may stand behind the name.
    pub const WORDS: &str = "host=ADDRESS, proto=arp|icmp|tcp|udp|0..255, vlan=0..4094 (0: no tag), direction=in|out (from or to Ethernet), \
                             files=1..64, size=BYTES (64 KiB to 64 MiB), packets=N, seconds=1..86400";

    fn take(&mut self, word: &str) -> Option<()> {
        let (key, value) = word.split_once('=')?;
        let number = |range: std::ops::RangeInclusive<u64>| value.parse().ok().filter(|n| range.contains(n));
        match key {
            "host" => self.host = Some(value.parse().ok()?),
            "proto" => {
                self.protocol = Some(match value {
                    "arp" => Protocol::Arp,
                    "icmp" => Protocol::Ip(1),
                    "tcp" => Protocol::Ip(6),
                    "udp" => Protocol::Ip(17),
                    number => Protocol::Ip(number.parse().ok()?),
                });
            }
            "vlan" => self.vlan = Some(number(0..=4094)? as u16),
            "direction" => {
                self.direction = Some(match value {
                    "in" => TapDirection::Received,
                    "out" => TapDirection::Sent,
                    _ => return None,
                });
            }
            "files" => self.files = number(1..=MAX_FILES.into())? as u32,
            "size" => self.size = number(1 << 16..=MAX_SIZE)?,
            "packets" => self.packets = number(1..=u64::MAX)?,
            "seconds" => self.time = Duration::from_secs(number(1..=86_400)?),
            _ => return None,
        }
        Some(())
    }

    /// True for a frame that it wants.
    pub(super) fn wants(&self, direction: TapDirection, frame: &[u8]) -> bool {
        let be16 = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
        let address = |at: usize| {
            let bytes: Option<[u8; 4]> = frame.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map(Ipv4Addr::from)
        };
        let (tag, at) = match be16(12) {
            Some(ETHERTYPE_VLAN) => (be16(14).map_or(0, |control| control & 0xfff), 18),
            _ => (0, 14),
        };
        let (protocol, hosts) = match be16(at - 2) {
            Some(ETHERTYPE_ARP) => (Some(Protocol::Arp), [address(at + 14), address(at + 24)]),
            Some(ETHERTYPE_IPV4) => {
                (frame.get(at + 9).map(|n| Protocol::Ip(*n)), [address(at + 12), address(at + 16)])
            }
            _ => (None, [None, None]),
        };
        self.direction.is_none_or(|wanted| wanted == direction)
            && self.vlan.is_none_or(|wanted| wanted == tag)
            && self.protocol.is_none_or(|wanted| Some(wanted) == protocol)
            && self.host.is_none_or(|wanted| hosts.contains(&Some(wanted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tag: Option<u16>, ethertype: u16, packet: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        if let Some(vid) = tag {
            bytes.extend(ETHERTYPE_VLAN.to_be_bytes());
            bytes.extend((0xe000 | vid).to_be_bytes());
        }
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(packet);
        bytes
    }

    fn ip(protocol: u8, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend(from);
        packet.extend(to);
        packet
    }

    #[test]
    fn frames_are_wanted_by_host_protocol_tag_and_direction() {
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let mut arp = vec![0; 28];
        arp[14..18].copy_from_slice(&a);
        arp[24..28].copy_from_slice(&b);
        let (arp, icmp, tcp) = (
            frame(None, ETHERTYPE_ARP, &arp),
            frame(Some(100), ETHERTYPE_IPV4, &ip(1, a, b)),
            frame(None, ETHERTYPE_IPV4, &ip(6, b, a)),
        );
        for (words, wanted) in [
            ("x", [true, true, true]),
            ("x,host=10.0.0.2", [true, true, true]),
            ("x,host=10.0.0.3", [false, false, false]),
            ("x,proto=arp", [true, false, false]),
            ("x,proto=icmp", [false, true, false]),
            ("x,proto=6", [false, false, true]),
            ("x,vlan=100", [false, true, false]),
            ("x,vlan=0,host=10.0.0.1", [true, false, true]),
            ("x,direction=out", [false, false, false]),
            ("x,direction=in,proto=tcp", [false, false, true]),
        ] {
            let order = Order::parse(words).unwrap();
            let wants = [&arp, &icmp, &tcp].map(|frame| order.wants(TapDirection::Received, frame));
            assert_eq!(wants, wanted, "{words}");
        }
        // Cut short at every byte: no panic, and no address that is not whole.
        let order = Order::parse("x,host=10.0.0.1,proto=icmp").unwrap();
        for n in 0..icmp.len() {
            assert_eq!(order.wants(TapDirection::Sent, &icmp[..n]), n >= 34, "{n}");
        }
    }

    #[test]
    fn names_are_no_paths_and_words_are_known() {
        for name in
            ["", ".", "..", "../x", "/etc/passwd", "a/b", "-x", "a b", "a\0b", "\u{e9}", &"x".repeat(65)]
        {
            assert!(Order::parse(name).unwrap_err().contains("no path"), "{name:?}");
        }
        for word in [
            "",
            "host",
            "host=::1",
            "host=10.0.0.256",
            "proto=256",
            "vlan=4095",
            "direction=up",
            "files=0",
            "files=65",
            "size=1",
            "size=67108865",
            "packets=0",
            "seconds=0",
            "seconds=86401",
            "snaplen=1",
            "size=16 ",
        ] {
            assert!(
                Order::parse(&format!("x,{word}")).unwrap_err().contains("is none of: host="),
                "{word:?}"
            );
        }
        assert!(Order::parse("a.b_C-9,files=64,size=67108864,packets=1,seconds=86400").is_ok());
    }
}
