//! A port: its cable, state, addresses and tables.

use std::collections::VecDeque;
use std::time::Instant;

use ib_wire::packet::Lrh;
use ib_wire::smp::{ArbitrationTables, Capabilities, LaneMap, MKeyGuard};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, ServiceLevel, TimeoutCode};

use super::cable::{CableEnd, Crcs, MAX_PACKET};
use super::counters::{Activity, Counters, DropReason};
use super::engine::RECEIVE_BURST;
use super::ethernet::{Ethernet, question_frame};
use super::event::Events;
use super::frame::{Destination, Outgoing};
use super::gids::GidTable;
use super::pma::{ALL_PORTS, Counted, Tally};
use super::trap::Traps;
use hca::{AddressVector, AsyncEvent, LinkLayer, PortNumber, PortState};

/// Entries of the P_Key table, as on a ConnectX.
pub(crate) const PKEYS: usize = 128;
/// The port's capability mask (IBA 14.2.5.6): traps, trap 144 among them; service level mapping; the system
/// image GUID; extended speeds; communication management; client reregistration.
const CAPABILITIES: Capabilities = Capabilities::TRAP
    .union(Capabilities::SL_MAPPING)
    .union(Capabilities::SYSTEM_IMAGE_GUID)
    .union(Capabilities::EXTENDED_SPEEDS)
    .union(Capabilities::COMMUNICATION_MANAGEMENT)
    .union(Capabilities::CAPABILITY_NOTICE)
    .union(Capabilities::CLIENT_REREGISTRATION);
/// Capacity of the loopback queue in packets.
const LOOPBACK: usize = 256;
/// Capacity of the queue of responses from the subnet management agent, ARP and neighbor discovery: one per
/// packet received in a step.
const MAX_ANSWERS: usize = RECEIVE_BURST;

/// The cable or the loopback queue is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocked;

fn lrh_of(packet: &[u8]) -> Option<Lrh> {
    packet.first_chunk().map(|head| Lrh::from_bytes(head).0)
}

fn queue_answer(answers: &mut VecDeque<Box<[u8]>>, packet: Box<[u8]>) {
    if answers.len() < MAX_ANSWERS {
        answers.push_back(packet);
    }
}

/// Packets from a port to itself.
#[derive(Debug, Default)]
pub(crate) struct Loopback {
    memory: Vec<u8>,
    lengths: VecDeque<usize>,
    first: usize,
}

impl Loopback {
    fn push(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.lengths.len() >= LOOPBACK {
            return false;
        }
        // Allocated with the first packet: few ports ever send to themselves.
        self.memory.resize(LOOPBACK * MAX_PACKET, 0);
        let at = (self.first + self.lengths.len()) % LOOPBACK * MAX_PACKET;
        let Some(out) = self.memory.get_mut(at..at + len).filter(|o| o.len() <= MAX_PACKET) else {
            return true;
        };
        fill(out);
        self.lengths.push_back(len);
        true
    }

    /// Passes every packet to `each`, oldest first.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let n = self.lengths.len();
        while let Some(len) = self.lengths.pop_front() {
            let at = self.first * MAX_PACKET;
            self.first = (self.first + 1) % LOOPBACK;
            each(self.memory.get(at..at + len).unwrap_or_default());
        }
        n
    }
}

/// Configuration of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Port GUID. That of an Ethernet port contains its MAC address
    /// ([`guid_of_mac`](super::ethernet::guid_of_mac)).
    pub guid: Guid,
    /// Largest MTU.
    pub max_mtu: Mtu,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// Entries of its GID table, 1 to [`MAX_GIDS`](super::MAX_GIDS).
    pub gid_table: u16,
}

