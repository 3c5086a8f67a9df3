//! ARP across the gateway: learning, asking, answering, on both sides.

use std::net::Ipv4Addr;
use std::time::Instant;

use ib_wire::ipoib::Arp as InfiniBandArp;
use pmd::hca::{Backend, Source};
use pmd::mem::Mbuf;

use super::GatewayControl;
use crate::forward::arp::{ArpMeaning, answer_ethernet, ask_ethernet, check_ethernet, check_infiniband};
use crate::forward::ethernet_neighbours::{NeighbourEvent, worker_of};
use crate::gateway::announcements;
use crate::gateway::worker::{GatewayCommand, Side};
use ipoib::drop_reason::DropReason;
use ipoib::link::{Event, WorkerIndex};
use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::arp::{ArpOperation, EthernetArp};
use ipoib::net::ethernet::{EthernetHeader, MacAddress};

impl<B: Backend> GatewayControl<B> {
    /// The worker whose link-layer address stands for an Ethernet host on the InfiniBand side.
    pub(super) fn worker_of(&self, ip: Ipv4Addr) -> WorkerIndex {
        WorkerIndex(worker_of(ip, self.handles.len() as u8))
    }

    fn is_own(&self, ip: Ipv4Addr) -> bool {
        self.address.is_some_and(|a| a.address() == ip)
    }

    /// Sends a frame of the control lcore's.
    pub(super) fn send_frame(&mut self, worker: WorkerIndex, frame: &[u8]) {
        match self.pool.copy_from_slice(frame) {
            Some(buf) => self.endpoint.send(worker, GatewayCommand::SendEthernet(buf)),
            None => self.own.drop(DropReason::NoBuffers),
        }
    }

    // -- the Ethernet side

    pub(super) fn take_ethernet_arp(&mut self, now: Instant, frame: &Mbuf) {
        if let Err(reason) = self.try_ethernet_arp(now, frame.data()) {
            self.own.drop(reason);
        }
    }

    fn try_ethernet_arp(&mut self, now: Instant, frame: &[u8]) -> Result<(), DropReason> {
        let arp = EthernetArp::parse(frame)?;
        let source = EthernetHeader::parse(frame)?.source;
        let settings = self.board.settings().ok_or(DropReason::LinkDown)?;
        let meaning = check_ethernet(&arp, source, settings)?;
        if !matches!(meaning, ArpMeaning::Probe { .. }) {
            if !self.hosts.learn(now, arp.sender_ip, arp.sender_mac) {
                return Err(DropReason::NeighbourTableFull);
            }
            self.take_host_events(now);
        }
        match meaning {
            ArpMeaning::Reply => Ok(()),
            ArpMeaning::Announcement => {
                let worker = self.worker_of(arp.sender_ip);
                self.endpoint.link().announce(now, worker, arp.sender_ip);
                Ok(())
            }
            // The target hears the request, too.
            ArpMeaning::Request { target } | ArpMeaning::Probe { target }
                if !self.is_own(target) && self.hosts.get(target).is_some() =>
            {
                Ok(())
            }
            ArpMeaning::Request { target } | ArpMeaning::Probe { target }
                if self.is_own(target) || self.endpoint.link().table().get(target).is_some() =>
            {
                // The link ages its neighbours and asks them itself.
                let reply = answer_ethernet(&arp, self.mac);
                self.send_frame(WorkerIndex(0), &reply.to_frame(arp.sender_mac));
                Ok(())
            }
            ArpMeaning::Request { target } => {
                self.ask_infiniband(now, target, &arp)?;
                let worker = self.worker_of(arp.sender_ip);
                self.endpoint.link().resolve(now, worker, arp.sender_ip, target);
                Ok(())
            }
            ArpMeaning::Probe { target } => {
                // Whoever has the address answers, and that makes it known to the link.
                self.ask_infiniband(now, target, &arp)?;
                self.endpoint.link().request(now, WorkerIndex(0), Ipv4Addr::UNSPECIFIED, target);
                Ok(())
            }
        }
    }

    fn ask_infiniband(
        &mut self,
        now: Instant,
        target: Ipv4Addr,
        arp: &EthernetArp,
    ) -> Result<(), DropReason> {
        let noted = self.ethernet_askers.add(now, target, arp.sender_mac, arp.sender_ip);
        if noted { Ok(()) } else { Err(DropReason::NeighbourTableFull) }
    }

    /// Sends the requests that the table of Ethernet hosts wants, publishes what it learnt.
    pub(super) fn take_host_events(&mut self, now: Instant) {
        while let Some(event) = self.hosts.poll_event() {
            match event {
                NeighbourEvent::Set { ip, mac, parked } => {
                    self.board.set_ethernet(ip, mac);
                    // What waited is sent by the new tables.
                    self.board.flush();
                    let worker = self.worker_of(ip);
                    for asker in self.infiniband_askers.take(ip) {
                        self.endpoint.link().reply(now, worker, ip, asker.hardware, asker.ip);
                    }
                    for (worker, packet) in parked {
                        self.endpoint.send(worker, GatewayCommand::Forward(Side::InfiniBand, packet));
                    }
                }
                NeighbourEvent::Gone { ip, parked } => {
                    self.board.remove_ethernet(ip);
                    self.own.drops(DropReason::NeighbourUnresolved, parked.len() as u64);
                }
            }
        }
        while let Some(probe) = self.hosts.poll_transmit() {
            let Some(settings) = self.board.settings() else { return };
            let arp = ask_ethernet(probe.ip, settings);
            self.send_frame(WorkerIndex(0), &arp.to_frame(probe.to));
        }
    }

