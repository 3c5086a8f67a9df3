//! Table sizes of a device: what its capabilities announce, and where its tables end.

use std::ops::RangeInclusive;

use super::command::Fault;
use super::user::LOG_MAX_USERS;

/// A table of objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// Queue pairs.
    QueuePairs,
    /// Completion queues; number 0 is never used.
    CompletionQueues,
    /// Shared receive queues; number 0 is never used.
    SharedReceiveQueues,
    /// Memory keys.
    MemoryKeys,
    /// Event queues; number 0 is never used.
    EventQueues,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 5] = [
        Self::QueuePairs,
        Self::CompletionQueues,
        Self::SharedReceiveQueues,
        Self::MemoryKeys,
        Self::EventQueues,
    ];

    /// Binary logarithms of the permitted sizes: from what the kernel's drivers need for themselves to the
    /// limit of the engine's table or of a number in a doorbell.
    #[must_use]
    pub const fn sizes(self) -> RangeInclusive<u8> {
        match self {
            Self::QueuePairs => 4..=13,
            Self::CompletionQueues | Self::SharedReceiveQueues => 4..=12,
            Self::MemoryKeys => 6..=16,
            Self::EventQueues => 3..=7,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::QueuePairs => "queue pairs",
            Self::CompletionQueues => "completion queues",
            Self::SharedReceiveQueues => "shared receive queues",
            Self::MemoryKeys => "memory keys",
            Self::EventQueues => "event queues",
        }
    }

    /// Numbers that are never used.
    const fn reserved(self) -> usize {
        match self {
            Self::QueuePairs | Self::MemoryKeys => 0,
            Self::CompletionQueues | Self::SharedReceiveQueues | Self::EventQueues => 1,
        }
    }
}

/// Sizes of all tables, each a permitted power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableSizes {
    logs: [u8; Table::ALL.len()],
    /// Binary logarithm of users; 0 for none.
    users: u8,
}

impl Default for TableSizes {
    fn default() -> Self {
        let mut logs = Table::ALL.map(|table| *table.sizes().end());
        if let Some(log) = logs.get_mut(Table::EventQueues as usize) {
            *log = 5;
        }
        Self { logs, users: 0 }
    }
}

impl TableSizes {
    /// Sets the size of a table. Returns false, without effect, if the size is invalid.
    #[must_use]
    pub fn set(&mut self, table: Table, entries: u64) -> bool {
        let log = entries.checked_ilog2().map(|log| log as u8);
        let log = log.filter(|log| entries.is_power_of_two() && table.sizes().contains(log));
        let place = self.logs.get_mut(table as usize);
        log.zip(place).map(|(log, place)| *place = log).is_some()
    }

    /// Permits `entries - 1` users with commands of their own; `entries` is a power of two from 4 to 4096.
    /// Linux's driver is one of them. Returns false, without effect, if the number is invalid. The default is
    /// none.
    ///
    /// None is the safe choice if the guest's kernel does not trust its own users. A driver of the first
    /// version of the interface passes on commands that create shared receive queues, with the addresses that
    /// they name.
    #[must_use]
    pub fn set_users(&mut self, entries: u64) -> bool {
        let log = entries.checked_ilog2().map(|log| log as u8);
        let log = log.filter(|log| entries.is_power_of_two() && (2..=LOG_MAX_USERS).contains(log));
        log.map(|log| self.users = log).is_some()
    }

    /// Binary logarithm of users, or 0 for none.
    #[must_use]
    pub const fn log_users(&self) -> u8 {
        self.users
    }

    /// Binary logarithm of a table's size.
    #[must_use]
    pub fn log(&self, table: Table) -> u8 {
        self.logs.get(table as usize).copied().unwrap_or_default()
    }

    /// An error if a table with this number of objects is full.
    pub(super) fn room(&self, table: Table, used: usize) -> Result<(), Fault> {
        let full = used + table.reserved() >= 1 << self.log(table);
        if full { Err(Fault::exhausted(table.name())) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_within_their_range() {
        for table in Table::ALL {
            let mut sizes = TableSizes::default();
            assert!(table.sizes().contains(&sizes.log(table)), "{table:?}");
            let (least, most) = (1u64 << table.sizes().start(), 1u64 << table.sizes().end());
            for wrong in [0, 1, least / 2, least + 1, most - 1, most * 2, u64::MAX] {
                assert!(!sizes.set(table, wrong), "{table:?} {wrong}");
            }
            assert_eq!(sizes, TableSizes::default());
            for right in [most, least] {
                assert!(sizes.set(table, right) && 1 << sizes.log(table) == right, "{table:?} {right}");
            }
            let last = least as usize - 1 - table.reserved();
            assert!(sizes.room(table, last).is_ok() && sizes.room(table, last + 1).is_err(), "{table:?}");
        }
    }
}
