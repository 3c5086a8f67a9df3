//! What `ctl metrics` says: the gateway's figures as monitoring systems take them.
//!
//! There are as many as there are workers, ports and segments; of a segment's drops only the reasons that there were.

use std::time::{Instant, SystemTime};

use dataplane::latency::Summary;
use hdrhistogram::Histogram;
use ipoib::drop_reason::DropReason;
use pmd::hca::Backend;

use super::GatewayControl;
use super::answers::waits_of;
use crate::counter::{Labour, SegmentTotals, SegmentTraffic, Totals, Traffic};
use crate::metrics::{Family, Labels, Sheet, labels};
use crate::segment::pair::Role;

const ROLES: [Role; 5] = [Role::Forwarding, Role::Standby, Role::Listening, Role::Blocked, Role::Drained];

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// Times in seconds below which so many of a hundred are.
fn percentiles(times: &Histogram<u64>) -> impl Iterator<Item = (Labels, f64)> + use<> {
    let Summary { p50, p90, p99, p999, max, .. } = Summary::of(times);
    let all = [("50", p50), ("90", p90), ("99", p99), ("99.9", p999), ("100", max)];
    all.into_iter().map(|(percentile, ns)| (labels([("percentile", &percentile)]), ns as f64 * 1e-9))
}

impl<B: Backend> GatewayControl<B> {
    /// All figures, as one text; nothing if they cannot be written.
    pub(super) fn metrics(&mut self) -> String {
        let mut sheet = Sheet::default();
        sheet.gauge(Family::BuildInfo, [(labels([("version", &env!("CARGO_PKG_VERSION"))]), 1.0)]);
        let started = self.schedule.started_by_clock.duration_since(SystemTime::UNIX_EPOCH);
        sheet.gauge(Family::StartTimeSeconds, [(labels([]), started.unwrap_or_default().as_secs_f64())]);
        self.traffic_figures(&mut sheet);
        self.segment_figures(&mut sheet);
        self.port_figures(&mut sheet);
        self.state_figures(&mut sheet);
        sheet.into_text().unwrap_or_default()
    }

    /// Workers, and all drops.
    fn traffic_figures(&self, sheet: &mut Sheet) {
        let workers: Vec<Totals> = self.readers.iter().map(|reader| Totals::of([reader])).collect();
        let by_path = |value: fn(&Totals, Traffic) -> u64| -> Vec<(Labels, u64)> {
            let worker = |(n, totals): (usize, &Totals)| {
                Traffic::ALL
                    .map(|path| (labels([("worker", &n), ("path", &path.name())]), value(totals, path)))
            };
            workers.iter().enumerate().flat_map(worker).collect()
        };
        sheet.counter(Family::WorkerPackets, by_path(Totals::packets));
        sheet.counter(Family::WorkerBytes, by_path(Totals::bytes));
        let of_worker = |what: Labour| {
            let workers = workers.iter().enumerate();
            workers.map(move |(n, totals)| (labels([("worker", &n)]), totals.labour(what)))
        };
        sheet.counter(Family::WorkerBusyTurns, of_worker(Labour::BusyTurns));
        sheet.seconds(Family::WorkerBusySeconds, of_worker(Labour::Busy));
        sheet.seconds(Family::WorkerRestSeconds, of_worker(Labour::Rest));
        let totals = self.totals();
        let drops = DropReason::ALL.map(|r| (labels([("reason", &r.name())]), totals.drops(r)));
        sheet.counter(Family::Drops, drops);
    }

