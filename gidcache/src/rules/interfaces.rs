//! Interfaces, their addresses, and their stacking.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ib_wire::Gid;

use crate::entry::{IfIndex, VlanId, ipv4_of_gid};

/// Kind of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A VLAN of its lower interface.
    Vlan(VlanId),
    /// A bond.
    Bond(Bond),
    /// Any other kind: device, veth, bridge, macvlan.
    Other,
}

/// Transmitting slaves of a bond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bond {
    /// Modes that use all slaves: balance-rr, balance-xor, broadcast, 802.3ad.
    AllSlaves,
    /// Modes with one active slave: active-backup, balance-tlb, balance-alb. `None` while no slave is usable;
    /// all slaves are then equal.
    Active(Option<IfIndex>),
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its index.
    pub index: IfIndex,
    /// Its name.
    pub name: String,
    /// MAC address; `None` for a non-Ethernet interface (not ARPHRD_ETHER), which has no GIDs.
    pub mac: Option<[u8; 6]>,
    /// Kind.
    pub kind: Kind,
    /// The bond, bridge or similar interface to which it belongs.
    pub master: Option<IfIndex>,
    /// The interface below it, for example of a VLAN or macvlan.
    pub lower: Option<IfIndex>,
}

/// An address of an interface. It may exist with several prefixes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Address {
    /// Local address.
    pub local: IpAddr,
    /// Prefix length.
    pub prefix: u8,
    /// Remote address of a point-to-point link; otherwise equal to `local`.
    pub peer: IpAddr,
}

/// A change of interfaces or addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An interface was added or changed.
    Interface(Interface),
    /// An interface was removed, with its addresses.
    InterfaceGone(IfIndex),
    /// An address is usable.
    Address(IfIndex, Address),
    /// An address was removed, or is not usable (any more, or yet).
    AddressGone(IfIndex, Address),
}

/// Maximum number of tracked interfaces.
pub const MAX_INTERFACES: usize = 1 << 16;
/// Maximum number of tracked addresses, over all interfaces.
pub const MAX_ADDRESSES: usize = 1 << 18;

/// State of a network namespace.
#[derive(Clone, Default, Debug)]
pub(super) struct Interfaces {
    interfaces: BTreeMap<IfIndex, Interface>,
    names: BTreeMap<String, IfIndex>,
    addresses: BTreeMap<IfIndex, BTreeSet<Address>>,
    address_count: usize,
    /// Interfaces directly above each interface.
    uppers: BTreeMap<IfIndex, BTreeSet<IfIndex>>,
}

/// The limit on interfaces or addresses is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoRoom;

impl Interfaces {
    pub(super) fn get(&self, index: IfIndex) -> Option<&Interface> {
        self.interfaces.get(&index)
    }

    pub(super) fn named(&self, name: &str) -> Option<IfIndex> {
        self.names.get(name).copied()
    }

    pub(super) fn addresses(&self, index: IfIndex) -> impl Iterator<Item = &Address> + '_ {
        self.addresses.get(&index).into_iter().flatten()
    }

    /// True if the interface has an address with this GID.
    pub(super) fn holds(&self, index: IfIndex, gid: Gid) -> bool {
        let Some(addresses) = self.addresses.get(&index) else { return false };
        let any = |local: IpAddr| {
            let least = Address { local, prefix: 0, peer: IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
            addresses.range(least..).next().is_some_and(|address| address.local == local)
        };
        any(IpAddr::V6(Ipv6Addr::from(gid.0))) || ipv4_of_gid(gid).is_some_and(|v4| any(IpAddr::V4(v4)))
    }

    pub(super) fn put(&mut self, interface: Interface) -> Result<(), NoRoom> {
        let index = interface.index;
        if let Some(old) = self.interfaces.get(&index) {
            let old = old.clone();
            self.unlink(&old);
        } else if self.interfaces.len() >= MAX_INTERFACES {
            return Err(NoRoom);
        }
        for (lower, upper) in edges(&interface) {
            self.uppers.entry(lower).or_default().insert(upper);
        }
        self.names.insert(interface.name.clone(), index);
        self.interfaces.insert(index, interface);
        Ok(())
    }

    pub(super) fn remove(&mut self, index: IfIndex) {
        if let Some(old) = self.interfaces.remove(&index) {
            self.unlink(&old);
        }
        if let Some(addresses) = self.addresses.remove(&index) {
            self.address_count = self.address_count.saturating_sub(addresses.len());
        }
    }

    /// Adds an address. Returns true if it is new.
    pub(super) fn put_address(&mut self, index: IfIndex, address: Address) -> Result<bool, NoRoom> {
        let full = self.address_count >= MAX_ADDRESSES;
        if full && !self.addresses.get(&index).is_some_and(|of_it| of_it.contains(&address)) {
            return Err(NoRoom);
        }
        let new = self.addresses.entry(index).or_default().insert(address);
        self.address_count += usize::from(new);
        Ok(new)
    }

    /// Removes an address. Returns true if it existed.
    pub(super) fn remove_address(&mut self, index: IfIndex, address: &Address) -> bool {
        let Some(of_it) = self.addresses.get_mut(&index) else { return false };
        let was_there = of_it.remove(address);
        if of_it.is_empty() {
            self.addresses.remove(&index);
        }
        self.address_count = self.address_count.saturating_sub(usize::from(was_there));
        was_there
    }

    /// Returns the interface and all interfaces above it that transmit through it, with the VLAN of their
    /// packets.
    ///
    /// A bond with an active slave is included if the slave is the interface itself. As in the kernel, a VLAN
    /// of it as active slave does not count.
    pub(super) fn stack(&self, base: IfIndex) -> BTreeMap<IfIndex, Option<VlanId>> {
        let mut stack = BTreeMap::new();
        let Some(interface) = self.get(base) else { return stack };
        let mut next = std::collections::VecDeque::from([(interface, None)]);
        while let Some((interface, below)) = next.pop_front() {
            let vlan = match interface.kind {
                Kind::Vlan(vlan) => Some(vlan),
                Kind::Bond(_) | Kind::Other => below,
            };
            if stack.contains_key(&interface.index) {
                continue;
            }
            stack.insert(interface.index, vlan);
            for upper in self.uppers.get(&interface.index).into_iter().flatten() {
                let Some(upper) = self.get(*upper) else { continue };
                let inactive = matches!(upper.kind, Kind::Bond(Bond::Active(Some(active))) if active != base);
                if !inactive {
                    next.push_back((upper, vlan));
                }
            }
        }
        stack.retain(|index, _| self.get(*index).is_some_and(|interface| interface.mac.is_some()));
        stack
    }

    fn unlink(&mut self, old: &Interface) {
        for (lower, upper) in edges(old) {
            if let Some(uppers) = self.uppers.get_mut(&lower) {
                uppers.remove(&upper);
                if uppers.is_empty() {
                    self.uppers.remove(&lower);
                }
            }
        }
        if self.names.get(&old.name) == Some(&old.index) {
            self.names.remove(&old.name);
        }
    }
}

/// Returns pairs of lower and upper interface from an interface's attributes.
fn edges(interface: &Interface) -> impl Iterator<Item = (IfIndex, IfIndex)> + use<> {
    let index = interface.index;
    let own = interface.lower.map(|lower| (lower, index));
    let part = interface.master.map(|master| (index, master));
    own.into_iter().chain(part)
}
