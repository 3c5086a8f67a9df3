//! Hundreds of random event sequences. The table must match a simple reference computed from the state.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gidcache::rules::{Address, Binding, Bond, Event, Interface, Kind};
use gidcache::{
    DeviceTable, Entry, GidType, Hold, IfIndex, Manager, PortKind, PortSetup, Provider, ProviderError,
    RoceTypes, Rules, VlanId, gid_of_address, link_local_gid,
};
use ib_wire::{Gid, PortNumber};

const PORTS: [PortNumber; 2] = [PortNumber(1), PortNumber(2)];
const NAMES: [&str; 2] = ["first", "second"];

struct Random(u64);

impl Random {
    /// splitmix64
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len() as u64) as usize]) }
    }
}

fn index(number: u32) -> IfIndex {
    IfIndex::new(number).unwrap()
}

#[derive(Clone, Default)]
struct World {
    interfaces: BTreeMap<u32, Interface>,
    addresses: BTreeSet<(u32, Address)>,
}

type Row = (PortNumber, Gid, GidType, u32, Option<u16>, bool);

impl World {
    /// Returns the VLAN of the path from an interface down to the port's, if there is a path.
    fn way(&self, from: u32, to: u32, depth: u32) -> Option<Option<VlanId>> {
        let interface = self.interfaces.get(&from)?;
        let vlan = if let Kind::Vlan(vlan) = interface.kind { Some(vlan) } else { None };
        if from == to {
            return Some(vlan);
        }
        if depth == 0 {
            return None;
        }
        let below = interface.lower.into_iter().map(IfIndex::get);
        let parts =
            self.interfaces.values().filter(|part| part.master == Some(interface.index)).filter(|_| {
                match interface.kind {
                    Kind::Bond(Bond::Active(Some(active))) => active.get() == to,
                    _ => true,
                }
            });
        below
            .chain(parts.map(|part| part.index.get()))
            .find_map(|lower| self.way(lower, to, depth - 1))
            .map(|found| vlan.or(found))
    }

    fn table(&self) -> BTreeSet<Row> {
        let mut rows = BTreeSet::new();
        for (port, name) in PORTS.into_iter().zip(NAMES) {
            let Some(base) = self.interfaces.values().find(|interface| interface.name == name) else {
                continue;
            };
            let bond = base
                .master
                .and_then(|master| self.interfaces.get(&master.get()))
                .filter(|master| matches!(master.kind, Kind::Bond(_)));
            let own = match bond {
                None => Some(base),
                Some(bond) => self.way(bond.index.get(), base.index.get(), 8).map(|_| bond),
            };
            let own = own.and_then(|own| own.mac.map(|mac| (own.index.get(), link_local_gid(mac))));
            let mut row = |number: u32, gid: Gid, vlan: Option<VlanId>| {
                for gid_type in [GidType::RoceV1, GidType::RoceV2] {
                    let default = own == Some((number, gid));
                    rows.insert((port, gid, gid_type, number, vlan.map(VlanId::get), default));
                }
            };
            if let Some((number, gid)) = own {
                row(number, gid, self.way(number, base.index.get(), 8).flatten());
            }
            for (number, address) in &self.addresses {
                let ether = self.interfaces.get(number).is_some_and(|interface| interface.mac.is_some());
                if let Some(vlan) = self.way(*number, base.index.get(), 8).filter(|_| ether) {
                    row(*number, gid_of_address(address.local), vlan);
                }
            }
        }
        rows
    }

    fn of_kind(&self, good: impl Fn(&Interface) -> bool) -> Vec<u32> {
        self.interfaces
            .values()
            .filter(|interface| good(interface))
            .map(|interface| interface.index.get())
            .collect()
    }

    /// Runs a random change. Returns the kernel's events for it.
    fn step(&mut self, random: &mut Random) -> Vec<Event> {
        let all = self.of_kind(|_| true);
        match random.below(12) {
            0..=4 => {
                let Some(number) = random.pick(&all) else { return self.make(random) };
                let at = (number, self.address(number, random));
                if self.addresses.insert(at) {
                    return vec![Event::Address(index(number), at.1)];
                }
                self.addresses.remove(&at);
                vec![Event::AddressGone(index(number), at.1)]
            }
            5 => random.pick(&all).map_or_else(Vec::new, |number| self.delete(number)),
            6 => self.change(random, &all, |random, interface| {
                interface.mac = Some([2, 0, 0, 0, 0, random.below(6) as u8]);
            }),
            7 | 8 => {
                let bases = self.of_kind(|interface| NAMES.contains(&interface.name.as_str()));
                let masters = self.of_kind(|interface| {
                    matches!(interface.kind, Kind::Bond(_)) || interface.name.starts_with("bridge")
                });
                let master = random.pick(&masters).filter(|_| random.below(3) > 0).map(index);
                self.change(random, &bases, |_, interface| interface.master = master)
            }
            9 => {
                let bonds = self.of_kind(|interface| matches!(interface.kind, Kind::Bond(_)));
                let Some(bond) = random.pick(&bonds) else { return Vec::new() };
                let slaves = self.of_kind(|interface| interface.master == Some(index(bond)));
                let active = random.pick(&slaves).filter(|_| random.below(4) > 0).map(index);
                let how = if random.below(5) == 0 { Bond::AllSlaves } else { Bond::Active(active) };
                self.change(random, &[bond], |_, interface| interface.kind = Kind::Bond(how))
            }
            _ => self.make(random),
        }
    }

