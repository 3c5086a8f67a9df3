//! Inputs of segments, and the execution of their outputs: a segment decides, this code carries out.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use ib_wire::Qpn;
use pmd::hca::Backend;
use pmd::mem::Mbuf;
use serde_json::{Value, json};

use super::GatewayControl;
use super::duties::parts;
use super::news;
use super::ports::EthernetPort;
use crate::event::What;
use crate::forward::{EndpointIndex, Punt, SegmentIndex, Side};
use crate::gateway::board::SegmentBoard;
use crate::gateway::punts::Cause;
use crate::gateway::worker::{GatewayCommand, GatewayNote};
use crate::segment::pair::{Neighbour, Place};
use crate::segment::{Arrival, Output, Packet};
use endpoint::Endpoint;
use ipoib::drop_reason::DropReason;
use ipoib::link::{Event, Waiting, WorkerIndex};
use ipoib::net::IPOIB_IPV4_HEADER;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, MacAddress};

impl Packet for Mbuf {
    fn length(&self) -> usize {
        self.len()
    }

    fn read(&self, skip: usize, to: &mut [u8]) -> usize {
        Self::read(self, skip, to)
    }
}

impl<B: Backend> GatewayControl<B> {
    /// The indexes of the segments.
    pub(super) fn indices(&self) -> impl Iterator<Item = SegmentIndex> + use<B> {
        self.segments.indices()
    }

    pub(super) fn take_packets(&mut self, now: Instant) -> bool {
        let mut any = false;
        for port in self.endpoints.indices() {
            any |= self.take_packets_of(now, port);
        }
        any
    }

    fn take_packets_of(&mut self, now: Instant, port: EndpointIndex) -> bool {
        let mut any = false;
        while let Some((worker, note)) = self.endpoints.at(port).and_then(Endpoint::poll_note) {
            any = true;
            let at = note.segment;
            if let Cause::PartialChecksum(port) = note.cause {
                self.take_checksum_sample(now, port, &note.packet);
            } else if self.segments.at(at).is_some() {
                let traced = self.begin_trace(&note);
                self.take_packet(now, worker, note);
                self.carry_out(now, at);
                self.end_trace(traced);
            } else {
                self.own.drop(DropReason::SegmentGone);
            }
        }
        any
    }

    fn take_packet(&mut self, now: Instant, worker: WorkerIndex, note: GatewayNote) {
        let GatewayNote { cause, segment: at, side, origin, packet } = note;
        match cause {
            Cause::Punt(Punt::Hello) => return self.take_hello(now, at, side, &packet),
            Cause::Unsent => return self.take_unsent(at, packet.data()),
            Cause::Punt(_) | Cause::TooBig { .. } | Cause::PartialChecksum(_) => {}
        }
        let arrival = Arrival { side, worker, origin };
        let Some((duty, link, board)) = parts!(self, at) else {
            return self.own.drops_of(at, DropReason::SegmentGone, 1);
        };
        let segment = &mut duty.segment;
        match (cause, side) {
            (Cause::Punt(Punt::Arp), Side::Ethernet) => segment.handle_ethernet_arp(now, link, packet.data()),
            (Cause::Punt(Punt::Arp), Side::InfiniBand) => {
                segment.handle_infiniband_arp(now, link, &arrival, packet.data());
            }
            (Cause::Punt(Punt::Hello) | Cause::Unsent | Cause::PartialChecksum(_), _) => {}
            (Cause::Punt(Punt::Neighbour(ip)), _) => {
                let published = board.has_way(side, worker, ip);
                segment.handle_unresolved(now, link, IpAddr::V4(ip), arrival, packet, published);
            }
            (Cause::Punt(Punt::Local), _) => segment.handle_local(now, link, &arrival, &packet),
            (Cause::TooBig { mtu, dial }, _) => {
                segment.handle_too_big(now, link, arrival, mtu, dial.map(IpAddr::V4), packet);
            }
        }
        // Before the answer.
        if segment.take_unknown_sender() {
            duty.duty.pair.greet(now);
            self.carry_out_pair(now, at);
        }
    }

    /// Releases, in each segment, packets that waited for neighbors published in this iteration.
    pub(super) fn release_published(&mut self, now: Instant) {
        for at in self.indices() {
            let reachable = self.board.at(at).map(SegmentBoard::take_reachable).unwrap_or_default();
            if !reachable.is_empty() {
                self.release(now, at, reachable);
                self.carry_out(now, at);
            }
        }
    }

    fn release(&mut self, now: Instant, at: SegmentIndex, reachable: Vec<IpAddr>) {
        let Some((duty, link, _)) = parts!(self, at) else { return };
        duty.segment.handle_published(now, link, reachable);
    }

