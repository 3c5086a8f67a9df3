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
        /// Too short, or with inconsistent lengths or versions.
        Malformed = "malformed",
        /// Wrong VCRC.
        Vcrc = "vcrc",
        /// Wrong ICRC of a packet for the switch itself.
        Icrc = "icrc",
        /// Data on a port that is neither armed nor active.
        PortState = "port_state",
        /// The egress port is not active.
        EgressState = "egress_state",
        /// The destination LID has no port.
        NoRoute = "no_route",
        /// The egress is the ingress.
        SamePort = "same_port",
        /// The egress has no lane for the service level.
        ServiceLevel = "service_level",
        /// Longer than the MTU of the egress.
        TooLong = "too_long",
        /// The receiver accepted nothing for the head-of-queue life time.
        HeadOfQueue = "head_of_queue",
        /// A management packet for a full egress; management lanes have no flow control.
        ManagementFull = "management_full",
        /// Not a subnet management packet, but on the management lane; or the reverse.
        BadManagement = "bad_management",
        /// An invalid directed route.
        BadRoute = "bad_route",
        /// Wrong M_Key.
        MKey = "m_key",
        /// The source LID is none of the channel adapter at this port, or is that of a port elsewhere.
        SourceLid = "source_lid",
        /// Port 0 does not have the P_Key.
        PKey = "p_key",
        /// The ingress does not pass the P_Key.
        PartitionIn = "partition_in",
        /// The egress does not pass the P_Key.
        PartitionOut = "partition_out",
        /// A packet without a P_Key, at a port that enforces partitions.
        Raw = "raw",
        /// To port 0, but neither QP0 nor QP1, or not a datagram.
        NotForUs = "not_for_us",
        /// The subnet manager is overloaded, and the port's share of its queue is used up.
        InboxFull = "inbox_full",
    }
}

/// Counters of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Packets that arrived by this port and left by another; a multicast packet counts once for each egress.
    pub forwarded: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl PortCounters {
    /// Returns how many packets were dropped for this reason, counted at their ingress.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).copied().unwrap_or(0)
    }

    /// Returns the reasons that occurred, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().zip(self.drops).filter(|&(_, n)| n > 0)
    }

    pub(super) fn drop(&mut self, reason: DropReason) {
        if let Some(n) = self.drops.get_mut(reason as usize) {
            *n += 1;
        }
    }
}

/// A packet at the head of a port's queue that waits for room at an egress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    /// The egress of a unicast packet; `None` for a multicast packet.
    pub(super) egress: Option<u8>,
    pub(super) since: Instant,
    /// Egresses that a multicast packet has been sent to, or cannot be sent to.
    pub(super) done: PortSet,
}

/// Receivers for which multicast packets of one ingress do not wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hurry {
    pub(super) past: PortSet,
    pub(super) until: Instant,
}

/// One external port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) name: String,
    /// `None` if nothing is plugged in, and while its packets are handled.
    pub(super) link: Option<Box<CableEnd>>,
    pub(super) info: PortInfo,
    pub(super) counters: PortCounters,
    /// Packets that could not leave by it.
    pub(super) discards: u64,
    /// Packets that were not allowed to leave by it because of their partition.
    pub(super) refused: u64,
    /// Counters at the time when performance management last cleared them.
    pub(super) cleared: Counted,
    /// LIDs of the channel adapter at the other end, where they are enforced: packets from it have one of
    /// them as their source.
    pub(super) source: Option<LidBlock>,
    /// LIDs of ports that are not behind this one, if known: no packet may have one of them as its source.
    pub(super) elsewhere: BTreeSet<Lid>,
    /// P_Keys that pass if partitions are enforced.
    pub(super) partitions: PartitionTable,
    /// SL to VL mappings of packets that leave by it, by the port that they arrived by.
    pub(super) lanes: Vec<LaneMap>,
    pub(super) arbitration: ArbitrationTables,
    pub(super) blocked: Option<Blocked>,
    /// Data packets that arrived and wait, the first as `blocked` says. Management packets pass them.
    pub(super) waiting: VecDeque<(Box<[u8]>, Crcs)>,
    /// How long data from this port waits, if it leads to another switch.
    pub(super) wait_budget: Option<WaitBudget>,
    /// Receivers that used up this budget. Data from this port for them is dropped while they are full.
    pub(super) slow: PortSet,
    /// Multicast packets from this port do not wait for these receivers, which delayed earlier ones for long.
    pub(super) hurry: Option<Hurry>,
    /// The receiver accepted nothing for the head-of-queue life time: packets for it are dropped while it is
    /// full.
    pub(super) stalled: bool,
    /// The wakeup was consumed: it must be requested again before the next sleep.
    pub(super) woken: bool,
}

/// Returns the properties that all ports share: 4X, 10 Gb/s a lane, one data lane.
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
    /// Creates a port with nothing plugged in, for a switch with `ports` ports.
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

    /// Polls the link. True if the port's state changed.
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

    /// True if data may be received (IBA 7.2.7: an armed port receives).
    pub(super) const fn receives_data(&self) -> bool {
        matches!(self.info.state, PortState::Armed | PortState::Active)
    }

    /// True if data may be sent.
    pub(super) const fn sends_data(&self) -> bool {
        matches!(self.info.state, PortState::Active)
    }

    /// True if the port carries management packets.
    pub(super) const fn is_linked(&self) -> bool {
        matches!(self.info.state, PortState::Init | PortState::Armed | PortState::Active)
    }

    /// Checks that a packet with this source LID may enter.
    pub(super) fn admits_source(&self, slid: Lid) -> Result<(), DropReason> {
        if self.source.is_none_or(|own| own.contains(slid)) { Ok(()) } else { Err(DropReason::SourceLid) }
    }

    /// Refuses the source LID of a port that is not behind this one.
    pub(super) fn refuses_elsewhere(&self, slid: Lid) -> Result<(), DropReason> {
        if self.elsewhere.contains(&slid) { Err(DropReason::SourceLid) } else { Ok(()) }
    }

    /// Checks that a packet of this partition may enter; `None` is a raw packet.
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

    /// Checks that a packet of this partition may leave.
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

    /// True if packets of a service level from port `ingress` have a lane here: there is one for data.
    pub(super) fn has_lane(&self, ingress: usize, sl: ServiceLevel) -> bool {
        self.lanes.get(ingress).is_some_and(|map| map.lane(sl) == VirtualLane::default())
    }

    /// Returns the counters for performance management. A dropped packet is counted at its ingress, unless
    /// the egress could not accept it.
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

    /// Sends a packet unchanged. Without CRCs, it gets them here if this link can damage it; existing CRCs
    /// are kept, so that the receiver checks the sender's. False if the link is full.
    pub(super) fn send(&mut self, packet: &[u8], crcs: Crcs) -> bool {
        self.link.as_mut().is_some_and(|link| link.forward(packet, crcs).is_ok())
    }
}