    fn segment_figures(&mut self, sheet: &mut Sheet) {
        let (mut packets, mut bytes, mut drops) = (Vec::new(), Vec::new(), Vec::new());
        let (mut up, mut role, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        let (mut peers, now) = (Vec::new(), Instant::now());
        let (mut neighbours, mut connections, mut loops) = (Vec::new(), Vec::new(), Vec::new());
        for duty in self.segments.iter() {
            let name = &duty.name;
            let all = SegmentTotals::sum(&self.counted(duty));
            for way in SegmentTraffic::ALL {
                let of = labels([("segment", name), ("way", &way.name())]);
                packets.push((of.clone(), all.packets(way)));
                bytes.push((of, all.bytes(way)));
            }
            let happened = DropReason::ALL.into_iter().map(|r| (r, all.drops(r))).filter(|(_, n)| *n > 0);
            drops.extend(happened.map(|(r, n)| (labels([("segment", name), ("reason", &r.name())]), n)));
        }
        let Self { segments, endpoints, .. } = self;
        for duty in segments.iter() {
            let name = &duty.name;
            let with = |label: &'static str, value: &dyn std::fmt::Display| {
                labels([("segment", name), (label, value)])
            };
            let trouble = waits_of(endpoints, duty).is_some();
            let is = duty.duty.pair.role();
            role.extend(ROLES.map(|role| (with("role", &role.name()), flag(role == is))));
            loops.push((labels([("segment", name)]), duty.duty.pair.statistics().loops));
            let [mut both, mut one] = [0.0; 2];
            for peer in duty.duty.pair.peers(now).filter(|peer| peer.alive) {
                *if peer.heard.is_both() { &mut both } else { &mut one } += 1.0;
            }
            peers.push((with("heard", &"both"), both));
            peers.push((with("heard", &"one"), one));
            neighbours.push((with("side", &"ethernet"), duty.segment.hosts().count() as f64));
            let link = endpoints.link(duty.endpoint, duty.link);
            let of_segment = labels([("segment", name)]);
            up.push((of_segment.clone(), flag(link.as_ref().is_some_and(|link| link.state().up))));
            let waits = trouble || link.as_ref().is_none_or(|link| link.waits_for().is_some());
            waiting.push((of_segment, flag(waits)));
            let Some(link) = link else { continue };
            neighbours.push((with("side", &"infiniband"), link.neighbour_count() as f64));
            for (direction, live) in ["outgoing", "incoming"].into_iter().zip(link.live_connections()) {
                connections.push((with("direction", &direction), live as f64));
            }
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
    }

    fn port_figures(&mut self, sheet: &mut Sheet) {
        let ethernet =
            self.ethernets.iter().map(|end| (labels([("port", &end.port.name())]), flag(end.is_up())));
        sheet.gauge(Family::EthernetPortUp, ethernet);
        let losses = self.ethernets.iter().flat_map(|end| {
            let name = end.port.name();
            end.losses().map(|(reason, n)| (labels([("port", &name), ("reason", &reason)]), n))
        });
        sheet.counter(Family::EthernetPortLosses, losses);
        let (mut up, mut srq_low, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for endpoint in self.endpoints.iter_mut() {
            let device = endpoint.hca().device().name;
            let of_port = labels([("device", &device), ("port", &endpoint.port().0)]);
            let is_up = !endpoint.is_gone() && endpoint.links().links().any(|(_, link)| link.state().up);
            up.push((of_port.clone(), flag(is_up)));
            srq_low.push((of_port.clone(), endpoint.srq_low()));
            errors.push((of_port, endpoint.device_errors().0));
        }
        sheet.gauge(Family::InfinibandPortUp, up);
        sheet.counter(Family::SrqLow, srq_low);
        sheet.counter(Family::DeviceErrors, errors);
    }

    fn state_figures(&self, sheet: &mut Sheet) {
        let of = |state: &'static str, n: usize| (labels([("state", &state)]), n as f64);
        let buffers =
            [of("in_use", self.pool.in_use() as usize), of("available", self.pool.available() as usize)];
        sheet.gauge(Family::Buffers, buffers);
        let [done, refused] = self.reloader.counts();
        let outcome = |outcome: &'static str, n| (labels([("outcome", &outcome)]), n);
        let reloads = [outcome("done", done), outcome("refused", refused)];
        sheet.counter(Family::Reloads, reloads);
        let [written, missing] = self.recordings.totals();
        sheet.counter(Family::CapturePackets, [outcome("written", written), outcome("missing", missing)]);
        sheet.gauge(Family::BusyTurnSeconds, percentiles(&self.times.service));
        sheet.gauge(Family::ConnectionSetupSeconds, percentiles(&self.times.setup));
    }
}
