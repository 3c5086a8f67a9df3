//! Keeps a device's tables as the rules want them.

use std::sync::Arc;

use crate::rules::{Change, Rules};
use crate::sync::AtomicU64;
use crate::table::{DeviceTable, Memory, TableError};

/// What [`Manager::apply`] did.
#[derive(Default, Debug)]
pub struct Applied {
    /// Entries added.
    pub added: usize,
    /// Entries deleted.
    pub deleted: usize,
    /// Slots freed whose entries had been deleted before and were held until now.
    pub reclaimed: usize,
    /// Changes that were not made, and why. They are tried again when a slot became free, and on [`Manager::retry`].
    pub failures: Vec<(Change, TableError)>,
}

/// Rules, and the tables they rule.
#[derive(Debug)]
pub struct Manager<M = Memory> {
    rules: Rules,
    table: Arc<DeviceTable<M>>,
}

impl<M: AsRef<[AtomicU64]>> Manager<M> {
    /// The table's RoCE ports must have been bound in the rules, or be bound later. What the table of a port that is bound already holds,
    /// as from an earlier maintainer, stays as far as the rules want it: they should know all there is before [`Manager::apply`].
    pub fn new(table: Arc<DeviceTable<M>>, mut rules: Rules) -> Self {
        for entry in table.entries() {
            rules.adopt(entry.port, entry.attributes, entry.default);
        }
        Self { rules, table }
    }

    /// The rules, to be told of events.
    pub const fn rules(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// The tables.
    pub const fn table(&self) -> &Arc<DeviceTable<M>> {
        &self.table
    }

    /// Makes the changes that the rules ask for. A refused change does not keep the others back.
    pub fn apply(&mut self) -> Applied {
        let mut applied = Applied::default();
        let failed_before = self.rules.failed();
        // What the device will not forget stays, and is tried again next time.
        applied.reclaimed = self.table.reclaim().freed;
        self.apply_once(&mut applied);
        if applied.deleted + applied.reclaimed > 0 && failed_before > 0 {
            // There may be room now for what the table had none for.
            applied.failures.clear();
            self.rules.retry();
            self.apply_once(&mut applied);
        }
        applied
    }

    /// Tries once more what failed.
    pub fn retry(&mut self) -> Applied {
        self.rules.retry();
        self.apply()
    }

    fn apply_once(&mut self, applied: &mut Applied) {
        while let Some(change) = self.rules.poll_change() {
            let done = match change {
                Change::Add { port, attributes, default: true } => {
                    self.table.add_default(port, attributes).map(|_| applied.added += 1)
                }
                Change::Add { port, attributes, default: false } => {
                    self.table.add(port, attributes).map(|_| applied.added += 1)
                }
                Change::Delete { port, attributes, default: true } => {
                    self.table.delete_default(port, &attributes.key).map(|_| applied.deleted += 1)
                }
                Change::Delete { port, attributes, default: false } => {
                    self.table.delete(port, &attributes.key).map(|_| applied.deleted += 1)
                }
            };
            if let Err(error) = done {
                self.rules.handle_failure(&change);
                applied.failures.push((change, error));
            }
        }
    }
}
