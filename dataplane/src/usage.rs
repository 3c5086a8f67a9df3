//! Usage tracking: the objects that workers have used recently. The cost depends only on the number of used
//! objects.
//!
//! ```text
//!   worker                                  control lcore
//!     mark(number): one bit, set if it        Usage: the owner of each number
//!     is the first since the last take ──>    take(worker): the names of the marked numbers
//! ```
//!
//! Objects are destination hosts (including routers) and connections with received messages. They have
//! bounded numbers, which workers mark. Marking a marked number costs one load. Taking the marks costs time
//! proportional to their number: summary bits show which words have marks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One worker's access marks for the numbers from 0 to a fixed limit. Clones share them.
#[derive(Clone, Debug)]
pub struct Marks {
    words: Arc<[AtomicU64]>,
    /// Bit `n` is set if word `n` may contain a mark.
    summary: Arc<[AtomicU64]>,
}

fn words(bits: usize) -> Arc<[AtomicU64]> {
    (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

fn each_bit(mut word: u64, mut each: impl FnMut(usize)) {
    while word != 0 {
        each(word.trailing_zeros() as usize);
        word &= word - 1;
    }
}

impl Marks {
    /// Creates marks for `len` numbers, none set.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let (words, summary) = (words(len), words(len.div_ceil(64)));
        Self { words, summary }
    }

    /// Marks a number. Returns true the first time since the marks were taken. Numbers beyond the limit are
    /// ignored.
    #[inline]
    pub fn mark(&self, index: usize) -> bool {
        let Some(word) = self.words.get(index / 64) else { return false };
        // Read first: marking a marked number then costs no write.
        word.load(Ordering::Relaxed) >> (index % 64) & 1 == 0 && self.set(index)
    }

    #[cold]
    fn set(&self, index: usize) -> bool {
        let (at, bit) = (index / 64, 1 << (index % 64));
        let Some(word) = self.words.get(at) else { return false };
        // `mark` sets the word before its summary, and `take` clears them in reverse order. A mark is thus
        // found in this or the next `take`.
        let before = word.fetch_or(bit, Ordering::AcqRel);
        if before == 0
            && let Some(summary) = self.summary.get(at / 64)
        {
            summary.fetch_or(1 << (at % 64), Ordering::AcqRel);
        }
        before & bit == 0
    }

    /// Clears one mark.
    fn forget(&self, index: usize) {
        if let Some(word) = self.words.get(index / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::AcqRel);
        }
    }

    /// Takes all marks in numerical order.
    pub fn take(&self, mut each: impl FnMut(usize)) {
        for (group, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            each_bit(summary.swap(0, Ordering::AcqRel), |n| {
                let at = group * 64 + n;
                let word = self.words.get(at).map_or(0, |w| w.swap(0, Ordering::AcqRel));
                each_bit(word, |bit| each(at * 64 + bit));
            });
        }
    }
}

/// The control lcore's side: objects by number, and the marks of all workers.
///
/// Numbers are chosen by [`Usage::add`], or by the caller of [`Usage::set`], but not by both.
///
/// A worker marks numbers of an older table until it has the newest one. There are therefore twice as many
/// numbers as objects, and the number that has been free longest is reused first. By then the limit's number
/// of objects has been added and removed, and the worker has a newer table. Its marks thus never count for
/// the next owner of a number.
#[derive(Debug)]
pub struct Usage<T> {
    most: usize,
    names: Vec<Option<T>>,
    /// Free numbers, longest free first.
    free: VecDeque<u32>,
    marks: Arc<[Marks]>,
}

impl<T: Copy> Usage<T> {
    /// Creates the tracker for at most `most` objects and `workers` workers.
    #[must_use]
    pub fn new(most: usize, workers: u8) -> Self {
        let marks = (0..workers).map(|_| Marks::new(2 * most)).collect();
        Self { most, names: Vec::new(), free: VecDeque::new(), marks }
    }

    /// Returns the maximum number of objects.
    #[must_use]
    pub const fn most(&self) -> usize {
        self.most
    }

    /// Returns each worker's marks.
    #[must_use]
    pub const fn marks(&self) -> &Arc<[Marks]> {
        &self.marks
    }

    /// Assigns a number to an object until it is removed. Returns `None` at the limit.
    pub fn add(&mut self, name: T) -> Option<u32> {
        let given = self.names.len();
        if given - self.free.len() >= self.most {
            return None;
        }
        let number =
            if given < 2 * self.most { u32::try_from(given).ok()? } else { self.free.pop_front()? };
        self.give(number, name);
        Some(number)
    }

    /// Assigns this number to an object and clears its marks. Returns false if the number is beyond the
    /// limit.
    pub fn set(&mut self, number: u32, name: T) -> bool {
        let is_one = (number as usize) < self.most;
        if is_one {
            self.give(number, name);
        }
        is_one
    }

    fn give(&mut self, number: u32, name: T) {
        let at = number as usize;
        self.marks.iter().for_each(|marks| marks.forget(at));
        if at >= self.names.len() {
            self.names.resize(at + 1, None);
        }
        if let Some(place) = self.names.get_mut(at) {
            *place = Some(name);
        }
    }

    /// Removes the object with this number.
    pub fn remove(&mut self, number: u32) {
        if self.clear(number) {
            self.free.push_back(number);
        }
    }

    /// Removes the object with a number that the caller chose.
    pub fn clear(&mut self, number: u32) -> bool {
        self.names.get_mut(number as usize).is_some_and(|name| name.take().is_some())
    }

