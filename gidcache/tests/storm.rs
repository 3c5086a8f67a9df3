//! Readers during a storm of changes only see tables that existed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gidcache::{DeviceTable, NoProvider, PortKind, PortSetup, Query};
use ib_wire::{Gid, Guid, PortNumber};

const PORT: PortNumber = PortNumber(1);
const SLOTS: u16 = 24;
/// A GID that every table contains, at different indices.
const ALWAYS: Gid = Gid::new(1, Guid(1));

/// Table `n`: its GIDs and their number depend on `n`, and `ALWAYS` is one of them.
fn gids(n: u64) -> Vec<Gid> {
    let len = 2 + n % (u64::from(SLOTS) - 2);
    let at = n % len;
    (0..len).map(|index| if index == at { ALWAYS } else { Gid::new(1000 + n, Guid(index)) }).collect()
}

#[test]
fn readers_see_only_tables_that_were() {
    let setup = PortSetup { number: PORT, len: SLOTS, kind: PortKind::InfiniBand };
    let table = DeviceTable::new(&[setup], NoProvider, 3).unwrap();
    table.set_infiniband(PORT, &gids(0)).unwrap();
    let stop = AtomicBool::new(false);
    let rounds = thread::scope(|scope| {
        let readers: Vec<_> = (0..6)
            .map(|_| {
                let reader = table.reader().unwrap();
                let stop = &stop;
                scope.spawn(move || {
                    let mut entries = Vec::new();
                    let mut rounds = 0_u64;
                    let mut newest = 0;
                    while !stop.load(Ordering::Relaxed) || rounds == 0 {
                        rounds += 1;
                        let found = reader.find(&Query::new(ALWAYS)).unwrap();
                        assert_eq!(found.expect("every table has it").gid(), ALWAYS);
                        let _ = reader.slot(PORT, 3).unwrap();
                        if reader.entries(&mut entries).is_err() {
                            continue;
                        }
                        let of = entries.iter().find(|entry| entry.gid() != ALWAYS).unwrap().gid().prefix();
                        let seen: Vec<Gid> = entries.iter().map(|entry| entry.gid()).collect();
                        assert_eq!(seen, gids(of - 1000));
                        assert!(of >= newest, "time does not go back");
                        newest = of;
                    }
                    rounds
                })
            })
            .collect();
        for n in 1..5_000 {
            table.set_infiniband(PORT, &gids(n)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(rounds.iter().all(|rounds| *rounds > 0));
}