    pub(super) fn pass_time(&mut self, now: Instant) {
        for at in self.indices() {
            if let Some(duty) = self.segments.at_mut(at)
                && let Some(link) = self.endpoints.link(duty.endpoint, duty.link)
            {
                duty.segment.handle_timeout(now, link);
            }
            self.carry_out(now, at);
        }
    }

    /// Drops pending packets: the gateway is stopping.
    pub(super) fn drop_waiting(&mut self, now: Instant) {
        for at in self.indices() {
            if let Some(duty) = self.segments.at_mut(at) {
                duty.segment.clear(DropReason::Shutdown);
            }
            self.carry_out(now, at);
        }
    }

    /// Passes the gateway's addresses on both sides to the tables.
    pub(super) fn publish_addresses(&mut self) {
        let up: Vec<bool> = self.ethernets.iter().map(EthernetPort::is_up).collect();
        for at in self.indices() {
            self.publish_address_of(at, &up);
        }
    }

    fn publish_address_of(&mut self, at: SegmentIndex, up: &[bool]) {
        let Some((duty, link, board)) = parts!(self, at) else { return };
        board.set_ethernet_up(up.get(duty.ethernet.at()).is_some_and(|up| *up));
        let qpns: Vec<Qpn> = link.settings().workers.iter().map(|w| w.ud_qpn).collect();
        board.set_own(link.state().lid, &qpns);
    }

    /// Passes the hosts to which workers have sent to both neighbor tables.
    pub(super) fn collect_usage(&mut self, now: Instant) {
        for worker in (0..self.maker.workers).map(WorkerIndex) {
            for at in self.indices() {
                self.collect_used(now, at, worker);
            }
        }
    }

    fn collect_used(&mut self, now: Instant, at: SegmentIndex, worker: WorkerIndex) {
        let Some((duty, link, board)) = parts!(self, at) else { return };
        let (infiniband, ethernet) = board.take_used(worker);
        for ip in ethernet {
            duty.segment.handle_used(now, link, IpAddr::V4(ip));
        }
        if !infiniband.is_empty() {
            let sent: Vec<IpAddr> = infiniband.into_iter().map(IpAddr::V4).collect();
            link.handle_used(now, worker, &[], &sent);
        }
    }

    /// Carries out a segment's outputs.
    pub(super) fn carry_out(&mut self, now: Instant, at: SegmentIndex) {
        while let Some(output) = self.segments.at_mut(at).and_then(|duty| duty.segment.poll_output()) {
            self.carry_out_one(now, at, output);
        }
    }

    fn carry_out_one(&mut self, now: Instant, at: SegmentIndex, output: Output<Mbuf>) {
        self.traces.note_output(&output);
        match output {
            Output::Frame { worker, bytes } => {
                if !self.send(at, worker, &bytes, |buf| GatewayCommand::SendEthernet(at, buf)) {
                    self.take_unsent(at, &bytes);
                }
            }
            Output::Message { worker, to, bytes } => {
                let IpAddr::V4(to) = to else { return };
                let room = [0; ETHERNET_HEADER_LEN];
                let frame = [&room[..], &bytes].concat();
                self.send(at, worker, &frame, |buf| GatewayCommand::SendInfiniBand(at, to, buf));
            }
            Output::Datagram { worker, to, bytes } => {
                let message = [&IPOIB_IPV4_HEADER[..], &bytes].concat();
                if let Some(duty) = self.segments.at(at)
                    && let Some(endpoint) = self.endpoints.at(duty.endpoint)
                {
                    endpoint.send_ud_by(duty.link, worker, &to, &message);
                }
            }
            Output::SetHost { ip: IpAddr::V4(ip), mac } => {
                self.report_host(now, at, ip, mac);
                if let Some(board) = self.board.at(at) {
                    board.set_ethernet(ip, mac);
                }
                let place = Place::Ethernet(mac);
                self.report_to_standbys(now, at, Neighbour { ip: ip.into(), place });
            }
            Output::RemoveHost { ip: IpAddr::V4(ip) } => {
                if let Some(board) = self.board.at(at) {
                    board.remove_ethernet(ip);
                }
                let said =
                    || (format!("{ip} is gone from Ethernet"), json!({"address": ip, "side": "Ethernet"}));
                self.events.report(now, What::Gone, self.segments.at(at), said);
            }
            Output::SetHost { .. } | Output::RemoveHost { .. } => {}
            Output::Release { side, worker, packet } => {
                // Pending packets are sent by the new tables.
                self.board.flush();
                self.command(at, worker, GatewayCommand::Forward(at, side, packet));
            }
            Output::Drop(reason, n) => self.own.drops_of(at, reason, n),
            Output::Discard { side, packet, reason } => {
                self.own.drops_of(at, reason, 1);
                self.trace_discarded(at, side, &packet, reason);
            }
            Output::Happening(happening) => {
                if let Some(duty) = self.segments.at_mut(at) {
                    duty.news.log(now, &duty.name, happening);
                }
                let (what, text, facts) = news::said(happening);
                self.events.report(now, what, self.segments.at(at), || (text, facts));
            }
        }
    }

