//! One external port of the switch.

use std::time::Instant;

use connectx::cable::CableEnd;
use ib_wire::smp::{Capabilities, LinkWidth, Nibble, PortInfo, PortPhysicalState, PortState};
use ib_wire::{Mtu, PKey};

use super::tables::PartitionTable;

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
        /// The subnet manager is behind with its work.
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

/// A packet at the head of a port's queue waits for this way out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    pub(super) egress: u8,
    pub(super) since: Instant,
}

/// One external port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) name: String,
    /// `None` where nothing is plugged in, and while its packets are being taken.
    pub(super) link: Option<Box<CableEnd>>,
    pub(super) info: PortInfo,
    pub(super) counters: PortCounters,
    /// P_Keys that pass where they are enforced.
    pub(super) partitions: PartitionTable,
    pub(super) blocked: Option<Blocked>,
    /// Until then packets that find it full are dropped.
    pub(super) stalled_until: Option<Instant>,
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
        capabilities: Capabilities::empty(),
        ..PortInfo::default()
    }
}

impl Port {
    /// With nothing plugged in.
    pub(super) fn new(mtu: Mtu) -> Self {
        Self {
            name: String::new(),
            link: None,
            info: common_info(mtu),
            counters: PortCounters::default(),
            partitions: PartitionTable::default(),
            blocked: None,
            stalled_until: None,
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

    fn go_down(&mut self) {
        self.info.physical_state = PortPhysicalState::Polling;
        self.info.state = PortState::Down;
        self.blocked = None;
        self.stalled_until = None;
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
                Err(DropReason::PartitionOut)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn has_room(&mut self, len: usize) -> bool {
        self.link.as_mut().is_some_and(|link| link.has_room(len))
    }

    /// Sends a packet; false if the link is full.
    pub(super) fn send(&mut self, packet: &[u8]) -> bool {
        self.link
            .as_mut()
            .is_some_and(|link| link.send_with(packet.len(), |out| out.copy_from_slice(packet)).is_ok())
    }
}