    // -- the InfiniBand side

    pub(super) fn take_infiniband_arp(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: Option<Source>,
        message: &Mbuf,
    ) {
        if let Err(reason) = self.try_infiniband_arp(now, worker, source, message.data()) {
            self.own.drop(reason);
        }
    }

    fn try_infiniband_arp(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        source: Option<Source>,
        message: &[u8],
    ) -> Result<(), DropReason> {
        // Address resolution never travels by connection.
        let Some(Source::Ud(from)) = source else { return Err(DropReason::BadArp) };
        let body = message.get(IPOIB_HEADER_LEN..).ok_or(DropReason::Truncated)?;
        let arp = InfiniBandArp::parse(body).map_err(|_| DropReason::BadArp)?;
        let own = self.endpoint.link().state().addresses.clone();
        let settings = self.board.settings().ok_or(DropReason::LinkDown)?;
        let meaning = check_infiniband(&arp, &own, settings)?;
        // The link learns the sender, and answers what it asked itself.
        self.endpoint.link().handle_arp(now, worker, &from, arp);
        match meaning {
            ArpMeaning::Reply => {}
            ArpMeaning::Announcement => self.announce_to_ethernet(arp.sender_ip),
            ArpMeaning::Request { target } | ArpMeaning::Probe { target } => {
                if self.is_own(target) || self.hosts.get(target).is_some() {
                    let by = if self.is_own(target) { WorkerIndex(0) } else { self.worker_of(target) };
                    self.endpoint.link().reply(now, by, target, arp.sender, arp.sender_ip);
                } else if self.endpoint.link().table().get(target).is_none() {
                    if !self.infiniband_askers.add(now, target, arp.sender, arp.sender_ip)
                        || !self.hosts.resolve(now, target)
                    {
                        return Err(DropReason::NeighbourTableFull);
                    }
                    self.take_host_events(now);
                }
            }
        }
        Ok(())
    }

    /// Tells the Ethernet side that an InfiniBand host is behind the gateway: switches and hosts learn it.
    fn announce_to_ethernet(&mut self, ip: Ipv4Addr) {
        let arp = EthernetArp {
            operation: ArpOperation::Request,
            sender_mac: self.mac,
            sender_ip: ip,
            target_mac: MacAddress::ZERO,
            target_ip: ip,
        };
        self.send_frame(WorkerIndex(0), &arp.to_frame(MacAddress::BROADCAST));
    }

    // -- what the link tells

    pub(super) fn take_link_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoint.poll_event() {
            any = true;
            match event {
                Event::Up => {
                    tracing::info!("InfiniBand link up");
                    self.announce_all(now);
                }
                Event::Readdressed { gid } => {
                    tracing::info!("our GID is {gid} now: telling all");
                    self.announce_all(now);
                }
                Event::Waiting(why) => tracing::warn!("no InfiniBand link: {why}"),
                Event::Down => tracing::warn!("InfiniBand link down"),
                // Handled where the packet came in, with the sender's drop reasons.
                Event::Arp(_) | Event::Stopped => {}
                Event::NeighbourResolved { ip, .. } => self.infiniband_resolved(now, ip),
                Event::NeighbourChanged { ip, old, new } => {
                    tracing::debug!("{ip} moved from {old} to {new}");
                }
                Event::NeighbourUnreachable { ip } => {
                    let dropped = self.parked.take(ip).len();
                    self.own.drops(DropReason::NeighbourUnresolved, dropped as u64);
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

    fn infiniband_resolved(&mut self, now: Instant, ip: Ipv4Addr) {
        // It may have moved here from the other side.
        self.hosts.forget(ip);
        self.take_host_events(now);
        for asker in self.ethernet_askers.take(ip) {
            let arp = EthernetArp {
                operation: ArpOperation::Reply,
                sender_mac: self.mac,
                sender_ip: ip,
                target_mac: asker.hardware,
                target_ip: asker.ip,
            };
            self.send_frame(WorkerIndex(0), &arp.to_frame(asker.hardware));
        }
        for waiting in self.parked.take(ip) {
            self.endpoint.send(waiting.worker, GatewayCommand::Forward(Side::Ethernet, waiting.packet));
        }
    }

    /// Our link-layer addresses are others, or have other flags: everybody whom we answer for is to be announced.
    pub(super) fn announce_all(&mut self, now: Instant) {
        let hosts = self.hosts.iter().filter(|h| h.mac.is_some()).map(|h| h.ip);
        self.announcements.start(now, hosts.chain(self.address.map(|own| own.address())));
    }

    /// Sends the announcements whose turn has come.
    pub(super) fn send_announcements(&mut self, now: Instant) {
        if !self.endpoint.link().state().up {
            return;
        }
        for _ in 0..announcements::PER_TICK {
            let Some(ip) = self.announcements.next(now) else { return };
            let worker = if self.is_own(ip) { WorkerIndex(0) } else { self.worker_of(ip) };
            self.endpoint.link().announce(now, worker, ip);
        }
    }
}
