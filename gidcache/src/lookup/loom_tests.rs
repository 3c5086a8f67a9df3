//! Model check with loom: readers while a maintainer overwrites their buffer, with a limited number of
//! preemptions. Run: `RUSTFLAGS='--cfg loom' cargo test -p gidcache --lib --release loom`.

use std::sync::Arc;

use ib_wire::{Gid, Guid, PortNumber};

use super::*;
use crate::entry::{Attributes, GidType, Key};
use crate::publication::Publication;
use crate::sync::AtomicU64;

const PORT: PortNumber = PortNumber(1);

type Words = Arc<[AtomicU64]>;

/// Memory with an empty table that was published twice, so that only changes are written from now on.
fn words(slots: u16) -> (Words, Publication<Words>) {
    let geometry = Geometry::new(&[(PORT, slots)]).unwrap();
    let memory: Words = (0..geometry.words()).map(|_| AtomicU64::new(0)).collect();
    let mut publication = Publication::new(Arc::clone(&memory), geometry, 1, 1).unwrap();
    publication.publish();
    publication.publish();
    (memory, publication)
}

fn entry(version: u64, index: u16) -> Entry {
    let key = Key { gid: Gid::new(version, Guid(version)), gid_type: GidType::Ib, ifindex: None };
    Entry { port: PORT, index, attributes: Attributes { key, vlan: None }, default: false }
}

/// In version `n` the first slot contains a GID derived from `n`.
fn publish(publication: &mut Publication<Words>, version: u64) {
    publication.set(0, Some((&entry(version, 0), true)));
    publication.publish();
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Returns the number of the publication that was read, and the two words of the first slot's GID. All of
/// them change.
fn read(reader: &Reader<Words>) -> Option<(u64, u64, u64)> {
    reader
        .read_numbered(|buffer, number| {
            let gid = buffer.slot(0).gid();
            (number, gid.prefix(), gid.id().0)
        })
        .ok()
}

#[test]
fn loom_readers_see_only_what_was() {
    check(4, || {
        let (memory, mut publication) = words(1);
        publish(&mut publication, 3);
        publish(&mut publication, 4);
        let reader = Reader::attach(memory).unwrap();
        let writer = loom::thread::spawn(move || {
            publish(&mut publication, 5);
            publish(&mut publication, 6);
        });
        if let Some((number, high, low)) = read(&reader) {
            assert_eq!((high, low), (number, number));
        }
        writer.join().unwrap();
    });
}

/// An entry moves to another slot and is then removed. A lookup finds a complete entry, or none when there is
/// none.
#[test]
fn loom_lookups_during_changes() {
    check(3, || {
        let (memory, mut publication) = words(2);
        let wanted = entry(7, 0);
        publication.set(0, Some((&wanted, true)));
        publication.set(1, Some((&entry(9, 1), true)));
        publication.publish();
        let reader = Reader::attach(memory).unwrap();
        let writer = loom::thread::spawn(move || {
            publication.set(1, Some((&entry(7, 1), true)));
            publication.set(0, None);
            publication.publish();
            publication.set(1, None);
            publication.publish();
        });
        if let Ok(found) = reader.find(&Query::new(wanted.gid())) {
            assert!([Some(wanted), Some(entry(7, 1)), None].contains(&found), "{found:?} never was");
        }
        writer.join().unwrap();
        assert_eq!(reader.find(&Query::new(wanted.gid())), Ok(None));
    });
}

/// The entry is in every publication and is always found, although the table around it is rewritten.
#[test]
fn loom_what_is_always_there_is_found() {
    check(3, || {
        let (memory, mut publication) = words(2);
        let always = entry(7, 0);
        publication.set(0, Some((&always, true)));
        publication.publish();
        let reader = Reader::attach(memory).unwrap();
        let writer = loom::thread::spawn(move || {
            publication.set(1, Some((&entry(8, 1), true)));
            publication.publish();
            publication.set(1, None);
            publication.publish();
        });
        if let Ok(found) = reader.find(&Query::new(always.gid())) {
            assert_eq!(found, Some(always));
        }
        writer.join().unwrap();
        assert_eq!(reader.find(&Query::new(always.gid())), Ok(Some(always)));
    });
}

/// Consecutive lookups never see an older table after a newer one.
#[test]
fn loom_time_does_not_go_back() {
    check(3, || {
        let (memory, mut publication) = words(1);
        publish(&mut publication, 3);
        let reader = Reader::attach(memory).unwrap();
        let writer = loom::thread::spawn(move || {
            publish(&mut publication, 4);
            publish(&mut publication, 5);
        });
        if let (Some((first, ..)), Some((second, high, low))) = (read(&reader), read(&reader)) {
            assert!(second >= first);
            assert_eq!((high, low), (second, second));
        }
        writer.join().unwrap();
    });
}

/// A maintainer died during a publication, and a successor continues in its memory while the test reads.
#[test]
fn loom_a_dead_maintainer_and_its_successor() {
    for words_written in [0, 1, 2, 5] {
        check(3, move || {
            let (memory, mut publication) = words(1);
            publish(&mut publication, 3);
            publish(&mut publication, 4);
            drop(publication);
            let reader = Reader::attach(Arc::clone(&memory)).unwrap();
            let writer = loom::thread::spawn(move || {
                memory[layout::W_BEGUN].store(5, Ordering::Relaxed);
                fence(Ordering::Release);
                let geometry = Geometry::new(&[(PORT, 1)]).unwrap();
                for word in memory[geometry.buffer_start(5)..].iter().take(words_written) {
                    word.store(99, Ordering::Relaxed);
                }
                let mut successor = Publication::new(memory, geometry, 1, 2).unwrap();
                publish(&mut successor, 5);
                publish(&mut successor, 6);
            });
            if let Some((number, high, low)) = read(&reader) {
                assert!((4..=6).contains(&number));
                assert_eq!((high, low), (number, number));
            }
            writer.join().unwrap();
            assert_eq!(read(&reader), Some((6, 6, 6)));
        });
    }
}
