use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::*;
use crate::entry::{Slot, VlanId, gid_of_address};
use crate::manager::Manager;
use crate::query::{Query, VlanMatch};
use crate::rules::{Address, Binding, Event, Interface, Kind, Rules};

const ROCE: PortNumber = PortNumber(1);
const IB: PortNumber = PortNumber(2);

fn setup(len: u16) -> [PortSetup; 2] {
    [
        PortSetup { number: ROCE, len, kind: PortKind::Roce(RoceTypes::Both) },
        PortSetup { number: IB, len: 4, kind: PortKind::InfiniBand },
    ]
}

fn gid(text: &str) -> Gid {
    gid_of_address(text.parse().unwrap())
}

fn key(text: &str, gid_type: GidType, ifindex: u32) -> Key {
    Key { gid: gid(text), gid_type, ifindex: IfIndex::new(ifindex) }
}

fn v2(text: &str, ifindex: u32) -> Attributes {
    Attributes { key: key(text, GidType::RoceV2, ifindex), vlan: None }
}

fn table(len: u16) -> DeviceTable {
    DeviceTable::new(&setup(len), NoProvider, 7).unwrap()
}

#[test]
fn entries_take_the_first_free_slot_behind_the_reserved_ones() {
    let table = table(5);
    assert_eq!(table.add(ROCE, v2("10.0.0.1", 3)).unwrap(), Added::New(2));
    assert_eq!(table.add(ROCE, v2("10.0.0.2", 3)).unwrap(), Added::New(3));
    assert_eq!(table.add(ROCE, v2("10.0.0.1", 3)).unwrap(), Added::Existing(2));
    // The same address of another interface is a different entry.
    assert_eq!(table.add(ROCE, v2("10.0.0.1", 4)).unwrap(), Added::New(4));
    assert!(matches!(table.add(ROCE, v2("10.0.0.3", 3)), Err(TableError::Full(ROCE))));
    assert_eq!(table.delete(ROCE, &v2("10.0.0.2", 3).key).unwrap(), Some(3));
    assert_eq!(table.delete(ROCE, &v2("10.0.0.2", 3).key).unwrap(), None);
    assert_eq!(table.add(ROCE, v2("10.0.0.3", 3)).unwrap(), Added::New(3));
    // The reserved slots are still free.
    assert_eq!(table.add_default(ROCE, v2("fe80::1", 3)).unwrap(), Added::New(1));
    assert_eq!(table.entries().len(), 4);
}

#[test]
fn reserved_slots_are_for_the_own_gids() {
    let table = table(5);
    let own = v2("fe80::1", 3);
    assert_eq!(table.add_default(ROCE, own).unwrap(), Added::New(1));
    assert_eq!(table.add_default(ROCE, own).unwrap(), Added::Existing(1));
    assert_eq!(table.add(ROCE, own).unwrap(), Added::Existing(1));
    assert!(matches!(table.add_default(ROCE, v2("fe80::2", 3)), Err(TableError::Taken(ROCE))));
    assert_eq!(table.delete(ROCE, &own.key).unwrap(), None);
    assert_eq!(table.delete_default(ROCE, &own.key).unwrap(), Some(1));
    table.add(ROCE, own).unwrap();
    assert!(matches!(table.add_default(ROCE, own), Err(TableError::Taken(ROCE))));
    assert_eq!(table.delete_default(ROCE, &own.key).unwrap(), None);
}

#[test]
fn what_no_port_can_have_is_refused() {
    let table = table(5);
    let wrong = [
        (PortNumber(9), v2("10.0.0.1", 3)),
        (IB, v2("10.0.0.1", 3)),
        (ROCE, Attributes { key: key("fe80::1", GidType::Ib, 3), vlan: None }),
        (ROCE, v2("::", 3)),
        (ROCE, v2("ff02::1", 3)),
    ];
    for (port, attributes) in wrong {
        assert!(table.add(port, attributes).is_err());
        assert!(table.add_default(port, attributes).is_err());
    }
    assert!(matches!(table.set_infiniband(ROCE, &[]), Err(TableError::Type { .. })));
    assert!(matches!(table.set_infiniband(IB, &[Gid::ZERO; 5]), Err(TableError::TooMany { .. })));
    let one = |len, kind| DeviceTable::new(&[PortSetup { number: ROCE, len, kind }], NoProvider, 0);
    assert!(one(0, PortKind::InfiniBand).is_err());
    assert!(one(1, PortKind::Roce(RoceTypes::Both)).is_err());
    assert!(one(1, PortKind::Roce(RoceTypes::V2)).is_ok());
    assert!(DeviceTable::new(&[setup(4)[0], setup(4)[0]], NoProvider, 0).is_err());
    assert!(DeviceTable::new(&[], NoProvider, 0).is_err());
}

