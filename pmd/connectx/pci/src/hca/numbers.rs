//! Numbers of objects that are nothing but a number here.

use std::collections::BTreeSet;

/// A range of numbers, each given out once.
#[derive(Debug)]
pub(super) struct Numbers {
    limit: u32,
    /// Below this all have been given out once.
    next: u32,
    used: BTreeSet<u32>,
    free: BTreeSet<u32>,
}

impl Numbers {
    /// `first` to below `limit`.
    pub(super) const fn new(first: u32, limit: u32) -> Self {
        Self { limit, next: first, used: BTreeSet::new(), free: BTreeSet::new() }
    }

    /// The next number, if there is one left.
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

    /// Gives a number back. False if it was not given out.
    pub(super) fn give_back(&mut self, number: u32) -> bool {
        self.used.remove(&number) && self.free.insert(number)
    }

    /// How many are given out.
    pub(super) fn len(&self) -> usize {
        self.used.len()
    }

    /// True if it is given out.
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
