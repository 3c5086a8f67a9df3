//! Lookups by one and two threads, of present and absent GIDs, in constant and in changing tables. Each
//! lookup depends on the previous result, so that the processor cannot overlap them. The cost of the empty
//! loop is shown separately.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gidcache::table::Memory;
use gidcache::{DeviceTable, GidType, NoProvider, PortKind, PortSetup, Query, Reader, RoceTypes};

use super::{PORT, attributes, median, text};
use crate::sample::{Figure, Sample};

const SIZES: [u16; 2] = [256, 4096];
const UPDATES_PER_SECOND: u32 = 10_000;
/// Lookups between two reads of the clock.
const ROUND: u32 = 1000;

/// The looked-up GIDs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Hit,
    Miss,
    /// A hit, whose number depends on the previous result.
    Chained,
    /// No lookup: only the query is built.
    Loop,
}

impl What {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Hit, "hit"), (Self::Miss, "miss"), (Self::Chained, "chained"), (Self::Loop, "loop")];
}

pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let each = Duration::from_secs_f64(seconds / 28.0);
    let mut sample = Sample::default();
    for entries in SIZES {
        let setup = PortSetup { number: PORT, len: entries + 8, kind: PortKind::Roce(RoceTypes::V2) };
        let table = DeviceTable::new(&[setup], NoProvider, 0x1234_5678).map_err(text)?;
        for number in 0..u32::from(entries) {
            table.add(PORT, attributes(number)).map_err(text)?;
        }
        for threads in [1, 2] {
            for updates in [false, true] {
                for (what, name) in What::ALL {
                    if what == What::Loop && (updates || threads > 1) {
                        continue;
                    }
                    let nanoseconds = measure(&table, u32::from(entries), threads, updates, what, each)?;
                    let part = format!(
                        "{name}-{entries}-{threads}-thread{}{}",
                        if threads == 1 { "" } else { "s" },
                        if updates { "-updates" } else { "" }
                    );
                    sample.figures.push(Figure::new(&part, "ns/lookup", nanoseconds));
                }
            }
        }
        let microseconds = whole(&table)?;
        sample.figures.push(Figure::new(&format!("whole-{entries}"), "us/table", microseconds));
    }
    Ok(sample)
}

/// Nanoseconds per lookup: the median round, which a busy machine disturbs least.
fn measure(
    table: &DeviceTable,
    entries: u32,
    threads: usize,
    updates: bool,
    what: What,
    time: Duration,
) -> Result<f64, String> {
    let stop = AtomicBool::new(false);
    let first = if what == What::Miss { 1 << 20 } else { 0 };
    thread::scope(|scope| {
        let mut readers = Vec::new();
        for _ in 0..threads {
            let reader = table.reader().map_err(text)?;
            let stop = &stop;
            readers.push(scope.spawn(move || {
                let mut lookups = 0_u32;
                let mut rounds = Vec::with_capacity(1 << 16);
                while !stop.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    lookups = match what {
                        What::Hit | What::Miss => round::<true, false>(&reader, first, entries, lookups),
                        What::Chained => round::<true, true>(&reader, first, entries, lookups),
                        What::Loop => round::<false, false>(&reader, first, entries, lookups),
                    };
                    rounds.push(start.elapsed().as_nanos() as f64 / f64::from(ROUND));
                }
                median(rounds)
            }));
        }
        let end = Instant::now() + time;
        let mut due = Instant::now();
        while Instant::now() < end {
            if !updates {
                thread::sleep(time / 10);
                continue;
            }
            // Adds or removes an entry.
            let extra = attributes(1 << 21);
            let _ = table.add(PORT, extra);
            let _ = table.delete(PORT, &extra.key);
            due += Duration::from_secs(2) / UPDATES_PER_SECOND;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        stop.store(true, Ordering::Relaxed);
        let each: Vec<f64> = readers.into_iter().filter_map(|reader| reader.join().ok()).collect();
        Ok(each.iter().sum::<f64>() / threads as f64)
    })
}

/// Runs lookups; returns the start of the next round. Each kind has its own code: a branch within the loop
/// would chain all lookups.
#[inline(never)]
fn round<const FIND: bool, const CHAINED: bool>(
    reader: &Reader<Memory>,
    first: u32,
    entries: u32,
    mut at: u32,
) -> u32 {
    for _ in 0..ROUND {
        at = at.wrapping_add(1);
        // Successive lookups use distant entries.
        let mixed = u64::from(at.wrapping_mul(0x9e37_79b1));
        let number = first + ((mixed * u64::from(entries)) >> 32) as u32;
        let query = Query::new(attributes(number).key.gid).gid_type(GidType::RoceV2).port(PORT);
        let query = black_box(&query);
        if !FIND {
            continue;
        }
        let found = reader.find(query);
        if CHAINED && let Ok(Some(entry)) = &found {
            at = at.wrapping_add(u32::from(entry.index) & 1);
        }
        black_box(&found);
    }
    at
}

fn whole(table: &DeviceTable) -> Result<f64, String> {
    let reader = table.reader().map_err(text)?;
    let mut into = Vec::new();
    let mut rounds = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        black_box(reader.entries(&mut into)).map_err(text)?;
        rounds.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    Ok(median(rounds))
}
