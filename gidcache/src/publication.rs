//! The writer's side of a published table.
//!
//! Publication `n` is made in buffer `n & 1` while readers use `n - 1` in the other one: they wait for nobody, and a writer that
//! dies in the middle leaves the last whole table. Only words that changed since publication `n - 2` are written, so that
//! a change costs the same in a small and in a large table.

use std::fmt;
use std::time::Duration;

use ib_wire::Gid;

use crate::entry::Entry;
use crate::hash::HashKey;
use crate::layout::{self, Geometry, LayoutError, RECORD, Record, halves};
use crate::query::rank;
use crate::sync::{AtomicU64, Ordering, fence};

/// Who publishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maintainer {
    /// Its process.
    pub process: u32,
    /// Counts the maintainers of this memory.
    pub epoch: u64,
    /// When it last gave a sign of life: nanoseconds of CLOCK_MONOTONIC; 0 if it has not yet, so that the table is its predecessor's.
    pub heartbeat: u64,
}

impl Maintainer {
    /// How old the last sign of life is; `None` if there was none, or it is of a time to come.
    #[must_use]
    pub fn silence(&self, now: u64) -> Option<Duration> {
        if self.heartbeat == 0 {
            return None;
        }
        now.checked_sub(self.heartbeat).map(Duration::from_nanos)
    }
}

/// The words and a copy of what the next publication will say.
pub(crate) struct Publication<M> {
    memory: M,
    geometry: Geometry,
    key: HashKey,
    image: Vec<u64>,
    /// Words of `image` changed since the last publication.
    dirty: Vec<u32>,
    /// Words that the last publication changed: the other buffer still lacks them.
    previous: Vec<u32>,
    /// Publications that are to write every word, for nothing is known of what the buffers hold.
    whole: u8,
    published: u64,
}

/// Where the search for a GID ends.
enum Row {
    /// In the row that has it, whose record is that of this slot.
    Of(usize, usize),
    /// In a row that is free.
    Free(usize),
    /// Nowhere, which does not happen: there are more rows than records.
    None,
}

/// A slot as a chain names it.
const fn chain_word(slot: usize) -> u32 {
    slot as u32 + 1
}

/// True if the first is the better answer.
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
    /// Takes memory over: fresh zeroes, or what an earlier maintainer of the same ports left. Readers of the latter keep its
    /// table until the first publication.
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
        // What its predecessor said of the table's age is not said by this one.
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

    /// Says what a slot holds from the next publication on.
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

    /// What the next publication says of a slot, or of a row by the number of its record.
    pub(crate) fn record(&self, record: usize) -> Record {
        Record::of_words([0, 1, 2, 3].map(|offset| self.word(record * RECORD + offset)))
    }

    /// Makes the changes visible, all at once.
    pub(crate) fn publish(&mut self) {
        if self.whole == 0 && self.dirty.is_empty() {
            return;
        }
        let words = self.memory.as_ref();
        let number = self.published.wrapping_add(1);
        store(words, layout::W_BEGUN, number);
        // Whoever reads a word of this publication then also reads its beginning.
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

    /// Sign of life.
    pub(crate) fn heartbeat(&self, now: u64) {
        // Whoever sees it also sees what was published before.
        fence(Ordering::Release);
        store(self.memory.as_ref(), layout::W_HEARTBEAT, now);
    }

    /// Puts a record in its slot, and in the row of its GID if it is the best, else in the chain behind it.
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

    /// Takes a slot's record out of the row or the chain of its GID.
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
        // It goes to the front; who was before it is before who is behind it.
        if let Some(at) = rest.iter().position(|&slot| slot == successor)
            && let Some(&before) = at.checked_sub(1).and_then(|at| rest.get(at))
        {
            self.set_next(before, self.record(successor).next());
            self.set_next(successor, old.next());
        }
        self.write_row(row, self.record(successor));
    }

    /// Slots of a chain, from one of them on.
    fn chain(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(first), |&slot| (self.record(slot).next() as usize).checked_sub(1))
            .take(self.geometry.slots())
    }

    /// The row of a GID, or where it would be.
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

    /// Empties a row, and closes the gap: whoever looked past it to a later one would now stop there.
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
