//! Queue pairs 0 and 1 of a port: management datagrams through the driver's rings.

use ib_wire::mad::{MAD_LEN, Mad, MadAddress, Route};
use ib_wire::packet::{GRH_LEN, Grh, RoceNetwork};
use ib_wire::{Lid, PKey, QKey, Qpn, Rate, ServiceLevel};

use super::memory::{Arena, Block};
use super::queues::{Created, QpPlace, create_cq, create_qp};
use crate::hca::{AddressVector, GlobalRoute, HcaError, PortNumber, QpTransition, UdDestination};
use crate::mlx5::av::Destination;

use super::bus::SoftBus;
use crate::mlx5::cq::{Arrival, Completion, CompletionQueue, What};
use crate::mlx5::rings::{CqRing, QpRequest, QpRings, RingMemory, SendOperations, Transport};
use crate::mlx5::rq::ReceiveQueue;
use crate::mlx5::sq::{Full, Request, SendQueue};
use connectx::engine::Engine;
use connectx::{Access, QpKind};
use prm::{DataSegment, SendOpcode, fm_ce_se};

/// Send queue depth.
const SENDS: u32 = 128;
/// Receive queue depth. A fabric of a thousand hosts may send queries at the same time.
const RECEIVES: u32 = 1024;
/// Length of a receive buffer: the GRH area and the datagram.
const RECEIVE_LEN: usize = GRH_LEN + MAD_LEN;
/// WQEBBs of a single-segment send.
const SEND_BLOCKS: u16 = 2;

/// A management queue pair.
#[derive(Debug)]
pub(super) struct Management {
    qp: Created<QpRings>,
    cq: Created<CqRing>,
    /// Buffers: first those of sends, then those of receives.
    buffers: Block,
    memory: RingMemory,
    lkey: u32,
    sends: SendQueue,
    receives: ReceiveQueue,
    completions: CompletionQueue,
    /// Length of the send ring in entries.
    slots: u16,
    pkey_index: u16,
}

impl Management {
    /// Opens queue pair 0 or 1 of a port.
    pub(super) fn open(
        engine: &mut Engine,
        arena: &Arena,
        port: PortNumber,
        kind: QpKind,
    ) -> Result<Self, HcaError> {
        let cq = create_cq(engine, arena, 2 * SENDS + RECEIVES)?;
        let request = QpRequest {
            transport: Transport::Ud,
            send_wr: SENDS,
            send_sge: 1,
            recv_wr: RECEIVES,
            recv_sge: 1,
            inline_data: 0,
            operations: SendOperations::SendOnly,
        };
        let number = cq.rings.cqn;
        let place = QpPlace { kind, port, srq: None, send_cq: number, recv_cq: number };
        let qp = create_qp(engine, arena, &request, place)?;
        let slots = qp.rings.sq_wqebbs / u32::from(SEND_BLOCKS);
        let bytes = slots as usize * MAD_LEN + qp.rings.rq_slots as usize * RECEIVE_LEN;
        let buffers = arena.allocate(bytes)?;
        let host = buffers.host(0, bytes);
        let lkey = engine.register(host.address(), host, Access::LOCAL)?;
        let qpn = Qpn::new(qp.rings.qpn);
        let qkey = if kind == QpKind::Smi { QKey(0) } else { QKey::GSI };
        for to in [
            QpTransition::UdToInit { pkey_index: 0, qkey },
            QpTransition::UdToReceive,
            QpTransition::UdToSend { sq_psn: ib_wire::Psn::new(0) },
        ] {
            engine.modify_qp(qpn, &to)?;
        }
        let mut open = Self {
            sends: SendQueue::new(&qp.rings),
            receives: ReceiveQueue::new(&qp.rings),
            completions: CompletionQueue::new(&cq.rings),
            memory: buffers.ring(0, bytes),
            qp,
            cq,
            buffers,
            lkey,
            slots: slots as u16,
            pkey_index: 0,
        };
        while open.post_receive() {}
        open.receives.publish();
        Ok(open)
    }

    fn receive_at(&self, slot: usize) -> usize {
        usize::from(self.slots) * MAD_LEN + slot * RECEIVE_LEN
    }

    fn post_receive(&mut self) -> bool {
        let Some(slot) = self.receives.next_slot() else { return false };
        let address = self.buffers.host(self.receive_at(slot), RECEIVE_LEN).address();
        self.receives.post([DataSegment::new(address, RECEIVE_LEN as u32, self.lkey)]).is_some()
    }

