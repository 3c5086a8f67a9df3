//! Marks of use: which of many things a worker has used lately, one bit each, set by the worker and taken by the control
//! lcore.
//!
//! Setting a mark that stands is one load. Taking costs what was marked: a bit of the summary says which words have marks.

use std::sync::atomic::{AtomicU64, Ordering};

/// Marks of the things 0 to a number that is fixed when they are made.
#[derive(Debug)]
pub struct Marks {
    words: Box<[AtomicU64]>,
    /// Bit `n` tells that word `n` may hold a mark.
    summary: Box<[AtomicU64]>,
}

fn words(bits: usize) -> Box<[AtomicU64]> {
    (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

fn each_bit(mut word: u64, mut each: impl FnMut(usize)) {
    while word != 0 {
        each(word.trailing_zeros() as usize);
        word &= word - 1;
    }
}

impl Marks {
    /// Marks for `len` things, none set.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let (words, summary) = (words(len), words(len.div_ceil(64)));
        Self { words, summary }
    }

    /// Marks a thing; true for the first time since the marks were taken. What lies beyond all is not marked.
    #[inline]
    pub fn mark(&self, index: usize) -> bool {
        let Some(word) = self.words.get(index / 64) else { return false };
        let bit = 1 << (index % 64);
        // Read first: a mark that stands costs no write.
        word.load(Ordering::Relaxed) & bit == 0 && self.set(index / 64, bit)
    }

    fn set(&self, at: usize, bit: u64) -> bool {
        let Some(word) = self.words.get(at) else { return false };
        // The word before its summary, and both the other way round in `take`: a mark is seen now or the next time.
        let before = word.fetch_or(bit, Ordering::AcqRel);
        if before == 0
            && let Some(summary) = self.summary.get(at / 64)
        {
            summary.fetch_or(1 << (at % 64), Ordering::AcqRel);
        }
        before & bit == 0
    }

    /// Takes all marks, in order.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

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
}
