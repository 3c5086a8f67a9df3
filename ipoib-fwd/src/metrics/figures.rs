//! A snapshot of a gateway's metrics, and the families built from it.
//!
//! The number of metrics depends on the numbers of workers, ports and segments. A segment has only the drop
//! reasons that have occurred. Hosts, connections and other gateways are counted and never named: they cannot
//! increase the number of metrics.

use dataplane::latency::Summary;
use ipoib::drop_reason::DropReason;
use ipoib::link::LinkCounters;

use super::{Family, Labels, Sheet, Table, labels};
use crate::counter::{Labour, SegmentTotals, SegmentTraffic, Totals, Traffic};
use crate::segment::pair::Role;

/// Maximum number of metrics of a worker. The manual documents these limits.
pub const MOST_OF_WORKER: usize = 25;
/// Maximum number of metrics of a segment.
pub const MOST_OF_SEGMENT: usize = 110;
/// Maximum number of metrics of a port.
pub const MOST_OF_PORT: usize = 10;
/// Maximum number of all other metrics.
pub const MOST_BESIDE: usize = 80;

const ROLES: [Role; 5] = [Role::Forwarding, Role::Standby, Role::Listening, Role::Blocked, Role::Drained];

/// Metrics of a segment's link.
#[derive(Clone, Copy, Debug)]
pub struct LinkFigures {
    /// True if the link is up.
    pub up: bool,
    /// Number of known InfiniBand hosts.
    pub hosts: usize,
    /// Connections that carry packets: those that the gateway opened, and those that hosts opened.
    pub connections: [usize; 2],
    /// Counters of its events.
    pub counters: LinkCounters,
}

/// Metrics of a segment.
#[derive(Debug)]
pub struct SegmentFigures {
    /// Its name.
    pub name: String,
    /// Its packets, bytes and drops.
    pub counted: SegmentTotals,
    /// The gateway's role in it.
    pub role: Role,
    /// Packets sent by the gateway that came back.
    pub loops: u64,
    /// Other gateways that are heard on both sides, and on one.
    pub peers: [usize; 2],
    /// Number of known Ethernet hosts.
    pub hosts: usize,
    /// Its link, if there is one.
    pub link: Option<LinkFigures>,
    /// True if the segment waits for an external condition.
    pub waits: bool,
}

