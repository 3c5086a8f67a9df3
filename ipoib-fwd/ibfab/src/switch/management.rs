//! Management packets: subnet management on its own lane, and all packets to and from port 0.

use std::time::Instant;

use connectx::cable::Crcs;
use connectx::pma::{self, Counted, Tally};
use ib_wire::crc;
use ib_wire::mad::{MAD_LEN, Mad, MadAddress, MadHeader, Method, MgmtClass, Route};
use ib_wire::packet::{Bth, Deth, Extended, Grh, Headers, Lrh, Opcode, Packet, VirtualLane};
use ib_wire::sa::Notice;
use ib_wire::smp::{DirectedStep, NodeType, Origin, Smp, attribute, step};
use ib_wire::{Gid, Lid, PKey, QKey, Qpn, ServiceLevel};

use super::{DropReason, Switch};

/// Returns the datagram of a UD packet to queue pair `qpn`.
fn datagram<'p>(packet: &Packet<'p>, qpn: Qpn) -> Option<(Deth, &'p [u8; MAD_LEN])> {
    let Extended::Deth(deth) = *packet.extended() else { return None };
    let right = packet.bth().opcode == Opcode::UdSendOnly && packet.bth().dest_qpn == qpn;
    Some((deth, packet.payload().try_into().ok()?)).filter(|_| right)
}

/// False for a directed-route packet that cannot have arrived by port `ingress` on its route. So a host
/// cannot answer for another node.
fn is_on_its_route(smp: &Smp, dlid: Lid, ingress: u8) -> bool {
    if !smp.is_directed() {
        return true;
    }
    let pointer = smp.hop_pointer();
    if dlid != Lid::PERMISSIVE {
        // The LID-routed parts of a route are before and after the directed part (IBA 14.2.2).
        return !(1..=smp.hop_count()).contains(&pointer);
    }
    if smp.is_returning() {
        // An answer comes back by the port by which its request left.
        return smp.initial_path.get(usize::from(pointer)) == Some(&ingress);
    }
    smp.header.method != Method::GetResp
}

impl Switch {
    /// Handles a packet of the management lane that arrived by port index `at`.
    pub(super) fn take_smp(&mut self, at: usize, bytes: &[u8], crcs: Crcs) {
        let ingress = at as u8 + 1;
        if let Err(reason) = self.try_smp(ingress, bytes, crcs) {
            self.count_drop(at, reason);
        }
    }

    fn try_smp(&mut self, ingress: u8, bytes: &[u8], crcs: Crcs) -> Result<(), DropReason> {
        let packet = Packet::parse(bytes).map_err(|_| DropReason::Malformed)?;
        let (_, mad) = datagram(&packet, Qpn::SMI).ok_or(DropReason::BadManagement)?;
        let mut smp = Smp::from_mad(mad).map_err(|_| DropReason::BadManagement)?;
        let Lrh { dlid, slid, .. } = *packet.lrh();
        // Only a packet that goes from hop to hop needs no source LID.
        if slid != Lid::PERMISSIVE {
            if let Some(port) = self.ports.get(usize::from(ingress) - 1) {
                port.admits_source(slid)?;
                port.refuses_elsewhere(slid)?;
            }
        } else if !smp.is_directed() || dlid != Lid::PERMISSIVE {
            return Err(DropReason::SourceLid);
        }
        if !is_on_its_route(&smp, dlid, ingress) {
            return Err(DropReason::BadRoute);
        }
        if dlid != Lid::PERMISSIVE && dlid != self.lid() {
            let mut relayed: Box<[u8]> = bytes.into();
            if crcs == Crcs::Absent {
                crc::seal(&mut relayed);
            }
            return self.send_by_lid(dlid, relayed);
        }
        if crcs == Crcs::Present && !crc::verify_icrc(bytes) {
            return Err(DropReason::Icrc);
        }
        if smp.is_directed() {
            let next = step(&mut smp, NodeType::Switch, Origin::Port(ingress));
            self.go_on(next, smp, slid, ingress)
        } else if dlid == Lid::PERMISSIVE {
            Err(DropReason::BadManagement)
        } else {
            self.deliver(smp, slid, ingress)
        }
    }

