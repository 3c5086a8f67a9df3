//! Allocator for objects that consist only of a number.

use std::collections::BTreeSet;

/// A range of numbers to allocate from.
#[derive(Debug)]
pub(super) struct Numbers {
    limit: u32,
    /// All numbers below this have been allocated once.
    next: u32,
    used: BTreeSet<u32>,
    free: BTreeSet<u32>,
}

impl Numbers {
    /// Creates an allocator of `first` to below `limit`.
    pub(super) const fn new(first: u32, limit: u32) -> Self {
        Self { limit, next: first, used: BTreeSet::new(), free: BTreeSet::new() }
    }

    /// Allocates the next number, if one is free.
    pub(super) fn take(&mut self) -> Option<u32> {
        let number = match self.free.pop_first() {
            Some(number) => number,
            None if self.next < self.limit => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.used.insert(number);
        Some(number)
    }

    /// Frees a number. False if it was not allocated.
    pub(super) fn give_back(&mut self, number: u32) -> bool {
        self.used.remove(&number) && self.free.insert(number)
    }

    /// Number of allocated numbers.
    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    /// True if the number is allocated.
    pub(super) fn has(&self, number: u32) -> bool {
        self.used.contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_once_and_again_when_it_is_back() {
        let mut numbers = Numbers::new(5, 8);
        assert_eq!([(); 4].map(|()| numbers.take()), [Some(5), Some(6), Some(7), None]);
        assert!(numbers.give_back(6) && !numbers.give_back(6) && !numbers.give_back(99) && !numbers.has(6));
        assert_eq!((numbers.take(), numbers.take()), (Some(6), None));
    }
}
