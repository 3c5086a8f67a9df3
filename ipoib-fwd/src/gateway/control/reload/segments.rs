//! Segments that a reload adds, changes and takes away.

use std::time::Instant;

use config::Segment;
use ipoib::drop_reason::DropReason;
use pmd::hca::Backend;

use super::links::Links as _;
use super::{Draining, LOOK, Waiting};
use crate::counter::SegmentTotals;
use crate::forward::SegmentIndex;
use crate::gateway::control::GatewayControl;
use crate::gateway::control::duties::SegmentDuty;
use crate::gateway::segment_parts::{Ground, SegmentMaker, networks, segment_id};

impl<B: Backend> GatewayControl<B> {
    pub(super) fn join(&mut self, now: Instant, maker: &SegmentMaker, segment: &Segment, ground: Ground) {
        let Self { endpoints, board, segments, .. } = self;
        if let Err(e) = maker.install(now, segment, ground, endpoints, board, segments) {
            // Cannot happen: its routes have been validated.
            tracing::error!(segment = segment.name.as_str(), "{}: {e}", segment.name);
        }
        self.events.forget_drops(ground.index);
        self.reloader.held.push_back((ground.endpoint, ground.link));
        let counted =
            self.segment_readers.iter().map(|reader| SegmentTotals::of([reader], ground.index)).collect();
        if let Some(duty) = self.segments.at_mut(ground.index) {
            duty.counted_before = counted;
            self.kept.restore_segment(now, duty);
        }
        self.publish_addresses();
    }

    /// Removes a segment from the directory at once; its link drains.
    pub(super) fn take_segment_away(&mut self, now: Instant, name: &str) {
        self.reloader.waiting.retain(|w| w.segment.name.as_str() != name);
        let Some(at) = self.segments.iter().find(|duty| duty.name == name).map(|duty| duty.index) else {
            return;
        };
        self.leave_pair(now, at);
        if let Some(duty) = self.segments.at_mut(at) {
            duty.segment.clear(DropReason::SegmentGone);
        }
        self.carry_out(now, at);
        self.board.unjoin(at);
        self.events.forget_drops(at);
        self.traces.forget_segment(now, at);
        if let Some(duty) = self.segments.take(at) {
            let SegmentDuty { name, index, endpoint, link, pkey, .. } = duty;
            self.end_lease(endpoint, index);
            (now, &mut self.endpoints).remove(endpoint, link);
            self.reloader.held.retain(|held| *held != (endpoint, link));
            let name = Some(name);
            self.reloader.draining.push(Draining { name, index, endpoint, link, pkey, forgotten: None });
        }
    }

    /// Applies new networks and a new MTU to a segment that keeps its ports, partition and VLAN.
    pub(super) fn change_segment(&mut self, now: Instant, new: &Segment) {
        let Some(old) = self.maker.config.segments.iter().find(|s| s.name == new.name).cloned() else {
            return;
        };
        if let Some(waiting) = self.reloader.waiting.iter_mut().find(|w| w.segment.name == new.name) {
            waiting.segment = new.clone();
            return;
        }
        let Some(duty) = self.segments.iter_mut().find(|duty| duty.name == new.name.as_str()) else { return };
        let at = duty.index;
        let (Some(link), Some(board)) = (self.endpoints.link(duty.endpoint, duty.link), self.board.at(at))
        else {
            return;
        };
        let Ok((address, routes)) = networks(new) else { return };
        board.set_networks(address, routes.clone(), new.mtu);
        if (&old.address, &old.subnets, &old.routes) != (&new.address, &new.subnets, &new.routes) {
            duty.segment.set_networks(now, link, address, routes);
            duty.duty.pair.set_segment(segment_id(new));
        }
        self.carry_out(now, at);
        if old.mtu != new.mtu {
            self.warn_of_mtu(at);
        }
    }

    /// Lets the next link of a new segment come up. True if there was one.
    pub(super) fn release_held(&mut self, now: Instant) -> bool {
        let Some((endpoint, link)) = self.reloader.held.pop_front() else { return false };
        if let Some(endpoint) = self.endpoints.at(endpoint) {
            endpoint.release_link(now, link);
        }
        true
    }

    /// Tries to join a waiting segment. True if the device was given work.
    pub(super) fn join_waiting(&mut self, now: Instant, mut waiting: Waiting) -> bool {
        let Self { maker, ethernets, endpoints, .. } = self;
        let ground = maker.ground(&waiting.segment, SegmentIndex(0), ethernets, endpoints);
        let free = ground.filter(|ground| !self.is_held(&waiting.segment, ground.endpoint));
        if let (Some(ground), Some(index)) = (free, self.vacancies().first().copied()) {
            let settings = self.maker.link_settings(&waiting.segment);
            match (now, &mut self.endpoints).add(ground.endpoint, settings) {
                Ok(link) => {
                    let ground = Ground { index, link, ..ground };
                    let maker = self.maker.clone();
                    self.join(now, &maker, &waiting.segment, ground);
                    tracing::info!("{}: its index and partition are free, it is added", waiting.segment.name);
                    return true;
                }
                Err(e) => {
                    waiting.retry = now + waiting.tries.failed();
                    if waiting.failed.is_none() {
                        tracing::error!(
                            "{}: {e}; it is retried, at last once a minute. `ipoib-fwd ctl links` shows its state",
                            waiting.segment.name
                        );
                    }
                    waiting.failed = Some(e);
                }
            }
            self.reloader.waiting.push(waiting);
            return true;
        }
        waiting.retry = now + LOOK;
        self.reloader.waiting.push(waiting);
        false
    }

    /// Warns if a segment's Ethernet hosts may send packets that exceed the MTU of its InfiniBand side.
    pub(in crate::gateway::control) fn warn_of_mtu(&mut self, at: SegmentIndex) {
        let (Some(duty), Some(board)) = (self.segments.at(at), self.board.at(at)) else { return };
        let (name, settings) = (&duty.name, board.settings());
        let (ethernet, datagram) = (settings.eth_mtu, settings.ud_ip_mtu());
        if settings.broadcast.is_some() && ethernet > datagram {
            tracing::warn!(
                "{name}: mtu = {ethernet} is more than the {datagram} bytes of a datagram of the partition's broadcast group. Larger packets \
                 to a group, or to a host without a connection, are fragmented or answered by ICMP. Decrease the mtu of the \
                 segment, or increase that of the group"
            );
        }
    }
}