/// One port.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: PortNumber,
    pub(crate) cable: Option<CableEnd>,
    /// Counter values at the last clear.
    pub(crate) counted: Counted,
    pub(crate) loopback: Loopback,
    pub(crate) state: PortState,
    pub(crate) guid: Guid,
    pub(crate) lid: Lid,
    pub(crate) lmc: u8,
    pub(crate) sm_lid: Lid,
    pub(crate) sm_sl: ServiceLevel,
    /// M_Key protection.
    pub(crate) guard: MKeyGuard,
    pub(crate) capabilities: Capabilities,
    /// Virtual lane of each service level. There is one lane for data.
    pub(crate) lanes: LaneMap,
    pub(crate) arbitration: ArbitrationTables,
    pub(crate) vl_high_limit: u8,
    pub(crate) traps: Traps,
    pub(crate) subnet_timeout: TimeoutCode,
    pub(crate) mtu: Mtu,
    pub(crate) max_mtu: Mtu,
    pub(crate) link_layer: LinkLayer,
    pub(crate) gids: GidTable,
    /// Data packets need a GRH; without one they are not for this port.
    pub(crate) grh_required: bool,
    /// Ethernet state; `None` on an InfiniBand port.
    pub(crate) ethernet: Option<Box<Ethernet>>,
    pub(crate) pkeys: [PKey; PKEYS],
    pub(crate) pkey_violations: u16,
    pub(crate) qkey_violations: u16,
    /// Complete packets from the agent that wait for the cable.
    pub(crate) answers: VecDeque<Box<[u8]>>,
}

impl Port {
    pub(crate) fn new(number: PortNumber, config: &PortConfig) -> Self {
        let mut pkeys = [PKey(0); PKEYS];
        pkeys[0] = PKey::DEFAULT;
        Self {
            number,
            cable: None,
            counted: Counted::default(),
            loopback: Loopback::default(),
            state: PortState::Down,
            guid: config.guid,
            lid: Lid(0),
            lmc: 0,
            sm_lid: Lid(0),
            sm_sl: ServiceLevel::new(0),
            guard: MKeyGuard::default(),
            capabilities: CAPABILITIES,
            lanes: LaneMap::default(),
            arbitration: ArbitrationTables::default(),
            vl_high_limit: 0,
            traps: Traps::default(),
            subnet_timeout: TimeoutCode::new(18),
            mtu: config.max_mtu,
            max_mtu: config.max_mtu,
            link_layer: config.link_layer,
            ethernet: (config.link_layer == LinkLayer::Ethernet)
                .then(|| Box::new(Ethernet::new(config.guid))),
            gids: GidTable::new(config.link_layer, config.guid, config.gid_table),
            grh_required: false,
            pkeys,
            pkey_violations: 0,
            qkey_violations: 0,
            answers: VecDeque::new(),
        }
    }

    /// True if the LID is one of the port's.
    pub(crate) fn has_lid(&self, lid: Lid) -> bool {
        self.lid.0 != 0 && lid.0 >> self.lmc.min(7) == self.lid.0 >> self.lmc.min(7)
    }

    /// True if packets to this GID are for the port. The GIDs are its own, and the subnet administration GID
    /// if the port hosts the subnet manager.
    pub(crate) fn has_gid(&self, gid: Gid) -> bool {
        self.gids.has(gid)
            || gid.id() == Gid::SUBNET_ADMINISTRATION
                && gid.prefix() == self.gids.prefix()
                && self.capabilities.contains(Capabilities::SM)
    }

    /// True if packets with this address vector may leave (IBA 8.3.1).
    pub(crate) const fn may_send_to(&self, av: &AddressVector) -> bool {
        av.grh.is_some() || !self.grh_required
    }

    /// Index of the first entry that matches a P_Key, full members first (the lookup order of verbs caches).
    pub(crate) fn find_pkey(&self, key: PKey) -> Option<u16> {
        let find = |full: bool| self.pkeys.iter().position(|k| k.is_full() == full && k.matches(key));
        find(true).or_else(|| find(false)).map(|i| i as u16)
    }

    /// Sends a packet to the cable or the loopback queue. A packet that may not leave is dropped and counted.
    #[inline(always)]
    pub(crate) fn transmit(
        &mut self,
        counters: &mut Counters,
        outgoing: &Outgoing,
        payload: usize,
        fill: impl Fn(&mut [u8]),
    ) -> Result<(), Blocked> {
        if !outgoing.management && self.state != PortState::Active {
            counters.drop_packet(DropReason::SentOnDownPort);
            return Ok(());
        }
        let len = outgoing.len(payload);
        if outgoing.destination == Destination::Ourselves {
            return if self.loop_back(*outgoing, payload, &fill) { Ok(()) } else { Err(Blocked) };
        }
        let group = outgoing.destination == Destination::Group;
        if let Some(cable) = &mut self.cable {
            let crcs = cable.crcs();
            let sent = match cable.place(len) {
                Ok(out) => {
                    outgoing.write(payload, out, crcs, &fill);
                    cable.commit(len, crcs)
                }
                Err(sent) => cable.count_sent(sent, len),
            };
            sent.map_err(|_| Blocked)?;
            counters.count(Activity::Sent);
        } else if !group {
            counters.drop_packet(DropReason::SentOnDownPort);
        }
        // Other queue pairs of this device may be attached to the group.
        if group && !self.loop_back(*outgoing, payload, &fill) {
            counters.drop_packet(DropReason::LoopbackFull);
        }
        Ok(())
    }