/// Metrics of an Ethernet port.
#[derive(Debug)]
pub struct EthernetFigures {
    /// Its name.
    pub name: String,
    /// True if it has a link.
    pub up: bool,
    /// Its frames, by direction.
    pub packets: [(&'static str, u64); 2],
    /// Bytes of these frames.
    pub bytes: [(&'static str, u64); 2],
    /// Frames that the port lost, by reason.
    pub losses: [(&'static str, u64); 4],
    /// Sampled packets with an incomplete TCP or UDP checksum.
    pub partial_checksums: u64,
}

/// Metrics of an InfiniBand port.
#[derive(Debug)]
pub struct InfinibandFigures {
    /// Its device.
    pub device: String,
    /// Its number.
    pub port: u8,
    /// True if one of its links is up.
    pub up: bool,
    /// Times that its shared receive queue reached its limit.
    pub srq_low: u64,
    /// Errors that its device has reported.
    pub errors: u64,
}

/// Metrics of a gateway.
#[derive(Debug)]
pub struct Figures {
    /// Start time, in seconds since 1970.
    pub started: f64,
    /// Each worker's counters.
    pub workers: Vec<Totals>,
    /// The totals of all workers and the control lcore.
    pub all: Totals,
    /// The segments.
    pub segments: Vec<SegmentFigures>,
    /// Names of segments that a reload has added and that are not running yet.
    pub coming: Vec<String>,
    /// The Ethernet ports.
    pub ethernets: Vec<EthernetFigures>,
    /// The InfiniBand ports.
    pub infinibands: Vec<InfinibandFigures>,
    /// Packet buffers in use, and free ones.
    pub buffers: [u32; 2],
    /// Times that the control lcore did not run for the duration of a lease.
    pub control_stalls: u64,
    /// Successful and refused reloads.
    pub reloads: [u64; 2],
    /// Captured packets that were written, and those that are missing.
    pub captured: [u64; 2],
    /// Duration of busy iterations, and time to establish connections.
    pub times: [Summary; 2],
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// The percentiles of a duration, in seconds.
fn percentiles(times: &Summary) -> impl Iterator<Item = (Labels, f64)> + use<> {
    let Summary { p50, p90, p99, p999, max, .. } = *times;
    let all = [("50", p50), ("90", p90), ("99", p99), ("99.9", p999), ("100", max)];
    all.into_iter().map(|(percentile, ns)| (labels([("percentile", &percentile)]), ns as f64 * 1e-9))
}

impl Figures {
    /// All metrics in their families.
    #[must_use]
    pub fn sheet(&self) -> Sheet {
        let mut sheet = Sheet::default();
        sheet.gauge(Family::BuildInfo, [(labels([("version", &env!("CARGO_PKG_VERSION"))]), 1.0)]);
        sheet.gauge(Family::StartTimeSeconds, [(labels([]), self.started)]);
        self.traffic(&mut sheet);
        self.segments(&mut sheet);
        self.ports(&mut sheet);
        self.state(&mut sheet);
        sheet
    }

    /// Adds the workers' metrics and all drops.
    fn traffic(&self, sheet: &mut Sheet) {
        let workers = || self.workers.iter().enumerate();
        let by_path = |value: fn(&Totals, Traffic) -> u64| -> Vec<(Labels, u64)> {
            let worker = |(n, totals): (usize, &Totals)| {
                Traffic::ALL
                    .map(|path| (labels([("worker", &n), ("path", &path.name())]), value(totals, path)))
            };
            workers().flat_map(worker).collect()
        };
        sheet.counter(Family::WorkerPackets, by_path(Totals::packets));
        sheet.counter(Family::WorkerBytes, by_path(Totals::bytes));
        let of_worker =
            |what: Labour| workers().map(move |(n, totals)| (labels([("worker", &n)]), totals.labour(what)));
        sheet.counter(Family::WorkerBusyTurns, of_worker(Labour::BusyTurns));
        sheet.seconds(Family::WorkerBusySeconds, of_worker(Labour::Busy));
        sheet.seconds(Family::WorkerRestSeconds, of_worker(Labour::Rest));
        let drops = DropReason::ALL.map(|r| (labels([("reason", &r.name())]), self.all.drops(r)));
        sheet.counter(Family::Drops, drops);
    }

    fn segments(&self, sheet: &mut Sheet) {
        let (mut packets, mut bytes, mut drops, mut loops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut up, mut waiting, mut role) = (Vec::new(), Vec::new(), Vec::new());
        let (mut peers, mut neighbours, mut connections) = (Vec::new(), Vec::new(), Vec::new());
        for segment in &self.segments {
            let of_segment = || labels([("segment", &segment.name)]);
            let with =
                |label: &'static str, value: &str| labels([("segment", &segment.name), (label, &value)]);
            let counted = &segment.counted;
            for way in SegmentTraffic::ALL {
                packets.push((with("way", way.name()), counted.packets(way)));
                bytes.push((with("way", way.name()), counted.bytes(way)));
            }
            let happened = DropReason::ALL.into_iter().map(|r| (r, counted.drops(r))).filter(|(_, n)| *n > 0);
            drops.extend(happened.map(|(r, n)| (with("reason", r.name()), n)));
            loops.push((of_segment(), segment.loops));
            up.push((of_segment(), flag(segment.link.is_some_and(|link| link.up))));
            waiting.push((of_segment(), flag(segment.waits)));
            role.extend(ROLES.map(|role| (with("role", role.name()), flag(role == segment.role))));
            let heard = ["both", "one"].into_iter().zip(segment.peers);
            peers.extend(heard.map(|(sides, n)| (with("heard", sides), n as f64)));
            neighbours.push((with("side", "ethernet"), segment.hosts as f64));
            let Some(link) = segment.link else { continue };
            neighbours.push((with("side", "infiniband"), link.hosts as f64));
            let live = ["outgoing", "incoming"].into_iter().zip(link.connections);
            connections.extend(live.map(|(direction, n)| (with("direction", direction), n as f64)));
        }
        for name in &self.coming {
            let of_segment = || labels([("segment", name)]);
            up.push((of_segment(), flag(false)));
            waiting.push((of_segment(), flag(true)));
            role.extend(ROLES.map(|role| (labels([("segment", name), ("role", &role.name())]), flag(false))));
        }
        sheet.counter(Family::SegmentPackets, packets);
        sheet.counter(Family::SegmentBytes, bytes);
        sheet.counter(Family::SegmentDrops, drops);
        sheet.counter(Family::SegmentLoops, loops);
        sheet.gauge(Family::SegmentUp, up);
        sheet.gauge(Family::SegmentWaiting, waiting);
        sheet.gauge(Family::SegmentRole, role);
        sheet.gauge(Family::SegmentPeers, peers);
        sheet.gauge(Family::SegmentNeighbours, neighbours);
        sheet.gauge(Family::SegmentConnections, connections);
        self.links(sheet);
    }

    /// Adds the counters of segments' links. Every counter is present from the start, since alert rules use
    /// its increase.
    fn links(&self, sheet: &mut Sheet) {
        let linked = self.segments.iter().filter_map(|segment| Some((&segment.name, segment.link?)));
        let counted: Vec<_> = linked.map(|(name, link)| (name, link.counters.values())).collect();
        for (n, described) in LinkCounters::DESCRIBED.into_iter().enumerate() {
            let of_link = counted.iter().map(|(name, values)| (labels([("segment", name)]), values[n]));
            sheet.described(Table::SegmentLink, described, of_link);
        }
    }

    fn ports(&self, sheet: &mut Sheet) {
        let ethernets = self.ethernets.iter();
        sheet.gauge(
            Family::EthernetPortUp,
            ethernets.clone().map(|end| (labels([("port", &end.name)]), flag(end.up))),
        );
        let with = |label: &'static str, counted: fn(&EthernetFigures) -> &[(&'static str, u64)]| {
            self.ethernets.iter().flat_map(move |end| {
                counted(end).iter().map(move |(word, n)| (labels([("port", &end.name), (label, word)]), *n))
            })
        };
        sheet.counter(Family::EthernetPortPackets, with("direction", |end| &end.packets));
        sheet.counter(Family::EthernetPortBytes, with("direction", |end| &end.bytes));
        sheet.counter(Family::EthernetPortLosses, with("reason", |end| &end.losses));
        sheet.counter(
            Family::EthernetPortPartialChecksums,
            ethernets.map(|end| (labels([("port", &end.name)]), end.partial_checksums)),
        );
        let of_port = |end: &InfinibandFigures| labels([("device", &end.device), ("port", &end.port)]);
        let infinibands = self.infinibands.iter();
        sheet.gauge(Family::InfinibandPortUp, infinibands.clone().map(|end| (of_port(end), flag(end.up))));
        sheet.counter(Family::SrqLow, infinibands.clone().map(|end| (of_port(end), end.srq_low)));
        sheet.counter(Family::DeviceErrors, infinibands.map(|end| (of_port(end), end.errors)));
    }

    fn state(&self, sheet: &mut Sheet) {
        let of = |label: &'static str, words: [&'static str; 2], counts: [u64; 2]| {
            words.into_iter().zip(counts).map(move |(word, n)| (labels([(label, &word)]), n))
        };
        let buffers = of("state", ["in_use", "available"], self.buffers.map(u64::from));
        sheet.gauge(Family::Buffers, buffers.map(|(labels, n)| (labels, n as f64)));
        sheet.counter(Family::ControlStalls, [(labels([]), self.control_stalls)]);
        sheet.counter(Family::Reloads, of("outcome", ["done", "refused"], self.reloads));
        sheet.counter(Family::CapturePackets, of("outcome", ["written", "missing"], self.captured));
        let [turns, setup] = &self.times;
        sheet.gauge(Family::BusyTurnSeconds, percentiles(turns));
        sheet.gauge(Family::ConnectionSetupSeconds, percentiles(setup));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::WorkerCounters;
    use crate::forward::SegmentIndex;
    use config::MAX_SEGMENTS;
    use hdrhistogram::Histogram;

    /// A gateway of this size with every counter above zero and `hosts` hosts on each side of a segment.
    fn gateway(workers: usize, segments: usize, ports: usize, hosts: usize) -> Figures {
        let mut counters = WorkerCounters::default();
        let index = SegmentIndex(0);
        DropReason::ALL.into_iter().for_each(|reason| counters.drops_of(index, reason, 1 + hosts as u64));
        let all = Totals::of([&counters.reader()]);
        let counted = SegmentTotals::of([&counters.segment_reader()], index);
        let link =
            LinkFigures { up: true, hosts, connections: [hosts; 2], counters: LinkCounters::default() };
        let segment = |n| SegmentFigures {
            name: format!("segment-{n}"),
            counted: counted.clone(),
            role: Role::Forwarding,
            loops: hosts as u64,
            peers: [hosts; 2],
            hosts,
            link: Some(link),
            waits: true,
        };
        let losses = ["missed", "receive_errors", "send_errors", "no_buffer"].map(|reason| (reason, 1));
        let [packets, bytes] = [10, 1000].map(|n| ["receive", "transmit"].map(|direction| (direction, n)));
        let ethernet = |n| EthernetFigures {
            name: format!("net_{n}"),
            up: true,
            packets,
            bytes,
            losses,
            partial_checksums: 1,
        };
        let infiniband =
            |n| InfinibandFigures { device: format!("mlx5_{n}"), port: 1, up: true, srq_low: 1, errors: 1 };
        let times = Summary::of(&Histogram::<u64>::new(3).unwrap());
        Figures {
            started: 1.0,
            workers: vec![all.clone(); workers],
            all,
            segments: (0..segments).map(segment).collect(),
            coming: Vec::new(),
            ethernets: (0..ports).map(ethernet).collect(),
            infinibands: (0..ports).map(infiniband).collect(),
            buffers: [1; 2],
            control_stalls: 1,
            reloads: [1; 2],
            captured: [1; 2],
            times: [times; 2],
        }
    }

    fn series(figures: &Figures) -> usize {
        let text = figures.sheet().into_text().unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let names: std::collections::BTreeSet<_> =
            lines.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
        assert_eq!(names.len(), lines.len(), "each occurs once");
        names.len()
    }

    #[test]
    fn there_are_at_most_the_documented_number_of_series() {
        let none = series(&gateway(0, 0, 0, 0));
        assert!(none <= MOST_BESIDE, "{none}");
        let worker = series(&gateway(1, 0, 0, 0)) - none;
        let segment = series(&gateway(0, 1, 0, 1)) - none;
        let ports = series(&gateway(0, 0, 1, 0)) - none;
        assert!(worker <= MOST_OF_WORKER && segment <= MOST_OF_SEGMENT, "{worker} {segment}");
        // One port of each kind.
        assert!(ports <= 2 * MOST_OF_PORT, "{ports}");
        // The largest possible gateway, with every counter above zero.
        let (workers, most_ports) = (255, 255);
        let largest = series(&gateway(workers, MAX_SEGMENTS, most_ports, 100_000));
        assert_eq!(largest, none + workers * worker + MAX_SEGMENTS * segment + most_ports * ports);
        let promised = workers * MOST_OF_WORKER
            + MAX_SEGMENTS * MOST_OF_SEGMENT
            + 2 * most_ports * MOST_OF_PORT
            + MOST_BESIDE;
        assert!(largest <= promised, "{largest} {promised}");
    }

    #[test]
    fn a_segment_that_is_not_running_yet_waits_and_does_not_forward() {
        let mut figures = gateway(0, 1, 0, 0);
        figures.coming = vec!["lab".to_owned()];
        let text = figures.sheet().into_text().unwrap();
        for line in [
            "ipoib_fwd_segment_waiting{segment=\"lab\"} 1.0",
            "ipoib_fwd_segment_up{segment=\"lab\"} 0.0",
            "ipoib_fwd_segment_role{segment=\"lab\",role=\"forwarding\"} 0.0",
            "ipoib_fwd_segment_role{segment=\"segment-0\",role=\"forwarding\"} 1.0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }

    #[test]
    fn each_counter_of_a_link_is_a_family_with_its_description() {
        let mut figures = gateway(0, 2, 0, 0);
        figures.segments[0].link.as_mut().unwrap().counters.sa_timeouts = 7;
        figures.segments[1].link = None;
        let text = figures.sheet().into_text().unwrap();
        for [counter, help, _] in LinkCounters::DESCRIBED {
            let n = if counter == "sa_timeouts" { 7 } else { 0 };
            let family = format!("ipoib_fwd_segment_link_{counter}");
            let whole = format!(
                "# HELP {family} {help}\n# TYPE {family} counter\n{family}_total{{segment=\"segment-0\"}} {n}\n"
            );
            assert!(text.contains(&whole), "{whole}");
            assert_eq!(Table::SegmentLink.figure(counter), format!("{family}_total"));
        }
        assert_eq!(text.matches("\n# TYPE ipoib_fwd_segment_link_").count(), LinkCounters::DESCRIBED.len());
    }

    #[test]
    fn hosts_connections_and_gateways_add_no_series() {
        assert_eq!(series(&gateway(2, 3, 1, 1)), series(&gateway(2, 3, 1, 1_000_000)));
        // Drop reasons that have not occurred add none, either.
        let mut quiet = gateway(0, 1, 0, 0);
        quiet.segments[0].counted =
            SegmentTotals::of([&WorkerCounters::default().segment_reader()], SegmentIndex(0));
        assert_eq!(series(&gateway(0, 1, 0, 0)) - series(&quiet), DropReason::ALL.len());
    }
}
