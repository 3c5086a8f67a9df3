//! The writer side of a published table.
//!
//! Publication `n` is written to buffer `n & 1` while readers use `n - 1` in the other buffer. Readers never
//! wait, and a writer that dies during a publication leaves the previous table intact. Only words that
//! changed since publication `n - 2` are written. A change therefore costs the same in a small and in a large
//! table.

use std::fmt;
use std::time::Duration;

use ib_wire::Gid;

use crate::entry::Entry;
use crate::hash::HashKey;
use crate::layout::{self, Geometry, LayoutError, RECORD, Record, halves};
use crate::query::rank;
use crate::sync::{AtomicU64, Ordering, fence};

/// Publisher of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maintainer {
    /// Process ID.
    pub process: u32,
    /// Sequence number among the maintainers of this memory.
    pub epoch: u64,
    /// Time of its last heartbeat in nanoseconds of CLOCK_MONOTONIC. 0 before the first one: the table is
    /// still its predecessor's.
    pub heartbeat: u64,
}

impl Maintainer {
    /// Returns the age of the last heartbeat, or `None` if there was none or it is in the future.
    #[must_use]
    pub fn silence(&self, now: u64) -> Option<Duration> {
        if self.heartbeat == 0 {
            return None;
        }
        now.checked_sub(self.heartbeat).map(Duration::from_nanos)
    }
}

/// The shared memory, and an image of the next publication.
pub(crate) struct Publication<M> {
    memory: M,
    geometry: Geometry,
    key: HashKey,
    image: Vec<u64>,
    /// Words of `image` changed since the last publication.
    dirty: Vec<u32>,
    /// Words that the last publication changed, which the other buffer still lacks.
    previous: Vec<u32>,
    /// Number of publications that must write every word, because the buffers' contents are unknown.
    whole: u8,
    published: u64,
}

/// Result of a search for a GID.
enum Row {
    /// The row of the GID, and the slot whose record it contains.
    Of(usize, usize),
    /// A free row.
    Free(usize),
    /// No row. This does not happen: there are more rows than records.
    None,
}

/// Encodes a slot for a chain.
const fn chain_word(slot: usize) -> u32 {
    slot as u32 + 1
}

/// True if the first record is the better result.
fn better(one: &Record, other: &Record) -> bool {
    match (one.entry(), other.entry()) {
        (Some(one), Some(other)) => rank(&one) < rank(&other),
        (one, other) => one.is_some() && other.is_none(),
    }
}

impl<M> fmt::Debug for Publication<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publication").field("published", &self.published).finish_non_exhaustive()
    }
}

impl<M: AsRef<[AtomicU64]>> Publication<M> {
    /// Takes over memory: zeroed, or left by an earlier maintainer of the same ports. Readers of the latter
    /// keep its table until the first publication.
    pub(crate) fn new(memory: M, geometry: Geometry, seed: u64, process: u32) -> Result<Self, LayoutError> {
        let words = memory.as_ref();
        geometry.fits(words.len())?;
        let (published, seed) = match Geometry::read(&memory) {
            Ok(old) if old == geometry => (load(words, layout::W_PUBLISHED), load(words, layout::W_SEED)),
            Ok(_) => return Err(LayoutError::OtherPorts),
            Err(LayoutError::NoTable) if load(words, layout::W_MAGIC) == 0 => {
                store(words, layout::W_SEED, seed);
                store(words, layout::W_PUBLISHED, 0);
                store(words, layout::W_BEGUN, 0);
                (0, seed)
            }
            Err(error) => return Err(error),
        };
        // The predecessor's heartbeat does not confirm the table for this maintainer.
        store(words, layout::W_HEARTBEAT, 0);
        fence(Ordering::Release);
        store(words, layout::W_EPOCH, load(words, layout::W_EPOCH).wrapping_add(1));
        store(words, layout::W_PROCESS, u64::from(process));
        geometry.write(words);
        let image = vec![0; geometry.buffer_words()];
        Ok(Self {
            memory,
            geometry,
            key: HashKey::new(seed),
            image,
            dirty: Vec::new(),
            previous: Vec::new(),
            whole: 2,
            published,
        })
    }

