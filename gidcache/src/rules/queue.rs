//! Entries that are to be added, in the order in which that was decided: whoever is added first gets the lower index.

use std::collections::BTreeMap;

use crate::entry::Key;

/// Each key once, first come, first served.
#[derive(Default, Debug)]
pub(super) struct Queue {
    turns: BTreeMap<Key, u64>,
    keys: BTreeMap<u64, Key>,
    next: u64,
}

impl Queue {
    /// Puts a key at the end, unless it is waiting already.
    pub(super) fn push(&mut self, key: Key) {
        if !self.turns.contains_key(&key) {
            self.turns.insert(key, self.next);
            self.keys.insert(self.next, key);
            self.next += 1;
        }
    }

    /// The first.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let (_, key) = self.keys.pop_first()?;
        self.turns.remove(&key);
        Some(key)
    }

    /// Takes a key out.
    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(turn) = self.turns.remove(key) {
            self.keys.remove(&turn);
        }
    }
}