#[test]
fn infiniband_ports_are_as_they_say() {
    let table = table(5);
    table.set_infiniband(IB, &[gid("fe80::1"), Gid::ZERO, gid("fe80::3")]).unwrap();
    let reader = table.reader().unwrap();
    let found = reader.find(&Query::new(gid("fe80::3"))).unwrap().unwrap();
    assert_eq!((found.port, found.index, found.gid_type()), (IB, 2, GidType::Ib));
    assert_eq!(reader.slot(IB, 1).unwrap(), Some(Slot::Empty));
    table.set_infiniband(IB, &[gid("fe80::3")]).unwrap();
    assert_eq!(reader.find(&Query::new(gid("fe80::3"))).unwrap().unwrap().index, 0);
    assert_eq!(reader.find(&Query::new(gid("fe80::1"))).unwrap(), None);
    assert_eq!(table.entries().len(), 1);
}

#[test]
fn the_best_match_is_found() {
    let table = table(16);
    let attributes = |gid_type, ifindex, vlan: Option<u16>| Attributes {
        key: key("10.0.0.1", gid_type, ifindex),
        vlan: vlan.map(|vlan| VlanId::new(vlan).unwrap()),
    };
    let tagged = attributes(GidType::RoceV2, 5, Some(42));
    let plain = attributes(GidType::RoceV2, 3, None);
    let old = attributes(GidType::RoceV1, 3, None);
    for entry in [old, tagged, plain] {
        table.add(ROCE, entry).unwrap();
    }
    table.set_infiniband(IB, &[gid("10.0.0.1")]).unwrap();
    let reader = table.reader().unwrap();
    let find = |query: Query| reader.find(&query).unwrap().map(|entry| entry.attributes);
    let any = Query::new(gid("10.0.0.1"));
    assert_eq!(find(any), Some(plain));
    assert_eq!(find(any.gid_type(GidType::RoceV1)), Some(old));
    assert_eq!(find(any.gid_type(GidType::Ib)).unwrap().key.ifindex, None);
    assert_eq!(find(any.vlan(VlanMatch::Is(VlanId::new(42).unwrap()))), Some(tagged));
    assert_eq!(find(any.vlan(VlanMatch::Is(VlanId::new(43).unwrap()))), None);
    assert_eq!(find(any.vlan(VlanMatch::Untagged)), Some(plain));
    assert_eq!(find(any.ifindex(IfIndex::new(5).unwrap())), Some(tagged));
    assert_eq!(find(any.ifindex(IfIndex::new(5).unwrap()).vlan(VlanMatch::Untagged)), None);
    assert_eq!(find(any.port(IB)).unwrap().key.gid_type, GidType::Ib);
    assert_eq!(find(any.port(IB).gid_type(GidType::RoceV2)), None);
    assert_eq!(find(any.port(PortNumber(3))), None);
    assert_eq!(find(Query::new(gid("10.0.0.2"))), None);
    let mut all = Vec::new();
    reader.entries(&mut all).unwrap();
    assert_eq!(all, table.entries());
    assert_eq!(all.len(), 4);
    for entry in all {
        assert_eq!(reader.slot(entry.port, entry.index).unwrap(), Some(Slot::Valid(entry)));
    }
    assert_eq!(reader.slot(ROCE, 16).unwrap(), None);
    assert_eq!(reader.slot(PortNumber(3), 0).unwrap(), None);
}

/// A device that waits for permission before each result.
struct Slow {
    calls: Sender<(bool, Entry)>,
    answer: Mutex<Receiver<bool>>,
}

impl Slow {
    fn ask(&self, add: bool, entry: &Entry) -> Result<(), ProviderError> {
        self.calls.send((add, *entry)).unwrap();
        if self.answer.lock().recv().unwrap() { Ok(()) } else { Err("the device is out of order".into()) }
    }
}

impl Provider for Slow {
    fn add_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        self.ask(true, entry)
    }

    fn del_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        self.ask(false, entry)
    }
}

