//! The reader side of a published table: no locks, no system calls, any number of threads or processes.

use std::fmt;

use ib_wire::PortNumber;

use crate::entry::{Entry, Slot};
use crate::hash::HashKey;
use crate::layout::{self, Geometry, LayoutError, Record, Words};
use crate::publication::Maintainer;
use crate::query::{Query, rank};
use crate::sync::{Ordering, fence, spin_loop};

/// Maximum number of retries of a lookup, in case the table is published twice during each attempt.
const TRIES: u32 = if cfg!(loom) { 2 } else { 10_000 };

/// The table was published repeatedly while it was read, or its memory is corrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table changes faster than it can be read")]
pub struct Unsettled;

/// Reads a published table.
#[derive(Clone)]
pub struct Reader<M> {
    memory: M,
    geometry: Geometry,
    key: HashKey,
}

impl<M> fmt::Debug for Reader<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

/// Memory of one publication. It is not certain yet that all words read belong to it.
#[derive(Clone, Copy)]
struct Buffer<'a, M> {
    memory: &'a M,
    first: usize,
}

impl<M: Words> Buffer<'_, M> {
    #[inline]
    fn record(&self, at: usize) -> Option<Record> {
        self.memory.load_quad(self.first.wrapping_add(at)).map(Record::of_words)
    }

    fn slot(&self, slot: usize) -> Record {
        self.record(slot).unwrap_or_default()
    }
}

impl<M: Words> Reader<M> {
    /// Attaches a reader to published memory, which may be mapped read-only.
    pub fn attach(memory: M) -> Result<Self, LayoutError> {
        let geometry = Geometry::read(&memory)?;
        let key = HashKey::new(memory.load(layout::W_SEED));
        Ok(Self { memory, geometry, key })
    }

    /// Returns the best entry for a query: see [`Query`].
    #[inline]
    pub fn find(&self, query: &Query) -> Result<Option<Entry>, Unsettled> {
        let home = self.key.home(query.halves(), self.geometry.homes());
        let published = self.memory.load(layout::W_PUBLISHED);
        fence(Ordering::Acquire);
        let buffer = self.buffer(published);
        for row in [home, home.wrapping_add(1)] {
            let Some(record) = buffer.record(self.geometry.row_record(row)) else { break };
            if query.names(&record) {
                // The row contains the best entry, so the search ends if it matches.
                if query.admits(&record) && self.is_settled(published) {
                    return Ok(record.valid_entry());
                }
                break;
            }
            if record.is_empty() {
                if self.is_settled(published) {
                    return Ok(None);
                }
                break;
            }
        }
        self.find_further(query, home)
    }

    /// Continues [`Reader::find`] in later rows and chains, or after a publication during the lookup.
    #[inline(never)]
    fn find_further(&self, query: &Query, home: usize) -> Result<Option<Entry>, Unsettled> {
        self.read(|buffer| {
            // The data may be torn, and torn rows may have no end.
            let row = (home..self.geometry.rows())
                .map(|row| buffer.record(self.geometry.row_record(row)).unwrap_or_default())
                .find(|record| query.names(record) || record.is_empty())
                .unwrap_or_default();
            if query.admits(&row) { row } else { self.chained(&buffer, row.next(), query) }
        })
        .map(|record| record.entry())
    }

    /// Returns the best record of a chain for a query.
    fn chained(&self, buffer: &Buffer<'_, M>, first: u32, query: &Query) -> Record {
        let mut next = first;
        let chain = std::iter::from_fn(|| {
            let slot = next.checked_sub(1)? as usize;
            let record = (slot < self.geometry.slots()).then(|| buffer.slot(slot))?;
            next = record.next();
            Some(record)
        });
        // A torn chain may be circular, or lead to other GIDs.
        chain
            .take(self.geometry.slots())
            .filter(|record| query.names(record) && query.admits(record))
            .min_by_key(|record| record.entry().as_ref().map(rank))
            .unwrap_or_default()
    }

    /// Returns the contents of a slot, or `None` if the port or the index does not exist.
    pub fn slot(&self, port: PortNumber, index: u16) -> Result<Option<Slot>, Unsettled> {
        let Some(slot) = self.geometry.slot(port, index) else { return Ok(None) };
        self.read(|buffer| {
            let record = buffer.slot(slot);
            Some(match record.entry() {
                Some(entry) => Slot::Valid(entry),
                None if record.is_invalid() => Slot::Invalid,
                None => Slot::Empty,
            })
        })
    }

    /// True if an entry is unchanged: same index, GID and attributes.
    pub fn has(&self, entry: &Entry) -> Result<bool, Unsettled> {
        Ok(self.slot(entry.port, entry.index)? == Some(Slot::Valid(*entry)))
    }

    /// Stores all valid entries of all ports in `into`, as a consistent snapshot. Returns the number of its
    /// publication.
    pub fn entries(&self, into: &mut Vec<Entry>) -> Result<u64, Unsettled> {
        into.clear();
        into.reserve(self.geometry.slots());
        self.read_numbered(|buffer, number| {
            into.clear();
            into.extend((0..self.geometry.slots()).filter_map(|slot| buffer.slot(slot).entry()));
            number
        })
    }

    /// Returns the ports and the lengths of their tables.
    pub fn ports(&self) -> impl Iterator<Item = (PortNumber, u16)> + '_ {
        self.geometry.ports()
    }

    /// Returns the number of the newest publication. It changes whenever the table does.
    pub fn publication(&self) -> u64 {
        self.memory.load(layout::W_PUBLISHED)
    }

    /// Returns the maintainer and the time of its last heartbeat.
    ///
    /// Data read afterwards are at least as new as the heartbeat.
    pub fn maintainer(&self) -> Maintainer {
        let maintainer = Maintainer {
            process: self.memory.load(layout::W_PROCESS) as u32,
            epoch: self.memory.load(layout::W_EPOCH),
            heartbeat: self.memory.load(layout::W_HEARTBEAT),
        };
        fence(Ordering::Acquire);
        maintainer
    }

    /// Returns the memory.
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
            let value = read(self.buffer(published), published);
            if self.is_settled(published) {
                return Ok(value);
            }
            spin_loop();
        }
        Err(Unsettled)
    }

    #[inline]
    fn buffer(&self, published: u64) -> Buffer<'_, M> {
        Buffer { memory: &self.memory, first: self.geometry.first_record(published) }
    }

    /// True if everything read so far belongs to this publication.
    #[inline]
    fn is_settled(&self, published: u64) -> bool {
        // If a word belonged to a later publication, the load after this fence sees that publication too.
        fence(Ordering::Acquire);
        self.memory.load(layout::W_BEGUN).wrapping_sub(published) < 2
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
