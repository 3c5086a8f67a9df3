//! Which GIDs a RoCE port shall have, from what happens to interfaces and addresses: a state machine without I/O.
//!
//! * Every address of the port's interface makes an entry for each type the port speaks, and so does every address of the
//!   interfaces that lie on it: VLANs (whose id the entry has), macvlans, the bridge or bond it is part of, and what lies on
//!   those. Whether an interface is up does not matter: its addresses count as long as they are there.
//! * Of a bond with an active slave, only that slave's port has the entries; while no slave is fit, and in modes that use all
//!   slaves, all of them have.
//! * The link-local GID of the interface's MAC address is the port's own, in the reserved slots, even while the interface is down.
//!   Of a slave that is the bond's; of a slave that is not active, none.
//! * An address counts from when the kernel tells of it: also while it is looked for duplicates, as in the kernel's own tables.
//! * One entry for each address, type and interface. An address whose GID is the port's own takes no other slot.
//!
//! What shall be follows from what is known at the moment, not from how it came about; changes are the difference to what was
//! handed out by [`Rules::poll_change`]. So a flapping address costs nothing while nobody polls, a new scan
//! ([`Rules::begin_scan`]) heals whatever was missed, and nothing here grows with the number of events.

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

/// Which interface is a port's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// The one with this index.
    Index(IfIndex),
    /// Whichever has this name at the time.
    Name(String),
}

/// What is to be done to a port's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// An entry more.
    Add {
        /// The port.
        port: PortNumber,
        /// The entry.
        attributes: Attributes,
        /// True if it belongs in a reserved slot.
        default: bool,
    },
    /// An entry less.
    Delete {
        /// The port.
        port: PortNumber,
        /// The entry.
        attributes: Attributes,
        /// True if it is in a reserved slot.
        default: bool,
    },
}

/// An entry's attributes beside its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    vlan: Option<VlanId>,
    default: bool,
}

#[derive(Debug)]
struct Port {
    binding: Binding,
    types: RoceTypes,
    /// The interfaces whose addresses count, and their VLANs.
    stack: BTreeMap<IfIndex, Option<VlanId>>,
    /// The port's own GID and the interface it is of.
    own: Option<(Gid, IfIndex)>,
    wanted: BTreeMap<Key, Place>,
    /// What was handed out.
    told: BTreeMap<Key, Place>,
    to_delete: BTreeSet<Key>,
    to_add: Queue,
    /// Changes that could not be made.
    failed: BTreeSet<Key>,
}

/// The rules for the ports of a device.
#[derive(Default, Debug)]
pub struct Rules {
    ports: BTreeMap<PortNumber, Port>,
    live: Interfaces,
    scan: Option<Interfaces>,
    refused: u64,
}

impl Rules {
    /// No ports, and nothing known.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A port speaks RoCE over an interface, which need not exist yet. Bound again, the port goes over to the new interface.
    pub fn bind(&mut self, number: PortNumber, binding: Binding, types: RoceTypes) {
        let mut port = Port {
            binding,
            types,
            stack: BTreeMap::new(),
            own: None,
            wanted: BTreeMap::new(),
            told: BTreeMap::new(),
            to_delete: BTreeSet::new(),
            to_add: Queue::default(),
            failed: BTreeSet::new(),
        };
        if let Some(old) = self.ports.remove(&number) {
            port.to_delete = old.told.keys().copied().collect();
            port.told = old.told;
        }
        port.restack(&self.live);
        self.ports.insert(number, port);
    }

    /// A port's table has this entry already: it is deleted unless it shall be.
    pub fn adopt(&mut self, number: PortNumber, attributes: Attributes, default: bool) {
        if let Some(port) = self.ports.get_mut(&number) {
            port.told.insert(attributes.key, Place { vlan: attributes.vlan, default });
            port.mark(attributes.key);
        }
    }

    /// Something happened.
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

    /// A list of all there is begins: what [`Rules::handle_scanned`] gets until [`Rules::end_scan`]. Events in between count for both.
    pub fn begin_scan(&mut self) {
        self.scan = Some(Interfaces::default());
    }

    /// A line of the list.
    pub fn handle_scanned(&mut self, event: &Event) {
        if let Some(scan) = &mut self.scan
            && apply(scan, event).is_err()
        {
            self.refused += 1;
        }
    }

    /// The list is complete: what it lacks is gone.
    pub fn end_scan(&mut self) {
        let Some(scan) = self.scan.take() else { return };
        self.live = scan;
        for port in self.ports.values_mut() {
            // Everything is decided anew: who is in the stack may have other addresses now.
            port.stack.clear();
            port.restack(&self.live);
            let keys: Vec<Key> = port.wanted.keys().copied().collect();
            for key in keys {
                port.decide(&self.live, key);
            }
        }
    }

    /// The list will not be completed; all stays as it is.
    pub fn abort_scan(&mut self) {
        self.scan = None;
    }

    /// The next thing to do. All deletions come before all additions, so that there is room and nothing is twice; additions come in
    /// the order in which they were called for.
    pub fn poll_change(&mut self) -> Option<Change> {
        for (&number, port) in &mut self.ports {
            if let Some(key) = port.to_delete.pop_first()
                && let Some(place) = port.told.remove(&key)
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
                port.told.insert(key, place);
                let attributes = Attributes { key, vlan: place.vlan };
                return Some(Change::Add { port: number, attributes, default: place.default });
            }
        }
        None
    }

    /// A change that was handed out could not be made. It is handed out again after [`Rules::retry`], if it still makes sense.
    pub fn handle_failure(&mut self, change: &Change) {
        match *change {
            Change::Add { port, attributes, .. } => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.told.remove(&attributes.key);
                    port.failed.insert(attributes.key);
                }
            }
            Change::Delete { port, attributes: Attributes { key, vlan }, default } => {
                if let Some(port) = self.ports.get_mut(&port) {
                    port.told.insert(key, Place { vlan, default });
                    port.to_add.remove(&key);
                    port.failed.insert(key);
                }
            }
        }
    }

    /// What failed is to be tried again.
    pub fn retry(&mut self) {
        for port in self.ports.values_mut() {
            for key in std::mem::take(&mut port.failed) {
                port.mark(key);
            }
        }
    }

    /// Changes that failed and were not tried again.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.ports.values().map(|port| port.failed.len()).sum()
    }

    /// The entries that a port shall have, and whether each belongs in a reserved slot.
    pub fn wanted(&self, port: PortNumber) -> impl Iterator<Item = (Attributes, bool)> + '_ {
        self.ports.get(&port).into_iter().flat_map(|port| {
            port.wanted.iter().map(|(&key, place)| (Attributes { key, vlan: place.vlan }, place.default))
        })
    }

    /// Events that named more interfaces or addresses than there is room for.
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

    /// Finds the stack and the own GID anew, and decides on the entries that this may change.
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

    /// Decides whether an entry shall be.
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

    /// Compares what shall be with what was handed out.
    fn mark(&mut self, key: Key) {
        self.to_delete.remove(&key);
        if !self.wanted.contains_key(&key) || self.told.contains_key(&key) {
            self.to_add.remove(&key);
        }
        match (self.told.get(&key), self.wanted.get(&key)) {
            (Some(told), Some(wanted)) if told == wanted => {}
            (Some(_), _) => drop(self.to_delete.insert(key)),
            (None, Some(_)) => self.to_add.push(key),
            (None, None) => {}
        }
    }
}

/// The GID of a port's own address: of its interface, or of the bond whose active slave that is.
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
        // An inactive slave's stack ends below the bond.
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
