//! The path cache: bounded, the oldest entry goes first.

use std::collections::{BTreeMap, HashMap};

use ib_wire::Gid;

use crate::Path;
use crate::agent::RequestId;

#[derive(Debug)]
pub(super) struct PathCache {
    max: usize,
    known: HashMap<Gid, (u64, Path)>,
    /// The same by age.
    ages: BTreeMap<u64, Gid>,
    stamp: u64,
    /// Questions that have not been answered yet.
    pub(super) pending: HashMap<Gid, RequestId>,
}

impl PathCache {
    pub(super) fn new(max: usize) -> Self {
        Self { max, known: HashMap::new(), ages: BTreeMap::new(), stamp: 0, pending: HashMap::new() }
    }

    pub(super) fn get(&self, dgid: Gid) -> Option<Path> {
        self.known.get(&dgid).map(|(_, path)| *path)
    }

    pub(super) fn insert(&mut self, dgid: Gid, path: Path) {
        self.remove(dgid);
        while self.known.len() >= self.max.max(1) {
            let Some((_, oldest)) = self.ages.pop_first() else { break };
            self.known.remove(&oldest);
        }
        self.stamp += 1;
        self.known.insert(dgid, (self.stamp, path));
        self.ages.insert(self.stamp, dgid);
    }

    pub(super) fn remove(&mut self, dgid: Gid) -> bool {
        let Some((stamp, _)) = self.known.remove(&dgid) else { return false };
        self.ages.remove(&stamp);
        true
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.ages.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
