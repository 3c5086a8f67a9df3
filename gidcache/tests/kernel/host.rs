//! Compares our tables with the kernel's after each step, entry by entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gidcache::netlink::{Monitor, Turn};
use gidcache::rules::Binding;
use gidcache::{
    Attributes, DeviceTable, Entry, GidType, Key, Manager, NoProvider, PortKind, PortSetup, RoceTypes, Rules,
    VlanId,
};
use ib_wire::{Gid, Guid};

use crate::difference::explain;
use crate::state::{Links, Row};
use crate::sysfs::Device;

/// Slots of soft-RoCE's tables.
pub(crate) const SLOTS: u16 = 1024;
/// Default number of slots compared after each step, from the first.
const LOOKED_AT: u16 = 24;

/// Results of the comparisons.
#[derive(Default, Debug)]
pub(crate) struct Found {
    /// Steps compared.
    pub(crate) steps: usize,
    /// Maximum number of entries of a device.
    pub(crate) most: usize,
    /// Number of changed tables whose entries matched the kernel's by index.
    pub(crate) same_indices: usize,
    /// Number of changed tables whose entries matched the kernel's in another order.
    pub(crate) other_order: usize,
    /// Cases in which the kernel's table differed from the one of a recreated device.
    pub(crate) kernel_differs: BTreeMap<&'static str, usize>,
}

pub(crate) struct Host {
    pub(crate) devices: Vec<Device>,
    pub(crate) monitor: Monitor,
    pub(crate) manager: Manager,
    /// Rows of each port after the previous step.
    before: BTreeMap<u8, BTreeSet<Row>>,
    pub(crate) looked_at: u16,
    pub(crate) found: Found,
}

/// The kernel's entries: GID and interface.
type Entries = BTreeMap<u16, (Gid, u32)>;

impl Host {
    pub(crate) fn new(devices: &[Device]) -> Self {
        let mut rules = Rules::new();
        for device in devices {
            rules.bind(device.port, Binding::Name(device.netdev.into()), RoceTypes::V2);
        }
        Self {
            devices: devices.to_vec(),
            monitor: Monitor::new(Instant::now()).unwrap(),
            manager: Manager::new(Arc::new(empty(devices)), rules),
            before: BTreeMap::new(),
            looked_at: LOOKED_AT,
            found: Found::default(),
        }
    }

    fn turn(&mut self) {
        while self.monitor.turn(Instant::now(), self.manager.rules()).unwrap() == Turn::More {}
        let applied = self.manager.apply();
        assert!(applied.failures.is_empty(), "{:?}", applied.failures);
    }