    /// Queues a packet for loopback; false if the queue is full. Packets that stay in the device need no
    /// CRCs. Takes the headers by value, so that those of packets that leave need not be in memory.
    #[inline(never)]
    fn loop_back(&mut self, outgoing: Outgoing, payload: usize, fill: &dyn Fn(&mut [u8])) -> bool {
        self.loopback.push(outgoing.len(payload), |out| outgoing.write(payload, out, Crcs::Absent, fill))
    }

    /// Counters of the port that a request names: this one, or all ports, which is the same here.
    pub(crate) fn tally(&mut self, named: u8) -> Option<Tally<'_>> {
        let cable = self.cable.as_ref().map(CableEnd::counters).unwrap_or_default();
        let now = Counted { cable, ..Counted::default() };
        (named == self.number.0 || named == ALL_PORTS).then_some(Tally { now, cleared: &mut self.counted })
    }

    /// Queues a packet from the agent. It is dropped if the queue is full.
    pub(crate) fn answer(&mut self, packet: Box<[u8]>) {
        queue_answer(&mut self.answers, packet);
    }

    /// True if packets of the agent wait for the cable.
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Sends the agent's packets. Returns true if any went to the loopback queue.
    pub(crate) fn send_answers(&mut self, counters: &mut Counters) -> bool {
        let mut looped = false;
        while let Some(packet) = self.answers.front() {
            let write = |out: &mut [u8]| out.copy_from_slice(packet);
            if self.ethernet.is_none() && lrh_of(packet).is_some_and(|lrh| self.has_lid(lrh.dlid)) {
                if !self.loopback.push(packet.len(), write) {
                    return looped;
                }
                looped = true;
            } else {
                let Some(cable) = &mut self.cable else {
                    self.answers.clear();
                    return looped;
                };
                if cable.send_with(packet.len(), write).is_err() {
                    return looped;
                }
                counters.count(Activity::Sent);
            }
            self.answers.pop_front();
        }
        looped
    }

    /// Polls the cable and follows its link state (IBA 7.2.7, as far as the physical state shows). Returns
    /// true if the cable woke us.
    pub(crate) fn poll_cable(&mut self, now: Instant, events: &mut Events) -> bool {
        self.guard.follow(now);
        let Some(cable) = &mut self.cable else { return false };
        let woken = cable.poll(now);
        let up = cable.is_up();
        if let Some(ethernet) = &mut self.ethernet {
            ethernet.neighbours.handle_timeout(now);
            while let Some(question) = ethernet.neighbours.poll_transmit() {
                queue_answer(&mut self.answers, question_frame(ethernet.mac, &question));
            }
        }
        match (up, self.state) {
            // No subnet manager configures an Ethernet port.
            (true, PortState::Down) if self.ethernet.is_some() => self.set_state(PortState::Active, events),
            (true, PortState::Down) => self.state = PortState::Init,
            (false, PortState::Down) | (true, _) => {}
            (false, _) => {
                // The port has left its subnet. The next subnet manager does not know the M_Key of the last
                // one, which has no lease.
                self.guard = MKeyGuard::default();
                self.set_state(PortState::Down, events);
            }
        }
        woken
    }

    /// Changes the logical state and raises the matching event.
    pub(crate) fn set_state(&mut self, to: PortState, events: &mut Events) {
        let from = std::mem::replace(&mut self.state, to);
        if from != PortState::Active && to == PortState::Active {
            events.raise(AsyncEvent::PortActive(self.number));
        } else if from == PortState::Active && to != PortState::Active {
            events.raise(AsyncEvent::PortError(self.number));
        }
    }
}
