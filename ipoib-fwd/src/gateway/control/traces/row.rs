//! A packet's row for clients: its headers, the lookup result, verdict and reason.

use std::time::{Duration, UNIX_EPOCH};

use ipoib::link::WorkerIndex;
use pmd::hca::{Backend, Source};
use serde_json::{Map, Value, json};

use super::GatewayControl;
use crate::event;
use crate::forward::{EndpointIndex, Punt, SegmentIndex, Side};
use crate::gateway::control::ports::port_name;
use crate::gateway::punts::Cause;
use crate::gateway::sighting::{AnyPort, Front, Lookup, Outcome, Sighting, Step, Way};
use ipoib::drop_reason::DropReason;
use ipoib::net::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4};

/// The thread that had the packet.
pub(super) enum Where {
    Worker(WorkerIndex, Step),
    Control,
}

/// Why a packet went to the control lcore.
pub(super) fn why(cause: &Cause) -> String {
    match cause {
        Cause::Punt(punt) => why_punted(*punt),
        Cause::TooBig { mtu, .. } => too_big(*mtu),
        Cause::Unsent => "of the gateway's own, not sent".to_owned(),
        Cause::PartialChecksum(_) => "checksum looks incomplete".to_owned(),
    }
}

fn why_punted(punt: Punt) -> String {
    match punt {
        Punt::Arp => "ARP".to_owned(),
        Punt::Hello => "of another gateway, or a probe".to_owned(),
        Punt::Local => "for the gateway itself".to_owned(),
        Punt::Neighbour(ip) => format!("no path to {ip} yet"),
    }
}

fn too_big(mtu: u16) -> String {
    format!("larger than {mtu} bytes, and must not be fragmented")
}

