//! Compares lookups with a search of the whole table while entries are added and removed, and tests lookups
//! in corrupt memory.

use std::sync::Arc;

use ib_wire::{Gid, Guid};
use proptest::prelude::*;

use super::*;
use crate::entry::{Attributes, GidType, IfIndex, Key, VlanId};
use crate::layout::HOMES_PER_SLOT;
use crate::publication::Publication;
use crate::query::VlanMatch;
use crate::sync::AtomicU64;

const PORTS: [(PortNumber, u16); 2] = [(PortNumber(1), 40), (PortNumber(7), 24)];

type Memory = Arc<[AtomicU64]>;

fn published(seed: u64) -> (Reader<Memory>, Publication<Memory>) {
    let geometry = Geometry::new(&PORTS).unwrap();
    let memory: Memory = (0..geometry.words()).map(|_| AtomicU64::new(0)).collect();
    let mut publication = Publication::new(Arc::clone(&memory), geometry, seed, 1).unwrap();
    publication.publish();
    (Reader::attach(memory).unwrap(), publication)
}

fn gid(number: u64) -> Gid {
    Gid::new(0xfe80 << 48, Guid(number))
}

/// Contents of a slot: nothing, or an entry of one of few GIDs, so that many have the same GID.
fn content() -> impl Strategy<Value = Option<(u64, GidType, u32, Option<u16>, bool)>> {
    let types = prop::sample::select(vec![GidType::Ib, GidType::RoceV1, GidType::RoceV2]);
    prop::option::weighted(
        0.7,
        (0..24_u64, types, 0..3_u32, prop::option::of(0..3_u16), prop::bool::weighted(0.9)),
    )
}

fn queries(gid: Gid) -> Vec<Query> {
    let any = Query::new(gid);
    let vlan = |id| VlanId::new(id).unwrap();
    let mut queries = vec![any, any.vlan(VlanMatch::Untagged), any.vlan(VlanMatch::Is(vlan(0)))];
    queries.extend([GidType::Ib, GidType::RoceV1, GidType::RoceV2].map(|of| any.gid_type(of)));
    queries.extend(PORTS.map(|(port, _)| any.port(port)));
    queries.push(any.ifindex(IfIndex::new(2).unwrap()).vlan(VlanMatch::Is(vlan(2))));
    // The last setting takes effect.
    queries.push(any.port(PORTS[0].0).port(PORTS[1].0).vlan(VlanMatch::Is(vlan(1))).vlan(VlanMatch::Any));
    queries
}

proptest! {
    #[test]
    fn the_index_finds_what_a_search_of_all_slots_finds(
        seed in any::<u64>(),
        changes in prop::collection::vec((0..64_usize, content()), 1..200),
    ) {
        let (reader, mut publication) = published(seed);
        let mut table: Vec<Option<Entry>> = vec![None; 64];
        for (step, (slot, content)) in changes.into_iter().enumerate() {
            let (port, index) = if slot < 40 { (PORTS[0].0, slot) } else { (PORTS[1].0, slot - 40) };
            let entry = content.map(|(number, gid_type, ifindex, vlan, valid)| {
                let key = Key { gid: gid(number), gid_type, ifindex: IfIndex::new(ifindex) };
                let vlan = vlan.and_then(VlanId::new);
                (Entry { port, index: index as u16, attributes: Attributes { key, vlan }, default: index == 0 }, valid)
            });
            publication.set(slot, entry.as_ref().map(|(entry, valid)| (entry, *valid)));
            publication.publish();
            table[slot] = entry.filter(|(_, valid)| *valid).map(|(entry, _)| entry);
            if step % 8 != 0 {
                continue;
            }
            for query in (0..25).flat_map(|number| queries(gid(number))) {
                let wanted = query.best(table.iter().flatten().copied());
                prop_assert_eq!(reader.find(&query).unwrap(), wanted, "{:?}", query);
            }
        }
    }

    /// Another process's memory may contain anything. A lookup returns some result and terminates.
    #[test]
    fn nonsense_is_read_without_harm(noise in prop::collection::vec(any::<u64>(), 64), small in any::<bool>()) {
        let (reader, mut publication) = published(1);
        publication.publish();
        for (at, word) in reader.memory().iter().enumerate().skip(48) {
            let value = noise[at % 64].rotate_left(at as u32);
            word.store(if small { value & 0x2_0000_02ff } else { value }, Ordering::Relaxed);
        }
        for number in 0..8 {
            for query in queries(gid(number)) {
                let _ = reader.find(&query);
            }
        }
        let _ = reader.find(&Query::new(Gid::ZERO));
        let _ = reader.entries(&mut Vec::new());
    }
}

/// GIDs with the same home row, as an attacker with the key would choose them: lookups are slower but
/// correct.
#[test]
fn gids_of_one_row_are_all_found_as_they_come_and_go() {
    let seed = 5;
    let (reader, mut publication) = published(seed);
    let homes = 64 * HOMES_PER_SLOT;
    let key = HashKey::new(seed);
    // The last home row, which needs room after it.
    let of_last = |number: &u64| key.home(Query::new(gid(*number)).halves(), homes) == homes - 1;
    let numbers: Vec<u64> = (0..).filter(of_last).take(40).collect();
    let entry = |slot: usize| {
        let key = Key { gid: gid(numbers[slot]), gid_type: GidType::Ib, ifindex: None };
        Entry {
            port: PORTS[0].0,
            index: slot as u16,
            attributes: Attributes { key, vlan: None },
            default: false,
        }
    };
    let find = |slot: usize| reader.find(&Query::new(gid(numbers[slot]))).unwrap();
    for slot in 0..40 {
        publication.set(slot, Some((&entry(slot), true)));
        publication.publish();
    }
    for gone in 0..40 {
        assert!((gone..40).all(|slot| find(slot) == Some(entry(slot))));
        publication.set(gone, None);
        publication.publish();
        assert_eq!(find(gone), None);
    }
}