#[test]
fn readers_do_not_wait_for_the_device_and_failure_changes_nothing() {
    let (calls_in, calls) = channel();
    let (answer, answer_out) = channel();
    let slow = Slow { calls: calls_in, answer: Mutex::new(answer_out) };
    let table = DeviceTable::new(&setup(8), slow, 7).unwrap();
    let reader = table.reader().unwrap();
    let entry = v2("10.0.0.1", 3);
    let query = Query::new(entry.key.gid);
    let state = || (reader.slot(ROCE, 2).unwrap().unwrap(), reader.find(&query).unwrap().is_some());
    thread::scope(|scope| {
        for success in [false, true] {
            let writer = scope.spawn(|| table.add(ROCE, entry));
            assert!(calls.recv().unwrap().0);
            assert_eq!(state(), (Slot::Invalid, false));
            // A writer of another port does not wait either.
            table.set_infiniband(IB, &[gid("fe80::1")]).unwrap();
            // A second writer of this port waits. It must not use the slot that is being filled.
            let second = success.then(|| scope.spawn(|| table.add(ROCE, v2("10.0.0.2", 3))));
            answer.send(success).unwrap();
            let result = writer.join().unwrap();
            assert_eq!(result.is_ok(), success);
            if let Some(second) = second {
                assert_eq!(calls.recv().unwrap().1.index, 3);
                answer.send(true).unwrap();
                assert_eq!(second.join().unwrap().unwrap(), Added::New(3));
            } else {
                assert_eq!(state(), (Slot::Empty, false));
            }
        }
        for success in [false, true] {
            let writer = scope.spawn(|| table.delete(ROCE, &entry.key));
            assert!(!calls.recv().unwrap().0);
            assert_eq!(state(), (Slot::Invalid, false));
            answer.send(success).unwrap();
            assert_eq!(writer.join().unwrap().is_ok(), success);
            assert_eq!(state().1, !success);
        }
        assert_eq!(state(), (Slot::Empty, false));
    });
}

#[test]
fn an_interface_goes_with_all_its_entries() {
    let table = table(8);
    table.add_default(ROCE, v2("fe80::1", 3)).unwrap();
    table.add(ROCE, v2("10.0.0.1", 3)).unwrap();
    table.add(ROCE, v2("10.0.0.1", 4)).unwrap();
    assert_eq!(table.delete_interface(ROCE, IfIndex::new(3).unwrap()).unwrap(), 2);
    assert_eq!(table.entries().len(), 1);
}

/// A device that rejects one GID.
struct Picky(Gid);

impl Provider for Picky {
    fn add_gid(&self, entry: &Entry) -> Result<(), ProviderError> {
        if entry.gid() == self.0 { Err("not this one".into()) } else { Ok(()) }
    }

    fn del_gid(&self, _: &Entry) -> Result<(), ProviderError> {
        Ok(())
    }
}

fn address(text: &str) -> Event {
    let local = text.parse().unwrap();
    Event::Address(IfIndex::new(3).unwrap(), Address { local, prefix: 24, peer: local })
}

fn gone(text: &str) -> Event {
    let local = text.parse().unwrap();
    Event::AddressGone(IfIndex::new(3).unwrap(), Address { local, prefix: 24, peer: local })
}

fn managed(len: u16, provider: impl Provider + 'static) -> Manager {
    let table = DeviceTable::new(&setup(len), provider, 7).unwrap();
    let mut rules = Rules::new();
    rules.bind(ROCE, Binding::Name("eth0".into()), RoceTypes::Both);
    rules.handle_event(&Event::Interface(Interface {
        index: IfIndex::new(3).unwrap(),
        name: "eth0".into(),
        mac: Some([2, 0, 0, 0, 0, 3]),
        kind: Kind::Other,
        master: None,
        lower: None,
    }));
    Manager::new(Arc::new(table), rules)
}

#[test]
fn a_full_table_is_reported_and_filled_when_there_is_room() {
    let mut manager = managed(6, NoProvider);
    for number in 1..=3 {
        manager.rules().handle_event(&address(&format!("10.0.0.{number}")));
    }
    let applied = manager.apply();
    assert_eq!((applied.added, applied.failures.len()), (6, 2));
    assert!(applied.failures.iter().all(|(_, error)| matches!(error, TableError::Full(ROCE))));
    // Failed changes are not repeated without reason.
    assert_eq!(manager.apply().failures.len(), 0);
    manager.rules().handle_event(&gone("10.0.0.1"));
    let applied = manager.apply();
    assert_eq!((applied.deleted, applied.added, applied.failures.len()), (2, 2, 0));
    assert_eq!(manager.rules().failed(), 0);
    assert_eq!(manager.table().entries().len(), 6);
}

