//! The device: its table of queue pairs, what the host commands, and the turns in which it works.

use std::collections::VecDeque;
use std::time::Instant;

use gidcache::{Attributes, Entry};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Qpn};

use super::counters::{Activity, Counters};
use super::device::Device;
use super::doorbell::{self, DoorbellReceiver, DoorbellSender, Rung};
use super::event::DeviceEvent;
use super::gids::Refused;
use super::ingress;
use super::link::LinkEnd;
use super::memory::HostMemory;
use super::object::cq::Cq;
use super::object::mr::Access;
use super::object::qp::{Consequence, Qp, QpKind, Receives, SendQueue};
use super::object::receive::{ReceiveQueue, Srq};
use super::port::{Port, PortConfig};
use super::rc::{self, requester, requester::Step};
use super::ud;
use crate::hca::{
    AsyncEvent, HcaError, LinkLayer, PortAttributes, PortNumber, PortState, QpState, QpTransition,
};

/// Low bits of a queue pair number that are its place in the table.
const SLOT_BITS: u32 = 13;
/// Most queue pairs.
pub(crate) const MAX_QPS: usize = 1 << SLOT_BITS;
/// Most completion queues, and most shared receive queues.
const MAX_QUEUES: usize = 4096;
/// Packets taken from a link in one turn.
const RECEIVE_BURST: usize = 32;
/// Queue pairs that get a turn in one step.
const TURNS: usize = 64;
/// Packets that one queue pair sends in its turn.
const SEND_BURST: usize = 16;
/// Doorbells taken from one handle in one step.
const DOORBELLS: usize = 256;

/// What a device is made with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Node GUID, also that of the system.
    pub node_guid: Guid,
    /// Node description, 64 bytes at most.
    pub description: String,
    /// Its ports, two at most.
    pub ports: Vec<PortConfig>,
    /// Where queue pair numbers are drawn from.
    pub seed: u64,
}

/// What a queue pair is made with.
#[derive(Debug)]
pub struct QpAttributes {
    /// What it is for.
    pub kind: QpKind,
    /// Its port.
    pub port: PortNumber,
    /// The send ring: WQEBBs.
    pub send_ring: HostMemory,
    /// The receive ring and the bytes of a slot; `None` with a shared receive queue.
    pub receive_ring: Option<(HostMemory, usize)>,
    /// The shared receive queue.
    pub srq: Option<u32>,
    /// Doorbell record: receive counter, send counter.
    pub dbrec: HostMemory,
    /// Completion queue of sends.
    pub send_cq: u32,
    /// Completion queue of receives.
    pub recv_cq: u32,
    /// What completions call it, 24 bits.
    pub user_index: u32,
}

/// A software ConnectX.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    pub(super) qps: QpTable,
    pub(super) dev: Device,
    doorbells: Vec<DoorbellReceiver>,
    dice: u64,
    /// What must live as long as the device: memory of the host that its objects name.
    kept: Vec<Box<dyn Keep>>,
}

/// Something that a device keeps alive.
pub(crate) trait Keep: Send + std::fmt::Debug {}

impl<T: Send + std::fmt::Debug> Keep for T {}

/// All queue pairs, by the low bits of their numbers.
#[derive(Debug, Default)]
pub(crate) struct QpTable {
    slots: Vec<Option<Box<Qp>>>,
    free: VecDeque<u32>,
    /// Queue pairs 0 and 1 by port.
    special: Vec<[Option<u32>; 2]>,
}

impl QpTable {
    pub(crate) fn at(&mut self, slot: u32) -> Option<&mut Qp> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    /// By real number.
    pub(crate) fn real(&mut self, qpn: Qpn) -> Option<&mut Qp> {
        self.at(qpn.get() & (MAX_QPS as u32 - 1)).filter(|qp| qp.qpn == qpn)
    }

    /// By the number that a packet to `port` names: 0 and 1 are the special ones, whatever they are really called.
    pub(crate) fn named(&mut self, port: u8, qpn: Qpn) -> Option<&mut Qp> {
        if qpn == Qpn::SMI || qpn == Qpn::GSI {
            let slot = (*self.special.get(usize::from(port))?.get(qpn.get() as usize)?)?;
            return self.at(slot);
        }
        self.real(qpn).filter(|qp| qp.port == port)
    }
}

