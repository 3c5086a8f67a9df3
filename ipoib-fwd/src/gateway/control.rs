//! The gateway's control lcore: everything that is not plain forwarding.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::capture::Capture;
use dataplane::control::{Controller, Flow};
use dataplane::telemetry::{Answer, Command};
use dataplane::worker::Handle;
use ib_wire::Qpn;
use ib_wire::ipoib::HardwareAddress;
use pmd::eth::EthPort;
use pmd::hca::{Backend, Queues, Source};
use pmd::mem::{Mbuf, Pool};
use serde_json::{Value, json};

use super::arp::Askers;
use super::board::GatewayBoard;
use super::parked::Parked;
use super::report::{self, Times};
use super::worker::{Cause, GatewayCommand, GatewayNote, Side};
use crate::counter::{Totals, WorkerCounterReader, WorkerCounters};
use crate::drop_reason::DropReason;
use crate::endpoint::Endpoint;
use crate::forward::ethernet_neighbours::{self, EthernetNeighbours};
use crate::forward::{GatewayAddress, Punt};
use crate::link::{ArpOperation, Event, Mode, ReceivedArp, WorkerIndex};
use crate::packet::arp::{EthernetArp, EthernetArpOperation};
use crate::packet::ethernet::{ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, EthernetHeader, MacAddress};
use crate::packet::icmp;
use crate::packet::{IPOIB_HEADER_LEN, IPOIB_IPV4_HEADER};

type Destination<B> = <<B as Backend>::Queues as Queues>::Destination;

/// How often the Ethernet port's link is looked at.
const ETHERNET_PERIOD: Duration = Duration::from_millis(500);
/// How often workers' histograms are collected.
const LATENCY_PERIOD: Duration = Duration::from_secs(1);
/// Longest wait for a clean end: DREQs answered, groups left.
const STOP_PATIENCE: Duration = Duration::from_secs(6);

/// The control lcore's duty.
#[derive(Debug)]
pub(super) struct GatewayControl<B: Backend> {
    pub(super) endpoint: Endpoint<B, GatewayCommand, GatewayNote>,
    pub(super) board: GatewayBoard<Destination<B>>,
    pub(super) port: EthPort,
    pub(super) pool: Pool,
    pub(super) mac: MacAddress,
    pub(super) address: Option<GatewayAddress>,
    pub(super) handles: Vec<Arc<Handle>>,
    pub(super) readers: Vec<WorkerCounterReader>,
    pub(super) own: WorkerCounters,
    pub(super) own_reader: WorkerCounterReader,
    pub(super) hosts: EthernetNeighbours,
    pub(super) ethernet_askers: Askers<MacAddress>,
    pub(super) infiniband_askers: Askers<HardwareAddress>,
    pub(super) parked: Parked,
    pub(super) icmp: icmp::RateLimit,
    pub(super) times: Times,
    pub(super) capture: Option<Capture>,
    pub(super) stats_period: Option<Duration>,
    pub(super) schedule: Schedule,
    pub(super) stopping: Option<Instant>,
}

/// When things that come again are due.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) ethernet: Instant,
    pub(super) latency: Instant,
    pub(super) stats: Instant,
    pub(super) stats_before: Option<Totals>,
}

impl Schedule {
    pub(super) const fn new(now: Instant) -> Self {
        Self { ethernet: now, latency: now, stats: now, stats_before: None }
    }
}

impl<B: Backend> GatewayControl<B> {
    pub(super) fn totals(&self) -> Totals {
        Totals::of(self.readers.iter().chain(std::iter::once(&self.own_reader)))
    }

    /// The worker whose link-layer address stands for an Ethernet host on the InfiniBand side.
    fn worker_of(&self, ip: Ipv4Addr) -> WorkerIndex {
        ethernet_neighbours::worker_of(ip, self.handles.len())
    }

    // -- Ethernet side

    /// Sends a frame of the control lcore's.
    fn send_frame(&mut self, worker: WorkerIndex, frame: &[u8]) {
        match self.pool.copy_from_slice(frame) {
            Some(buf) => self.endpoint.send(worker, GatewayCommand::SendEthernet(buf)),
            None => self.own.drop(DropReason::NoBuffers),
        }
    }

    fn send_ethernet_arp(&mut self, arp: &EthernetArp, to: MacAddress) {
        let frame = arp.to_frame(self.mac, to);
        self.send_frame(WorkerIndex(0), &frame);
    }