    /// Posts a datagram and rings the doorbell.
    pub(super) fn send(&mut self, engine: &mut Engine, bus: &mut SoftBus, mad: &Mad) -> Result<(), HcaError> {
        const FULL: HcaError = HcaError::Exhausted("room for management datagrams");
        let qpn = Qpn::new(self.qp.rings.qpn);
        if self.sends.used() + SEND_BLOCKS > self.sends.size() {
            return Err(FULL);
        }
        // The entry has no P_Key field. The device uses the queue pair's P_Key at the time of sending.
        if mad.peer.pkey_index != self.pkey_index {
            if !engine.sends_are_done(qpn) {
                return Err(FULL);
            }
            engine.set_pkey_index(qpn, mad.peer.pkey_index);
            self.pkey_index = mad.peer.pkey_index;
        }
        let at = usize::from(self.sends.posted() / SEND_BLOCKS % self.slots) * MAD_LEN;
        self.memory.write(at, &mad.bytes[..]);
        let piece = DataSegment::new(self.buffers.host(at, MAD_LEN).address(), MAD_LEN as u32, self.lkey);
        let request = Request { opcode: SendOpcode::Send, flags: fm_ce_se::CQ_UPDATE, imm: 0 };
        let to = Destination::new(&destination(&mad.peer));
        self.sends.post_datagram::<Full>(request, to.address(), 1, [Ok(piece)]).map_err(|_| FULL)?;
        self.sends.ring(bus);
        Ok(())
    }

    /// Returns the next received datagram. Recovers from failed sends.
    pub(super) fn receive(&mut self, engine: &mut Engine) -> Option<Mad> {
        let mut mad = None;
        while mad.is_none() {
            let Some(cqe) = self.completions.poll() else { break };
            let completion = Completion::of(&cqe);
            match completion.what {
                What::Sent { .. } => self.sends.retire(completion.counter.wrapping_add(SEND_BLOCKS)),
                What::SendFailed(_) => {
                    self.sends.retire(completion.counter.wrapping_add(SEND_BLOCKS));
                    if self.sends.used() == 0 {
                        // Succeeds in SQE. In any other state there is nothing to recover.
                        let _ = engine.modify_qp(Qpn::new(self.qp.rings.qpn), &QpTransition::RecoverSend);
                    }
                }
                What::Received(arrival) => {
                    if let Some(slot) = self.receives.take() {
                        mad = self.datagram(engine, slot, &arrival);
                        self.post_receive();
                    }
                }
                What::ReceiveFailed(_) => {
                    self.receives.take();
                    self.post_receive();
                }
                What::Unknown(_) => {}
            }
        }
        self.completions.publish();
        self.receives.publish();
        mad
    }

    fn datagram(&self, engine: &Engine, slot: usize, arrival: &Arrival) -> Option<Mad> {
        let at = self.receive_at(slot);
        // A shorter message is not a management datagram. The rest of the buffer belongs to an earlier one.
        if arrival.byte_len as usize != RECEIVE_LEN {
            return None;
        }
        let port = engine.qp_port(Qpn::new(self.qp.rings.qpn))?;
        let ethernet = engine.is_ethernet(port);
        let route = arrival.grh.then(|| {
            let area = self.memory.read::<[u8; GRH_LEN]>(at);
            let roce = ethernet.then(|| RoceNetwork::of_area(&area)).flatten();
            let (grh, _) = Grh::from_bytes(&area);
            let (gid, ours) = roce.map_or((grh.sgid, grh.dgid), |n| (n.sgid(), n.dgid()));
            let grh_hints = (grh.traffic_class, grh.flow_label, grh.hop_limit);
            let (traffic_class, flow_label, hop_limit) = roce.map_or(grh_hints, |n| n.hints());
            let sgid_index = engine.gid_index(port, ours).unwrap_or(0);
            Route { gid, sgid_index, flow_label, hop_limit, traffic_class }
        });
        // Queue pair 0 has no P_Key.
        let pkey_index = engine.find_pkey(port, PKey(arrival.pkey_index)).unwrap_or(0);
        let peer = MadAddress {
            lid: Lid(arrival.slid),
            qpn: Qpn::new(arrival.src_qpn),
            qkey: QKey(0),
            // At an Ethernet port this field contains the kind of IP header.
            sl: ServiceLevel::new(if ethernet { 0 } else { arrival.sl }),
            path_bits: arrival.dlid_path_bits,
            pkey_index,
            route,
        };
        Some(Mad { peer, bytes: Box::new(self.memory.read(at + GRH_LEN)) })
    }

    /// Closes the queue pair.
    pub(super) fn close(self, engine: &mut Engine, arena: &Arena) -> Result<(), HcaError> {
        engine.destroy_qp(Qpn::new(self.qp.rings.qpn))?;
        engine.destroy_cq(self.cq.rings.cqn)?;
        engine.deregister(self.lkey)?;
        for block in [self.qp.block, self.cq.block, self.buffers] {
            // SAFETY: the device's objects are gone, and the driver's go with `self`.
            unsafe { arena.free(block) };
        }
        Ok(())
    }
}

fn destination(peer: &MadAddress) -> UdDestination {
    let grh = peer.route.map(|route| GlobalRoute {
        dgid: route.gid,
        sgid_index: route.sgid_index,
        flow_label: route.flow_label,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
    });
    let av =
        AddressVector { dlid: peer.lid, sl: peer.sl, src_path_bits: peer.path_bits, rate: Rate::new(0), grh };
    UdDestination { av, qpn: peer.qpn, qkey: Some(peer.qkey) }
}
