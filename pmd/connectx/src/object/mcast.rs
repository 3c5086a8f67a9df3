//! Attachments of datagram queue pairs to multicast groups.

use std::collections::BTreeMap;

use ib_wire::Gid;

/// Most groups that one device listens to: as many as there are multicast LIDs, a power of two.
pub const MAX_GROUPS: usize = 1 << 14;
/// Most queue pairs on one group.
pub const MAX_GROUP_MEMBERS: usize = 64;

/// Attachments by group. The port of an attachment is the queue pair's port.
#[derive(Debug, Default)]
pub(crate) struct Multicast {
    groups: BTreeMap<Gid, Vec<u32>>,
}

impl Multicast {
    /// Attaches the queue pair in `slot`; false if there is no room. A second attachment has no effect.
    pub(crate) fn attach(&mut self, group: Gid, slot: u32) -> bool {
        let full = self.groups.len() >= MAX_GROUPS;
        if full && !self.groups.contains_key(&group) {
            return false;
        }
        let members = self.groups.entry(group).or_default();
        if !members.contains(&slot) {
            if members.len() >= MAX_GROUP_MEMBERS {
                return false;
            }
            members.push(slot);
        }
        true
    }

    /// Detaches a queue pair; false if it was not attached.
    pub(crate) fn detach(&mut self, group: Gid, slot: u32) -> bool {
        let Some(members) = self.groups.get_mut(&group) else { return false };
        let before = members.len();
        members.retain(|&m| m != slot);
        let found = members.len() < before;
        if members.is_empty() {
            self.groups.remove(&group);
        }
        found
    }

    /// Removes all attachments of a queue pair.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.groups.retain(|_, members| {
            members.retain(|&m| m != slot);
            !members.is_empty()
        });
    }

    /// The `n`th queue pair attached to a group.
    pub(crate) fn member(&self, group: Gid, n: usize) -> Option<u32> {
        self.groups.get(&group)?.get(n).copied()
    }
}
