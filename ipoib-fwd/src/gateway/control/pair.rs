//! High availability of a segment: sends the state machine's messages on both sides, and applies its
//! decisions to tables and hosts.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ib_wire::Gid;
use pmd::hca::Backend;
use pmd::mem::Mbuf;
use serde_json::{Value, json};

use super::GatewayControl;
use super::duties::parts;
use crate::event::What;
use crate::forward::{self, ETHERTYPE_HELLO, EndpointIndex, PAIR_GROUP, PeerGateway, SegmentIndex};
use crate::gateway::worker::GatewayCommand;
use crate::segment::Segment;
use crate::segment::pair::message::LONGEST;
use crate::segment::pair::{
    Event, Neighbour, Pair, PeerInfo, Place, Role, Side, Sign, Station, Transmit, Why, storm,
};
use ipoib::drop_reason::DropReason;
use ipoib::link::{Link, WorkerIndex};
use ipoib::net::ethernet::{ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, EthernetHeader, MacAddress};
use ipoib::net::probe::probe_nonce;
use ipoib::net::{IPOIB_HEADER_LEN, IPOIB_IPV4_HEADER, be16};

/// Warning of a pair without a key.
const KEYLESS: &str = ". There is no `gateway.pair-key`: any host on one of the networks can forge messages between gateways, so that \
                       none forwards or two do. Give all gateways the same key (`ipoib-fwd init` writes one)";
/// Remedy: how two gateways become a pair.
const SAME_SETTINGS: &str =
    "Give both the same `gateway.pair-key` and P_Key, and run the same version: then they are a pair";
/// Period of checking the Ethernet port's link: a gateway that has lost it should resign soon.
const LINK_PERIOD: Duration = Duration::from_millis(100);
/// Shortest Ethernet frame without its check sequence (IEEE 802.3 3.2.8).
const SHORTEST_FRAME: usize = 60;

const fn side_of(side: forward::Side) -> Side {
    match side {
        forward::Side::Ethernet => Side::Ethernet,
        forward::Side::InfiniBand => Side::InfiniBand,
    }
}

/// The forwarding role of a gateway's role in the pair.
const fn role_of(pair: &Pair) -> forward::Role {
    match pair.role() {
        Role::Forwarding => forward::Role::Forwarding,
        Role::Blocked => forward::Role::Blocked,
        _ if pair.hands_over() => forward::Role::HandingOver,
        Role::Listening | Role::Standby | Role::Drained => forward::Role::Standby,
    }
}

impl<B: Backend> GatewayControl<B> {
    /// Handles a message of another gateway, an own message that came back, or a probe.
    pub(super) fn take_hello(&mut self, now: Instant, at: SegmentIndex, side: forward::Side, packet: &Mbuf) {
        let mut bytes = [0; LONGEST + ETHERNET_HEADER_LEN];
        let read = packet.read(0, &mut bytes);
        let bytes = bytes.get(..read).unwrap_or_default();
        let (type_at, header) = match side {
            forward::Side::Ethernet => (ETHERNET_HEADER_LEN - 2, ETHERNET_HEADER_LEN),
            forward::Side::InfiniBand => (0, IPOIB_HEADER_LEN),
        };
        let payload = bytes.get(header..).unwrap_or_default();
        let side = side_of(side);
        let Some((duty, _, _)) = parts!(self, at) else { return };
        let (name, pair) = (&duty.name, &mut duty.duty);
        if be16(bytes, type_at) == Some(ETHERTYPE_HELLO) {
            if let Err(error) = pair.pair.handle_message(now, side, payload) {
                self.own.drops_of(at, DropReason::BadHello, 1);
                if pair.complaints.take(now, What::BadHello) {
                    let text = format!("a message between gateways on {}: {error}", side.name());
                    let event = What::BadHello.journal();
                    tracing::warn!(segment = name.as_str(), event, "{name}: {text}");
                    let said = || (text, json!({"side": side.name(), "why": error.to_string()}));
                    self.events.report(now, What::BadHello, Some(duty), said);
                }
            }
        } else if let Some(nonce) = probe_nonce(payload) {
            pair.pair.handle_probe(now, side, nonce);
        }
        // Its addresses may have changed.
        self.publish_gateways(now, at);
        self.carry_out_pair(now, at);
    }

