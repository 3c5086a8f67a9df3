//! A reader and two publications that overwrite what it reads, in the orders that loom finds (four preemptions at most):
//! `RUSTFLAGS='--cfg loom' cargo test -p gidcache --lib --release loom`.

use std::sync::Arc;

use ib_wire::{Gid, Guid, PortNumber};

use super::*;
use crate::entry::{Attributes, GidType, Key};
use crate::publication::Publication;
use crate::sync::AtomicU64;

const PORT: PortNumber = PortNumber(1);

/// In version `n` the slot holds a GID of `n`.
fn publish(publication: &mut Publication<Arc<[AtomicU64]>>, version: u64) {
    for index in 0..1 {
        let key = Key { gid: Gid::new(version, Guid(version)), gid_type: GidType::Ib, ifindex: None };
        let entry = Entry { port: PORT, index, attributes: Attributes { key, vlan: None }, default: false };
        publication.set(usize::from(index), Some((&entry, true)));
    }
    publication.publish();
}

#[test]
fn loom_readers_see_only_what_was() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(|| {
        let geometry = Geometry::new(&[(PORT, 1)]).unwrap();
        let memory: Arc<[AtomicU64]> = (0..geometry.words()).map(|_| AtomicU64::new(0)).collect();
        let mut publication = Publication::new(Arc::clone(&memory), geometry, 1, 1).unwrap();
        publish(&mut publication, 1);
        publish(&mut publication, 2);
        let reader = Reader::attach(memory).unwrap();
        let writer = loom::thread::spawn(move || {
            publish(&mut publication, 3);
            publish(&mut publication, 4);
        });
        let seen = reader.read_numbered(|buffer, number| {
            // GID of the only slot, in two words that change both.
            (number, buffer.word(0), buffer.word(1))
        });
        if let Ok((number, high, low)) = seen {
            assert_eq!((high, low), (number, number));
        }
        writer.join().unwrap();
    });
}