    /// Handles a frame of the gateway's own that was not sent.
    fn take_unsent(&mut self, at: SegmentIndex, frame: &[u8]) {
        if let Some(duty) = self.segments.at_mut(at) {
            duty.segment.handle_unsent(frame);
        }
    }

    /// Sends a packet of the control lcore through a worker. False if the worker does not get it.
    pub(super) fn send(
        &mut self,
        at: SegmentIndex,
        worker: WorkerIndex,
        bytes: &[u8],
        command: impl FnOnce(Mbuf) -> GatewayCommand,
    ) -> bool {
        match self.pool.copy_from_slice(bytes) {
            Some(buf) => self.command(at, worker, command(buf)),
            None => {
                self.own.drop(DropReason::NoBuffers);
                false
            }
        }
    }

    /// Sends a segment's command to a worker. It uses the ring of the segment's InfiniBand port, so that the
    /// worker has the tables that were published before.
    pub(super) fn command(&mut self, at: SegmentIndex, worker: WorkerIndex, command: GatewayCommand) -> bool {
        let endpoint = self.segments.at(at).map(|duty| duty.endpoint);
        match endpoint.and_then(|endpoint| self.endpoints.at(endpoint)) {
            Some(endpoint) => endpoint.send(worker, command),
            None => {
                self.own.drop(DropReason::SegmentGone);
                false
            }
        }
    }