#[test]
fn what_the_device_refuses_does_not_keep_others_back() {
    let mut manager = managed(8, Picky(gid("10.0.0.1")));
    manager.rules().handle_event(&address("10.0.0.1"));
    manager.rules().handle_event(&address("10.0.0.2"));
    let applied = manager.apply();
    assert_eq!((applied.added, applied.failures.len()), (4, 2));
    assert_eq!(manager.retry().failures.len(), 2);
    manager.rules().handle_event(&gone("10.0.0.1"));
    let applied = manager.retry();
    assert_eq!((applied.added, applied.deleted, applied.failures.len()), (0, 0, 0));
}

#[test]
fn a_second_maintainer_goes_on_where_the_first_ended() {
    let ports = setup(8);
    let memory: Memory = (0..words_needed(&ports).unwrap()).map(|_| AtomicU64::new(0)).collect();
    let first = DeviceTable::publish_in(Arc::clone(&memory), &ports, NoProvider, 7, 100).unwrap();
    first.add(ROCE, v2("10.0.0.1", 3)).unwrap();
    first.heartbeat(5);
    let reader = Reader::attach(Arc::clone(&memory)).unwrap();
    let before = reader.maintainer();
    assert_eq!((before.process, before.epoch, before.heartbeat), (100, 1, 5));
    drop(first);
    let query = Query::new(gid("10.0.0.1"));
    assert!(reader.find(&query).unwrap().is_some());
    let second = DeviceTable::publish_in(Arc::clone(&memory), &ports, NoProvider, 8, 200).unwrap();
    // The first one's entries stay, and the second has not confirmed them.
    assert_eq!(reader.find(&query).unwrap().map(|entry| entry.index), Some(2));
    assert_eq!(reader.maintainer().silence(9), None);
    second.heartbeat(7);
    assert_eq!(reader.maintainer().silence(9), Some(std::time::Duration::from_nanos(2)));
    assert_eq!(reader.maintainer().silence(6), None, "a heartbeat in the future is ignored");
    assert_eq!(second.add(ROCE, v2("10.0.0.1", 3)).unwrap(), Added::Existing(2));
    for number in 1..6 {
        second.add(ROCE, v2(&format!("10.0.1.{number}"), 3)).unwrap();
        assert!(reader.find(&Query::new(gid(&format!("10.0.1.{number}")))).unwrap().is_some());
    }
    assert_eq!((reader.maintainer().process, reader.maintainer().epoch), (200, 2));
    let other = DeviceTable::publish_in(Arc::clone(&memory), &setup(7), NoProvider, 8, 300);
    assert!(matches!(other, Err(LayoutError::OtherPorts)));
}

#[test]
fn memory_that_holds_no_table_is_refused() {
    let words = |count: usize| -> Memory { (0..count).map(|_| AtomicU64::new(0)).collect() };
    assert!(matches!(Reader::attach(words(3)), Err(LayoutError::TooSmall { .. })));
    assert!(matches!(Reader::attach(words(100)), Err(LayoutError::NoTable)));
    let table = table(8);
    let good = table.reader().unwrap();
    // Any damaged word of the header: an error, or reading without harm.
    for at in 0..48 {
        for value in [0, 1, u64::MAX, 1 << 33, 0x01_ffff] {
            let copy: Memory = good
                .memory()
                .iter()
                .map(|word| AtomicU64::new(word.load(crate::sync::Ordering::Relaxed)))
                .collect();
            copy[at].store(value, crate::sync::Ordering::Relaxed);
            if let Ok(reader) = Reader::attach(copy) {
                let _ = reader.find(&Query::new(gid("10.0.0.1")));
                let _ = reader.entries(&mut Vec::new());
                let _ = reader.slot(ROCE, 3);
            }
        }
    }
}

/// Rules during a list, in which the kernel has an interface with these addresses.
fn rules_of(addresses: &[&str]) -> Rules {
    let mut rules = Rules::new();
    rules.bind(ROCE, Binding::Name("eth0".into()), RoceTypes::V2);
    rules.begin_scan();
    let index = IfIndex::new(3).unwrap();
    rules.handle_scanned(&Event::Interface(Interface {
        index,
        name: "eth0".into(),
        mac: Some([2, 0, 0, 0, 0, 1]),
        kind: Kind::Other,
        master: None,
        lower: None,
    }));
    for address in addresses {
        let local = address.parse().unwrap();
        rules.handle_scanned(&Event::Address(index, Address { local, prefix: 24, peer: local }));
    }
    rules
}

