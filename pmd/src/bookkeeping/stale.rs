//! Numbers of queue pairs that were taken out while they had sends outstanding.

use std::collections::BTreeSet;

/// Most numbers that are remembered one by one.
const MOST: usize = 4096;

/// Numbers of which completions may still lie in the completion queues. A new queue pair that gets such a number must not post before they
/// were read: they would be taken for completions of its own sends, and its buffers would be given back while the device reads them.
#[derive(Debug, Default)]
pub(crate) struct StaleNumbers {
    numbers: BTreeSet<u32>,
    /// There were too many: any number may be one.
    overflowed: bool,
}

impl StaleNumbers {
    /// A queue pair was taken out with sends outstanding.
    pub(crate) fn note(&mut self, number: u32) {
        if self.numbers.len() < MOST {
            self.numbers.insert(number);
        } else {
            self.overflowed = true;
        }
    }

    /// A new queue pair has this number: true if completions of an older one may be left. To be called once for each queue pair.
    pub(crate) fn take(&mut self, number: u32) -> bool {
        self.numbers.remove(&number) || self.overflowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_stale_until_it_is_given_again_and_none_is_forgotten() {
        let mut stale = StaleNumbers::default();
        stale.note(7);
        assert!(!stale.take(8) && stale.take(7) && !stale.take(7));
        (0..=MOST as u32).for_each(|number| stale.note(number));
        assert!(stale.take(MOST as u32) && stale.take(1 << 20));
        assert!(stale.numbers.len() <= MOST);
    }
}