/// A number that identifies the rows of one packet: a hash of its bytes, which are the same on both sides.
/// Identical packets share it.
fn number_of(packet: &[u8]) -> String {
    // FNV-1a, 32 bits.
    let hash = packet
        .iter()
        .take(64)
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// The fields of the headers.
fn headers(front: &Front) -> Map<String, Value> {
    let (ethertype, packet) = front.packet();
    let mut row = Map::new();
    let mut put = |name: &str, value: Value| drop(row.insert(name.to_owned(), value));
    put("packet", number_of(packet).into());
    put("bytes", front.length.into());
    let [source, destination] = front.macs();
    if let (Some(source), Some(destination)) = (source, destination) {
        put("source_mac", source.to_string().into());
        put("destination_mac", destination.to_string().into());
    }
    match &front.source {
        Some(Source::Ud(ud)) => {
            put("mode", "datagram".into());
            put("slid", ud.slid.0.into());
            put("source_qpn", ud.qpn.get().into());
            put("multicast", ud.multicast.into());
        }
        Some(Source::Rc | Source::RcInvalidated(_)) => put("mode", "connected".into()),
        None => {}
    }
    let address = |at: usize| -> Value {
        let bytes: Option<[u8; 4]> = packet.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(|b| std::net::Ipv4Addr::from(b).to_string()).into()
    };
    match ethertype {
        ETHERTYPE_IPV4 => {
            put("source", address(12));
            put("destination", address(16));
            let protocol = match packet.get(9) {
                Some(1) => "icmp".into(),
                Some(6) => "tcp".into(),
                Some(17) => "udp".into(),
                other => json!(other),
            };
            put("protocol", protocol);
            if let Some([from, to]) = front.look().ports() {
                put("source_port", from.into());
                put("destination_port", to.into());
            }
        }
        ETHERTYPE_ARP => {
            let length = packet.get(4).map_or(6, |length| usize::from(*length));
            put("source", address(8 + length));
            put("destination", address(12 + 2 * length));
            put("protocol", "arp".into());
        }
        other => put("ethertype", format!("{other:#06x}").into()),
    }
    row
}

/// Verdict and reason of a worker.
fn verdict(sighting: &Sighting) -> (&'static str, String, Option<DropReason>) {
    let handed = || match &sighting.lookup {
        Lookup::Punt(punt) => why_punted(*punt),
        Lookup::TooBig(mtu) => too_big(*mtu),
        _ => String::new(),
    };
    match sighting.outcome {
        Outcome::Sent => ("forwarded", String::new(), None),
        Outcome::Waits if matches!(sighting.lookup, Lookup::ToEthernet { .. }) => {
            ("waits", "for its port, which accepts no more at present".to_owned(), None)
        }
        Outcome::Waits => ("waits", "for its send queue, which is full".to_owned(), None),
        Outcome::HandedOver => ("to the control lcore", handed(), None),
        Outcome::Pieces { sent, dropped: None } => ("forwarded", format!("in {sent} pieces"), None),
        Outcome::Pieces { sent, dropped: Some(reason) } => {
            ("dropped", format!("{}, but for {sent} pieces", reason.name()), Some(reason))
        }
        Outcome::Dropped(reason) => ("dropped", reason.name().to_owned(), Some(reason)),
    }
}

impl<B: Backend> GatewayControl<B> {
    /// All ports, by name.
    pub(super) fn port_names(&mut self) -> Vec<(AnyPort, String)> {
        let ethernets = (0..).map(crate::forward::EthernetIndex).zip(&self.ethernets);
        let mut all: Vec<_> =
            ethernets.map(|(at, end)| (AnyPort::Ethernet(at), end.port.name().to_owned())).collect();
        for at in self.endpoints.indices() {
            all.extend(self.endpoints.at(at).map(|end| (AnyPort::InfiniBand(at), port_name(end))));
        }
        all
    }

    fn name_of_port(&mut self, side: Side, number: u8) -> Value {
        match side {
            Side::Ethernet => {
                self.ethernets.get(usize::from(number)).map(|end| end.port.name().to_owned()).into()
            }
            Side::InfiniBand => self.endpoints.at(EndpointIndex(number)).map(port_name).into(),
        }
    }

    pub(super) fn sighting_row(&mut self, worker: WorkerIndex, sighting: &Sighting) -> Value {
        let lookup = self.lookup(worker, sighting.front.segment, &sighting.lookup);
        let (verdict, reason, explained) = verdict(sighting);
        let place = Where::Worker(worker, sighting.step);
        self.row(sighting.time, &place, &sighting.front, lookup, verdict, &reason, explained)
    }

    /// The lookup result, with the current names.
    fn lookup(&mut self, worker: WorkerIndex, segment: Option<SegmentIndex>, lookup: &Lookup) -> Value {
        let Some(at) = segment else { return Value::Null };
        match *lookup {
            Lookup::ToInfiniBand { way, neighbour, pieces } => {
                let host = neighbour.and_then(|n| self.board.at(at)?.ib_at(n));
                let path = host.and_then(|ip| {
                    let duty = self.segments.at(at)?;
                    self.endpoints.link(duty.endpoint, duty.link)?.path_to(ip.into(), worker)
                });
                let mut found = Map::new();
                let mut put = |name: &str, value: Value| drop(found.insert(name.to_owned(), value));
                put("neighbour", host.map(|ip| ip.to_string()).into());
                let mode = match way {
                    Way::Connection(_) => "connected",
                    Way::Datagram => "datagram",
                    Way::Group => "group",
                };
                put("mode", mode.into());
                if let Some(path) = path {
                    put("hardware_address", path.hardware.to_string().into());
                    put("dlid", path.dlid.0.into());
                    match way {
                        Way::Connection(_) => put("own_qpn", path.connection.map(|qpn| qpn.get()).into()),
                        Way::Datagram | Way::Group => put("qpn", path.hardware.qpn.get().into()),
                    }
                }
                if let Way::Connection(slot) = way {
                    put("slot", slot.0.into());
                }
                put("piece_mtu", pieces.into());
                found.into()
            }
            Lookup::ToEthernet { to, neighbour, pieces } => {
                let host = neighbour.and_then(|n| self.board.at(at)?.eth_at(n));
                let host = host.map(|ip| ip.to_string());
                json!({"neighbour": host, "mac": to.to_string(), "piece_mtu": pieces})
            }
            Lookup::TooBig(mtu) => json!({"mtu": mtu}),
            Lookup::Punt(_) | Lookup::Drop(_) => Value::Null,
        }
    }

    /// Builds the row.
    #[expect(clippy::too_many_arguments, reason = "each is a column")]
    pub(super) fn row(
        &mut self,
        time: u64,
        place: &Where,
        front: &Front,
        lookup: Value,
        verdict: &str,
        reason: &str,
        explained: Option<DropReason>,
    ) -> Value {
        let (worker, step) = match place {
            Where::Worker(worker, Step::Arrived) => (Some(worker.0), "worker"),
            Where::Worker(worker, Step::Again) => (Some(worker.0), "worker again"),
            Where::Control => (None, "control lcore"),
        };
        let port = front.port.map_or(Value::Null, |port| self.name_of_port(front.side, port));
        let segment = front.segment.and_then(|at| self.segments.at(at)).map(|duty| duty.name.clone());
        let from = match front.side {
            Side::Ethernet => "Ethernet",
            Side::InfiniBand => "InfiniBand",
        };
        let first = [
            ("time", event::time(UNIX_EPOCH + Duration::from_nanos(time)).into()),
            ("step", step.into()),
            ("worker", worker.into()),
            ("from", from.into()),
            ("port", port),
            ("segment", segment.into()),
            ("vlan", front.vlan.into()),
        ];
        let mut row: Map<String, Value> =
            first.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        row.extend(headers(front));
        let explained = explained.map(|reason| reason.describe());
        let last = [
            ("lookup", lookup),
            ("verdict", verdict.into()),
            ("reason", (!reason.is_empty()).then_some(reason).into()),
            ("explained", explained.into()),
        ];
        row.extend(last.map(|(name, value)| (name.to_owned(), value)));
        row.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IPv4, UDP from port 5000 to 53.
    fn packet() -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes.extend([0x13, 0x88, 0, 53, 0, 8, 0, 0]);
        bytes
    }

    #[test]
    fn a_packet_has_one_number_on_both_sides_and_with_a_tag() {
        let mut frame = vec![2; 12];
        frame.extend([0x08, 0x00]);
        frame.extend(packet());
        let mut tagged = vec![2; 12];
        tagged.extend([0x81, 0x00, 0, 7, 0x08, 0x00]);
        tagged.extend(packet());
        let mut message = vec![0x08, 0x00, 0, 0];
        message.extend(packet());
        let [one, two] = [(Side::Ethernet, frame), (Side::InfiniBand, message)]
            .map(|(side, bytes)| headers(&Front::new(side, &bytes, bytes.len())));
        let mut behind = Front::new(Side::Ethernet, &tagged, tagged.len());
        behind.skip = 18;
        let three = headers(&behind);
        for name in ["packet", "source", "destination", "protocol", "source_port", "destination_port"] {
            assert_eq!((&one[name], &one[name]), (&two[name], &three[name]), "{name}");
        }
        assert_eq!((one["source_port"].clone(), one["destination_port"].clone()), (5000.into(), 53.into()));
        assert_eq!(one["source_mac"], "02:02:02:02:02:02");
        assert_eq!(two.get("source_mac"), None);
    }

    #[test]
    fn packets_that_end_anywhere_have_a_row() {
        let mut message = vec![0x08, 0x00, 0, 0];
        message.extend(packet());
        for n in 0..message.len() {
            let row = headers(&Front::new(Side::InfiniBand, &message[..n], n));
            assert_eq!(row.contains_key("source_port"), n >= 28, "{n}");
            headers(&Front::new(Side::Ethernet, &message[..n], n));
        }
    }

    #[test]
    fn fragments_are_reported_with_their_outcome() {
        let lookup = Lookup::Punt(Punt::Local);
        let mut sighting = Sighting {
            time: 0,
            watchers: 1,
            step: Step::Arrived,
            front: Front::new(Side::InfiniBand, &[], 0),
            lookup,
            outcome: Outcome::HandedOver,
            missed: 0,
        };
        assert_eq!(verdict(&sighting).1, "for the gateway itself");
        let sent = Outcome::NO_PIECES.and(Outcome::Sent).and(Outcome::Waits);
        sighting.outcome = sent;
        assert_eq!((verdict(&sighting).0, verdict(&sighting).1.as_str()), ("forwarded", "in 2 pieces"));
        sighting.outcome = sent.and(Outcome::Dropped(DropReason::NoBuffers)).and(Outcome::Sent);
        let (what, why, reason) = verdict(&sighting);
        assert_eq!((what, reason), ("dropped", Some(DropReason::NoBuffers)));
        assert_eq!(why, "no-buffers, but for 3 pieces");
    }
}