    pub(crate) const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) const fn memory(&self) -> &M {
        &self.memory
    }

    /// Sets the contents of a slot for the next publication.
    pub(crate) fn set(&mut self, slot: usize, entry: Option<(&Entry, bool)>) {
        if slot >= self.geometry.slots() {
            return;
        }
        let old = self.record(slot);
        if old.is_valid() {
            self.unlink(slot, &old);
        }
        let new = entry.map_or(Record::default(), |(entry, valid)| Record::new(entry, valid));
        if new.is_valid() {
            self.link(slot, new);
        } else {
            self.write(slot, new);
        }
    }

    /// Returns the next publication's record of a slot, or of a row by its record number.
    pub(crate) fn record(&self, record: usize) -> Record {
        Record::of_words([0, 1, 2, 3].map(|offset| self.word(record * RECORD + offset)))
    }

    /// Makes all changes visible at once.
    pub(crate) fn publish(&mut self) {
        if self.whole == 0 && self.dirty.is_empty() {
            return;
        }
        let words = self.memory.as_ref();
        let number = self.published.wrapping_add(1);
        store(words, layout::W_BEGUN, number);
        // A reader that sees a word of this publication then also sees that it has started.
        fence(Ordering::Release);
        let start = self.geometry.buffer_start(number);
        if self.whole > 0 {
            self.whole -= 1;
            for (at, value) in self.image.iter().enumerate() {
                store(words, start + at, *value);
            }
        } else {
            for &at in self.previous.iter().chain(&self.dirty) {
                let at = at as usize;
                if let Some(value) = self.image.get(at) {
                    store(words, start + at, *value);
                }
            }
        }
        if let Some(word) = words.get(layout::W_PUBLISHED) {
            word.store(number, Ordering::Release);
        }
        self.published = number;
        std::mem::swap(&mut self.previous, &mut self.dirty);
        self.dirty.clear();
    }

    /// Updates the heartbeat.
    pub(crate) fn heartbeat(&self, now: u64) {
        // A reader that sees it also sees everything published before.
        fence(Ordering::Release);
        store(self.memory.as_ref(), layout::W_HEARTBEAT, now);
    }

    /// Stores a record in its slot. If it is the best of its GID, also stores it in the row; otherwise adds
    /// it to the chain.
    fn link(&mut self, slot: usize, record: Record) {
        match self.row(record.gid()) {
            Row::Free(row) => {
                self.write(slot, record);
                self.write_row(row, record);
            }
            Row::Of(row, best) => {
                let first = self.record(self.geometry.row_record(row));
                if better(&record, &first) {
                    let record = record.with_next(chain_word(best));
                    self.write(slot, record);
                    self.write_row(row, record);
                } else {
                    self.write(slot, record.with_next(first.next()));
                    self.set_next(best, chain_word(slot));
                    self.write_row(row, self.record(best));
                }
            }
            Row::None => self.write(slot, record),
        }
    }

    /// Removes a slot's record from the row or the chain of its GID.
    fn unlink(&mut self, slot: usize, old: &Record) {
        let Row::Of(row, best) = self.row(old.gid()) else { return };
        if best != slot {
            let before = self.chain(best).find(|&before| self.record(before).next() == chain_word(slot));
            if let Some(before) = before {
                self.set_next(before, old.next());
                self.write_row(row, self.record(best));
            }
            return;
        }
        let rest: Vec<usize> = self.chain(best).skip(1).collect();
        let successor = rest.iter().copied().min_by_key(|&slot| self.record(slot).entry().as_ref().map(rank));
        let Some(successor) = successor else {
            self.clear_row(row);
            return;
        };
        // Move the successor to the front of the chain and link its neighbors.
        if let Some(at) = rest.iter().position(|&slot| slot == successor)
            && let Some(&before) = at.checked_sub(1).and_then(|at| rest.get(at))
        {
            self.set_next(before, self.record(successor).next());
            self.set_next(successor, old.next());
        }
        self.write_row(row, self.record(successor));
    }

    /// Iterates over the slots of a chain, starting with one of them.
    fn chain(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(first), |&slot| (self.record(slot).next() as usize).checked_sub(1))
            .take(self.geometry.slots())
    }

    /// Returns the row of a GID, or the row where it would be inserted.
    fn row(&self, gid: Gid) -> Row {
        for row in self.home(halves(gid))..self.geometry.rows() {
            let record = self.record(self.geometry.row_record(row));
            if record.is_empty() {
                return Row::Free(row);
            }
            if record.gid() == gid {
                let best = self.geometry.slot(record.port(), record.index());
                return best.map_or(Row::None, |best| Row::Of(row, best));
            }
        }
        Row::None
    }

    fn home(&self, gid: (u64, u64)) -> usize {
        self.key.home(gid, self.geometry.homes())
    }

    /// Clears a row and closes the gap, so that searches for later rows do not stop there.
    fn clear_row(&mut self, row: usize) {
        let mut gap = row;
        for row in row + 1..self.geometry.rows() {
            let record = self.record(self.geometry.row_record(row));
            if record.is_empty() {
                break;
            }
            if self.home((record.first, record.second)) <= gap {
                self.write_row(gap, record);
                gap = row;
            }
        }
        self.write_row(gap, Record::default());
    }

    fn set_next(&mut self, slot: usize, next: u32) {
        self.write(slot, self.record(slot).with_next(next));
    }

    fn write_row(&mut self, row: usize, record: Record) {
        self.write(self.geometry.row_record(row), record);
    }

    fn write(&mut self, at: usize, record: Record) {
        for (offset, value) in record.words().into_iter().enumerate() {
            self.write_word(at * RECORD + offset, value);
        }
    }

    fn word(&self, at: usize) -> u64 {
        self.image.get(at).copied().unwrap_or_default()
    }

    fn write_word(&mut self, at: usize, value: u64) {
        if let Some(word) = self.image.get_mut(at)
            && *word != value
        {
            *word = value;
            self.dirty.push(at as u32);
        }
    }
}

fn load(words: &[AtomicU64], at: usize) -> u64 {
    words.get(at).map_or(0, |word| word.load(Ordering::Relaxed))
}

fn store(words: &[AtomicU64], at: usize, value: u64) {
    if let Some(word) = words.get(at) {
        word.store(value, Ordering::Relaxed);
    }
}