    /// Passes the addresses of the other gateways to the tables and the segment.
    fn publish_gateways(&mut self, now: Instant, at: SegmentIndex) {
        let Some((duty, _, board)) = parts!(self, at) else { return };
        let stations = duty.duty.pair.stations(now);
        let gateways = stations.map(|s| PeerGateway { mac: s.mac, lid: s.lid, gid: s.gid, qpns: s.qpns });
        let gateways: Vec<_> = gateways.collect();
        if board.set_gateways(&gateways) {
            duty.segment.set_gateways(gateways);
        }
    }

    /// Advances the time of the state machines, and carries out their actions.
    pub(super) fn drive_pairs(&mut self, now: Instant) {
        if now >= self.schedule.storm {
            self.schedule.storm = now + storm::PERIOD;
            self.storm.begin_period();
        }
        for at in self.indices() {
            self.drive_pair(now, at);
        }
    }

    fn drive_pair(&mut self, now: Instant, at: SegmentIndex) {
        let link_due = self.segments.at(at).is_some_and(|duty| now >= duty.duty.link_due);
        if link_due {
            // Another gateway may be gone for good.
            self.publish_gateways(now, at);
        }
        let Some(duty) = self.segments.at(at) else { return };
        let Some(port) = self.ethernet(duty.ethernet) else { return };
        let (mac, ethernet) = (port.mac, link_due.then(|| port.is_up()));
        let Some(endpoint) = self.endpoints.at(duty.endpoint) else { return };
        let number = endpoint.port();
        let is_due = link_due && !endpoint.is_gone();
        let gid = if is_due { endpoint.hca().gid(number, 0).unwrap_or_default() } else { Gid::ZERO };
        let stopping = self.stopping.is_some();
        let Some((duty, link, board)) = parts!(self, at) else { return };
        let pair = &mut duty.duty.pair;
        if let Some(up) = ethernet {
            duty.duty.link_due = now + LINK_PERIOD;
            pair.handle_side(now, Side::Ethernet, up);
            let settings = board.settings();
            let (lid, qpns) = (settings.own_lid, settings.own_qpns.to_vec());
            pair.set_station(Station { mac, lid, gid, qpns });
        }
        pair.handle_side(now, Side::InfiniBand, link.state().up && !stopping);
        if now >= pair.poll_timeout() {
            pair.handle_timeout(now);
        }
        if pair.wants_neighbours(now) {
            let known = known_hosts(now, &duty.segment, link);
            let doubted = duty.segment.doubted();
            pair.tell_neighbours(now, known.into_iter().filter(|host| !doubted.contains(&host.ip)));
        }
        self.carry_out_pair(now, at);
        self.renew_lease(at);
    }

    /// Commands worker 0 to renew the lease of all workers. Worker 0 sends the hellos, so that the renewal
    /// follows them.
    fn renew_lease(&mut self, at: SegmentIndex) {
        let Some(duty) = self.segments.at_mut(at) else { return };
        let (end, endpoint) = (duty.duty.pair.lease_end(), duty.endpoint);
        if duty.duty.lease.replace(end) == Some(end) {
            return;
        }
        match end {
            // A lost command is made up for by the next hello.
            Some(_) => {
                self.command(at, WorkerIndex(0), GatewayCommand::Renew(at, end));
            }
            None => self.end_lease(endpoint, at),
        }
    }

    /// Workers forward without a lease: there is no other gateway, or the segment is gone.
    pub(super) fn end_lease(&mut self, port: EndpointIndex, at: SegmentIndex) {
        if let Some(endpoint) = self.endpoints.at(port) {
            endpoint.order(WorkerIndex(0), GatewayCommand::Renew(at, None));
        }
    }

    pub(super) fn carry_out_pair(&mut self, now: Instant, at: SegmentIndex) {
        while let Some(event) = self.segments.at_mut(at).and_then(|duty| duty.duty.pair.poll_event()) {
            self.take_pair_event(now, at, event);
        }
        while let Some(transmit) = self.segments.at_mut(at).and_then(|duty| duty.duty.pair.poll_transmit()) {
            match transmit {
                Transmit::Message(Side::Ethernet, bytes) => {
                    self.send_on_ethernet(at, PAIR_GROUP, ETHERTYPE_HELLO, &bytes);
                }
                Transmit::Probe(Side::Ethernet, bytes) => {
                    self.send_on_ethernet(at, MacAddress::BROADCAST, ETHERTYPE_IPV4, &bytes);
                }
                Transmit::Message(Side::InfiniBand, bytes) => {
                    let [a, b] = ETHERTYPE_HELLO.to_be_bytes();
                    self.send_on_infiniband(at, [a, b, 0, 0], &bytes);
                }
                Transmit::Probe(Side::InfiniBand, bytes) => {
                    self.send_on_infiniband(at, IPOIB_IPV4_HEADER, &bytes);
                }
            }
        }
    }

