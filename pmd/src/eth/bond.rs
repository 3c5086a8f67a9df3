//! Bonds of kernel interfaces whose drivers do not report link loss to the bond. This module monitors the
//! links instead.

use super::EthConfig;
use super::driver_of;
use super::kernel::{Interface, arguments};
use crate::mem::{Pool, PoolConfig};
use dpdk_sys as sys;

const BONDING: &str = "net_bonding";
/// Maximum number of monitored members.
const MEMBERS: usize = 32;
/// Minimum data room of a buffer for an LACP frame, in bytes.
const LACP_ROOM: u16 = 256;

/// The members of a bond, each with the interface below it.
#[derive(Debug)]
pub(super) struct Members {
    bond: u16,
    all: Vec<(u16, Interface)>,
    /// True if one member carries all traffic (active-backup). Otherwise LACP selects the members.
    one_carries: bool,
}

/// True for a bond in LACP mode (mode 4, IEEE 802.3ad). Its protocol needs bursts in both directions several
/// times per 100 ms; empty bursts count too.
pub(super) fn speaks_lacp(id: u16, driver: &str) -> bool {
    // SAFETY: the port exists, and is a bond if its driver is that of bonds.
    driver == BONDING && unsafe { sys::shim_bond_is_lacp(id) } != 0
}

/// Checks that there is memory for the buffers that a bond in LACP mode allocates for each member. DPDK exits
/// the program if there is not.
pub(super) fn memory_for_lacp(id: u16, config: &EthConfig) -> Result<(), String> {
    // A bond has no members before it is configured. The argument has two names, depending on the DPDK
    // version.
    let given = arguments(id).unwrap_or_default();
    let is_member = |word: &&str| word.starts_with("slave=") || word.starts_with("member=");
    let members = given.split(',').filter(is_member).count().clamp(1, MEMBERS);
    // Buffers for its transmit queues, with a header and an LACP frame each, and spare ones in case the
    // device adjusts the numbers.
    let each = u32::from(config.tx_descriptors) * u32::from(config.queues) + 1024;
    let config = PoolConfig { count: each * members as u32, data_room: LACP_ROOM, cache: 0, socket: -1 };
    let trial = Pool::create(&format!("lacp-{id}"), &config);
    trial.map(drop).map_err(|e| e.to_string())
}

/// Returns the interfaces with AF_PACKET sockets below a port, or below a bond's members.
pub(super) fn packet_interfaces(id: u16, info: &sys::rte_eth_dev_info) -> Vec<Interface> {
    if driver_of(info) != BONDING {
        return Interface::below_packets(id, info).into_iter().collect();
    }
    let all = infos(id).unwrap_or_default();
    all.iter().filter_map(|(member, info)| Interface::below_packets(*member, info)).collect()
}

/// Returns the members of a bond with their device information, or `None` if DPDK does not provide it.
fn infos(bond: u16) -> Option<Vec<(u16, sys::rte_eth_dev_info)>> {
    let mut members = [0; MEMBERS];
    // SAFETY: a bond, and room for that many numbers.
    let count = unsafe { sys::shim_bond_members(bond, members.as_mut_ptr(), MEMBERS as u16) };
    let info = |&member: &u16| {
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the port exists; the structure is DPDK's own.
        let rc = unsafe { sys::rte_eth_dev_info_get(member, &raw mut info) };
        (rc == 0).then_some((member, info))
    };
    members.get(..usize::try_from(count).ok()?)?.iter().map(info).collect()
}

/// Returns the driver of a port and, for a bond, of each member. Members without device information are
/// represented by an empty name.
pub(super) fn drivers(id: u16, info: &sys::rte_eth_dev_info) -> Vec<String> {
    let mut all = vec![driver_of(info)];
    if all == [BONDING] {
        let members = infos(id).map(|members| members.iter().map(|(_, info)| driver_of(info)).collect());
        all.extend(members.unwrap_or_else(|| vec![String::new()]));
    }
    all
}

impl Members {
    /// Returns the members of a port's bond. Returns `None` if it is no bond of these two kinds, or if a
    /// member's driver reports its link state.
    pub(super) fn of(id: u16, info: &sys::rte_eth_dev_info) -> Option<Self> {
        if driver_of(info) != BONDING {
            return None;
        }
        // SAFETY: the port exists, and is a bond, as its driver is that of bonds.
        let one_carries = unsafe { sys::shim_bond_is_active_backup(id) } != 0;
        if !one_carries && !speaks_lacp(id, BONDING) {
            return None;
        }
        let interface = |(member, info)| Some((member, Interface::below_member(member, &info)?));
        Some(Self {
            bond: id,
            all: infos(id)?.into_iter().map(interface).collect::<Option<_>>()?,
            one_carries,
        })
    }

    /// True if any member's link is up.
    pub(super) fn is_running(&self) -> bool {
        self.all.iter().any(|(_, below)| below.is_running())
    }

    /// True if [`Self::is_running`] found that none of their interfaces exists any more.
    pub(super) fn is_gone(&self) -> bool {
        !self.all.is_empty() && self.all.iter().all(|(_, below)| below.is_gone())
    }

    /// Makes a member with a working link active if the active one's link is down. Returns its number if it
    /// changed.
    pub(super) fn mind(&self) -> Option<u16> {
        let active = self.one_carries.then(|| self.active())??;
        if self.all.iter().any(|(member, below)| *member == active && below.is_running()) {
            return None;
        }
        let up = self.all.iter().filter(|(_, below)| below.is_running()).map(|(member, _)| *member);
        up.into_iter().find(|member| self.activate(*member))
    }

    fn active(&self) -> Option<u16> {
        // SAFETY: a bond that runs.
        u16::try_from(unsafe { sys::shim_bond_active(self.bond) }).ok()
    }

    fn activate(&self, member: u16) -> bool {
        // SAFETY: a running bond and one of its members. Workers read the number of the active member with
        // each burst: they see the old or the new one, and both run. The frames are for the bond's address,
        // not the member's, so the member must accept all addresses.
        unsafe {
            sys::shim_bond_activate(self.bond, member);
            sys::rte_eth_promiscuous_enable(member);
            sys::rte_eth_allmulticast_enable(member);
        }
        self.active() == Some(member)
    }
}