#[test]
fn entries_keep_their_indices_when_the_maintainer_is_another() {
    let ports = [PortSetup { number: ROCE, len: 8, kind: PortKind::Roce(RoceTypes::V2) }];
    let memory: Memory = (0..words_needed(&ports).unwrap()).map(|_| AtomicU64::new(0)).collect();
    let publish = |process| {
        Arc::new(DeviceTable::publish_in(Arc::clone(&memory), &ports, NoProvider, 7, process).unwrap())
    };
    let indices = |table: &DeviceTable| -> Vec<(u16, Gid)> {
        table.entries().iter().map(|entry| (entry.index, entry.gid())).collect()
    };
    let mut first = Manager::new(publish(1), rules_of(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]));
    first.rules().end_scan();
    assert_eq!(first.apply().added, 4);
    drop(first);
    let reader = Reader::attach(Arc::clone(&memory)).unwrap();
    // The kernel now lists them in another order, and one no longer exists.
    let mut second = Manager::new(publish(2), rules_of(&["10.0.0.9", "10.0.0.3", "10.0.0.1"]));
    assert!(reader.find(&Query::new(gid("10.0.0.2"))).unwrap().is_some(), "until the list is complete");
    second.rules().end_scan();
    let applied = second.apply();
    assert_eq!((applied.added, applied.deleted, applied.failures.len()), (1, 1, 0));
    let own = crate::link_local_gid([2, 0, 0, 0, 0, 1]);
    assert_eq!(
        indices(second.table()),
        [(0, own), (1, gid("10.0.0.1")), (2, gid("10.0.0.9")), (3, gid("10.0.0.3"))]
    );
    assert_eq!(reader.find(&Query::new(gid("10.0.0.3"))).unwrap().map(|entry| entry.index), Some(3));
}

#[test]
fn what_is_left_in_memory_is_taken_over_only_as_far_as_it_makes_sense() {
    let ports = setup(8);
    let memory: Memory = (0..words_needed(&ports).unwrap()).map(|_| AtomicU64::new(0)).collect();
    let first = DeviceTable::publish_in(Arc::clone(&memory), &ports, NoProvider, 7, 1).unwrap();
    first.add_default(ROCE, v2("fe80::1", 3)).unwrap();
    first.add(ROCE, v2("10.0.0.1", 3)).unwrap();
    first.add(ROCE, v2("10.0.0.2", 3)).unwrap();
    first.set_infiniband(IB, &[gid("fe80::7")]).unwrap();
    drop(first);
    let whole: Vec<u64> = memory.iter().map(|word| word.load(crate::sync::Ordering::Relaxed)).collect();
    // Any damaged word: the tables can be taken over, contain only valid entries for such ports, each once,
    // and work.
    for at in 0..whole.len() {
        for value in
            [0, u64::MAX, whole[at] ^ 1, whole[at] ^ 1 << 16, whole[at] ^ 1 << 33, whole[at] ^ 1 << 41]
        {
            let copy: Memory = whole.iter().map(|word| AtomicU64::new(*word)).collect();
            copy[at].store(value, crate::sync::Ordering::Relaxed);
            let Ok(table) = DeviceTable::publish_in(copy, &ports, NoProvider, 7, 2) else { continue };
            let entries = table.entries();
            for entry in &entries {
                let key = entry.attributes.key;
                let good = match entry.port {
                    ROCE if entry.default => key.gid_type as u16 == entry.index + 1,
                    ROCE => key.gid_type != GidType::Ib && entry.index >= 2 && entry.index < 8,
                    IB => key.gid_type == GidType::Ib && entry.index < 4,
                    _ => false,
                };
                assert!(good && key.gid != Gid::ZERO, "word {at} {value:#x}: {entry:?}");
            }
            let new = v2("10.9.9.9", 9);
            table.add(ROCE, new).unwrap();
            assert_eq!(table.entries().len(), entries.len() + 1, "word {at} {value:#x}");
            let found = table.reader().unwrap().find(&Query::new(new.key.gid)).unwrap();
            assert!(found.is_some(), "word {at} {value:#x}");
        }
    }
}