    /// Follows the directed route.
    fn go_on(&mut self, next: DirectedStep, smp: Smp, slid: Lid, ingress: u8) -> Result<(), DropReason> {
        match next {
            DirectedStep::Deliver => self.deliver(smp, slid, ingress),
            DirectedStep::Send(port) => {
                let at = usize::from(port).checked_sub(1).ok_or(DropReason::BadRoute)?;
                if !self.ports.get(at).is_some_and(|port| port.is_linked()) {
                    return Err(DropReason::BadRoute);
                }
                let packet = self.smp_packet(&smp, Lid::PERMISSIVE, Lid::PERMISSIVE);
                self.postponed.push((port, packet));
                Ok(())
            }
            DirectedStep::SendByLid(lid) if lid == self.lid() => self.deliver(smp, slid, ingress),
            DirectedStep::SendByLid(lid) => self.send_smp_by_lid(&smp, lid),
            DirectedStep::Discard => Err(DropReason::BadRoute),
        }
    }

    /// Delivers an SMP at the end of its route: to the agent, or to the subnet manager behind port 0.
    fn deliver(&mut self, smp: Smp, slid: Lid, ingress: u8) -> Result<(), DropReason> {
        let method = smp.header.method;
        let is_request =
            matches!(method, Method::Get | Method::Set) && smp.header.attribute != attribute::SM_INFO;
        if !is_request {
            if method == Method::TrapRepress && self.traps.has(smp.header.tid) {
                if !self.agent.guard.admits(&smp) {
                    return Err(DropReason::MKey);
                }
                self.traps.repress(smp.header.tid);
                return Ok(());
            }
            return self.hand_up(ingress, smp.to_mad(slid));
        }
        let answer = self.answer(smp, ingress);
        if answer == Err(DropReason::MKey) {
            self.traps.raise_alone(&Notice::bad_mkey(NodeType::Switch, self.lid(), slid, &smp));
        }
        let mut answer = answer?;
        if answer.is_directed() {
            let next = step(&mut answer, NodeType::Switch, Origin::Local);
            self.go_on(next, answer, slid, ingress)
        } else if slid == self.lid() {
            self.hand_up(ingress, answer.to_mad(slid))
        } else {
            self.send_smp_by_lid(&answer, slid)
        }
    }

    /// Queues a datagram for the subnet manager behind port 0.
    fn hand_up(&mut self, ingress: u8, mad: Mad) -> Result<(), DropReason> {
        let is_smp = MgmtClass::is_smp(mad.header().class);
        if self.inbox.push(ingress, is_smp, mad) { Ok(()) } else { Err(DropReason::InboxFull) }
    }

    fn send_smp_by_lid(&mut self, smp: &Smp, dlid: Lid) -> Result<(), DropReason> {
        let packet = self.smp_packet(smp, dlid, self.lid());
        self.send_by_lid(dlid, packet)
    }

    /// Sends a packet of the management lane by the linear table.
    fn send_by_lid(&mut self, dlid: Lid, packet: Box<[u8]>) -> Result<(), DropReason> {
        let port = self.linear.port(dlid).filter(|&p| p != 0).ok_or(DropReason::NoRoute)?;
        if !self.ports.get(usize::from(port) - 1).is_some_and(|port| port.is_linked()) {
            return Err(DropReason::EgressState);
        }
        self.postponed.push((port, packet));
        Ok(())
    }

    /// Sends answers and forwarded packets that were postponed while a port's packets were handled.
    pub(super) fn send_postponed(&mut self) {
        for Mad { peer, bytes } in std::mem::take(&mut self.requests) {
            let Some(bytes) = self.performance(&bytes) else { continue };
            if let Err(reason) = self.send_gmp(&Mad { peer, bytes }) {
                self.own.drop(reason);
            }
        }
        for (number, packet) in std::mem::take(&mut self.postponed) {
            let port = self.ports.get_mut(usize::from(number).wrapping_sub(1));
            if !port.is_some_and(|port| port.send(&packet, Crcs::Present)) {
                self.own.drop(DropReason::ManagementFull);
            }
        }
    }

