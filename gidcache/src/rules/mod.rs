//! Derives the required GIDs of RoCE ports from interface and address events: a state machine without I/O.
//!
//! * Every address of the port's interface requires an entry for each type of the port. The same applies to
//!   the interfaces above it: VLANs (with their ID in the entry), macvlans, its bridge or bond, and the
//!   interfaces above these. Whether an interface is up does not matter: its addresses count while they
//!   exist.
//! * For a bond with an active slave, only that slave's port has the entries. While no slave is usable, and
//!   in modes that use all slaves, all slaves' ports have them.
//! * The link-local GID of the interface's MAC address is the port's own GID, in the reserved slots, even
//!   while the interface is down. A slave uses the bond's; a slave that is not active has none.
//! * An address counts as soon as the kernel reports it, also during duplicate address detection, as in the
//!   kernel's own tables.
//! * There is one entry for each address, type and interface. An address whose GID is the port's own does not
//!   take another slot.
//!
//! The required entries depend only on the current state, not on its history. [`Rules::poll_change`] returns
//! the differences to the changes returned before. A flapping address therefore costs nothing while nobody
//! polls. A new scan ([`Rules::begin_scan`]) repairs anything that was missed, and nothing grows with the
//! number of events.

mod interfaces;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::{Gid, PortNumber};

use self::interfaces::Interfaces;
pub use self::interfaces::{Address, Bond, Event, Interface, Kind, MAX_ADDRESSES, MAX_INTERFACES};
use self::queue::Queue;
use crate::entry::{Attributes, IfIndex, Key, RoceTypes, VlanId, gid_of_address, link_local_gid};

/// Selects the interface of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// By index.
    Index(IfIndex),
    /// By its current name.
    Name(String),
}

/// A required change of a port's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Add an entry.
    Add {
        /// The port.
        port: PortNumber,
        /// The entry.
        attributes: Attributes,
        /// True if it belongs in a reserved slot.
        default: bool,
    },
    /// Delete an entry.
    Delete {
        /// The port.
        port: PortNumber,
        /// The entry.
        attributes: Attributes,
        /// True if it is in a reserved slot.
        default: bool,
    },
}

/// Attributes of an entry other than its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    vlan: Option<VlanId>,
    default: bool,
}

#[derive(Debug)]
struct Port {
    binding: Binding,
    types: RoceTypes,
    /// Interfaces whose addresses count, with their VLANs.
    stack: BTreeMap<IfIndex, Option<VlanId>>,
    /// The port's own GID and its interface.
    own: Option<(Gid, IfIndex)>,
    wanted: BTreeMap<Key, Place>,
    /// Entries issued by `poll_change`.
    issued: BTreeMap<Key, Place>,
    to_delete: BTreeSet<Key>,
    to_add: Queue,
    /// Failed changes.
    failed: BTreeSet<Key>,
}

/// Rules for the ports of a device.
#[derive(Default, Debug)]
pub struct Rules {
    ports: BTreeMap<PortNumber, Port>,
    live: Interfaces,
    scan: Option<Interfaces>,
    refused: u64,
}

impl Rules {
    /// Creates rules without ports and without any state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds a port to an interface, which need not exist yet. A second call moves the port to another
    /// interface.
    pub fn bind(&mut self, number: PortNumber, binding: Binding, types: RoceTypes) {
        let mut port = Port {
            binding,
            types,
            stack: BTreeMap::new(),
            own: None,
            wanted: BTreeMap::new(),
            issued: BTreeMap::new(),
            to_delete: BTreeSet::new(),
            to_add: Queue::default(),
            failed: BTreeSet::new(),
        };
        if let Some(old) = self.ports.remove(&number) {
            port.to_delete = old.issued.keys().copied().collect();
            port.issued = old.issued;
        }
        port.restack(&self.live);
        self.ports.insert(number, port);
    }

    /// Records an existing entry of a port's table. It is deleted unless it is required.
    pub fn adopt(&mut self, number: PortNumber, attributes: Attributes, default: bool) {
        if let Some(port) = self.ports.get_mut(&number) {
            port.issued.insert(attributes.key, Place { vlan: attributes.vlan, default });
            port.mark(attributes.key);
        }
    }

