//! One external port of the switch.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use connectx::cable::{CableEnd, Crcs};
use connectx::pma::{Counted, Tally};
use ib_wire::packet::VirtualLane;
use ib_wire::smp::{
    ArbitrationTables, Capabilities, LaneMap, LinkWidth, Nibble, PortInfo, PortPhysicalState, PortState,
};
use ib_wire::{Lid, Mtu, PKey, ServiceLevel};

use super::tables::{PartitionTable, PortSet};
use super::wait_budget::WaitBudget;
use crate::subnet::LidBlock;

hca::counted! {
    /// Why a switch dropped a packet.
    DropReason {
        /// Too short, or lengths or versions that contradict each other.
        Malformed = "malformed",
        /// The VCRC is wrong.
        Vcrc = "vcrc",
        /// The ICRC of a packet for the switch itself is wrong.
        Icrc = "icrc",
        /// Data on a port that is not armed or active.
        PortState = "port_state",
        /// The way out is not active.
        EgressState = "egress_state",
        /// The destination LID has no port.
        NoRoute = "no_route",
        /// The way out is the way in.
        SamePort = "same_port",
        /// A service level that has no lane there.
        ServiceLevel = "service_level",
        /// Longer than the MTU of the way out.
        TooLong = "too_long",
        /// The receiver took nothing for the head-of-queue life time.
        HeadOfQueue = "head_of_queue",
        /// A management packet that found the way out full; management lanes have no flow control.
        ManagementFull = "management_full",
        /// A packet on the management lane that is no subnet management packet, or the other way round.
        BadManagement = "bad_management",
        /// A directed route that leads nowhere.
        BadRoute = "bad_route",
        /// An M_Key that does not fit.
        MKey = "m_key",
        /// A source LID that is none of the channel adapter at this port, or that of a port elsewhere.
        SourceLid = "source_lid",
        /// A P_Key that port 0 does not have.
        PKey = "p_key",
        /// A P_Key that the way in does not let through.
        PartitionIn = "partition_in",
        /// A P_Key that the way out does not let through.
        PartitionOut = "partition_out",
        /// A packet without a P_Key, where partitions are enforced.
        Raw = "raw",
        /// To port 0, but neither QP0 nor QP1 or no datagram.
        NotForUs = "not_for_us",
        /// The subnet manager is behind with its work, and the port's share of what waits for it is used up.
        InboxFull = "inbox_full",
    }
}

/// Counters of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Packets that came in by this port and went out by another; a multicast packet counts once for each.
    pub forwarded: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl PortCounters {
    /// Packets that were dropped for this reason, counted where they came in.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }

    /// Reasons that happened, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().zip(self.drops).filter(|&(_, n)| n > 0)
    }

    pub(super) fn drop(&mut self, reason: DropReason) {
        if let Some(n) = self.drops.get_mut(reason as usize) {
            *n += 1;
        }
    }
}

/// The packet at the head of a port's queue waits for room at an egress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    /// The egress of a unicast packet; `None` for a multicast packet.
    pub(super) egress: Option<u8>,
    pub(super) since: Instant,
    /// Egresses that a multicast packet has been sent to, or that it is not for.
    pub(super) done: PortSet,
}

/// Receivers that multicast packets of one ingress do not wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hurry {
    pub(super) past: PortSet,
    pub(super) until: Instant,
}