impl Engine {
    /// A device whose ports have no links yet.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        let ports: Vec<_> =
            (1..=2).zip(&config.ports).map(|(n, port)| Port::new(PortNumber(n), port)).collect();
        let special = vec![[None; 2]; ports.len()];
        let dice = config.seed;
        Self {
            config,
            qps: QpTable { special, ..QpTable::default() },
            dev: Device { ports, ..Device::default() },
            doorbells: Vec::new(),
            dice,
            kept: Vec::new(),
        }
    }

    /// Keeps something alive as long as the device.
    pub(crate) fn keep(&mut self, thing: Box<dyn Keep>) {
        self.kept.push(thing);
    }

    /// What it was made with.
    #[must_use]
    pub const fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Splitmix64.
    const fn roll(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn port_mut(&mut self, port: PortNumber) -> Result<&mut Port, HcaError> {
        let index = usize::from(port.0).wrapping_sub(1);
        self.dev.ports.get_mut(index).ok_or_else(|| not_found("port", port.0))
    }

    fn port(&self, port: PortNumber) -> Result<&Port, HcaError> {
        let index = usize::from(port.0).wrapping_sub(1);
        self.dev.ports.get(index).ok_or_else(|| not_found("port", port.0))
    }

    /// Plugs a link into a port, or pulls it.
    pub fn set_link(&mut self, port: PortNumber, link: Option<LinkEnd>) -> Result<(), HcaError> {
        let Self { dev, .. } = self;
        let index = usize::from(port.0).wrapping_sub(1);
        let p = dev.ports.get_mut(index).ok_or_else(|| not_found("port", port.0))?;
        if link.is_none() {
            p.set_state(PortState::Down, &mut dev.events);
        }
        p.link = link;
        Ok(())
    }

    /// The link of a port.
    pub fn link(&self, port: PortNumber) -> Option<&LinkEnd> {
        self.port(port).ok()?.link.as_ref()
    }

    /// Gives a port a LID and makes it ACTIVE, as a subnet manager would: for devices joined without one.
    pub fn activate(&mut self, port: PortNumber, lid: Lid, mtu: Mtu) -> Result<(), HcaError> {
        let Self { dev, .. } = self;
        let index = usize::from(port.0).wrapping_sub(1);
        let p = dev.ports.get_mut(index).ok_or_else(|| not_found("port", port.0))?;
        p.lid = lid;
        p.mtu = mtu.min(p.max_mtu);
        p.set_state(PortState::Active, &mut dev.events);
        Ok(())
    }

    /// Writes an entry of a port's P_Key table, as a subnet manager would.
    pub fn set_pkey(&mut self, port: PortNumber, index: u16, key: PKey) -> Result<(), HcaError> {
        let port = self.port_mut(port)?;
        *port.pkeys.get_mut(usize::from(index)).ok_or_else(|| not_found("P_Key index", index))? = key;
        Ok(())
    }

    /// What a port is now.
    pub fn port_attributes(&self, port: PortNumber) -> Result<PortAttributes, HcaError> {
        let p = self.port(port)?;
        Ok(PortAttributes {
            state: p.state,
            link_layer: p.link_layer,
            lid: p.lid,
            lmc: p.lmc,
            sm_lid: p.sm_lid,
            sm_sl: p.sm_sl,
            active_mtu: p.mtu,
            max_mtu: p.max_mtu,
            gid_table_len: p.gids.len(),
            pkey_table_len: p.pkeys.len() as u16,
            guid: p.guid,
        })
    }

    /// Entry of a port's GID table.
    pub fn gid(&self, port: PortNumber, index: u16) -> Result<Gid, HcaError> {
        Ok(self.port(port)?.gids.gid(usize::from(index)))
    }

    /// All entries of all ports' GID tables.
    pub fn gids(&self) -> Vec<Entry> {
        let of = |port: &Port| {
            let number = port.number;
            let default = |index| port.link_layer == LinkLayer::InfiniBand && index == 0;
            let entries = port.gids.entries();
            let entry =
                move |(index, attributes)| Entry { port: number, index, attributes, default: default(index) };
            entries.map(entry).collect::<Vec<_>>()
        };
        self.dev.ports.iter().flat_map(of).collect()
    }

    /// Writes or empties an entry of an Ethernet port's GID table.
    pub fn set_gid(
        &mut self,
        port: PortNumber,
        index: u16,
        entry: Option<Attributes>,
    ) -> Result<(), HcaError> {
        let Self { dev, .. } = self;
        let at = usize::from(port.0).wrapping_sub(1);
        let p = dev.ports.get_mut(at).ok_or_else(|| not_found("port", port.0))?;
        match p.gids.write(index, entry) {
            Ok(true) => dev.events.raise(AsyncEvent::GidChange(port)),
            Ok(false) => {}
            Err(Refused::Index) => return Err(not_found("GID index", index)),
            Err(Refused::Kind) => {
                return Err(HcaError::Environment(format!("port {} has no such GID to be written", port.0)));
            }
        }
        Ok(())
    }

    /// Entry of a port's P_Key table; 0 if empty.
    pub fn pkey(&self, port: PortNumber, index: u16) -> Result<PKey, HcaError> {
        Ok(self.port(port)?.pkeys.get(usize::from(index)).copied().unwrap_or(PKey(0)))
    }

    /// Registers memory. Users of the key name its first byte by `start`. The key is lkey and rkey.
    pub fn register(&mut self, start: u64, memory: HostMemory, access: Access) -> Result<u32, HcaError> {
        self.dev.mrs.register(start, memory, access).ok_or(HcaError::Exhausted("memory keys"))
    }

    /// Ends a registration.
    pub fn deregister(&mut self, key: u32) -> Result<(), HcaError> {
        self.dev.mrs.deregister(key).then_some(()).ok_or_else(|| not_found("memory key", key))
    }

    /// Creates a completion queue of 64-byte entries.
    pub fn create_cq(&mut self, ring: HostMemory, dbrec: HostMemory) -> Result<u32, HcaError> {
        let cq = Cq::new(ring, dbrec).ok_or_else(|| unsupported("completion queue bytes", ring.len()))?;
        place(&mut self.dev.cqs, cq, "completion queues")
    }

    /// Destroys a completion queue that no queue pair uses.
    pub fn destroy_cq(&mut self, number: u32) -> Result<(), HcaError> {
        if self.qps.slots.iter().flatten().any(|qp| qp.send_cq == number || qp.recv_cq == number) {
            return Err(HcaError::Environment(format!("completion queue {number} is in use")));
        }
        remove(&mut self.dev.cqs, number, "completion queue")
    }

    /// Creates a shared receive queue with slots of `stride` bytes.
    pub fn create_srq(
        &mut self,
        ring: HostMemory,
        stride: usize,
        dbrec: HostMemory,
    ) -> Result<u32, HcaError> {
        let srq = Srq::new(ring, stride, dbrec)
            .ok_or_else(|| unsupported("shared receive queue bytes", ring.len()))?;
        place(&mut self.dev.srqs, srq, "shared receive queues")
    }

    /// Arms the limit event of a shared receive queue: it comes once, when fewer than `limit` receives are posted.
    pub fn arm_srq(&mut self, number: u32, limit: u16) -> Result<(), HcaError> {
        let srq = self.dev.srqs.get_mut(number as usize).and_then(Option::as_mut);
        srq.ok_or_else(|| not_found("shared receive queue", number))?.arm_limit(limit);
        Ok(())
    }

    /// Arms the limit event again at the limit that it had.
    pub fn rearm_srq(&mut self, number: u32) -> Result<(), HcaError> {
        let srq = self.dev.srqs.get_mut(number as usize).and_then(Option::as_mut);
        srq.ok_or_else(|| not_found("shared receive queue", number))?.rearm();
        Ok(())
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, number: u32) -> Result<(), HcaError> {
        let uses = |qp: &Qp| matches!(qp.receives, Receives::Shared(n) if n == number);
        if self.qps.slots.iter().flatten().any(|qp| uses(qp)) {
            return Err(HcaError::Environment(format!("shared receive queue {number} is in use")));
        }
        remove(&mut self.dev.srqs, number, "shared receive queue")
    }

    /// Creates a queue pair in RESET.
    pub fn create_qp(&mut self, attributes: &QpAttributes) -> Result<Qpn, HcaError> {
        // The place is found first, so that the upper bits alone are drawn; they begin high and differ from run to
        // run, so that a device that was restarted is not taken for the old one.
        let slot = match self.qps.free.front() {
            Some(&slot) if self.qps.slots.len() >= MAX_QPS || self.qps.free.len() > 64 => slot,
            _ if self.qps.slots.len() < MAX_QPS => self.qps.slots.len() as u32,
            Some(&slot) => slot,
            None => return Err(HcaError::Exhausted("queue pairs")),
        };
        let upper = (self.roll() as u32) | 1 << (23 - SLOT_BITS);
        self.create_qp_numbered(attributes, Qpn::new(upper << SLOT_BITS | slot))
    }

    pub(crate) fn create_qp_numbered(&mut self, a: &QpAttributes, qpn: Qpn) -> Result<Qpn, HcaError> {
        self.port(a.port)?;
        for cq in [a.send_cq, a.recv_cq] {
            let there = self.dev.cqs.get(cq as usize).is_some_and(Option::is_some);
            there.then_some(()).ok_or_else(|| not_found("completion queue", cq))?;
        }
        let sq = SendQueue::new(a.send_ring, a.dbrec)
            .ok_or_else(|| unsupported("send ring bytes", a.send_ring.len()))?;
        let receives = match (a.srq, a.receive_ring) {
            (Some(n), _) if self.dev.srqs.get(n as usize).is_some_and(Option::is_some) => Receives::Shared(n),
            (Some(n), _) => return Err(not_found("shared receive queue", n)),
            (None, Some((ring, stride))) => Receives::Own(
                ReceiveQueue::new(ring, stride, a.dbrec)
                    .ok_or_else(|| unsupported("receive ring bytes", ring.len()))?,
            ),
            (None, None) => Receives::None,
        };
        let slot = qpn.get() & (MAX_QPS as u32 - 1);
        let port = a.port.0 - 1;
        if let Some(number) = a.kind.external()
            && let Some(place) =
                self.qps.special.get_mut(usize::from(port)).and_then(|s| s.get_mut(number.get() as usize))
        {
            if place.is_some() {
                return Err(HcaError::Exhausted("special queue pairs"));
            }
            *place = Some(slot);
        }
        let qp = Qp {
            qpn,
            slot,
            kind: a.kind,
            port,
            state: QpState::Reset,
            user_index: a.user_index & Qpn::MASK,
            send_cq: a.send_cq,
            recv_cq: a.recv_cq,
            sq,
            receives,
            pkey_index: 0,
            qkey: QKey(0),
            rc: None,
            queued: false,
            deadline: None,
            armed: None,
        };
        if self.qps.slots.len() <= slot as usize {
            for skipped in self.qps.slots.len() as u32..slot {
                self.qps.free.push_back(skipped);
            }
            self.qps.slots.resize_with(slot as usize + 1, || None);
        }
        self.qps.free.retain(|&s| s != slot);
        if let Some(place) = self.qps.slots.get_mut(slot as usize) {
            *place = Some(Box::new(qp));
        }
        Ok(qpn)
    }

    /// Moves a queue pair to another state.
    pub fn modify_qp(&mut self, qpn: Qpn, to: &QpTransition) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        match qp.transition(to)? {
            Consequence::None => dev.schedule(qp),
            Consequence::Flush => dev.enter_error(qp),
            Consequence::Reset => {
                // The shared queue's entry must come back all the same.
                let begun = qp.rc.as_mut().and_then(|rc| rc.responder.take_receive());
                if let Some(counter) = begun {
                    dev.fail_receive(&super::device::Face::new(qp), counter, crate::hca::WcStatus::Flushed);
                }
                dev.disarm(qp);
                qp.deadline = None;
                qp.rc = None;
                qp.sq.head = 0;
                if let Receives::Own(rq) = &mut qp.receives {
                    rq.reset();
                }
            }
        }
        Ok(())
    }

    /// The index into the P_Key table that a queue pair sends with from now on.
    pub(crate) fn set_pkey_index(&mut self, qpn: Qpn, index: u16) {
        if let Some(qp) = self.qps.real(qpn) {
            qp.pkey_index = index;
        }
    }

    /// True if nothing that was posted to a queue pair's send queue waits to be sent.
    pub(crate) fn sends_are_done(&mut self, qpn: Qpn) -> bool {
        self.qps.real(qpn).is_none_or(|qp| qp.sq.pending() == 0)
    }

    /// The port of a queue pair.
    pub(crate) fn qp_port(&self, qpn: Qpn) -> Option<PortNumber> {
        let slot = (qpn.get() & (MAX_QPS as u32 - 1)) as usize;
        self.qps.slots.get(slot)?.as_deref().map(|qp| PortNumber(qp.port + 1))
    }

    /// Index of one of a port's own GIDs.
    pub(crate) fn gid_index(&self, port: PortNumber, gid: Gid) -> Option<u8> {
        self.port(port).ok()?.gids.find(gid)
    }

    /// The state of a queue pair.
    pub fn qp_state(&self, qpn: Qpn) -> Result<QpState, HcaError> {
        let slot = (qpn.get() & (MAX_QPS as u32 - 1)) as usize;
        let qp = self.qps.slots.get(slot).and_then(Option::as_deref).filter(|qp| qp.qpn == qpn);
        Ok(qp.ok_or_else(|| not_found("queue pair", qpn))?.state)
    }

    /// Destroys a queue pair. Everything outstanding completes as flushed first.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        if qp.state != QpState::Reset {
            dev.flush(qp);
        }
        dev.disarm(qp);
        let slot = qp.slot;
        dev.ready.retain(|&s| s != slot);
        dev.multicast.forget(slot);
        for place in qps.special.iter_mut().flatten() {
            if *place == Some(slot) {
                *place = None;
            }
        }
        if let Some(place) = qps.slots.get_mut(slot as usize) {
            *place = None;
        }
        qps.free.push_back(slot);
        Ok(())
    }

    /// Lets a datagram queue pair receive a group.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).filter(|qp| qp.kind == QpKind::Ud);
        let qp = qp.ok_or_else(|| not_found("datagram queue pair", qpn))?;
        let attached = group.is_multicast() && dev.multicast.attach(qp.port, group, qp.slot);
        attached.then_some(()).ok_or(HcaError::Exhausted("multicast attachments"))
    }

    /// Ends that.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: Gid) -> Result<(), HcaError> {
        let Self { qps, dev, .. } = self;
        let qp = qps.real(qpn).ok_or_else(|| not_found("queue pair", qpn))?;
        dev.multicast
            .detach(qp.port, group, qp.slot)
            .then_some(())
            .ok_or_else(|| not_found("multicast attachment", group))
    }

    /// The next asynchronous event.
    pub fn next_event(&mut self) -> Option<DeviceEvent> {
        self.dev.events.next()
    }

    /// What it did and dropped.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.dev.counters
    }

    /// Attaches another source of doorbells.
    pub(crate) fn attach_doorbells(&mut self) -> DoorbellSender {
        let (sender, receiver) = doorbell::channel();
        self.doorbells.push(receiver);
        sender
    }

    /// Rings a queue pair's doorbell from within the device's own thread.
    pub fn ring(&mut self, qpn: Qpn) {
        let Self { qps, dev, .. } = self;
        if let Some(qp) = qps.real(qpn) {
            dev.counters.count(Activity::Doorbells);
            dev.schedule(qp);
        }
    }

    /// When the device wants its next turn even if nothing happens; `Some` in the past if it has work now.
    #[must_use]
    pub fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if !self.dev.ready.is_empty() {
            return Some(now);
        }
        self.dev.timers.first().map(|&(at, _)| at)
    }

    /// Does a bounded amount of work. True if it did anything.
    pub fn step(&mut self, now: Instant) -> bool {
        let mut worked = self.take_doorbells();
        worked |= ingress::receive(&mut self.qps, &mut self.dev, &self.config, now, RECEIVE_BURST);
        worked |= self.expire(now);
        worked | self.give_turns(now)
    }

    fn take_doorbells(&mut self) -> bool {
        let Self { qps, dev, doorbells, .. } = self;
        let mut worked = false;
        let mut over = false;
        for source in doorbells.iter_mut() {
            for _ in 0..DOORBELLS {
                match source.next() {
                    None => break,
                    Some(Rung::Qp(qpn)) => {
                        dev.counters.count(Activity::Doorbells);
                        if let Some(qp) = qps.real(qpn) {
                            dev.schedule(qp);
                        }
                    }
                    Some(Rung::All) => {
                        for qp in qps.slots.iter_mut().flatten() {
                            dev.schedule(qp);
                        }
                    }
                }
                worked = true;
            }
            over |= !worked && source.is_over();
        }
        if over {
            doorbells.retain(|source| !source.is_over());
        }
        worked
    }

    fn expire(&mut self, now: Instant) -> bool {
        let Self { qps, dev, .. } = self;
        let mut worked = false;
        while let Some(&(at, slot)) = dev.timers.first().filter(|&&(at, _)| at <= now) {
            dev.timers.remove(&(at, slot));
            let Some(qp) = qps.at(slot) else { continue };
            qp.armed = None;
            if qp.deadline.is_some_and(|deadline| deadline <= now) {
                worked = true;
                requester::expire(qp, dev, now);
            }
            dev.update_timer(qp);
        }
        worked
    }

    fn give_turns(&mut self, now: Instant) -> bool {
        let Self { qps, dev, .. } = self;
        let mut worked = false;
        for _ in 0..dev.ready.len().min(TURNS) {
            let Some(slot) = dev.ready.pop_front() else { break };
            let Some(qp) = qps.at(slot) else { continue };
            qp.queued = false;
            worked |= turn(qp, dev, now);
        }
        for port in &mut dev.ports {
            port.send_answers(&mut dev.counters);
        }
        worked
    }
}