    /// Handles an event.
    pub fn handle_event(&mut self, event: &Event) {
        if let Some(scan) = &mut self.scan
            && apply(scan, event).is_err()
        {
            self.refused += 1;
        }
        match event {
            Event::Interface(interface) => self.handle_interface(interface),
            Event::InterfaceGone(index) => {
                let addresses: Vec<Gid> =
                    self.live.addresses(*index).map(|address| gid_of_address(address.local)).collect();
                self.live.remove(*index);
                for port in self.ports.values_mut() {
                    if port.touched_by(*index, &self.live) {
                        port.restack(&self.live);
                        port.decide_all(&self.live, *index, &addresses);
                    }
                }
            }
            Event::Address(index, address) => match self.live.put_address(*index, *address) {
                Ok(new) => self.handle_address(new, *index, address),
                Err(_) => self.refused += 1,
            },
            Event::AddressGone(index, address) => {
                let was_there = self.live.remove_address(*index, address);
                self.handle_address(was_there, *index, address);
            }
        }
    }

    /// Starts a list of the complete state. [`Rules::handle_scanned`] receives its items until
    /// [`Rules::end_scan`]. Events in between apply to both the old and the new state.
    pub fn begin_scan(&mut self) {
        self.scan = Some(Interfaces::default());
    }

    /// Handles an item of the list.
    pub fn handle_scanned(&mut self, event: &Event) {
        if let Some(scan) = &mut self.scan
            && apply(scan, event).is_err()
        {
            self.refused += 1;
        }
    }

    /// Completes the list. Anything missing from it no longer exists.
    pub fn end_scan(&mut self) {
        let Some(scan) = self.scan.take() else { return };
        self.live = scan;
        for port in self.ports.values_mut() {
            // Recompute everything, because interfaces in the stack may have other addresses now.
            port.stack.clear();
            port.restack(&self.live);
            let keys: Vec<Key> = port.wanted.keys().copied().collect();
            for key in keys {
                port.decide(&self.live, key);
            }
        }
    }

    /// Aborts the list without changes.
    pub fn abort_scan(&mut self) {
        self.scan = None;
    }

    /// Returns the next change. All deletions come before all additions, to free slots and avoid duplicates.
    /// Additions are in the order in which they became necessary.
    pub fn poll_change(&mut self) -> Option<Change> {
        for (&number, port) in &mut self.ports {
            if let Some(key) = port.to_delete.pop_first()
                && let Some(place) = port.issued.remove(&key)
            {
                if port.wanted.contains_key(&key) {
                    port.to_add.push(key);
                }
                let attributes = Attributes { key, vlan: place.vlan };
                return Some(Change::Delete { port: number, attributes, default: place.default });
            }
        }
        for (&number, port) in &mut self.ports {
            if let Some(key) = port.to_add.pop()
                && let Some(&place) = port.wanted.get(&key)
            {
                port.issued.insert(key, place);
                let attributes = Attributes { key, vlan: place.vlan };
                return Some(Change::Add { port: number, attributes, default: place.default });
            }
        }
        None
    }

    /// Records that an issued change failed. It is issued again after [`Rules::retry`] if it is still needed.
    pub fn handle_failure(&mut self, change: &Change) {
        match *change {
            Change::Add { port, attributes, .. } => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.issued.remove(&attributes.key);
                    port.failed.insert(attributes.key);
                }
            }
            Change::Delete { port, attributes: Attributes { key, vlan }, default } => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.issued.insert(key, Place { vlan, default });
                    port.to_add.remove(&key);
                    port.failed.insert(key);
                }
            }
        }
    }

    /// Schedules failed changes again.
    pub fn retry(&mut self) {
        for port in self.ports.values_mut() {
            for key in std::mem::take(&mut port.failed) {
                port.mark(key);
            }
        }
    }

    /// Number of failed changes that are not scheduled again.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.ports.values().map(|port| port.failed.len()).sum()
    }

    /// Returns the required entries of a port, with true for those in a reserved slot.
    pub fn wanted(&self, port: PortNumber) -> impl Iterator<Item = (Attributes, bool)> + '_ {
        self.ports.get(&port).into_iter().flat_map(|port| {
            port.wanted.iter().map(|(&key, place)| (Attributes { key, vlan: place.vlan }, place.default))
        })
    }

    /// Number of events rejected because of the limits on interfaces and addresses.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    fn handle_interface(&mut self, interface: &Interface) {
        let index = interface.index;
        if self.live.get(index) == Some(interface) {
            return;
        }
        if self.live.put(interface.clone()).is_err() {
            self.refused += 1;
            return;
        }
        for port in self.ports.values_mut() {
            if port.touched_by(index, &self.live) {
                port.restack(&self.live);
            }
        }
    }

    fn handle_address(&mut self, changed: bool, index: IfIndex, address: &Address) {
        if !changed {
            return;
        }
        let gid = gid_of_address(address.local);
        for port in self.ports.values_mut() {
            if port.stack.contains_key(&index) {
                port.decide_all(&self.live, index, &[gid]);
            }
        }
    }
}