    fn address(&self, number: u32, random: &mut Random) -> Address {
        let local: IpAddr = match random.below(3) {
            0 => {
                let mac = self.interfaces[&number].mac.unwrap();
                std::net::Ipv6Addr::from(link_local_gid(mac).0).into()
            }
            1 => std::net::Ipv6Addr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, random.below(4) as u16]).into(),
            _ => Ipv4Addr::new(10, 0, 0, random.below(4) as u8).into(),
        };
        Address { local, prefix: [16, 24][random.below(2) as usize], peer: local }
    }

    fn change(
        &mut self,
        random: &mut Random,
        among: &[u32],
        change: impl FnOnce(&mut Random, &mut Interface),
    ) -> Vec<Event> {
        let Some(number) = random.pick(among) else { return Vec::new() };
        let interface = self.interfaces.get_mut(&number).unwrap();
        change(random, interface);
        vec![Event::Interface(interface.clone())]
    }

    fn delete(&mut self, number: u32) -> Vec<Event> {
        let mut events = Vec::new();
        for upper in self.of_kind(|interface| interface.lower == Some(index(number))) {
            events.extend(self.delete(upper));
        }
        for part in self.of_kind(|interface| interface.master == Some(index(number))) {
            let interface = self.interfaces.get_mut(&part).unwrap();
            interface.master = None;
            events.push(Event::Interface(interface.clone()));
        }
        self.interfaces.remove(&number);
        self.addresses.retain(|(of, _)| *of != number);
        events.push(Event::InterfaceGone(index(number)));
        events
    }

    /// Creates an interface. Indices and names are reused immediately.
    fn make(&mut self, random: &mut Random) -> Vec<Event> {
        let number = 1 + random.below(9) as u32;
        if self.interfaces.contains_key(&number) {
            return Vec::new();
        }
        let all = self.of_kind(|_| true);
        let lower = random.pick(&all).map(index);
        let free = NAMES.into_iter().find(|name| !self.interfaces.values().any(|other| other.name == *name));
        let mut interface = Interface {
            index: index(number),
            name: format!("if{number}"),
            mac: Some([2, 0, 0, 0, 0, number as u8]),
            kind: Kind::Other,
            master: None,
            lower: None,
        };
        match (random.below(6), free, lower) {
            (0..=2, Some(name), _) => interface.name = name.into(),
            (0 | 1, None, Some(_)) => {
                interface.lower = lower;
                interface.kind = Kind::Vlan(VlanId::new(random.below(4095) as u16).unwrap());
            }
            (2, None, Some(_)) => interface.lower = lower,
            (3, ..) => interface.kind = Kind::Bond(Bond::Active(None)),
            _ => interface.name = format!("bridge{number}"),
        }
        self.interfaces.insert(number, interface.clone());
        vec![Event::Interface(interface)]
    }

    fn list(&self) -> Vec<Event> {
        let interfaces = self.interfaces.values().map(|interface| Event::Interface(interface.clone()));
        let addresses =
            self.addresses.iter().map(|(number, address)| Event::Address(index(*number), *address));
        interfaces.chain(addresses).collect()
    }
}

/// A device that fails every `refuse_every` calls (0 for never) and records its entries.
#[derive(Default)]
struct Device {
    refuse_every: AtomicU64,
    calls: AtomicU64,
    known: std::sync::Mutex<BTreeSet<Entry>>,
}

impl Device {
    fn answer(&self) -> Result<(), ProviderError> {
        let every = self.refuse_every.load(Ordering::Relaxed);
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if every != 0 && call.is_multiple_of(every) { Err("not now".into()) } else { Ok(()) }
    }
}

struct SharedDevice(Arc<Device>);

impl Provider for SharedDevice {
    fn add_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        self.0.answer()?;
        assert!(self.0.known.lock().unwrap().insert(*entry), "added twice");
        Ok(())
    }

    fn del_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        self.0.answer()?;
        assert!(self.0.known.lock().unwrap().remove(entry), "never added");
        Ok(())
    }
}

