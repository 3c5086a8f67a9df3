//! Which datagram queue pairs receive which multicast group.

use std::collections::BTreeMap;

use ib_wire::Gid;

/// Most groups that one device listens to.
const MAX_GROUPS: usize = 1024;
/// Most queue pairs on one group.
const MAX_PER_GROUP: usize = 64;

/// Attachments by port and group.
#[derive(Debug, Default)]
pub(crate) struct Multicast {
    groups: BTreeMap<(u8, Gid), Vec<u32>>,
}

impl Multicast {
    /// Attaches the queue pair in `slot`; false if there is no room. Attaching twice is attaching once.
    pub(crate) fn attach(&mut self, port: u8, group: Gid, slot: u32) -> bool {
        let full = self.groups.len() >= MAX_GROUPS;
        if full && !self.groups.contains_key(&(port, group)) {
            return false;
        }
        let members = self.groups.entry((port, group)).or_default();
        if !members.contains(&slot) {
            if members.len() >= MAX_PER_GROUP {
                return false;
            }
            members.push(slot);
        }
        true
    }

    /// Ends an attachment; false if there was none.
    pub(crate) fn detach(&mut self, port: u8, group: Gid, slot: u32) -> bool {
        let Some(members) = self.groups.get_mut(&(port, group)) else { return false };
        let before = members.len();
        members.retain(|&m| m != slot);
        let found = members.len() < before;
        if members.is_empty() {
            self.groups.remove(&(port, group));
        }
        found
    }

    /// Ends every attachment of a queue pair.
    pub(crate) fn forget(&mut self, slot: u32) {
        self.groups.retain(|_, members| {
            members.retain(|&m| m != slot);
            !members.is_empty()
        });
    }

    /// The `n`th queue pair attached to a group.
    pub(crate) fn member(&self, port: u8, group: Gid, n: usize) -> Option<u32> {
        self.groups.get(&(port, group))?.get(n).copied()
    }
}
