//! What comes to a segment, and what it wants done. It decides; this carries.

use std::net::IpAddr;
use std::time::Instant;

use pmd::hca::Backend;
use pmd::mem::Mbuf;

use super::GatewayControl;
use crate::forward::{Punt, Side};
use crate::gateway::board::SEGMENT;
use crate::gateway::worker::{Cause, GatewayCommand, GatewayNote};
use crate::segment::{Arrival, Happening, Output, Packet};
use ipoib::drop_reason::DropReason;
use ipoib::link::{Event, WorkerIndex};
use ipoib::net::IPOIB_IPV4_HEADER;
use ipoib::net::ethernet::ETHERNET_HEADER_LEN;
use ipoib::net::icmp::TokenBucket;

/// Lines of the log about addresses in dispute, per second and at once: the network must not fill the disk.
const NEWS: (u32, u32) = (1, 20);

/// What segments tell, for the log.
#[derive(Debug)]
pub(in crate::gateway) struct News {
    limit: TokenBucket,
}

impl News {
    pub(in crate::gateway) fn new(now: Instant) -> Self {
        Self { limit: TokenBucket::new(now, NEWS.0, NEWS.1) }
    }

    fn tell(&mut self, now: Instant, happening: Happening) {
        if !self.limit.take(now) {
            return;
        }
        let name = |side| match side {
            Side::Ethernet => "Ethernet",
            Side::InfiniBand => "InfiniBand",
        };
        match happening {
            Happening::AddressMoved { ip, to } => tracing::info!("{ip} has moved to {}", name(to)),
            Happening::Conflict { ip, owner } => {
                tracing::warn!(
                    "{ip} is claimed by another host: its owner on {} answers for it",
                    name(owner)
                );
            }
            Happening::HeldDown { ip, owner } => {
                tracing::error!("{ip} moves too often: it stays on {} for now", name(owner));
            }
        }
    }
}

impl Packet for Mbuf {
    fn length(&self) -> usize {
        self.len()
    }

    fn read(&self, skip: usize, to: &mut [u8]) -> usize {
        Self::read(self, skip, to)
    }
}

impl<B: Backend> GatewayControl<B> {
    pub(super) fn take_packets(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some((worker, note)) = self.endpoint.poll_note() {
            any = true;
            self.take_packet(now, worker, note);
            self.carry_out(now);
        }
        any
    }

    fn take_packet(&mut self, now: Instant, worker: WorkerIndex, note: GatewayNote) {
        let GatewayNote { cause, segment: _, side, origin, packet } = note;
        let arrival = Arrival { side, worker, origin };
        let (segment, link) = (&mut self.segment, self.endpoint.link());
        match (cause, side) {
            (Cause::Punt(Punt::Arp), Side::Ethernet) => segment.handle_ethernet_arp(now, link, packet.data()),
            (Cause::Punt(Punt::Arp), Side::InfiniBand) => {
                segment.handle_infiniband_arp(now, link, &arrival, packet.data());
            }
            (Cause::Punt(Punt::Hello), _) => self.take_hello(now, side, &packet),
            (Cause::Punt(Punt::Neighbour(ip)), _) => {
                let published = self.board.has_way(side, worker, ip);
                segment.handle_unresolved(now, link, IpAddr::V4(ip), arrival, packet, published);
            }
            (Cause::Punt(Punt::Local), _) => segment.handle_local(now, link, &arrival, &packet),
            (Cause::TooBig { mtu, dial }, _) => {
                segment.handle_too_big(now, link, arrival, mtu, dial.map(IpAddr::V4), packet);
            }
        }
    }

    /// Has the segment release what waited for neighbours that were published in this turn.
    pub(super) fn tell_published(&mut self, now: Instant) {
        let reachable = self.board.take_reachable();
        if !reachable.is_empty() {
            let reachable = reachable.into_iter().map(IpAddr::V4);
            self.segment.handle_published(now, self.endpoint.link(), reachable);
            self.carry_out(now);
        }
    }

    pub(super) fn pass_time(&mut self, now: Instant) {
        self.segment.handle_timeout(now, self.endpoint.link());
        self.carry_out(now);
    }

    /// Drops what waits for destinations: the gateway is stopping.
    pub(super) fn drop_waiting(&mut self, now: Instant) {
        self.segment.clear();
        self.carry_out(now);
    }

    /// Does what the segment wants done.
    pub(super) fn carry_out(&mut self, now: Instant) {
        while let Some(output) = self.segment.poll_output() {
            match output {
                Output::Frame { worker, bytes } => {
                    self.send(worker, &bytes, |buf| GatewayCommand::SendEthernet(SEGMENT, buf));
                }
                Output::Message { worker, to, bytes } => {
                    let IpAddr::V4(to) = to else { continue };
                    let room = [0; ETHERNET_HEADER_LEN];
                    let frame = [&room[..], &bytes].concat();
                    self.send(worker, &frame, |buf| GatewayCommand::SendInfiniBand(SEGMENT, to, buf));
                }
                Output::Datagram { worker, to, bytes } => {
                    let message = [&IPOIB_IPV4_HEADER[..], &bytes].concat();
                    self.endpoint.send_ud(worker, &to, &message);
                }
                Output::SetHost { ip: IpAddr::V4(ip), mac } => self.board.set_ethernet(ip, mac),
                Output::RemoveHost { ip: IpAddr::V4(ip) } => self.board.remove_ethernet(ip),
                Output::SetHost { .. } | Output::RemoveHost { .. } => {}
                Output::Release { side, worker, packet } => {
                    // What waited is sent by the new tables.
                    self.board.flush();
                    self.endpoint.send(worker, GatewayCommand::Forward(SEGMENT, side, packet));
                }
                Output::Drop(reason, n) => self.own.drops(reason, n),
                Output::Happening(happening) => self.news.tell(now, happening),
            }
        }
    }

    /// Sends a packet of the control lcore's by a worker.
    pub(super) fn send(
        &mut self,
        worker: WorkerIndex,
        bytes: &[u8],
        command: impl FnOnce(Mbuf) -> GatewayCommand,
    ) {
        match self.pool.copy_from_slice(bytes) {
            Some(buf) => self.endpoint.send(worker, command(buf)),
            None => self.own.drop(DropReason::NoBuffers),
        }
    }

    pub(super) fn take_link_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoint.poll_event() {
            any = true;
            self.segment.handle_link_event(now, self.endpoint.link(), &event);
            self.carry_out(now);
            match event {
                Event::Up => tracing::info!("InfiniBand link up"),
                Event::Readdressed { gid } => tracing::info!("our GID is {gid} now: telling all"),
                Event::Waiting(why) => tracing::warn!("no InfiniBand link: {why}"),
                Event::Down => tracing::warn!("InfiniBand link down"),
                // Handled where the packet came in, with the sender's drop reasons.
                Event::Arp(_) | Event::Stopped => {}
                Event::NeighbourResolved { .. } | Event::NeighbourUnreachable { .. } => {}
                Event::NeighbourChanged { ip, old, new } => {
                    tracing::debug!("{ip} moved from {old} to {new}");
                }
                Event::ConnectionUp { passive, peer, setup, .. } => {
                    self.times.setup.saturating_record(setup.as_nanos() as u64);
                    let who = if passive { "accepted from" } else { "opened to" };
                    tracing::info!("connection {who} {peer} in {:.1} ms", setup.as_secs_f64() * 1e3);
                }
                Event::ConnectionDown { passive, reason, .. } => {
                    let which = if passive { "passive" } else { "active" };
                    tracing::info!("{which} connection down: {reason:?}");
                }
            }
        }
        any
    }
}