    fn smp_packet(&mut self, smp: &Smp, dlid: Lid, slid: Lid) -> Box<[u8]> {
        let lrh = Lrh { vl: VirtualLane::MANAGEMENT, sl: ServiceLevel::new(0), dlid, slid };
        let deth = Deth { qkey: QKey(0), src_qpn: Qpn::SMI };
        self.packet(lrh, None, Qpn::SMI, PKey::DEFAULT, deth, &smp.to_bytes())
    }

    fn packet(
        &mut self,
        lrh: Lrh,
        grh: Option<Grh>,
        dest_qpn: Qpn,
        pkey: PKey,
        deth: Deth,
        mad: &[u8; MAD_LEN],
    ) -> Box<[u8]> {
        let bth = Bth {
            opcode: Opcode::UdSendOnly,
            solicited: false,
            migrated: false,
            pkey,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_request: false,
            psn: self.psn,
        };
        self.psn = self.psn.add(1);
        let headers = Headers { lrh, grh, bth, extended: Extended::Deth(deth) };
        let mut bytes = vec![0; headers.packet_len(MAD_LEN)];
        // Opcode and headers match and the buffer has the right size, so this cannot fail; the link would
        // drop an empty packet.
        let len = headers.write_packet(mad, &mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes.into()
    }

    /// Handles a data packet for port 0: a datagram for QP1.
    pub(super) fn take_gmp(&mut self, at: usize, bytes: &[u8], crcs: Crcs) -> Result<(), DropReason> {
        let packet = Packet::parse(bytes).map_err(|_| DropReason::Malformed)?;
        let (deth, mad) = datagram(&packet, Qpn::GSI).ok_or(DropReason::NotForUs)?;
        if crcs == Crcs::Present && !crc::verify_icrc(bytes) {
            return Err(DropReason::Icrc);
        }
        if deth.qkey != QKey::GSI {
            return Err(DropReason::NotForUs);
        }
        if packet.grh().is_some_and(|grh| !self.has_gid(grh.dgid)) {
            return Err(DropReason::NotForUs);
        }
        let pkey_index = self.agent.pkey_index(packet.bth().pkey).ok_or(DropReason::PKey)?;
        let route = packet.grh().map(|grh| Route {
            gid: grh.sgid,
            sgid_index: 0,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        });
        let Lrh { slid, sl, .. } = *packet.lrh();
        let header = MadHeader::of(mad);
        let peer =
            MadAddress { lid: slid, qpn: deth.src_qpn, qkey: QKey(0), sl, path_bits: 0, pkey_index, route };
        if header.class == MgmtClass::Perf && matches!(header.method, Method::Get | Method::Set) {
            // At most one for each packet of a burst. The ingress link is taken out at present, and its
            // counters with it.
            self.requests.push(Mad { peer: peer.reply(), bytes: Box::new(*mad) });
            return Ok(());
        }
        self.hand_up(at as u8 + 1, Mad { peer, bytes: Box::new(*mad) })
    }

    /// True if datagrams to this GID are for port 0: its own GID, with the subnet's prefix or the default one
    /// (IBA 4.1.1), or that of subnet administration if the subnet manager is here.
    fn has_gid(&self, gid: Gid) -> bool {
        let prefix = self.agent.port0.gid_prefix;
        gid.id() == self.agent.guid() && [prefix, Gid::DEFAULT_PREFIX].contains(&gid.prefix())
            || gid == Gid::new(prefix, Gid::SUBNET_ADMINISTRATION) && self.manager_elsewhere().is_none()
    }

    /// Returns the answer of the performance management agent. It covers the external ports, and port 0,
    /// which has no counters.
    fn performance(&mut self, mad: &[u8; MAD_LEN]) -> Option<Box<[u8; MAD_LEN]>> {
        let Self { ports, cleared0, .. } = self;
        pma::respond(mad, |named| match usize::from(named).checked_sub(1) {
            None => Some(Tally { now: Counted::default(), cleared: cleared0 }),
            Some(at) => ports.get_mut(at).map(|port| port.tally()),
        })
    }

    /// Sends a datagram of the subnet manager behind port 0: SMPs (QP0), before the first step of their
    /// directed route, or others (QP1). A datagram that cannot be sent is dropped and counted.
    pub fn send_mad(&mut self, mad: &Mad) {
        let sent =
            if MgmtClass::is_smp(mad.header().class) { self.send_smp(mad) } else { self.send_gmp(mad) };
        if let Err(reason) = sent {
            self.own.drop(reason);
        }
        self.send_postponed();
    }

    fn send_smp(&mut self, mad: &Mad) -> Result<(), DropReason> {
        let mut smp = Smp::from_mad(&mad.bytes).map_err(|_| DropReason::BadManagement)?;
        let slid = self.lid();
        if smp.is_directed() {
            let next = step(&mut smp, NodeType::Switch, Origin::Local);
            self.go_on(next, smp, Lid::PERMISSIVE, 0)
        } else if mad.peer.lid == slid {
            self.deliver(smp, slid, 0)
        } else {
            self.send_smp_by_lid(&smp, mad.peer.lid)
        }
    }

    fn send_gmp(&mut self, mad: &Mad) -> Result<(), DropReason> {
        // Port 0 has one LID.
        let MadAddress { lid, qpn, qkey, sl, path_bits: _, pkey_index, route } = mad.peer;
        let pkey = self.agent.pkey(pkey_index).ok_or(DropReason::PKey)?;
        if lid == self.lid() {
            let peer = MadAddress { qpn: Qpn::GSI, qkey: QKey(0), ..mad.peer };
            return self.hand_up(0, Mad { peer, bytes: mad.bytes.clone() });
        }
        let port = self.linear.port(lid).filter(|&p| p != 0).ok_or(DropReason::NoRoute)?;
        let egress = self.ports.get_mut(usize::from(port) - 1).filter(|port| port.sends_data());
        egress.ok_or(DropReason::EgressState)?.lets_out(Some(pkey))?;
        let lrh = Lrh { vl: VirtualLane::new(0), sl, dlid: lid, slid: self.lid() };
        let sgid = Gid::new(self.agent.port0.gid_prefix, self.agent.guid());
        let grh = route.map(|route| Grh {
            traffic_class: route.traffic_class,
            flow_label: route.flow_label,
            hop_limit: route.hop_limit,
            sgid,
            dgid: route.gid,
        });
        let packet = self.packet(lrh, grh, qpn, pkey, Deth { qkey, src_qpn: Qpn::GSI }, &mad.bytes);
        self.postponed.push((port, packet));
        Ok(())
    }

    /// Returns the LID of a subnet manager elsewhere; one behind port 0 needs no traps.
    fn manager_elsewhere(&self) -> Option<Lid> {
        let manager = self.agent.port0.sm_lid;
        (manager.0 != 0 && manager != self.lid()).then_some(manager)
    }

    /// Raises a trap for a subnet manager elsewhere: a port has changed. The one behind port 0 polls
    /// [`Switch::take_port_change`].
    pub(super) fn report_change(&mut self) {
        self.unreported = self.agent.port0.sm_lid.0 == 0;
        if !self.unreported {
            self.traps.raise_anew(&Notice::link_state_change(self.lid()));
        }
    }

    pub(super) fn send_traps(&mut self, now: Instant) {
        if self.unreported && self.agent.port0.sm_lid.0 != 0 {
            self.report_change();
        }
        let Some(manager) = self.manager_elsewhere() else { return self.traps.clear() };
        while let Some(smp) = self.traps.poll(now) {
            if let Err(reason) = self.send_smp_by_lid(&smp, manager) {
                self.own.drop(reason);
            }
        }
        self.send_postponed();
    }
}
