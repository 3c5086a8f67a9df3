//! Keeps a device's tables in the state that the rules require.

use std::sync::Arc;

use crate::rules::{Change, Rules};
use crate::sync::AtomicU64;
use crate::table::{DeviceTable, Memory, TableError};

/// Result of [`Manager::apply`].
#[derive(Default, Debug)]
pub struct Applied {
    /// Entries added.
    pub added: usize,
    /// Entries deleted.
    pub deleted: usize,
    /// Slots freed whose entries had been deleted earlier and were held until now.
    pub reclaimed: usize,
    /// Failed changes with their errors. They are repeated when a slot becomes free, and on
    /// [`Manager::retry`].
    pub failures: Vec<(Change, TableError)>,
}

/// Rules with the tables they control.
#[derive(Debug)]
pub struct Manager<M = Memory> {
    rules: Rules,
    table: Arc<DeviceTable<M>>,
}

impl<M: AsRef<[AtomicU64]>> Manager<M> {
    /// Combines a table with its rules. The table's RoCE ports must be bound in the rules, now or later.
    ///
    /// Existing entries of bound ports, for example of an earlier maintainer, stay if the rules require them.
    /// The rules should therefore be complete before [`Manager::apply`].
    pub fn new(table: Arc<DeviceTable<M>>, mut rules: Rules) -> Self {
        for entry in table.entries() {
            rules.adopt(entry.port, entry.attributes, entry.default);
        }
        Self { rules, table }
    }

    /// Returns the rules, which handle events.
    pub const fn rules(&mut self) -> &mut Rules {
        &mut self.rules
    }

    /// Returns the tables.
    pub const fn table(&self) -> &Arc<DeviceTable<M>> {
        &self.table
    }

    /// Applies the changes that the rules require. A failed change does not prevent the others.
    pub fn apply(&mut self) -> Applied {
        let mut applied = Applied::default();
        let failed_before = self.rules.failed();
        // Entries that the device does not remove stay, and are tried again next time.
        applied.reclaimed = self.table.reclaim().freed;
        self.apply_once(&mut applied);
        if applied.deleted + applied.reclaimed > 0 && failed_before > 0 {
            // There may be room now for changes that failed because the table was full.
            applied.failures.clear();
            self.rules.retry();
            self.apply_once(&mut applied);
        }
        applied
    }

    /// Repeats the failed changes.
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
