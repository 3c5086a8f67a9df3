//! The readers' side of a published table: no locks, no system calls, any number of threads or processes.

use std::fmt;

use ib_wire::PortNumber;

use crate::entry::{Entry, Slot};
use crate::layout::{self, Geometry, LayoutError, Record, WORDS_PER_SLOT, Words, halves};
use crate::publication::Maintainer;
use crate::query::Query;
use crate::sync::{Ordering, fence, spin_loop};

/// How often a lookup starts again because the table was published twice meanwhile.
const TRIES: u32 = if cfg!(loom) { 2 } else { 10_000 };

/// The table was published again and again while it was read; or its memory holds nonsense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table changes faster than it can be read")]
pub struct Unsettled;

/// Reads a published table.
#[derive(Clone)]
pub struct Reader<M> {
    memory: M,
    geometry: Geometry,
    seed: u64,
}

impl<M> fmt::Debug for Reader<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

/// One publication's words, while it is not yet certain that they are all of one publication.
#[derive(Clone, Copy)]
struct Buffer<'a, M> {
    memory: &'a M,
    start: usize,
}

impl<M: Words> Buffer<'_, M> {
    fn word(&self, at: usize) -> u64 {
        self.memory.load(self.start + at)
    }

    fn record(&self, slot: usize) -> Record {
        let at = slot * WORDS_PER_SLOT;
        let [high, low, facts, place] = [0, 1, 2, 3].map(|offset| self.word(at + offset));
        Record { high, low, facts, place }
    }
}

impl<M: Words> Reader<M> {
    /// A reader of published memory, which may be mapped read only.
    pub fn attach(memory: M) -> Result<Self, LayoutError> {
        let geometry = Geometry::read(&memory)?;
        let seed = memory.load(layout::W_SEED);
        Ok(Self { memory, geometry, seed })
    }

    /// The best entry for a query: see [`Query`].
    pub fn find(&self, query: &Query) -> Result<Option<Entry>, Unsettled> {
        let head = self.geometry.head(self.seed, query.gid());
        let (high, low) = halves(query.gid());
        self.read(|buffer| {
            let mut next = buffer.word(head) as u32;
            let chain = std::iter::from_fn(|| {
                let slot = next.checked_sub(1)? as usize;
                let record = (slot < self.geometry.slots()).then(|| buffer.record(slot))?;
                next = record.next();
                Some(record)
            });
            // What is read may be torn, and a torn chain a circle or lead beyond the table.
            let entries = chain
                .take(self.geometry.slots())
                .filter(|record| record.low == low && record.high == high)
                .filter_map(|record| record.entry());
            query.best(entries)
        })
    }

    /// What a slot holds; `None` if the port or the index does not exist.
    pub fn slot(&self, port: PortNumber, index: u16) -> Result<Option<Slot>, Unsettled> {
        let Some(slot) = self.geometry.slot(port, index) else { return Ok(None) };
        self.read(|buffer| {
            let record = buffer.record(slot);
            Some(match record.entry() {
                Some(entry) => Slot::Valid(entry),
                None if record.is_invalid() => Slot::Invalid,
                None => Slot::Empty,
            })
        })
    }

    /// True if an entry is there as it was found: same index, same GID, same everything.
    pub fn has(&self, entry: &Entry) -> Result<bool, Unsettled> {
        Ok(self.slot(entry.port, entry.index)? == Some(Slot::Valid(*entry)))
    }

    /// All valid entries of all ports, of one moment; their publication's number is returned. `into` is emptied first.
    pub fn entries(&self, into: &mut Vec<Entry>) -> Result<u64, Unsettled> {
        into.clear();
        into.reserve(self.geometry.slots());
        self.read_numbered(|buffer, number| {
            into.clear();
            into.extend((0..self.geometry.slots()).filter_map(|slot| buffer.record(slot).entry()));
            number
        })
    }

    /// Ports and the lengths of their tables.
    pub fn ports(&self) -> impl Iterator<Item = (PortNumber, u16)> + '_ {
        self.geometry.ports()
    }

    /// Number of the newest publication: has changed if the table has.
    pub fn publication(&self) -> u64 {
        self.memory.load(layout::W_PUBLISHED)
    }

    /// Who publishes, and when it last gave a sign of life.
    pub fn maintainer(&self) -> Maintainer {
        Maintainer {
            process: self.memory.load(layout::W_PROCESS) as u32,
            epoch: self.memory.load(layout::W_EPOCH),
            heartbeat: self.memory.load(layout::W_HEARTBEAT),
        }
    }

    /// The memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    fn read<T>(&self, read: impl Fn(Buffer<'_, M>) -> T) -> Result<T, Unsettled> {
        self.read_numbered(|buffer, _| read(buffer))
    }

    fn read_numbered<T>(&self, mut read: impl FnMut(Buffer<'_, M>, u64) -> T) -> Result<T, Unsettled> {
        for _ in 0..TRIES {
            let published = self.memory.load(layout::W_PUBLISHED);
            fence(Ordering::Acquire);
            let start = self.geometry.buffer_start(published);
            let value = read(Buffer { memory: &self.memory, start }, published);
            // If a word was of a later publication, so is what comes behind this fence.
            fence(Ordering::Acquire);
            let begun = self.memory.load(layout::W_BEGUN);
            if begun.wrapping_sub(published) < 2 {
                return Ok(value);
            }
            spin_loop();
        }
        Err(Unsettled)
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
