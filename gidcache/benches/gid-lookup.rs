//! Nanoseconds a lookup, the median of thousands, which a busy machine disturbs least: hit and miss, 256 and 4096 entries, 1 and 2 threads, with and without a writer. One line of JSON each.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gidcache::{
    Attributes, DeviceTable, GidType, IfIndex, Key, NoProvider, PortKind, PortSetup, Query, RoceTypes,
};
use ib_wire::{Gid, Guid, PortNumber};

const PORT: PortNumber = PortNumber(1);
const ROUND: Duration = Duration::from_millis(500);

fn entry(number: u64) -> Attributes {
    let gid = Gid::new(0x2001_0db8 << 32, Guid(number + 1));
    Attributes { key: Key { gid, gid_type: GidType::RoceV2, ifindex: IfIndex::new(3) }, vlan: None }
}

fn main() {
    for entries in [256_u16, 4096] {
        let setup = PortSetup { number: PORT, len: entries + 8, kind: PortKind::Roce(RoceTypes::V2) };
        let table = match DeviceTable::new(&[setup], NoProvider, 0x1234_5678) {
            Ok(table) => table,
            Err(error) => return eprintln!("{error}"),
        };
        for number in 0..u64::from(entries) {
            if let Err(error) = table.add(PORT, entry(number)) {
                return eprintln!("{error}");
            }
        }
        for threads in [1, 2] {
            for updates_per_second in [0_u32, 10_000] {
                for hit in [true, false] {
                    let nanoseconds = measure(&table, u64::from(entries), threads, updates_per_second, hit);
                    let what = if hit { "hit" } else { "miss" };
                    println!(
                        r#"{{"benchmark":"gid-lookup","what":"{what}","entries":{entries},"threads":{threads},"updates_per_second":{updates_per_second},"ns":{nanoseconds:.1}}}"#
                    );
                }
            }
        }
        whole(&table, entries);
    }
}

fn measure(table: &DeviceTable, entries: u64, threads: usize, updates_per_second: u32, hit: bool) -> f64 {
    let stop = AtomicBool::new(false);
    let first = if hit { 0 } else { 1 << 32 };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..threads)
            .filter_map(|_| table.reader().ok())
            .map(|reader| {
                let stop = &stop;
                scope.spawn(move || {
                    let mut lookups = 0_u64;
                    let mut rounds = Vec::with_capacity(1 << 16);
                    while !stop.load(Ordering::Relaxed) {
                        let start = Instant::now();
                        for step in 0..1000 {
                            // Neighbouring lookups are of distant entries.
                            let number = first + (lookups + step).wrapping_mul(0x9e37_79b1) % entries;
                            let query =
                                Query::new(entry(number).key.gid).gid_type(GidType::RoceV2).port(PORT);
                            let _ = black_box(reader.find(black_box(&query)));
                        }
                        lookups += 1000;
                        rounds.push(start.elapsed());
                    }
                    rounds.sort_unstable();
                    rounds.get(rounds.len() / 2).map_or(0.0, |median| median.as_nanos() as f64 / 1000.0)
                })
            })
            .collect();
        let end = Instant::now() + ROUND;
        let mut due = Instant::now();
        while Instant::now() < end {
            if updates_per_second == 0 {
                thread::sleep(ROUND / 10);
                continue;
            }
            // An entry more, an entry less: four publications.
            let extra = entry(1 << 20);
            let _ = table.add(PORT, extra);
            let _ = table.delete(PORT, &extra.key);
            due += Duration::from_secs(2) / updates_per_second;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        stop.store(true, Ordering::Relaxed);
        let each: Vec<f64> = readers.into_iter().filter_map(|reader| reader.join().ok()).collect();
        each.iter().sum::<f64>() / each.len() as f64
    })
}

fn whole(table: &DeviceTable, entries: u16) {
    let Ok(reader) = table.reader() else { return };
    let mut into = Vec::new();
    let start = Instant::now();
    for _ in 0..200 {
        let _ = black_box(reader.entries(&mut into));
    }
    let microseconds = start.elapsed().as_nanos() as f64 / 200e3;
    println!(
        r#"{{"benchmark":"gid-lookup","what":"whole table","entries":{entries},"us":{microseconds:.1}}}"#
    );
}