    fn send_on_ethernet(
        &mut self,
        at: SegmentIndex,
        destination: MacAddress,
        ethertype: u16,
        payload: &[u8],
    ) {
        let Some(source) =
            self.segments.at(at).and_then(|duty| self.ethernet(duty.ethernet)).map(|port| port.mac)
        else {
            return;
        };
        let header = EthernetHeader { destination, source, ethertype };
        let mut frame = header.to_bytes().to_vec();
        frame.extend_from_slice(payload);
        frame.resize(frame.len().max(SHORTEST_FRAME), 0);
        self.send(at, WorkerIndex(0), &frame, |buf| GatewayCommand::SendEthernet(at, buf));
    }

    fn send_on_infiniband(&mut self, at: SegmentIndex, header: [u8; IPOIB_HEADER_LEN], payload: &[u8]) {
        let Some((duty, link, _)) = parts!(self, at) else { return };
        let (port, index, to) = (duty.endpoint, duty.link, link.broadcast_destination());
        if let Some(to) = to
            && let Some(endpoint) = self.endpoints.at(port)
        {
            endpoint.send_ud_by(index, WorkerIndex(0), &to, &[&header, payload].concat());
        }
    }

    fn take_pair_event(&mut self, now: Instant, at: SegmentIndex, event: Event) {
        match event {
            Event::Neighbours(list) => {
                for host in &list {
                    self.learn_reported(now, at, host);
                }
            }
            Event::AnnounceHosts => self.announce_hosts(now, at),
            Event::Role { .. } | Event::HandedOver => {
                let undrained = matches!(event, Event::Role { why: Why::NoSuccessor, .. });
                self.report_pair_event(now, at, event);
                self.follow_role(now, at);
                if undrained {
                    self.undrain_all(now);
                }
            }
            event => self.report_pair_event(now, at, event),
        }
    }

    /// Undrains all segments. A gateway is drained with all of its segments or with none, and one of them has
    /// no substitute any more.
    fn undrain_all(&mut self, now: Instant) {
        self.maker.drained = false;
        let indices: Vec<_> = self.indices().collect();
        for at in indices {
            let drained = self.segments.at_mut(at).filter(|duty| duty.duty.pair.is_drained());
            if let Some(duty) = drained {
                duty.duty.pair.set_drained(now, None);
                self.carry_out_pair(now, at);
            }
        }
    }

    /// Applies the role of the state machine to tables, segment and link.
    fn follow_role(&mut self, now: Instant, at: SegmentIndex) {
        let Some((duty, _, board)) = parts!(self, at) else { return };
        let role = role_of(&duty.duty.pair);
        board.set_role(role);
        // Pending packets were accepted under the previous role.
        self.board.flush();
        self.play(now, at, role);
        self.carry_out(now, at);
    }

    fn announce_hosts(&mut self, now: Instant, at: SegmentIndex) {
        let Some((duty, link, _)) = parts!(self, at) else { return };
        duty.segment.announce_hosts(now, infiniband_hosts(now, link));
        self.carry_out(now, at);
    }

    fn play(&mut self, now: Instant, at: SegmentIndex, role: forward::Role) {
        let Some((duty, link, _)) = parts!(self, at) else { return };
        duty.segment.set_role(now, role, infiniband_hosts(now, link));
        link.speak(role == forward::Role::Forwarding);
    }