    /// Tells an Ethernet host that `ip` is at the gateway's address.
    fn answer_ethernet(&mut self, ip: Ipv4Addr, to: MacAddress, to_ip: Ipv4Addr) {
        let arp = EthernetArp {
            operation: EthernetArpOperation::Reply,
            sender_mac: self.mac,
            sender_ip: ip,
            target_mac: to,
            target_ip: to_ip,
        };
        self.send_ethernet_arp(&arp, to);
    }

    /// Asks the Ethernet side for `target`, for `source`, which is on the other side or ourselves.
    fn ask_ethernet(&mut self, source: Ipv4Addr, target: Ipv4Addr, to: MacAddress) {
        let arp = EthernetArp {
            operation: EthernetArpOperation::Request,
            sender_mac: self.mac,
            sender_ip: source,
            target_mac: MacAddress::ZERO,
            target_ip: target,
        };
        self.send_ethernet_arp(&arp, to);
    }

    fn take_ethernet_arp(&mut self, now: Instant, frame: &Mbuf) {
        let data = frame.data();
        let arp = match EthernetArp::parse(data, self.mac, self.address.as_ref()) {
            Ok(arp) => arp,
            Err(reason) => return self.own.drop(reason),
        };
        if !arp.sender_ip.is_unspecified() {
            self.learn_ethernet(now, arp.sender_ip, arp.sender_mac);
        }
        if arp.operation == EthernetArpOperation::Reply {
            return;
        }
        let own = self.address.is_some_and(|a| a.address() == arp.target_ip);
        if own {
            self.answer_ethernet(arp.target_ip, arp.sender_mac, arp.sender_ip);
        } else if arp.sender_ip == arp.target_ip {
            let worker = self.worker_of(arp.sender_ip);
            self.endpoint.link().announce(now, worker, arp.sender_ip);
        } else if self.hosts.mac(arp.target_ip).is_some() {
            // The host itself hears the request, too.
        } else {
            self.translate_to_infiniband(now, &arp);
        }
    }

    /// An Ethernet host asks for one that may be on the InfiniBand side.
    fn translate_to_infiniband(&mut self, now: Instant, arp: &EthernetArp) {
        let worker = self.worker_of(arp.sender_ip);
        let known = self.endpoint.link().table().get(arp.target_ip).is_some();
        if known {
            // The link ages its neighbours and asks them itself.
            self.answer_ethernet(arp.target_ip, arp.sender_mac, arp.sender_ip);
            return;
        }
        if !self.ethernet_askers.add(now, arp.target_ip, arp.sender_mac, arp.sender_ip) {
            self.own.drop(DropReason::NeighbourTableFull);
        } else if arp.sender_ip.is_unspecified() {
            // A probe (RFC 5227) asks without a name: whoever has the address answers everybody.
            self.endpoint.link().request(now, worker, Ipv4Addr::UNSPECIFIED, arp.target_ip);
        } else {
            self.endpoint.link().resolve(now, worker, arp.sender_ip, arp.target_ip);
        }
    }

    fn learn_ethernet(&mut self, now: Instant, ip: Ipv4Addr, mac: MacAddress) {
        self.hosts.learn(now, ip, mac);
        self.take_host_events(now);
    }

    fn take_host_events(&mut self, now: Instant) {
        while let Some(event) = self.hosts.poll_event() {
            match event {
                ethernet_neighbours::Event::Set { ip, mac } => {
                    self.board.set_ethernet(ip, mac);
                    // Packets are sent anew after the tables that know the way.
                    self.board.flush();
                    self.ethernet_resolved(now, ip);
                }
                ethernet_neighbours::Event::Removed { ip } => self.board.remove_ethernet(ip),
                ethernet_neighbours::Event::Ask { ip, source, mac } => {
                    let source = source.or(self.address.map(|a| a.address())).unwrap_or(Ipv4Addr::UNSPECIFIED);
                    self.ask_ethernet(source, ip, mac.unwrap_or(MacAddress::BROADCAST));
                }
                ethernet_neighbours::Event::Unreachable { ip } => {
                    let dropped = self.parked.take(Side::InfiniBand, ip).len();
                    self.own.drops(DropReason::NeighbourUnresolved, dropped as u64);
                }
            }
        }
    }

    /// Answers those InfiniBand hosts that asked for an Ethernet host, and sends what waited for it.
    fn ethernet_resolved(&mut self, now: Instant, ip: Ipv4Addr) {
        let worker = self.worker_of(ip);
        for asker in self.infiniband_askers.take(ip) {
            self.endpoint.link().reply(now, worker, ip, asker.hardware, asker.ip);
        }
        self.release(Side::InfiniBand, ip);
    }

