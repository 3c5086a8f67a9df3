//! TCP and UDP checksums that an Ethernet host leaves to its interface, found by sampling.
//!
//! Linux writes the sum over the pseudo-header into the checksum field of such a packet (CHECKSUM_PARTIAL),
//! and the interface completes it. One end of a veth does not, and AF_PACKET, pcap and TAP ports receive the
//! packet as it is: ping works, TCP does not. Once a second the control lcore has each worker look at a few
//! frames to the gateway or to a group; others, which a switch floods, are not forwarded. A worker compares
//! headers only; the control lcore computes the whole checksum of a suspect packet, because a correct one
//! looks the same once in 65,536 times.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ipoib::net::checksum;
use ipoib::net::ethernet::{EthernetHeader, MacAddress};
use ipoib::net::ipv4::Ipv4View;

/// Frames of a port that a worker samples each second.
pub(super) const SAMPLES: u8 = 64;
/// Shortest time between log entries and events of a port.
const REPORT_PERIOD: Duration = Duration::from_secs(60);
/// The time for which `ctl links` warns after the last such packet.
const WARNING_TIME: Duration = Duration::from_secs(600);

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The headers of an unfragmented packet of TCP or UDP.
struct Transport<'p> {
    view: Ipv4View<'p>,
    /// The sum over the pseudo-header (RFC 9293 3.1, RFC 768).
    pseudo: u16,
    /// The checksum in the packet.
    found: u16,
}

impl<'p> Transport<'p> {
    /// Reads a packet of `len` bytes, of which `head` has the headers. Fragments
    /// have no checksum of their own.
    fn parse(head: &'p [u8], len: usize) -> Option<Self> {
        let view = Ipv4View::parse(head, len).ok()?;
        let at = match view.protocol() {
            TCP => 16,
            UDP => 6,
            _ => return None,
        };
        if view.more_fragments() || view.fragment_offset() != 0 || view.payload_len() < at + 2 {
            return None;
        }
        let at = view.header_len() + at;
        let found = u16::from_be_bytes(*head.get(at..)?.first_chunk()?);
        let [s0, s1, s2, s3] = view.source().octets();
        let [d0, d1, d2, d3] = view.destination().octets();
        let [l0, l1] = (view.payload_len() as u16).to_be_bytes();
        let pseudo = checksum::sum(&[s0, s1, s2, s3, d0, d1, d2, d3, 0, view.protocol(), l0, l1]);
        Some(Self { view, pseudo, found })
    }
}

/// True if a frame is to the gateway with this address, or to a group.
pub(super) fn is_for(frame: &[u8], gateway: MacAddress) -> bool {
    EthernetHeader::parse(frame)
        .is_ok_and(|header| header.destination == gateway || header.destination.is_multicast())
}

/// True if the checksum of an IPv4 packet of `len` bytes is the sum over its pseudo-header: nothing has
/// completed it, or it is one of 65,536 correct ones.
pub(super) fn is_suspect(head: &[u8], len: usize) -> bool {
    Transport::parse(head, len).is_some_and(|transport| transport.found == transport.pseudo)
}

/// The sender of a packet whose checksum is the sum over its pseudo-header and is wrong.
pub(super) fn sender(packet: &[u8]) -> Option<Ipv4Addr> {
    let Transport { view, pseudo, found } = Transport::parse(packet, packet.len())?;
    let payload = packet.get(view.header_len()..usize::from(view.total_len()))?;
    // A correct packet and its pseudo-header sum up to 0xffff.
    let whole = u32::from(pseudo) + u32::from(checksum::sum(payload));
    let is_correct = whole == 0xffff || whole == 2 * 0xffff;
    (found == pseudo && !is_correct).then(|| view.source())
}

/// Samples with partial checksums at an Ethernet port.
#[derive(Debug, Default)]
pub(super) struct PartialChecksums {
    count: u64,
    last: Option<(Instant, Ipv4Addr, MacAddress)>,
    reported: Option<Instant>,
}

impl PartialChecksums {
    /// Notes a packet. True, once a minute, if it should be reported.
    pub(super) fn note(&mut self, now: Instant, source: Ipv4Addr, hardware: MacAddress) -> bool {
        self.count += 1;
        self.last = Some((now, source, hardware));
        let is_due = self.reported.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_PERIOD);
        if is_due {
            self.reported = Some(now);
        }
        is_due
    }

    /// Samples with a partial checksum since the start.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// The warning of the last ten minutes.
    pub(super) fn warning(&self, now: Instant) -> Option<String> {
        let (at, source, hardware) = self.last?;
        (now.saturating_duration_since(at) < WARNING_TIME).then(|| text(source, hardware))
    }
}

