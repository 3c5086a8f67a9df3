//! Packets that workers hand over because they are not plain forwarding.

use std::net::Ipv4Addr;
use std::time::Instant;

use pmd::hca::Backend;
use pmd::mem::Mbuf;

use super::GatewayControl;
use crate::forward::Punt;
use crate::forward::ethernet_neighbours::ParkError;
use crate::gateway::worker::{Cause, GatewayNote, Side};
use ipoib::drop_reason::DropReason;
use ipoib::link::WorkerIndex;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, EthernetHeader};
use ipoib::net::icmp::{self, ICMP_ERROR_MAX};
use ipoib::net::ipv4::Ipv4View;
use ipoib::net::{IPOIB_HEADER_LEN, IPOIB_IPV4_HEADER};

/// Longest ping that the gateway answers itself, bytes of the IPv4 packet.
const LONGEST_PING: usize = 9000;

/// Where the IPv4 packet begins.
const fn header_len(side: Side) -> usize {
    match side {
        Side::Ethernet => ETHERNET_HEADER_LEN,
        Side::InfiniBand => IPOIB_HEADER_LEN,
    }
}

/// The first bytes of the IPv4 packet, at most `limit`.
fn copy_of(side: Side, packet: &Mbuf, limit: usize) -> Vec<u8> {
    let skip = header_len(side);
    let mut bytes = vec![0; packet.len().saturating_sub(skip).min(limit)];
    let copied = packet.read(skip, &mut bytes);
    bytes.truncate(copied);
    bytes
}

impl<B: Backend> GatewayControl<B> {
    pub(super) fn take_packets(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some((worker, note)) = self.endpoint.poll_note() {
            any = true;
            self.take_packet(now, worker, note);
        }
        any
    }

    fn take_packet(&mut self, now: Instant, worker: WorkerIndex, note: GatewayNote) {
        let GatewayNote { cause, side, source, packet } = note;
        match (cause, side) {
            (Cause::Punt(Punt::Arp), Side::Ethernet) => self.take_ethernet_arp(now, &packet),
            (Cause::Punt(Punt::Arp), Side::InfiniBand) => {
                self.take_infiniband_arp(now, worker, source, &packet);
            }
            // There is no other gateway to speak with yet.
            (Cause::Punt(Punt::Hello), _) => self.own.drop(DropReason::NotHandled),
            (Cause::Punt(Punt::Neighbour(ip)), Side::Ethernet) => {
                self.wait_for_infiniband(now, ip, worker, packet);
            }
            (Cause::Punt(Punt::Neighbour(ip)), Side::InfiniBand) => {
                self.wait_for_ethernet(now, ip, worker, packet);
            }
            (Cause::Punt(Punt::Local), _) => self.answer_ping(now, side, worker, &packet),
            (Cause::TooBig(mtu), _) => self.answer_too_big(now, side, worker, mtu, &packet),
        }
    }

    fn wait_for_infiniband(&mut self, now: Instant, ip: Ipv4Addr, worker: WorkerIndex, frame: Mbuf) {
        let head = copy_of(Side::Ethernet, &frame, 60);
        let length = frame.len().saturating_sub(ETHERNET_HEADER_LEN);
        let sender = Ipv4View::parse(&head, length).map_or(Ipv4Addr::UNSPECIFIED, |v| v.source());
        // In the name of a host beyond the link nobody may ask: the asked would take it for a neighbour.
        let sender = match self.board.settings() {
            Some(s) if !s.is_on_link(sender) => s.address.map_or(Ipv4Addr::UNSPECIFIED, |own| own.address()),
            _ => sender,
        };
        if self.parked.park(now, ip, worker, frame).is_some() {
            self.own.drop(DropReason::NeighbourQueueFull);
        }
        let by = self.worker_of(sender);
        self.endpoint.link().resolve(now, by, sender, ip);
    }

    fn wait_for_ethernet(&mut self, now: Instant, ip: Ipv4Addr, worker: WorkerIndex, message: Mbuf) {
        match self.hosts.park(now, ip, (worker, message)) {
            Ok(()) => {}
            Err((_, ParkError::QueueFull)) => self.own.drop(DropReason::NeighbourQueueFull),
            Err((_, ParkError::TableFull)) => self.own.drop(DropReason::NeighbourTableFull),
        }
        self.take_host_events(now);
    }

    fn answer_ping(&mut self, now: Instant, side: Side, worker: WorkerIndex, packet: &Mbuf) {
        if packet.len() > LONGEST_PING {
            return self.own.drop(DropReason::NotHandled);
        }
        let mut bytes = copy_of(side, packet, LONGEST_PING);
        match icmp::echo_reply(&mut bytes) {
            Ok(()) if self.icmp.take(now) => self.send_back(side, worker, packet, &bytes),
            Ok(()) => self.own.drop(DropReason::NotHandled),
            Err(reason) => self.own.drop(reason),
        }
    }

    fn answer_too_big(&mut self, now: Instant, side: Side, worker: WorkerIndex, mtu: u16, packet: &Mbuf) {
        let original = copy_of(side, packet, ICMP_ERROR_MAX);
        let length = packet.len().saturating_sub(header_len(side));
        // Without an address of its own the gateway speaks as the host that the packet was for.
        let own = self.address.map(|a| a.address());
        let from = own.or_else(|| Ipv4View::parse(&original, length).ok().map(|v| v.destination()));
        if !icmp::may_answer(&original, length) || !self.icmp.take(now) {
            return self.own.drop(DropReason::TooBig);
        }
        let mut reply = [0; ICMP_ERROR_MAX];
        let from = from.unwrap_or(Ipv4Addr::UNSPECIFIED);
        match icmp::fragmentation_needed(&mut reply, &original, from, mtu).and_then(|n| reply.get(..n)) {
            Some(reply) => {
                self.own.drop(DropReason::TooBigAnswered);
                self.send_back(side, worker, packet, reply);
            }
            None => self.own.drop(DropReason::TooBig),
        }
    }

    /// Sends an IPv4 packet to where another one came from.
    fn send_back(&mut self, side: Side, worker: WorkerIndex, original: &Mbuf, reply: &[u8]) {
        match side {
            Side::Ethernet => {
                let Ok(header) = EthernetHeader::parse(original.data()) else { return };
                let header = EthernetHeader {
                    destination: header.source,
                    source: self.mac,
                    ethertype: ETHERTYPE_IPV4,
                };
                let mut frame = header.to_bytes().to_vec();
                frame.extend_from_slice(reply);
                self.send_frame(worker, &frame);
            }
            Side::InfiniBand => {
                let to = Ipv4View::parse(reply, reply.len()).map(|v| v.destination());
                let next_hop = |ip| self.board.settings().and_then(|s| s.next_hop(ip));
                let known = to
                    .ok()
                    .and_then(next_hop)
                    .and_then(|ip| self.endpoint.link().table().get(ip).and_then(|n| n.ud));
                match known {
                    Some(destination) => {
                        let mut message = IPOIB_IPV4_HEADER.to_vec();
                        message.extend_from_slice(reply);
                        self.endpoint.send_ud(worker, &destination, &message);
                    }
                    None => self.own.drop(DropReason::NeighbourUnresolved),
                }
            }
        }
    }
}