    /// Returns the object with this number.
    #[must_use]
    pub fn at(&self, number: u32) -> Option<T> {
        self.names.get(number as usize).copied().flatten()
    }

    /// Takes all marks of a worker. Returns the objects it has used since the last call, in numerical order.
    #[must_use]
    pub fn take(&self, worker: u8) -> Vec<T> {
        let mut used = Vec::new();
        if let Some(marks) = self.marks.get(usize::from(worker)) {
            marks.take(|at| used.extend(self.names.get(at).copied().flatten()));
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn taken(marks: &Marks) -> Vec<usize> {
        let mut all = Vec::new();
        marks.take(|n| all.push(n));
        all
    }

    #[test]
    fn marks_are_taken_once_and_in_order() {
        let marks = Marks::new(70_001);
        let some = [0, 63, 64, 4095, 4096, 70_000];
        assert!(some.iter().rev().all(|&n| marks.mark(n)));
        assert!(!marks.mark(64), "marked already");
        assert!(!marks.mark(1 << 20), "beyond all");
        assert_eq!(taken(&marks), some);
        assert!(taken(&marks).is_empty());
        assert!(marks.mark(64));
        assert_eq!(taken(&marks), [64]);
    }

    #[test]
    fn no_mark_is_lost_between_two_threads() {
        let marks = Marks::new(10_000);
        let mut seen = BTreeSet::new();
        std::thread::scope(|s| {
            let marking = s.spawn(|| (0..10_000).rev().filter(|&n| marks.mark(n)).count());
            while !marking.is_finished() {
                marks.take(|n| assert!(seen.insert(n), "{n} twice"));
            }
            assert_eq!(marking.join().ok(), Some(10_000));
        });
        marks.take(|n| assert!(seen.insert(n), "{n} twice"));
        assert_eq!(seen.len(), 10_000);
    }

    #[test]
    fn a_reused_number_has_no_marks() {
        let mut usage = Usage::new(2, 1);
        let marks = usage.marks()[0].clone();
        let (one, two) = (usage.add('a').unwrap(), usage.add('b').unwrap());
        assert_eq!(usage.add('c'), None, "the limit is two");
        assert!(marks.mark(one as usize) && marks.mark(two as usize));
        usage.remove(one);
        usage.remove(one);
        let three = usage.add('c').unwrap();
        assert_eq!(usage.add('d'), None, "a is removed once");
        assert!(!marks.mark(one as usize), "by an older table");
        assert!(marks.mark(three as usize), "its first use counts");
        assert_eq!(usage.take(0), ['b', 'c']);
        assert!(usage.take(0).is_empty() && usage.take(7).is_empty());
        // Later a number is reused, and marks of its former owner do not count.
        marks.mark(one as usize);
        usage.remove(two);
        let four = usage.add('d').unwrap();
        usage.remove(three);
        assert_eq!((four, usage.add('e')), (3, Some(one)));
        assert!(marks.mark(one as usize));
        assert_eq!(usage.take(0), ['e']);
        // Numbers chosen by the caller.
        let mut slots = Usage::new(8, 1);
        assert!(slots.set(5, 'x') && !slots.set(8, 'y'));
        slots.marks()[0].mark(5);
        assert!(slots.clear(5) && !slots.clear(5));
        assert!(slots.take(0).is_empty(), "it is not assigned");
    }

    #[test]
    fn marks_by_an_older_table_do_not_count_for_others() {
        const MOST: usize = 64;
        let mut usage = Usage::new(MOST, 1);
        let marks = usage.marks()[0].clone();
        let mut there: VecDeque<_> = (0..MOST).map(|name| usage.add(name).unwrap()).collect();
        for name in MOST..100 * MOST {
            // The table is full: each object replaces another one, which a worker still uses.
            let old = there.pop_front().unwrap();
            usage.remove(old);
            let new = usage.add(name).unwrap();
            marks.mark(old as usize);
            assert!(marks.mark(new as usize), "its first use");
            assert_eq!(usage.take(0), [name]);
            there.push_back(new);
        }
    }

    proptest! {
        #[test]
        fn each_use_is_reported_once(steps in prop::collection::vec((0u8..4, 0u8..12, 0u8..2), 0..200)) {
            let mut usage = Usage::new(8, 2);
            let (mut numbers, mut used) = (BTreeMap::new(), [BTreeSet::new(), BTreeSet::new()]);
            for (what, name, worker) in steps {
                let at = usize::from(worker);
                match (what, numbers.get(&name).copied()) {
                    (0, None) => match usage.add(name) {
                        Some(number) => prop_assert_eq!(numbers.insert(name, number), None),
                        None => prop_assert_eq!(numbers.len(), 8),
                    },
                    (1, Some(number)) => {
                        usage.remove(number);
                        numbers.remove(&name);
                        used.iter_mut().for_each(|used| { used.remove(&name); });
                    }
                    (2, Some(number)) => {
                        let first = usage.marks()[at].mark(number as usize);
                        prop_assert_eq!(first, used[at].insert(name));
                    }
                    (3, _) => {
                        let taken: BTreeSet<u8> = usage.take(worker).into_iter().collect();
                        prop_assert_eq!(taken, std::mem::take(&mut used[at]));
                    }
                    _ => {}
                }
                prop_assert!(numbers.iter().all(|(name, number)| usage.at(*number) == Some(*name)));
            }
        }
    }
}