/// One external port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) name: String,
    /// `None` where nothing is plugged in, and while its packets are being taken.
    pub(super) link: Option<Box<CableEnd>>,
    pub(super) info: PortInfo,
    pub(super) counters: PortCounters,
    /// Packets that could not leave by it.
    pub(super) discards: u64,
    /// Packets of partitions that may not leave by it.
    pub(super) refused: u64,
    /// What had been counted when performance management cleared it last.
    pub(super) cleared: Counted,
    /// LIDs of the channel adapter at the other end, where they are enforced: packets
    /// from it have one of them as their source.
    pub(super) source: Option<LidBlock>,
    /// LIDs of ports that are not behind this one, where that is known: no packet has them as its source.
    pub(super) elsewhere: BTreeSet<Lid>,
    /// P_Keys that pass where they are enforced.
    pub(super) partitions: PartitionTable,
    /// Lanes of packets that leave by it, by the port that they came in by.
    pub(super) lanes: Vec<LaneMap>,
    pub(super) arbitration: ArbitrationTables,
    pub(super) blocked: Option<Blocked>,
    /// Data packets that came in and wait, the first as `blocked` says: management packets behind them pass.
    pub(super) waiting: VecDeque<(Box<[u8]>, Crcs)>,
    /// Where it leads to another switch: how long data that came in by it waits.
    pub(super) wait_budget: Option<WaitBudget>,
    /// Receivers that took too much of that: data that came in by it and finds them full is dropped until there is room.
    pub(super) slow: PortSet,
    /// Multicast packets that came in by it do not wait for these receivers: earlier ones waited for them for long.
    pub(super) hurry: Option<Hurry>,
    /// The receiver took nothing for the head-of-queue life time: packets that find it full
    /// are dropped until there is room.
    pub(super) stalled: bool,
    /// What woke us was taken: it has to be asked for anew before a nap.
    pub(super) woken: bool,
}

/// What is the same of all ports: 4X, 10 Gb/s a lane, one data lane.
pub(super) fn common_info(mtu: Mtu) -> PortInfo {
    PortInfo {
        width_enabled: LinkWidth::X4,
        width_supported: LinkWidth::X4,
        width_active: LinkWidth::X4,
        speed_supported: Nibble::new(7),
        speed_active: Nibble::new(4),
        speed_enabled: Nibble::new(7),
        state: PortState::Down,
        physical_state: PortPhysicalState::Polling,
        down_default: Nibble::new(2),
        neighbor_mtu: mtu.into(),
        mtu_cap: mtu.into(),
        vl_cap: Nibble::new(1),
        operational_vls: Nibble::new(1),
        vl_arb_high_cap: ArbitrationTables::CAP,
        vl_arb_low_cap: ArbitrationTables::CAP,
        capabilities: Capabilities::empty(),
        ..PortInfo::default()
    }
}

impl Port {
    /// With nothing plugged in, at a switch of so many.
    pub(super) fn new(mtu: Mtu, ports: u8) -> Self {
        Self {
            name: String::new(),
            link: None,
            info: common_info(mtu),
            counters: PortCounters::default(),
            discards: 0,
            refused: 0,
            cleared: Counted::default(),
            lanes: vec![LaneMap::default(); usize::from(ports) + 1],
            arbitration: ArbitrationTables::default(),
            source: None,
            elsewhere: BTreeSet::new(),
            partitions: PartitionTable::default(),
            blocked: None,
            waiting: VecDeque::new(),
            wait_budget: None,
            slow: PortSet::default(),
            hurry: None,
            stalled: false,
            woken: false,
        }
    }

    /// Link upkeep. True if the port's state changed.
    pub(super) fn poll(&mut self, now: Instant) -> bool {
        let is_up = self.link.as_mut().is_some_and(|link| {
            self.woken |= link.poll(now);
            link.is_up()
        });
        let was_up = self.info.physical_state == PortPhysicalState::LinkUp;
        if is_up == was_up {
            return false;
        }
        if was_up {
            self.go_down()
        } else {
            self.come_up()
        }
        true
    }

    fn come_up(&mut self) {
        self.info.physical_state = PortPhysicalState::LinkUp;
        self.info.state = PortState::Init;
    }

    pub(super) fn go_down(&mut self) {
        self.info.physical_state = PortPhysicalState::Polling;
        self.info.state = PortState::Down;
        self.source = None;
        self.elsewhere.clear();
        self.blocked = None;
        self.waiting.clear();
        self.slow = PortSet::default();
        self.hurry = None;
        self.stalled = false;
    }