    // -- InfiniBand side

    fn take_infiniband_arp(&mut self, now: Instant, arp: &ReceivedArp) {
        let packet = &arp.packet;
        if packet.operation != ArpOperation::Request {
            return;
        }
        if packet.sender_ip == packet.target_ip {
            // Somebody announces itself: tell the Ethernet side that it is here.
            self.ask_ethernet(packet.sender_ip, packet.sender_ip, MacAddress::BROADCAST);
            return;
        }
        let own = self.address.is_some_and(|a| a.address() == packet.target_ip);
        if own || self.hosts.mac(packet.target_ip).is_some() {
            let worker = if own { WorkerIndex(0) } else { self.worker_of(packet.target_ip) };
            self.endpoint.link().reply(now, worker, packet.target_ip, packet.sender_hardware, packet.sender_ip);
        } else if self.endpoint.link().table().get(packet.target_ip).is_some() {
            // It is on the InfiniBand side and hears the request, too.
        } else if self.infiniband_askers.add(
            now,
            packet.target_ip,
            packet.sender_hardware,
            packet.sender_ip,
        ) {
            self.hosts.resolve(now, packet.target_ip, Some(packet.sender_ip));
            self.take_host_events(now);
        } else {
            self.own.drop(DropReason::NeighbourTableFull);
        }
    }

    fn take_link_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        while let Some(event) = self.endpoint.poll_event() {
            any = true;
            match event {
                Event::Up => {
                    tracing::info!("InfiniBand link up");
                    self.announce_all(now);
                }
                Event::Down => tracing::warn!("InfiniBand link down"),
                Event::Arp(arp) => self.take_infiniband_arp(now, &arp),
                Event::NeighbourResolved { ip, .. } => {
                    // It may have moved here from the other side.
                    self.hosts.forget(ip);
                    self.take_host_events(now);
                    for asker in self.ethernet_askers.take(ip) {
                        self.answer_ethernet(ip, asker.hardware, asker.ip);
                    }
                    self.release(Side::Ethernet, ip);
                }
                Event::NeighbourChanged { ip, old, new } => {
                    tracing::debug!("{ip} moved from {old} to {new}");
                }
                Event::NeighbourUnreachable { ip } => {
                    let dropped = self.parked.take(Side::Ethernet, ip).len();
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
                Event::Stopped => {}
            }
        }
        any
    }

    /// After the link came up our addresses may be others: tell everybody that we answer for.
    fn announce_all(&mut self, now: Instant) {
        let hosts: Vec<Ipv4Addr> = self.hosts.iter().map(|h| h.ip).collect();
        for ip in hosts {
            let worker = self.worker_of(ip);
            self.endpoint.link().announce(now, worker, ip);
        }
        if let Some(own) = self.address {
            self.endpoint.link().announce(now, WorkerIndex(0), own.address());
        }
    }

    // -- packets that workers hand over

    fn release(&mut self, from: Side, to: Ipv4Addr) {
        for waiting in self.parked.take(from, to) {
            self.endpoint.send(waiting.worker, GatewayCommand::Forward(from, waiting.packet));
        }
    }

