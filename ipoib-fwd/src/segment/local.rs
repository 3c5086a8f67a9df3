//! Packets that the gateway originates: ping replies, and ICMP errors about packets that do not fit.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use super::fabric::Fabric;
use super::machine::Segment;
use super::output::{Arrival, Origin, Output, Packet};
use super::parked::Awaited;
use crate::forward::Side;
use ipoib::drop_reason::DropReason;
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, EthernetHeader};
use ipoib::net::icmp::{self, ICMP_ERROR_MAX};
use ipoib::net::ipv4::Ipv4View;

/// Longest ping that the gateway answers itself, bytes of the IPv4 packet.
const LONGEST_PING: usize = 9000;

/// The first bytes of the IP packet, at most `limit`.
fn copy_of(packet: &impl Packet, side: Side, limit: usize) -> Vec<u8> {
    let skip = side.header_len();
    let mut bytes = vec![0; packet.length().saturating_sub(skip).min(limit)];
    let copied = packet.read(skip, &mut bytes);
    bytes.truncate(copied);
    bytes
}

impl<P: Packet> Segment<P> {
    /// A packet for the gateway's own address: it answers pings.
    pub fn handle_local(&mut self, now: Instant, fabric: &mut impl Fabric, arrival: &Arrival, packet: &P) {
        if packet.length() > LONGEST_PING {
            return self.drop(DropReason::NotHandled, 1);
        }
        let mut bytes = copy_of(packet, arrival.side, LONGEST_PING);
        match icmp::echo_reply(&mut bytes) {
            Ok(()) if self.limits.echo.take(now) => self.send_back(fabric, arrival, packet, bytes),
            Ok(()) => self.drop(DropReason::NotHandled, 1),
            Err(reason) => self.drop(reason, 1),
        }
    }

    /// Handles a packet that does not fit and may not be fragmented. `dial`: a neighbor to which a
    /// sufficiently large connection may be established; the packet is held meanwhile. Otherwise its source
    /// gets an ICMP error.
    pub fn handle_too_big(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arrival: Arrival,
        mtu: u16,
        dial: Option<IpAddr>,
        packet: P,
    ) {
        let dialled = dial.filter(|ip| fabric.is_dialling(*ip, arrival.worker));
        let Some(ip) = dialled else {
            return self.answer_too_big(now, fabric, &arrival, mtu, &packet);
        };
        self.counters.held_for_connection += 1;
        for gone in self.parked.park(now, ip, Awaited::Connection { mtu }, arrival, packet) {
            self.let_go(now, fabric, gone, DropReason::NeighbourQueueFull);
        }
    }

    /// Releases packets that wait for connections that are established, or that are not being established any
    /// more.
    pub(super) fn release_connected(&mut self, now: Instant, fabric: &mut impl Fabric) {
        if self.parked.is_empty() {
            return;
        }
        let done = self.parked.take_connections(|ip, arrival| {
            fabric.connection_mtu(ip, arrival.worker).is_some() || !fabric.is_dialling(ip, arrival.worker)
        });
        for (ip, waiting) in done {
            let Awaited::Connection { mtu } = waiting.awaited else { continue };
            if fabric.connection_mtu(ip, waiting.arrival.worker).is_some() {
                self.counters.sent_by_connection += 1;
                let (side, worker) = (waiting.arrival.side, waiting.arrival.worker);
                self.output(Output::Release { side, worker, packet: waiting.packet });
            } else {
                self.answer_too_big(now, fabric, &waiting.arrival, mtu, &waiting.packet);
            }
        }
    }

    pub(super) fn answer_too_big(
        &mut self,
        now: Instant,
        fabric: &mut impl Fabric,
        arrival: &Arrival,
        mtu: u16,
        packet: &P,
    ) {
        let original = copy_of(packet, arrival.side, ICMP_ERROR_MAX);
        let length = packet.length().saturating_sub(arrival.side.header_len());
        let Ok(view) = Ipv4View::parse(&original, length) else { return self.drop(DropReason::TooBig, 1) };
        let to = IpAddr::V4(view.source());
        if !icmp::may_answer(&original, length) || !self.limits.take_error(now, to) {
            return self.drop(DropReason::TooBig, 1);
        }
        // Without an address of its own the gateway sends as the host that the packet was for.
        let from = self.own.address().unwrap_or_else(|| view.destination());
        let mut reply = vec![0; ICMP_ERROR_MAX];
        match icmp::fragmentation_needed(&mut reply, &original, from, mtu) {
            Some(length) => {
                reply.truncate(length);
                self.drop(DropReason::TooBigAnswered, 1);
                self.send_back(fabric, arrival, packet, reply);
            }
            None => self.drop(DropReason::TooBig, 1),
        }
    }

    /// Sends an IPv4 packet to the source of another one: to its destination's next hop if that is known,
    /// otherwise back along the path of the other packet, since its source may be behind a router.
    fn send_back(&mut self, fabric: &mut impl Fabric, arrival: &Arrival, original: &P, bytes: Vec<u8>) {
        let worker = arrival.worker;
        match arrival.side {
            Side::Ethernet => {
                let mut head = [0; ETHERNET_HEADER_LEN];
                let read = original.read(0, &mut head);
                let Ok(header) = EthernetHeader::parse(head.get(..read).unwrap_or_default()) else {
                    return self.drop(DropReason::Truncated, 1);
                };
                let header = EthernetHeader {
                    destination: header.source,
                    source: self.own.mac(),
                    ethertype: ETHERTYPE_IPV4,
                };
                let bytes = [&header.to_bytes()[..], &bytes].concat();
                self.output(Output::Frame { worker, bytes });
            }
            Side::InfiniBand => {
                let to =
                    Ipv4View::parse(&bytes, bytes.len()).map_or(Ipv4Addr::UNSPECIFIED, |v| v.destination());
                let next_hop = self.own.settings.next_hop(to).map(IpAddr::V4);
                let next_hop = next_hop.filter(|ip| fabric.has_way(*ip));
                let behind = match arrival.origin {
                    _ if next_hop.is_some() => next_hop,
                    Some(Origin::Connection(qpn)) => {
                        fabric.neighbour_behind(qpn).filter(|ip| fabric.has_way(*ip))
                    }
                    Some(Origin::Datagram(_)) | None => None,
                };
                let back = match arrival.origin {
                    Some(Origin::Datagram(source)) => fabric.way_back(&source),
                    Some(Origin::Connection(_)) | None => None,
                };
                match (behind, back) {
                    (Some(to), _) => self.output(Output::Message { worker, to, bytes }),
                    (None, Some(to)) => self.output(Output::Datagram { worker, to, bytes }),
                    (None, None) => self.drop(DropReason::NeighbourUnresolved, 1),
                }
            }
        }
    }
}
