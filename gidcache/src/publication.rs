//! The writer's side of a published table.
//!
//! Publication `n` is made in buffer `n & 1` while readers use `n - 1` in the other one: they wait for nobody, and a writer that
//! dies in the middle leaves the last whole table. Only words that changed since publication `n - 2` are written, so that
//! a change costs the same in a small and in a large table.

use std::fmt;

use crate::entry::Entry;
use crate::layout::{self, Geometry, LayoutError, Record, WORDS_PER_SLOT};
use crate::sync::{AtomicU64, Ordering, fence};

/// Who publishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maintainer {
    /// Its process.
    pub process: u32,
    /// Counts the maintainers of this memory.
    pub epoch: u64,
    /// When it last gave a sign of life: nanoseconds of CLOCK_MONOTONIC.
    pub heartbeat: u64,
}

/// The words and a copy of what the next publication will say.
pub(crate) struct Publication<M> {
    memory: M,
    geometry: Geometry,
    seed: u64,
    image: Vec<u64>,
    /// Words of `image` changed since the last publication.
    dirty: Vec<u32>,
    /// Words that the last publication changed: the other buffer still lacks them.
    previous: Vec<u32>,
    /// Publications that are to write every word, for nothing is known of what the buffers hold.
    whole: u8,
    published: u64,
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
        store(words, layout::W_EPOCH, load(words, layout::W_EPOCH).wrapping_add(1));
        store(words, layout::W_PROCESS, u64::from(process));
        geometry.write(words);
        let image = vec![0; geometry.buffer_words()];
        Ok(Self {
            memory,
            geometry,
            seed,
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
        let new = entry.map_or(Record::default(), |(entry, valid)| Record::new(entry, valid));
        let linked = |record: &Record| record.is_valid();
        if linked(&old) && linked(&new) && old.gid() == new.gid() {
            self.write(slot, new.with_next(old.next()));
            return;
        }
        if linked(&old) {
            self.unlink(slot, &old);
        }
        if linked(&new) {
            let head = self.geometry.head(self.seed, new.gid());
            let next = self.word(head);
            self.write(slot, new.with_next(next as u32));
            self.write_word(head, slot as u64 + 1);
        } else {
            self.write(slot, new);
        }
    }

    /// What the next publication says of a slot.
    pub(crate) fn record(&self, slot: usize) -> Record {
        let at = slot * WORDS_PER_SLOT;
        Record {
            high: self.word(at),
            low: self.word(at + 1),
            facts: self.word(at + 2),
            place: self.word(at + 3),
        }
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
        store(self.memory.as_ref(), layout::W_HEARTBEAT, now);
    }

    fn unlink(&mut self, slot: usize, old: &Record) {
        let head = self.geometry.head(self.seed, old.gid());
        let mut at = self.word(head);
        if at == slot as u64 + 1 {
            self.write_word(head, u64::from(old.next()));
            return;
        }
        for _ in 0..self.geometry.slots() {
            let Some(before) = (at as usize).checked_sub(1) else { return };
            let record = self.record(before);
            if record.next() as usize == slot + 1 {
                self.write(before, record.with_next(old.next()));
                return;
            }
            at = u64::from(record.next());
        }
    }

    fn write(&mut self, slot: usize, record: Record) {
        let at = slot * WORDS_PER_SLOT;
        for (offset, value) in [record.high, record.low, record.facts, record.place].into_iter().enumerate() {
            self.write_word(at + offset, value);
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