    fn take_packets(&mut self, now: Instant) -> bool {
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
            (Cause::Punt(Punt::Arp), Side::InfiniBand) => self.take_arp_message(now, worker, source, &packet),
            (Cause::Punt(Punt::Neighbour(ip)), _) => self.wait_for(now, side, ip, worker, source, packet),
            (Cause::Punt(Punt::Local), _) => self.answer_ping(now, side, worker, &packet),
            (Cause::TooBig(mtu), _) => self.answer_too_big(now, side, worker, mtu, &packet),
        }
    }

    fn take_arp_message(&mut self, now: Instant, worker: WorkerIndex, source: Option<Source>, message: &Mbuf) {
        let Some(Source::Ud(from)) = source else { return self.own.drop(DropReason::BadArp) };
        let body = message.data().get(IPOIB_HEADER_LEN..).unwrap_or_default();
        match crate::link::ArpPacket::parse(body) {
            Ok(arp) => {
                let claims_own = self.address.is_some_and(|a| a.address() == arp.sender_ip);
                if claims_own {
                    return self.own.drop(DropReason::HostileArp);
                }
                self.endpoint.link().handle_arp(now, worker, &from, arp);
            }
            Err(_) => self.own.drop(DropReason::BadArp),
        }
    }

    fn wait_for(
        &mut self,
        now: Instant,
        side: Side,
        ip: Ipv4Addr,
        worker: WorkerIndex,
        source: Option<Source>,
        packet: Mbuf,
    ) {
        let offset = match side {
            Side::Ethernet => ETHERNET_HEADER_LEN,
            Side::InfiniBand => IPOIB_HEADER_LEN,
        };
        let sender = crate::packet::ipv4::source(packet.data().get(offset..).unwrap_or_default());
        if self.parked.park(now, side, ip, worker, source, packet).is_some() {
            self.own.drop(DropReason::NeighbourQueueFull);
        }
        match side {
            Side::Ethernet => {
                let sender = sender.unwrap_or(Ipv4Addr::UNSPECIFIED);
                let by = self.worker_of(sender);
                self.endpoint.link().resolve(now, by, sender, ip);
            }
            Side::InfiniBand => {
                self.hosts.resolve(now, ip, sender);
                self.take_host_events(now);
            }
        }
    }

    /// The IPv4 packet in what a worker handed over.
    fn packet_of(side: Side, packet: &Mbuf) -> Vec<u8> {
        let skip = match side {
            Side::Ethernet => ETHERNET_HEADER_LEN,
            Side::InfiniBand => IPOIB_HEADER_LEN,
        };
        let mut bytes = vec![0; packet.len()];
        packet.copy_to(0, &mut bytes);
        bytes.drain(..skip.min(bytes.len()));
        bytes
    }

    fn answer_ping(&mut self, now: Instant, side: Side, worker: WorkerIndex, packet: &Mbuf) {
        let request = Self::packet_of(side, packet);
        match icmp::echo_reply(&request) {
            Some(reply) if self.icmp.allow(now) => self.send_back(side, worker, packet, &reply),
            _ => self.own.drop(DropReason::NotHandled),
        }
    }

    fn answer_too_big(&mut self, now: Instant, side: Side, worker: WorkerIndex, mtu: u16, packet: &Mbuf) {
        let original = Self::packet_of(side, packet);
        // Without an address of its own the gateway speaks as the host that the packet was for.
        let from = self
            .address
            .map(|a| a.address())
            .or_else(|| crate::packet::ipv4::destination(&original))
            .unwrap_or(Ipv4Addr::UNSPECIFIED);
        if !icmp::may_answer(&original) || !self.icmp.allow(now) {
            return self.own.drop(DropReason::TooBig);
        }
        match icmp::fragmentation_needed(&original, from, mtu) {
            Some(reply) => {
                self.own.drop(DropReason::TooBigAnswered);
                self.send_back(side, worker, packet, &reply);
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
                let to = crate::packet::ipv4::destination(reply);
                let destination = to.and_then(|ip| self.endpoint.link().table().get(ip).and_then(|n| n.ud));
                match destination {
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

    // -- answers for the control socket

    pub(super) fn stats(&self) -> Value {
        let totals = self.totals();
        json!({
            "traffic": totals.traffic_json(),
            "drops": totals.drops_json(),
            "times": self.times.json(),
            "buffers": {"in_use": self.pool.in_use(), "available": self.pool.available()},
        })
    }

    fn links(&mut self) -> Value {
        let port = self.endpoint.port();
        let (errors, last_error) =
            (self.endpoint.device_errors().0, self.endpoint.device_errors().1.map(str::to_owned));
        let attributes = self.endpoint.hca().port(port);
        let device = self.endpoint.hca().device();
        let gid = self.endpoint.hca().gid(port, 0).map(|g| g.to_string()).unwrap_or_default();
        let link = self.endpoint.link();
        let state = Arc::clone(link.state());
        let infiniband = match attributes {
            Ok(a) => json!({
                "device": device.name, "port": port.0, "port_state": format!("{:?}", a.state).to_lowercase(),
                "lid": a.lid.0, "sm_lid": a.sm_lid.0, "gid": gid, "mtu": a.active_mtu.bytes(),
                "link": if state.up { "up" } else { "down" }, "mode": state.mode,
                "addresses": state.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                "device_errors": errors, "last_device_error": last_error,
            }),
            Err(e) => json!({"device": device.name, "error": e.to_string()}),
        };
        let counters = serde_json::to_value(link.counters()).unwrap_or_default();
        json!({
            "ethernet": {"port": self.port.name(), "mac": self.mac.to_string(),
                         "link": if self.port.link().up { "up" } else { "down" }},
            "infiniband": infiniband,
            "link_counters": counters,
        })
    }

    fn neighbours(&mut self, now: Instant) -> Value {
        let infiniband: Vec<Value> = self
            .endpoint
            .link()
            .neighbours(now)
            .into_iter()
            .map(|n| {
                json!({
                    "address": n.ip, "hardware_address": n.hardware.map(|h| h.to_string()), "state": n.state,
                    "dlid": n.dlid, "connections": n.connections, "idle_ms": n.idle_ms,
                })
            })
            .collect();
        let ethernet: Vec<Value> = self
            .hosts
            .iter()
            .map(|h| {
                json!({
                    "address": h.ip, "hardware_address": h.mac.map(|m| m.to_string()), "state": h.state,
                    "idle_ms": h.idle(now).as_millis() as u64,
                })
            })
            .collect();
        json!({"infiniband": infiniband, "ethernet": ethernet})
    }

    fn connections(&mut self, now: Instant) -> Value {
        let list = self.endpoint.link().connections(now);
        let up = |passive: bool| list.iter().any(|c| c.passive == passive && c.state == "established");
        json!({"established_both_ways": up(true) && up(false), "connections": list})
    }

    fn set_mode(&mut self, now: Instant, word: Option<&str>) -> Answer {
        let mode = match word {
            Some("datagram") => Mode::Datagram,
            Some("connected") => Mode::Connected,
            _ => return Err("the mode is datagram or connected, as in /mode,datagram".to_owned()),
        };
        self.endpoint.link().set_mode(now, mode);
        Ok(json!({"mode": mode}))
    }

    // -- what comes again

    fn periodic(&mut self, now: Instant) {
        if now >= self.schedule.ethernet {
            self.schedule.ethernet = now + ETHERNET_PERIOD;
            self.board.set_ethernet_up(self.port.link().up);
            let lid = self.endpoint.hca().port(self.endpoint.port()).map(|p| p.lid).unwrap_or_default();
            let qpns: Vec<Qpn> = self.endpoint.link().settings().workers.iter().map(|w| w.ud_qpn).collect();
            self.board.set_own(lid, &qpns);
            self.ethernet_askers.expire(now);
            self.infiniband_askers.expire(now);
            let dropped = self.parked.expire(now);
            self.own.drops(DropReason::NeighbourUnresolved, dropped as u64);
        }
        if now >= self.schedule.latency {
            self.schedule.latency = now + LATENCY_PERIOD;
            self.endpoint.ask_latency();
        }
        if let Some(period) = self.stats_period
            && now >= self.schedule.stats
        {
            let totals = self.totals();
            if let Some(before) = self.schedule.stats_before.replace(totals.clone()) {
                println!("{}", report::line(&before, &totals, period.as_secs_f64()));
            }
            self.schedule.stats = now + period;
        }
        if let Some(capture) = &mut self.capture
            && let Err(e) = capture.drain()
        {
            tracing::error!("{e}: {}; the capture ends here", e.source);
            self.capture = None;
        }
    }
}

impl<B: Backend> Controller for GatewayControl<B> {
    fn tick(&mut self, now: Instant) -> Flow {
        let times = &mut self.times;
        let mut busy = self.endpoint.tick(now, &mut self.board, |h| times.add_service(&h));
        busy |= self.take_packets(now);
        busy |= self.take_link_events(now);
        self.hosts.handle_timeout(now);
        self.take_host_events(now);
        self.periodic(now);
        self.board.flush();
        if let Some(since) = self.stopping {
            let late = now.duration_since(since) > STOP_PATIENCE;
            if late {
                tracing::warn!("not all connections and groups could be closed in time");
            }
            if late || self.endpoint.link().is_stopped() {
                let dropped = self.parked.clear();
                self.own.drops(DropReason::Shutdown, dropped as u64);
                return Flow::Done;
            }
            return Flow::Busy;
        }
        if busy { Flow::Busy } else { Flow::Idle }
    }

    fn request(&mut self, now: Instant, request: &Command) -> Answer {
        match request.name.as_str() {
            "/" => Ok(json!(["/", "/stats", "/links", "/neighbours", "/connections", "/groups", "/mode"])),
            "/stats" => Ok(self.stats()),
            "/links" => Ok(self.links()),
            "/neighbours" => Ok(self.neighbours(now)),
            "/connections" => Ok(self.connections(now)),
            "/groups" => Ok(json!({"groups": self.endpoint.link().groups()})),
            "/mode" => self.set_mode(now, request.parameters.as_deref()),
            name => Err(format!("no command {name}; / lists them")),
        }
    }

    fn stop(&mut self, now: Instant) {
        tracing::info!("stopping");
        self.stopping = Some(now);
        self.endpoint.link().shutdown(now);
    }
}