/// The warning about a packet. Its addresses are what the packet says.
pub(super) fn text(source: Ipv4Addr, hardware: MacAddress) -> String {
    format!(
        "a packet of {source} ({hardware}) has no complete TCP or UDP checksum, and InfiniBand hosts drop it: \
         run `ethtool -K INTERFACE tx off` in that host or container"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: [u8; 4] = [10, 77, 0, 1];

    /// An IPv4 packet of TCP or UDP with a payload; `found` makes its checksum of the
    /// pseudo-header's sum and the right one.
    fn packet(protocol: u8, payload: &[u8], found: impl Fn(u16, u16) -> u16) -> Vec<u8> {
        let (len, at) = if protocol == TCP { (20, 16) } else { (8, 6) };
        let mut transport = vec![0; len];
        transport[..4].copy_from_slice(&[0x9c, 0x40, 0, 80]);
        transport.extend_from_slice(payload);
        let length = transport.len() as u16;
        let mut pseudo = [SOURCE, [10, 77, 0, 2]].concat();
        pseudo.extend([0, protocol]);
        pseudo.extend(length.to_be_bytes());
        let right = checksum::checksum(&[&pseudo[..], &transport].concat());
        let pseudo = checksum::sum(&pseudo);
        transport[at..at + 2].copy_from_slice(&found(pseudo, right).to_be_bytes());
        let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
        header[2..4].copy_from_slice(&(20 + length).to_be_bytes());
        let sum = checksum::checksum(&header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        [header, transport].concat()
    }

    #[test]
    fn a_checksum_that_nobody_completed_is_found_by_the_headers_alone() {
        for protocol in [TCP, UDP] {
            let partial = packet(protocol, b"hello", |pseudo, _| pseudo);
            assert!(is_suspect(&partial[..48.min(partial.len())], partial.len()));
            assert_eq!(sender(&partial), Some(SOURCE.into()));
            // A frame's padding is no part of it.
            assert_eq!(sender(&[&partial[..], &[7; 9]].concat()), Some(SOURCE.into()));
            let right = packet(protocol, b"hello", |_, right| right);
            assert!(!is_suspect(&right, right.len()) && sender(&right).is_none());
            let wrong = packet(protocol, b"hello", |_, right| right ^ 0x0101);
            assert!(!is_suspect(&wrong, wrong.len()) && sender(&wrong).is_none(), "wrong otherwise");
        }
    }

    #[test]
    fn a_right_checksum_that_looks_partial_is_no_alarm() {
        // One of 65,536 payloads has it.
        let mut found = 0;
        for n in 0..=u16::MAX {
            let right = packet(UDP, &n.to_be_bytes(), |_, right| right);
            if is_suspect(&right, right.len()) {
                found += 1;
                assert_eq!(sender(&right), None);
            }
        }
        assert!(found > 0);
    }

    #[test]
    fn fragments_other_protocols_and_short_packets_are_not_judged() {
        let partial = packet(TCP, b"", |pseudo, _| pseudo);
        assert!(is_suspect(&partial, partial.len()));
        let changed = |at: usize, to: u8| {
            let mut changed = partial.clone();
            changed[at] = to;
            changed[10..12].fill(0);
            let sum = checksum::checksum(&changed[..20]).to_be_bytes();
            changed[10..12].copy_from_slice(&sum);
            changed
        };
        for other in [changed(6, 0x20), changed(7, 1), changed(9, 1), changed(3, 30)] {
            assert!(!is_suspect(&other, other.len()) && sender(&other).is_none());
        }
        for len in 0..partial.len() {
            assert_eq!(sender(&partial[..len]), None, "{len}");
        }
    }

    #[test]
    fn frames_to_other_hosts_are_not_sampled() {
        let gateway = MacAddress([2, 0, 0, 0, 0, 9]);
        let frame = |destination: [u8; 6]| [&destination[..], &[2, 0, 0, 0, 0, 1, 8, 0]].concat();
        for to in [gateway.0, [0xff; 6], [1, 0, 0x5e, 0, 0, 5]] {
            assert!(is_for(&frame(to), gateway), "{to:x?}");
        }
        assert!(!is_for(&frame([2, 0, 0, 0, 0, 8]), gateway));
        assert!(!is_for(&frame(gateway.0)[..13], gateway));
    }

    #[test]
    fn a_port_is_reported_once_a_minute_and_warned_of_for_ten() {
        let (mut found, began) = (PartialChecksums::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!((found.count(), found.warning(began)), (0, None));
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let reported = (0..150).filter(|second| found.note(at(*second), SOURCE.into(), mac));
        assert_eq!(reported.collect::<Vec<_>>(), [0, 60, 120]);
        assert_eq!(found.count(), 150);
        let warning = found.warning(at(150)).unwrap();
        assert!(warning.contains("10.77.0.1") && warning.contains("ethtool -K"), "{warning}");
        assert_eq!(found.warning(at(149 + 600)), None);
    }
}