    /// Reports an event in the log and to subscribers.
    fn report_pair_event(&mut self, now: Instant, at: SegmentIndex, event: Event) {
        let Some(duty) = self.segments.at_mut(at) else { return };
        // Events that recur with each packet are reported at intervals.
        let again = match event {
            Event::Sibling { .. } => Some(What::Sibling),
            Event::Multiplied { .. } => Some(What::Multiplied),
            _ => None,
        };
        if again.is_some_and(|what| !duty.duty.complaints.take(now, what)) {
            return;
        }
        let name = &duty.name;
        let (what, text, facts) = match event {
            Event::Role { from, to, why } => {
                let text = format!("{} after {} ({why})", to.name(), from.name());
                tracing::info!(
                    segment = name.as_str(),
                    event = What::of_role(to).journal(),
                    "{name}: role: {text}"
                );
                (What::of_role(to), text, json!({"role": to.name(), "before": from.name()}))
            }
            Event::Peer { who, alive } => {
                let (what, is) = if alive { (What::Peer, "is there") } else { (What::PeerGone, "is gone") };
                let mut text = format!("gateway {:016x} {is}", who.guid.0);
                if alive && !duty.duty.pair.is_keyed() {
                    text.push_str(KEYLESS);
                    tracing::warn!(segment = name.as_str(), event = what.journal(), "{name}: {text}");
                } else {
                    tracing::info!(segment = name.as_str(), event = what.journal(), "{name}: {text}");
                }
                (what, text, json!({"guid": format!("{:016x}", who.guid.0)}))
            }
            Event::Loop { sign: Sign::Sibling, hold, .. } => {
                let text = format!(
                    "it meets another segment of this gateway on both sides, which is a loop: blocked for at least {} s, the other \
                     one forwards. Separate their Ethernet networks or their InfiniBand ports; it then forwards again",
                    hold.as_secs()
                );
                tracing::error!(segment = name.as_str(), event = What::Loop.journal(), "{name}: {text}");
                (What::Loop, text, json!({"blocked_seconds": hold.as_secs()}))
            }
            Event::Sibling { guid, side } => {
                let text = format!(
                    "the segment at port {:016x} of this gateway is on the same network on {}: separate them, or make them one segment",
                    guid.0,
                    side.name()
                );
                tracing::warn!(segment = name.as_str(), event = What::Sibling.journal(), "{name}: {text}");
                (What::Sibling, text, json!({"guid": format!("{:016x}", guid.0), "side": side.name()}))
            }
            Event::Loop { sign, arrived, hold } => {
                let text = format!(
                    "our own packets come back on {} ({sign:?}): something else joins the Ethernet network and the partition. The \
                     segment is blocked for at least {} s. Remove the other bridge; the segment then forwards again",
                    arrived.name(),
                    hold.as_secs()
                );
                tracing::error!(segment = name.as_str(), event = What::Loop.journal(), "{name}: {text}");
                (What::Loop, text, json!({"side": arrived.name(), "blocked_seconds": hold.as_secs()}))
            }
            Event::Blocked { by } => {
                let text = format!(
                    "gateway {:016x} forwards between the same two networks, ranks better and is not believed: blocked until it is gone or \
                     believed. {SAME_SETTINGS}",
                    by.guid.0
                );
                tracing::error!(segment = name.as_str(), event = What::Loop.journal(), "{name}: {text}");
                (What::Loop, text, json!({"guid": format!("{:016x}", by.guid.0)}))
            }
            Event::Rival { who } => {
                let text = format!(
                    "gateway {:016x} forwards between the same two networks and is not believed; this one ranks better and continues, the other \
                     one should block. {SAME_SETTINGS}",
                    who.guid.0
                );
                tracing::error!(segment = name.as_str(), event = What::Stranger.journal(), "{name}: {text}");
                (What::Stranger, text, json!({"guid": format!("{:016x}", who.guid.0)}))
            }
            Event::Stranger { why: Some(why) } => {
                let text = format!(
                    "another gateway on these networks is not believed: {why}. If it joins both, only one of them forwards, and \
                     a takeover by the other one takes seconds"
                );
                tracing::error!(segment = name.as_str(), event = What::Stranger.journal(), "{name}: {text}");
                (What::Stranger, text, json!({"why": why.to_string()}))
            }
            Event::Stranger { why: None } => {
                let text = "the gateway that was not believed is gone, or is believed";
                tracing::info!(
                    segment = name.as_str(),
                    event = What::StrangerGone.journal(),
                    "{name}: {text}"
                );
                (What::StrangerGone, text.to_owned(), Value::Null)
            }
            Event::Multiplied { side } => {
                let text = format!(
                    "our packets on {} come back several times: that network has a loop of its own; enable spanning tree",
                    side.name()
                );
                tracing::warn!(segment = name.as_str(), event = What::Multiplied.journal(), "{name}: {text}");
                (What::Multiplied, text, json!({"side": side.name()}))
            }
            Event::HandedOver => {
                let (text, facts) = forwards_no_more(duty.duty.pair.peers(now));
                tracing::info!(segment = name.as_str(), event = What::HandedOver.journal(), "{name}: {text}");
                (What::HandedOver, text, facts)
            }
            Event::Neighbours(_) | Event::AnnounceHosts => return,
        };
        self.events.report(now, what, self.segments.at(at), || (text, facts));
    }

