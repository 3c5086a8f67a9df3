//! Every interleaving of a reader with three publications, as loom sees them:
//! `RUSTFLAGS='--cfg loom' cargo test -p gidcache --lib --release loom`.

use std::sync::Arc;

use ib_wire::{Gid, Guid, PortNumber};

use super::*;
use crate::entry::{Attributes, GidType, Key};
use crate::publication::Publication;
use crate::sync::AtomicU64;

const PORT: PortNumber = PortNumber(1);

/// In version `n` all slots hold GIDs of `n`.
fn publish(publication: &mut Publication<Arc<[AtomicU64]>>, version: u64) {
    for index in 0..2 {
        let key =
            Key { gid: Gid::new(version, Guid(u64::from(index))), gid_type: GidType::Ib, ifindex: None };
        let entry = Entry { port: PORT, index, attributes: Attributes { key, vlan: None }, default: false };
        publication.set(usize::from(index), Some((&entry, true)));
    }
    publication.publish();
}

#[test]
fn loom_readers_see_only_what_was() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let geometry = Geometry::new(&[(PORT, 2)]).unwrap();
        let memory: Arc<[AtomicU64]> = (0..geometry.words()).map(|_| AtomicU64::new(0)).collect();
        let mut publication = Publication::new(Arc::clone(&memory), geometry, 1, 1).unwrap();
        publish(&mut publication, 1);
        publish(&mut publication, 2);
        let reader = Reader::attach(memory).unwrap();
        let writer = loom::thread::spawn(move || {
            publish(&mut publication, 3);
            publish(&mut publication, 4);
            publish(&mut publication, 5);
        });
        let seen = reader.read_numbered(|buffer, number| {
            (number, [0, 1].map(|slot| (buffer.record(slot).high, buffer.record(slot).low)))
        });
        if let Ok((number, halves)) = seen {
            assert_eq!(halves, [(number, 0), (number, 1)]);
        }
        writer.join().unwrap();
    });
}