impl Port {
    fn base(&self, live: &Interfaces) -> Option<IfIndex> {
        match &self.binding {
            Binding::Index(index) => Some(*index),
            Binding::Name(name) => live.named(name),
        }
    }

    /// True if the interface is, was or may now be in the port's stack.
    fn touched_by(&self, index: IfIndex, live: &Interfaces) -> bool {
        self.stack.contains_key(&index)
            || self.own.is_some_and(|(_, of)| of == index)
            || self.base(live).is_some_and(|base| {
                base == index
                    || live.get(index).is_some_and(|interface| {
                        interface.lower.is_some()
                            || interface.master.is_some()
                            || interface.kind != Kind::Other
                    })
                    || live.stack(base).contains_key(&index)
            })
    }

    /// Recomputes the stack and the own GID, and the entries that this may affect.
    fn restack(&mut self, live: &Interfaces) {
        let base = self.base(live);
        let stack = base.map(|base| live.stack(base)).unwrap_or_default();
        let own = base.and_then(|base| own_gid(live, base, &stack));
        let old_stack = std::mem::replace(&mut self.stack, stack);
        let old_own = std::mem::replace(&mut self.own, own);
        let mut changed: Vec<IfIndex> = Vec::new();
        changed.extend(old_stack.keys().filter(|index| !self.stack.contains_key(index)));
        changed.extend(
            self.stack
                .iter()
                .filter(|(index, vlan)| old_stack.get(index) != Some(vlan))
                .map(|(index, _)| *index),
        );
        for index in changed {
            let gids: Vec<Gid> = live.addresses(index).map(|address| gid_of_address(address.local)).collect();
            self.decide_all(live, index, &gids);
        }
        for (gid, index) in old_own.into_iter().chain(own) {
            self.decide_all(live, index, &[gid]);
        }
    }

    fn decide_all(&mut self, live: &Interfaces, index: IfIndex, gids: &[Gid]) {
        for &gid in gids {
            for &gid_type in self.types.types() {
                self.decide(live, Key { gid, gid_type, ifindex: Some(index) });
            }
        }
    }

    /// Decides whether an entry is required.
    fn decide(&mut self, live: &Interfaces, key: Key) {
        let place = key.ifindex.and_then(|index| {
            let vlan = self.stack.get(&index).copied();
            if self.own == Some((key.gid, index)) && self.types.types().contains(&key.gid_type) {
                return Some(Place { vlan: vlan.flatten(), default: true });
            }
            let good = key.gid != Gid::ZERO
                && !key.gid.is_multicast()
                && self.types.types().contains(&key.gid_type)
                && live.holds(index, key.gid);
            vlan.filter(|_| good).map(|vlan| Place { vlan, default: false })
        });
        match place {
            Some(place) => self.wanted.insert(key, place),
            None => self.wanted.remove(&key),
        };
        self.failed.remove(&key);
        self.mark(key);
    }

    /// Compares a required entry with the issued one.
    fn mark(&mut self, key: Key) {
        self.to_delete.remove(&key);
        if !self.wanted.contains_key(&key) || self.issued.contains_key(&key) {
            self.to_add.remove(&key);
        }
        match (self.issued.get(&key), self.wanted.get(&key)) {
            (Some(issued), Some(wanted)) if issued == wanted => {}
            (Some(_), _) => drop(self.to_delete.insert(key)),
            (None, Some(_)) => self.to_add.push(key),
            (None, None) => {}
        }
    }
}

/// Returns the GID of a port's own address: that of its interface, or of the bond whose active slave the
/// interface is.
fn own_gid(
    live: &Interfaces,
    base: IfIndex,
    stack: &BTreeMap<IfIndex, Option<VlanId>>,
) -> Option<(Gid, IfIndex)> {
    let interface = live.get(base)?;
    let bond = interface
        .master
        .filter(|master| live.get(*master).is_some_and(|master| matches!(master.kind, Kind::Bond(_))));
    let of = match bond {
        // The stack of an inactive slave ends below the bond.
        Some(bond) => stack.contains_key(&bond).then_some(bond)?,
        None => base,
    };
    Some((link_local_gid(live.get(of)?.mac?), of))
}

fn apply(interfaces: &mut Interfaces, event: &Event) -> Result<(), interfaces::NoRoom> {
    match event {
        Event::Interface(interface) => interfaces.put(interface.clone()),
        Event::InterfaceGone(index) => {
            interfaces.remove(*index);
            Ok(())
        }
        Event::Address(index, address) => interfaces.put_address(*index, *address).map(drop),
        Event::AddressGone(index, address) => {
            interfaces.remove_address(*index, address);
            Ok(())
        }
    }
}