    /// Learns a host from a report of the forwarding gateway.
    fn learn_reported(&mut self, now: Instant, at: SegmentIndex, host: &Neighbour) {
        let Some((duty, link, _)) = parts!(self, at) else { return };
        let authentic = duty.duty.pair.is_keyed();
        let on_infiniband = duty.segment.learn_told(now, link, host, authentic);
        if on_infiniband && let (IpAddr::V4(ip), Place::InfiniBand(hardware)) = (host.ip, host.place) {
            link.handle_told(now, ip, hardware);
        }
        self.carry_out(now, at);
    }

    /// The gateway exits: another one may forward at once.
    pub(super) fn leave_pair(&mut self, now: Instant, at: SegmentIndex) {
        if let Some(duty) = self.segments.at_mut(at) {
            duty.duty.pair.leave(now);
        }
        self.carry_out_pair(now, at);
    }
}

/// Report about a gateway that no longer forwards packets that hosts still send to it: the gateway that
/// forwards instead, if any.
fn forwards_no_more(peers: impl Iterator<Item = PeerInfo>) -> (String, Value) {
    let mut peers = peers;
    match peers.find(|peer| peer.alive && peer.role == Role::Forwarding) {
        Some(PeerInfo { who, .. }) => {
            let guid = format!("{:016x}", who.guid.0);
            let text =
                format!("handed over to gateway {guid}: what hosts still send here is dropped from now on");
            (text, json!({ "to": guid }))
        }
        None => {
            let text = "stopped forwarding, and no other gateway is heard to forward: what hosts send here is dropped";
            (text.to_owned(), json!({ "to": null }))
        }
    }
}

/// The hosts that a link knows.
pub(super) fn infiniband_hosts(now: Instant, link: &Link) -> impl Iterator<Item = IpAddr> + use<> {
    link.neighbours(now).into_iter().filter(|host| host.hardware.is_some()).map(|host| host.ip)
}

/// All known hosts on both sides of a segment.
fn known_hosts(now: Instant, segment: &Segment<Mbuf>, link: &Link) -> Vec<Neighbour> {
    let ethernet =
        segment.hosts().filter_map(|host| Some(Neighbour { ip: host.ip, place: Place::Ethernet(host.mac?) }));
    let mut known: Vec<Neighbour> = ethernet.collect();
    known.extend(
        link.neighbours(now)
            .into_iter()
            .filter_map(|host| Some(Neighbour { ip: host.ip, place: Place::InfiniBand(host.hardware?) })),
    );
    known
}

#[cfg(test)]
mod tests {
    use ib_wire::Guid;

    use super::*;
    use crate::segment::pair::{Identity, SideSet};

    fn peer(guid: u64, role: Role, alive: bool) -> PeerInfo {
        PeerInfo {
            who: Identity { guid: Guid(guid), instance: 1 },
            priority: 100,
            role,
            leaves: false,
            alive,
            heard: SideSet::default(),
            hears_us: SideSet::default(),
            age: Duration::ZERO,
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
        }
    }

    #[test]
    fn the_gateway_that_forwards_after_a_drain_is_named_if_any() {
        let standby = peer(1, Role::Standby, true);
        let (text, facts) = forwards_no_more([standby, peer(0xab, Role::Forwarding, true)].into_iter());
        assert!(text.starts_with("handed over to gateway 00000000000000ab"), "{text}");
        assert_eq!(facts, json!({"to": "00000000000000ab"}));
        for alone in [vec![], vec![standby], vec![peer(2, Role::Forwarding, false)]] {
            let (text, facts) = forwards_no_more(alone.into_iter());
            assert!(text.contains("no other gateway") && !text.contains("handed over"), "{text}");
            assert_eq!(facts, json!({"to": null}));
        }
    }
}