    /// Data may come in (IBA 7.2.7: an armed port receives).
    pub(super) const fn receives_data(&self) -> bool {
        matches!(self.info.state, PortState::Armed | PortState::Active)
    }

    /// Data may go out.
    pub(super) const fn sends_data(&self) -> bool {
        matches!(self.info.state, PortState::Active)
    }

    /// The port is there for management packets.
    pub(super) const fn is_linked(&self) -> bool {
        matches!(self.info.state, PortState::Init | PortState::Armed | PortState::Active)
    }

    /// True if a packet with this source LID may come in.
    pub(super) fn admits_source(&self, slid: Lid) -> Result<(), DropReason> {
        if self.source.is_none_or(|own| own.contains(slid)) { Ok(()) } else { Err(DropReason::SourceLid) }
    }

    /// Refuses the source LID of a port that is not behind this one.
    pub(super) fn refuses_elsewhere(&self, slid: Lid) -> Result<(), DropReason> {
        if self.elsewhere.contains(&slid) { Err(DropReason::SourceLid) } else { Ok(()) }
    }

    /// May a packet of this partition come in? `None` is a raw packet.
    pub(super) fn lets_in(&mut self, pkey: Option<PKey>) -> Result<(), DropReason> {
        match pkey {
            None if self.info.filter_raw_in => Err(DropReason::Raw),
            Some(pkey) if self.info.pkey_enforce_in && !self.partitions.lets_in(pkey) => {
                self.info.pkey_violations = self.info.pkey_violations.saturating_add(1);
                Err(DropReason::PartitionIn)
            }
            _ => Ok(()),
        }
    }

    /// May a packet of this partition go out?
    pub(super) fn lets_out(&mut self, pkey: Option<PKey>) -> Result<(), DropReason> {
        match pkey {
            None if self.info.filter_raw_out => Err(DropReason::Raw),
            Some(pkey) if self.info.pkey_enforce_out && !self.partitions.lets_out(pkey) => {
                self.info.pkey_violations = self.info.pkey_violations.saturating_add(1);
                self.refused += 1;
                Err(DropReason::PartitionOut)
            }
            _ => Ok(()),
        }
    }

    /// Whether packets of a service level that came in by port `ingress` have a lane here: there is one for data.
    pub(super) fn has_lane(&self, ingress: usize, sl: ServiceLevel) -> bool {
        self.lanes.get(ingress).is_some_and(|map| map.lane(sl) == VirtualLane::default())
    }

    /// For performance management. What is dropped is counted where it came in, unless it is the way out that could not take it.
    pub(super) fn tally(&mut self) -> Tally<'_> {
        let dropped =
            |reasons: &[DropReason]| reasons.iter().map(|reason| self.counters.dropped(*reason)).sum();
        let now = Counted {
            cable: self.link.as_ref().map(|link| link.counters()).unwrap_or_default(),
            receive_errors: dropped(&[DropReason::Malformed, DropReason::Vcrc]),
            relay_errors: dropped(&[DropReason::NoRoute, DropReason::SamePort, DropReason::ServiceLevel]),
            send_discards: self.discards,
            send_constraint_errors: self.refused,
            receive_constraint_errors: dropped(&[DropReason::PartitionIn, DropReason::Raw]),
            vl15_dropped: dropped(&[DropReason::ManagementFull]),
        };
        Tally { now, cleared: &mut self.cleared }
    }

    pub(super) fn has_room(&mut self, len: usize) -> bool {
        self.link.as_mut().is_some_and(|link| link.has_room(len))
    }

    /// Sends a packet as it came, with CRCs made here if it has none and this link can damage it; false if the link is full. CRCs
    /// that it has it keeps: what the sender summed up the receiver checks.
    pub(super) fn send(&mut self, packet: &[u8], crcs: Crcs) -> bool {
        self.link.as_mut().is_some_and(|link| link.forward(packet, crcs).is_ok())
    }
}