    pub(super) fn take_link_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        for port in self.endpoints.indices() {
            any |= self.take_link_events_of(now, port);
        }
        any
    }

    fn take_link_events_of(&mut self, now: Instant, port: EndpointIndex) -> bool {
        let mut any = false;
        while let Some((link, event)) = self.endpoints.at(port).and_then(Endpoint::poll_link_event) {
            any = true;
            let Some(at) = self.segment_of(port, link) else { continue };
            self.take_link_event(now, at, &event);
            self.carry_out(now, at);
            let up = event == Event::Up;
            self.report_link_event(now, at, event);
            if up {
                // Before it forwards, it must recognize its own multicasts when they come back.
                self.publish_addresses();
                self.warn_of_mtu(at);
            }
        }
        any
    }

    fn take_link_event(&mut self, now: Instant, at: SegmentIndex, event: &Event) {
        if let Event::NeighbourResolved { ip, hardware } | Event::NeighbourChanged { ip, new: hardware, .. } =
            *event
        {
            self.report_to_standbys(now, at, Neighbour { ip, place: Place::InfiniBand(hardware) });
        }
        let Some((duty, link, _)) = parts!(self, at) else { return };
        duty.segment.handle_link_event(now, link, event);
    }

    /// Reports a host to the standby gateways. An unproven host is left to the next full report: by then it
    /// is proven, or gone.
    fn report_to_standbys(&mut self, now: Instant, at: SegmentIndex, host: Neighbour) {
        if let Some(duty) = self.segments.at_mut(at).filter(|duty| !duty.segment.is_unproven(host.ip)) {
            duty.duty.pair.tell_neighbour(now, host);
        }
    }

    /// Reports a link's event in the log and to subscribers.
    fn report_link_event(&mut self, now: Instant, at: SegmentIndex, event: Event) {
        let Self { segments, events, times, .. } = self;
        let Some(duty) = segments.at(at) else { return };
        let name = &duty.name;
        let mut report =
            |what, text: String, facts: Value| events.report(now, what, Some(duty), || (text, facts));
        let infiniband = |ip: IpAddr| json!({"address": ip, "side": "InfiniBand"});
        match event {
            Event::Up => {
                tracing::info!(
                    segment = name.as_str(),
                    event = What::Up.journal(),
                    "{name}: InfiniBand link up"
                );
                report(What::Up, "InfiniBand link up".to_owned(), Value::Null);
            }
            Event::Readdressed { gid } => {
                tracing::info!(
                    segment = name.as_str(),
                    event = What::Readdressed.journal(),
                    "{name}: our GID is {gid} now: announcing it"
                );
                report(What::Readdressed, format!("our GID is {gid} now"), json!({"gid": gid.to_string()}));
            }
            Event::Waiting(why @ Waiting::GroupMtu { group, port }) => {
                tracing::warn!(
                    segment = name.as_str(),
                    event = What::GroupMtu.journal(),
                    "{name}: no InfiniBand link: {why}"
                );
                let facts = json!({"group_mtu": group, "port_mtu": port});
                report(What::GroupMtu, format!("no InfiniBand link: {why}"), facts);
            }
            Event::Waiting(why) => {
                tracing::warn!(
                    segment = name.as_str(),
                    event = What::Waiting.journal(),
                    "{name}: no InfiniBand link: {why}"
                );
                report(What::Waiting, format!("no InfiniBand link: {why}"), Value::Null);
            }
            // Every link goes down when the gateway is stopped.
            Event::Down if self.stopping.is_some() => {
                report(What::Down, "InfiniBand link down".to_owned(), Value::Null);
            }
            Event::Down => {
                tracing::warn!(
                    segment = name.as_str(),
                    event = What::Down.journal(),
                    "{name}: InfiniBand link down"
                );
                report(What::Down, "InfiniBand link down".to_owned(), Value::Null);
            }
            // Handled where the packet was received, with the sender's drop reasons.
            Event::Arp(_) | Event::QueryUnsent { .. } | Event::Stopped => {}
            Event::NeighbourResolved { ip, hardware } => {
                let facts =
                    json!({"address": ip, "side": "InfiniBand", "hardware_address": hardware.to_string()});
                report(What::Learnt, format!("{ip} is at {hardware}"), facts);
            }
            Event::NeighbourUnreachable { ip } => {
                report(What::Gone, format!("{ip} is gone from InfiniBand"), infiniband(ip));
            }
            Event::NeighbourChanged { ip, old, new } => {
                tracing::debug!(
                    segment = name.as_str(),
                    event = What::Moved.journal(),
                    "{name}: {ip} moved from {old} to {new}"
                );
                let facts = json!({"address": ip, "side": "InfiniBand", "hardware_address": new.to_string()});
                report(What::Moved, format!("{ip} has moved from {old} to {new}"), facts);
            }
            Event::ConnectionUp { passive, peer, setup, .. } => {
                times.setup.saturating_record(setup.as_nanos() as u64);
                let who = if passive { "accepted from" } else { "opened to" };
                let text = format!("connection {who} {peer} in {:.1} ms", setup.as_secs_f64() * 1e3);
                tracing::info!(
                    segment = name.as_str(),
                    event = What::ConnectionUp.journal(),
                    "{name}: {text}"
                );
                report(What::ConnectionUp, text, json!({"peer": peer.to_string(), "passive": passive}));
            }
            Event::ConnectionDown { passive, peer, reason, .. } => {
                let which = if passive { "passive connection from" } else { "active connection to" };
                let text = format!("{which} {peer} down: {reason:?}");
                tracing::info!(
                    segment = name.as_str(),
                    event = What::ConnectionDown.journal(),
                    "{name}: {text}"
                );
                let reason = format!("{reason:?}");
                let facts = json!({"peer": peer.to_string(), "passive": passive, "reason": reason});
                report(What::ConnectionDown, text, facts);
            }
        }
    }

    /// Reports an Ethernet host if it is new or has moved.
    fn report_host(&mut self, now: Instant, at: SegmentIndex, ip: Ipv4Addr, mac: MacAddress) {
        let before = self.board.at(at).and_then(|board| board.table().eth(ip).map(|(_, host)| host.mac));
        let (what, text) = match before {
            Some(before) if before == mac => return,
            Some(before) => (What::Moved, format!("{ip} has moved from {before} to {mac}")),
            None => (What::Learnt, format!("{ip} is at {mac}")),
        };
        let facts = json!({"address": ip, "side": "Ethernet", "hardware_address": mac.to_string()});
        self.events.report(now, what, self.segments.at(at), || (text, facts));
    }

    /// Closes every link in an orderly way; other gateways may forward at once.
    pub(super) fn shut_down(&mut self, now: Instant) {
        for at in self.indices() {
            self.leave_pair(now, at);
            if let Some(duty) = self.segments.at(at)
                && let Some(link) = self.endpoints.link(duty.endpoint, duty.link)
            {
                link.shutdown(now);
            }
        }
    }

    /// True if no link is left.
    pub(super) fn is_stopped(&mut self) -> bool {
        let Self { segments, endpoints, reloader, .. } = self;
        let mut links = segments.iter().map(|duty| (duty.endpoint, duty.link));
        reloader.is_settled()
            && links.all(|(port, link)| endpoints.link(port, link).is_none_or(|link| link.is_stopped()))
    }
}