/// One queue pair's turn. It comes to the end of the line again if there is more to do.
fn turn(qp: &mut Qp, dev: &mut Device, now: Instant) -> bool {
    let mut worked = false;
    if qp.rc.is_some() && rc::reply(qp, dev).is_err() {
        dev.schedule(qp);
        return false;
    }
    if qp.state == QpState::Err {
        dev.flush(qp);
        return true;
    }
    for sent in 0..=SEND_BURST {
        if sent == SEND_BURST {
            dev.schedule(qp);
            break;
        }
        let step = match qp.kind {
            QpKind::Rc => requester::step(qp, dev, now),
            _ => ud::step(qp, dev),
        };
        match step {
            Step::Sent => worked = true,
            Step::Idle => break,
            Step::Blocked => {
                dev.schedule(qp);
                break;
            }
        }
    }
    if qp.kind == QpKind::Rc {
        dev.update_timer(qp);
    }
    worked
}

fn not_found(what: &'static str, name: impl ToString) -> HcaError {
    HcaError::NotFound { what, name: name.to_string() }
}

fn unsupported(what: &'static str, value: usize) -> HcaError {
    HcaError::Unsupported { what, value: value as u64, limit: "a power of two of entries".into() }
}

fn place<T>(table: &mut Vec<Option<T>>, object: T, what: &'static str) -> Result<u32, HcaError> {
    // Number 0 is never given out: records that are zero name nothing.
    if table.is_empty() {
        table.push(None);
    }
    let number = table.iter().skip(1).position(Option::is_none).map_or(table.len(), |n| n + 1);
    if number >= MAX_QUEUES {
        return Err(HcaError::Exhausted(what));
    }
    if number == table.len() {
        table.push(None);
    }
    if let Some(slot) = table.get_mut(number) {
        *slot = Some(object);
    }
    Ok(number as u32)
}

fn remove<T>(table: &mut [Option<T>], number: u32, what: &'static str) -> Result<(), HcaError> {
    let found = table.get_mut(number as usize).and_then(Option::take);
    found.map(drop).ok_or_else(|| not_found(what, number))
}
