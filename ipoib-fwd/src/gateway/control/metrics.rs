//! `ctl metrics`: the gateway's metrics in the format of monitoring systems.

use std::time::{Instant, SystemTime};

use dataplane::latency::Summary;
use pmd::hca::Backend;

use super::GatewayControl;
use super::answers::waits_of;
use super::ports::Counted;
use crate::counter::{SegmentTotals, Totals};
use crate::metrics::{EthernetFigures, Figures, InfinibandFigures, LinkFigures, SegmentFigures};

impl<B: Backend> GatewayControl<B> {
    /// All metrics as one text; empty if they cannot be written.
    pub(super) fn metrics(&mut self) -> String {
        self.figures(Instant::now()).sheet().into_text().unwrap_or_default()
    }

    fn figures(&mut self, now: Instant) -> Figures {
        let started = self.schedule.started_by_clock.duration_since(SystemTime::UNIX_EPOCH);
        Figures {
            started: started.unwrap_or_default().as_secs_f64(),
            workers: self.readers.iter().map(|reader| Totals::of([reader])).collect(),
            all: self.totals(),
            segments: self.segment_figures(now),
            coming: self.reloader.coming().map(|(name, ..)| name.to_owned()).collect(),
            ethernets: self.ethernet_figures(),
            infinibands: self.infiniband_figures(),
            buffers: [self.pool.in_use(), self.pool.available()],
            control_stalls: self.stalls.count(),
            reloads: self.reloader.counts(),
            captured: self.recordings.totals(),
            times: [&self.times.service, &self.times.setup].map(Summary::of),
        }
    }

    fn segment_figures(&mut self, now: Instant) -> Vec<SegmentFigures> {
        let counted: Vec<_> =
            self.segments.iter().map(|duty| SegmentTotals::sum(&self.counted(duty))).collect();
        let Self { segments, endpoints, ethernets, .. } = self;
        let figures = segments.iter().zip(counted).map(|(duty, counted)| {
            let pair = &duty.duty.pair;
            let [mut both, mut one] = [0; 2];
            for peer in pair.peers(now).filter(|peer| peer.alive) {
                *if peer.heard.is_both() { &mut both } else { &mut one } += 1;
            }
            let waits = waits_of(endpoints, ethernets, duty).is_some();
            let link = endpoints.link(duty.endpoint, duty.link);
            SegmentFigures {
                name: duty.name.clone(),
                counted,
                role: pair.role(),
                loops: pair.statistics().loops,
                peers: [both, one],
                hosts: duty.segment.hosts().count(),
                waits: waits || link.is_none(),
                link: link.map(|link| LinkFigures {
                    up: link.state().up,
                    hosts: link.neighbour_count(),
                    connections: link.live_connections(),
                    counters: *link.counters(),
                }),
            }
        });
        figures.collect()
    }

    fn ethernet_figures(&self) -> Vec<EthernetFigures> {
        let figures = self.ethernets.iter().map(|end| {
            let Counted { packets, bytes, losses } = end.counted();
            EthernetFigures {
                name: end.port.name().to_string(),
                up: end.is_up(),
                packets,
                bytes,
                losses,
                partial_checksums: end.partial.count(),
            }
        });
        figures.collect()
    }

    fn infiniband_figures(&mut self) -> Vec<InfinibandFigures> {
        let figures = self.endpoints.iter_mut().map(|endpoint| InfinibandFigures {
            device: endpoint.hca().device().name,
            port: endpoint.port().0,
            up: !endpoint.is_gone() && endpoint.links().links().any(|(_, link)| link.state().up),
            srq_low: endpoint.srq_low(),
            errors: endpoint.device_errors().0,
        });
        figures.collect()
    }
}