    /// Waits until our table matches the reference, and then until the kernel's matches ours.
    pub(crate) fn settle(&mut self, what: &str) {
        self.found.steps += 1;
        let ports: Vec<_> = self.devices.iter().map(|device| (device.port, device.netdev)).collect();
        let mut deadline = Instant::now() + Duration::from_secs(2);
        let mut recreated: Vec<&str> = Vec::new();
        self.turn();
        let mut links = Links::now();
        let mut heard = self.monitor.counters().messages;
        loop {
            self.turn();
            // Running `ip` takes longest. Its output can change only after an event; run it again without one
            // only at the deadline.
            let late = Instant::now() > deadline;
            if std::mem::replace(&mut heard, self.monitor.counters().messages) != heard || late {
                links = Links::now();
                self.turn();
            }
            let wanted = links.reference(&ports);
            let ours: BTreeSet<Row> = self.manager.table().entries().iter().map(row).collect();
            if ours != wanted || !self.monitor.is_settled() {
                assert!(!late, "after `{what}` our table is  {ours:?}\nbut should be {wanted:?}");
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let mut tables = Vec::new();
            let mut differs = None;
            for device in self.devices.clone() {
                if links.get(device.netdev).is_some() && !device.exists() {
                    device.add();
                }
                // The kernel does not show VLANs.
                let of_port = ours.iter().filter(|row| row.0 == device.port.0);
                let mine: BTreeSet<Row> = of_port.map(|row| (row.0, row.1, row.2, None, row.4)).collect();
                let Some(entries) = entries(&device, &links, self.looked_at) else {
                    differs = Some((device, None, mine));
                    continue;
                };
                let theirs: Vec<Row> = entries
                    .iter()
                    .map(|(at, (gid, of))| (device.port.0, *gid, *of, None, *at == 0))
                    .collect();
                if theirs.iter().copied().collect::<BTreeSet<_>>() == mine && theirs.len() == mine.len() {
                    tables.push((device, entries));
                } else {
                    differs = Some((device, Some(theirs), mine));
                }
            }
            let Some((device, theirs, mine)) = differs else {
                for (device, entries) in tables {
                    self.compare_indices(what, &links, &device, &entries);
                }
                return;
            };
            if late {
                let theirs =
                    theirs.unwrap_or_else(|| panic!("after `{what}` {} does not settle", device.name));
                let why = explain(what, &device, &links, &theirs, &mine);
                let why = why.filter(|_| !recreated.contains(&device.name)).unwrap_or_else(|| {
                    panic!(
                        "after `{what}` the kernel's table of {} is\n{theirs:?}\nand ours\n{mine:?}",
                        device.name
                    )
                });
                *self.found.kernel_differs.entry(why).or_default() += 1;
                // After recreating the device, both tables must be equal.
                recreated.push(device.name);
                device.delete();
                deadline = Instant::now() + Duration::from_secs(5);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Checks that an entry has the kernel's index.
    ///
    /// If several entries are added at once, the kernel uses the order of its own lists. When a MAC address
    /// or an active slave changes, the kernel deletes all entries of the interface and adds them again; ours
    /// stay.
    fn compare_indices(&mut self, what: &str, links: &Links, device: &Device, kernel: &Entries) {
        let mut entries = self.manager.table().entries();
        entries.retain(|entry| entry.port == device.port);
        self.found.most = self.found.most.max(entries.len());
        let now: BTreeSet<Row> = entries.iter().map(row).collect();
        let before = self.before.insert(device.port.0, now.clone()).unwrap_or_default();
        let mine: Entries = entries
            .iter()
            .map(|entry| (entry.index, (entry.gid(), entry.attributes.key.ifindex.unwrap().get())))
            .collect();
        if mine == *kernel {
            self.found.same_indices += usize::from(now != before);
            return;
        }
        let came = now.difference(&before).filter(|row| !row.4).count();
        let one_by_one = ["addr ", "link add ", " up", " down"].iter().any(|part| what.contains(part));
        let of_bond = device.netdev == "bond0" || links.bond_of(device.netdev).is_some();
        assert!(
            came > 1 || !one_by_one || of_bond,
            "after `{what}` {}: {mine:?}\nkernel {kernel:?}",
            device.name
        );
        self.found.other_order += 1;
        self.reorder(device, kernel);
    }

    /// Gives our entries of a device the kernel's indices, so that the next steps can be compared.
    fn reorder(&mut self, device: &Device, kernel: &Entries) {
        let old = self.manager.table().entries();
        let table = empty(&self.devices);
        for port in self.devices.iter().map(|device| device.port) {
            let mut places: BTreeMap<u16, Attributes> = BTreeMap::new();
            for entry in old.iter().filter(|entry| entry.port == port) {
                let key = entry.attributes.key;
                let same = |(_, at): &(&u16, &(Gid, u32))| **at == (key.gid, key.ifindex.unwrap().get());
                if entry.default {
                    table.add_default(port, entry.attributes).unwrap();
                } else if port == device.port {
                    let (index, _) = kernel.iter().filter(|(index, _)| **index > 0).find(same).unwrap();
                    places.insert(*index, entry.attributes);
                } else {
                    places.insert(entry.index, entry.attributes);
                }
            }
            let mut fillers = Vec::new();
            for index in 1..=places.keys().last().copied().unwrap_or(0) {
                let gid = Gid::new(7, Guid(index.into()));
                let filler = Key { gid, gid_type: GidType::RoceV2, ifindex: None };
                let attributes = places.get(&index).copied().unwrap_or_else(|| {
                    fillers.push(filler);
                    Attributes { key: filler, vlan: None }
                });
                table.add(port, attributes).unwrap();
            }
            for filler in fillers {
                table.delete(port, &filler).unwrap();
            }
        }
        let rules = std::mem::take(self.manager.rules());
        self.manager = Manager::new(Arc::new(table), rules);
    }
}

pub(crate) fn empty(devices: &[Device]) -> DeviceTable {
    let kind = PortKind::Roce(RoceTypes::V2);
    let setups: Vec<_> =
        devices.iter().map(|device| PortSetup { number: device.port, len: SLOTS, kind }).collect();
    DeviceTable::new(&setups, NoProvider, 1).unwrap()
}

fn row(entry: &Entry) -> Row {
    let key = entry.attributes.key;
    (entry.port.0, key.gid, key.ifindex.unwrap().get(), entry.attributes.vlan.map(VlanId::get), entry.default)
}

/// Returns the kernel's entries, or `None` while they change.
///
/// Excludes an entry that only the kernel has: it stores the bond's GID in the reserved slot of slaves that
/// are not active. These then have a GID that they do not use.
fn entries(device: &Device, links: &Links, slots: u16) -> Option<Entries> {
    let bond = links.bond_of(device.netdev).filter(|bond| {
        let active = bond["linkinfo"]["info_data"]["active_slave"].as_str();
        active.is_some_and(|active| active != device.netdev)
    });
    let mut entries = Entries::new();
    for (at, (gid, netdev)) in device.table(slots)? {
        if at > 0 || bond.is_none_or(|bond| bond["ifname"] != netdev.as_str()) {
            entries.insert(at, (gid, links.index(&netdev)?));
        }
    }
    Some(entries)
}