/// Takes and drops holds on entries. A held index must not be reused for another entry, and the device must
/// keep it.
struct Holders(Vec<Hold>);

impl Holders {
    fn step(&mut self, random: &mut Random, table: &DeviceTable, device: &Device) {
        let entries = table.entries();
        if let Some(entry) = random.pick(&entries) {
            let hold = table.hold(entry.port, entry.index).unwrap().unwrap();
            assert_eq!(*hold.entry(), entry);
            self.0.push(hold);
        }
        let known = device.known.lock().unwrap();
        for hold in &self.0 {
            let held = hold.entry();
            assert!(known.contains(held), "the device has forgotten {held:?}");
            let at = |entry: &&Entry| (entry.port, entry.index) == (held.port, held.index);
            assert!(entries.iter().find(at).is_none_or(|entry| entry == held), "{held:?} is held");
        }
        drop(known);
        if random.below(2) == 0 {
            self.0.clear();
        }
    }
}

fn run(seed: u64, slots: u16, with_holds: bool) {
    let mut holders = Holders(Vec::new());
    let mut random = Random(seed);
    let device = Arc::new(Device::default());
    let setups = PORTS.map(|number| PortSetup { number, len: slots, kind: PortKind::Roce(RoceTypes::Both) });
    let table = DeviceTable::new(&setups, SharedDevice(Arc::clone(&device)), seed).unwrap();
    let reader = table.reader().unwrap();
    let mut rules = Rules::new();
    for (port, name) in PORTS.into_iter().zip(NAMES) {
        rules.bind(port, Binding::Name(name.into()), RoceTypes::Both);
    }
    let mut manager = Manager::new(Arc::new(table), rules);
    let mut world = World::default();
    for step in 0..60 {
        let events = world.step(&mut random);
        let lost = random.below(20) == 0;
        let flaky = random.below(10) == 0;
        if !lost {
            events.iter().for_each(|event| manager.rules().handle_event(event));
        }
        device.refuse_every.store(if flaky { 2 } else { 0 }, Ordering::Relaxed);
        if flaky {
            let _ = manager.apply();
            device.refuse_every.store(0, Ordering::Relaxed);
            let _ = manager.retry();
        }
        if lost {
            manager.rules().begin_scan();
            for event in world.list() {
                manager.rules().handle_scanned(&event);
            }
            manager.rules().end_scan();
        }
        let mut applied = manager.apply();
        if with_holds {
            holders.step(&mut random, manager.table(), &device);
            if !holders.0.is_empty() {
                continue;
            }
            applied = manager.apply();
        }

        let entries = manager.table().entries();
        let mut seen = Vec::new();
        reader.entries(&mut seen).unwrap();
        assert_eq!(seen, entries);
        assert_eq!(*device.known.lock().unwrap(), entries.iter().copied().collect());
        let rows: Vec<Row> = entries
            .iter()
            .map(|entry| {
                let key = entry.attributes.key;
                let vlan = entry.attributes.vlan.map(VlanId::get);
                (entry.port, key.gid, key.gid_type, key.ifindex.unwrap().get(), vlan, entry.default)
            })
            .collect();
        assert!(entries.iter().all(|entry| entry.default == (entry.index < 2)));
        let set: BTreeSet<Row> = rows.iter().copied().collect();
        assert_eq!(set.len(), rows.len(), "seed {seed} step {step}: an entry is there twice");
        let wanted: BTreeSet<Row> =
            world.table().into_iter().filter(|(_, gid, ..)| *gid != Gid::ZERO).collect();
        for port in PORTS {
            let of = |rows: &BTreeSet<Row>| -> BTreeSet<Row> {
                rows.iter().filter(|row| row.0 == port).copied().collect()
            };
            let (has, wants) = (of(&set), of(&wanted));
            if wants.iter().filter(|row| !row.5).count() <= usize::from(slots) - 2 {
                assert_eq!(has, wants, "seed {seed} step {step} port {port:?} after {events:?}");
            } else {
                assert!(has.is_subset(&wants), "seed {seed} step {step}");
                assert_eq!(has.iter().filter(|row| !row.5).count(), usize::from(slots) - 2);
                assert!(manager.rules().failed() > 0 || !applied.failures.is_empty());
            }
        }
    }
}

#[test]
fn random_sequences() {
    for seed in 0..300 {
        run(seed, 96, false);
    }
}

#[test]
fn random_sequences_with_holds() {
    for seed in 2000..2200 {
        run(seed, if seed % 2 == 0 { 96 } else { 10 }, true);
    }
}

#[test]
fn random_sequences_with_too_few_slots() {
    for seed in 1000..1100 {
        run(seed, 8, false);
    }
}
