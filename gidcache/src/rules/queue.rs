//! Queue of entries to add. The first one added gets the lowest index.

use std::collections::BTreeMap;

use crate::entry::Key;

/// A FIFO queue that contains each key once.
#[derive(Default, Debug)]
pub(super) struct Queue {
    turns: BTreeMap<Key, u64>,
    keys: BTreeMap<u64, Key>,
    next: u64,
}

impl Queue {
    /// Appends a key, unless it is already in the queue.
    pub(super) fn push(&mut self, key: Key) {
        if !self.turns.contains_key(&key) {
            self.turns.insert(key, self.next);
            self.keys.insert(self.next, key);
            self.next += 1;
        }
    }

    /// Removes and returns the first key.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let (_, key) = self.keys.pop_first()?;
        self.turns.remove(&key);
        Some(key)
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(turn) = self.turns.remove(key) {
            self.keys.remove(&turn);
        }
    }
}
