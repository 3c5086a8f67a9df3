//! Memory of a published GID table with overwritten words. Readers terminate, and a maintainer that takes it
//! over has valid, working tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gidcache::table::{Memory, words_needed};
use gidcache::{
    Attributes, DeviceTable, Entry, GidType, Key, NoProvider, PortKind, PortSetup, Query, Reader, RoceTypes,
    gid_of_address,
};
use ib_wire::{Gid, PortNumber};

const ROCE: PortNumber = PortNumber(1);
const IB: PortNumber = PortNumber(2);
const SETUP: [PortSetup; 2] = [
    PortSetup { number: ROCE, len: 6, kind: PortKind::Roce(RoceTypes::Both) },
    PortSetup { number: IB, len: 3, kind: PortKind::InfiniBand },
];
/// The index of a word and its new value.
const PATCH: usize = 10;
/// Maximum of overwritten words.
const PATCHES: usize = 64;

fn attributes(last: u8) -> Attributes {
    let gid = gid_of_address([10, 0, 0, last].into());
    Attributes { key: Key { gid, gid_type: GidType::RoceV2, ifindex: None }, vlan: None }
}

/// The table of a maintainer that died.
fn left() -> Memory {
    let words = words_needed(&SETUP).expect("nine slots");
    let memory: Memory = (0..words).map(|_| AtomicU64::new(0)).collect();
    let table = DeviceTable::publish_in(Arc::clone(&memory), &SETUP, NoProvider, 1, 1).expect("fresh memory");
    table.add_default(ROCE, attributes(9)).expect("an own GID");
    for last in 1..=3 {
        table.add(ROCE, attributes(last)).expect("room for three");
    }
    table.set_infiniband(IB, &[attributes(7).key.gid]).expect("room for one");
    memory
}

fn could_be(entry: &Entry) -> bool {
    let types = [GidType::RoceV1, GidType::RoceV2];
    let own = types.iter().position(|&gid_type| gid_type == entry.gid_type());
    let fits = match entry.port {
        ROCE if entry.default => own == Some(usize::from(entry.index)),
        ROCE => own.is_some() && (2..6).contains(&entry.index),
        IB => entry.gid_type() == GidType::Ib && entry.index < 3,
        _ => false,
    };
    fits && entry.gid() != Gid::ZERO && !entry.gid().is_multicast()
}

/// One input.
pub fn run(bytes: &[u8]) {
    let memory = left();
    for patch in bytes.chunks_exact(PATCH).take(PATCHES) {
        let Some((at, value)) = patch.split_first_chunk::<2>() else { continue };
        let at = usize::from(u16::from_le_bytes(*at)) % memory.len();
        let value = value.try_into().map_or(0, u64::from_le_bytes);
        memory[at].store(value, Ordering::Relaxed);
    }
    if let Ok(reader) = Reader::attach(Arc::clone(&memory)) {
        let mut entries = Vec::new();
        let settled = reader.entries(&mut entries).is_ok();
        let _ = (reader.maintainer(), reader.slot(ROCE, 2));
        // A lookup retries an unstable table ten thousand times; one retry is enough here.
        for last in 0..if settled { 10 } else { 1 } {
            let gid = attributes(last).key.gid;
            if let Ok(Some(found)) = reader.find(&Query::new(gid)) {
                assert_eq!(found.gid(), gid);
            }
        }
    }
    let Ok(table) = DeviceTable::publish_in(memory, &SETUP, NoProvider, 1, 2) else { return };
    let before = table.entries();
    assert!(before.iter().all(could_be), "{before:?}");
    let mut keys: Vec<Key> =
        before.iter().filter(|entry| entry.port == ROCE).map(|entry| entry.attributes.key).collect();
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count);
    // Clear and refill the tables.
    for entry in before.iter().filter(|entry| entry.port == ROCE) {
        let key = &entry.attributes.key;
        let deleted = if entry.default { table.delete_default(ROCE, key) } else { table.delete(ROCE, key) };
        assert_eq!(deleted.expect("the device accepts all entries"), Some(entry.index));
    }
    table.set_infiniband(IB, &[]).expect("nothing fits");
    assert!(table.entries().is_empty());
    for last in 1..=4 {
        table.add(ROCE, attributes(last)).expect("room for four");
    }
    let reader = table.reader().expect("its own memory");
    for last in 1..=4 {
        let found = reader.find(&Query::new(attributes(last).key.gid)).expect("nobody else writes");
        assert_eq!(found.map(|entry| entry.index), Some(u16::from(last) + 1));
    }
}
