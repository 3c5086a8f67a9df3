//! What a thread keeps, and giving up the rest.

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::user::{GroupId, UserId};
use crate::{PrivilegeError, threads};

/// Capabilities that a kernel may know, also later ones than ours.
const MOST: u32 = 64;

/// What a process keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// Capabilities that the calling thread keeps, as far as it has them. Other threads keep none.
    pub capabilities: CapabilitySet,
    /// User that all threads become, if not who they are.
    pub user: Option<UserId>,
    /// Group that all threads become.
    pub group: Option<GroupId>,
}

/// What each thread does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    capabilities: CapabilitySet,
    user: Option<UserId>,
    group: Option<GroupId>,
}

/// What a thread may.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadPrivileges {
    /// Its number.
    pub thread: i32,
    /// Its name.
    pub name: String,
    /// Capabilities that it has, or may take again.
    pub permitted: CapabilitySet,
    /// Capabilities that programs which it starts could have.
    pub bounding: CapabilitySet,
}

impl Work {
    /// Async-signal-safe: calls to the system, and nothing else.
    pub(crate) fn carry_out(&self) -> Result<(), Errno> {
        // Nobody gains anything by exec from here on.
        set_no_new_privs(true)?;
        for number in 0..MOST {
            match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
                // Beyond the last one that the kernel knows.
                Err(Errno::INVAL) => break,
                // Without CAP_SETPCAP it stays; it is of no use without exec that gains anything.
                Ok(()) | Err(Errno::PERM) => {}
                Err(error) => return Err(error),
            }
        }
        clear_ambient_capability_set()?;
        if self.user.is_some() || self.group.is_some() {
            set_thread_groups(&[])?;
        }
        if let Some(GroupId(group)) = self.group {
            let group = Gid::from_raw(group);
            set_thread_res_gid(group, group, group)?;
        }
        if let Some(UserId(user)) = self.user {
            let user = Uid::from_raw(user);
            set_keep_capabilities(true)?;
            set_thread_res_uid(user, user, user)?;
            set_keep_capabilities(false)?;
        }
        let kept = self.capabilities & capabilities(None)?.permitted;
        set_capabilities(
            None,
            CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
        )
    }
}

impl Keep {
    /// All threads of the process give up what is not kept, and nobody gets anything back by exec. Fails if any of them still has more.
    pub fn in_all_threads(&self) -> Result<(), PrivilegeError> {
        let Self { capabilities, user, group } = *self;
        threads::everywhere_else(&Work { capabilities: CapabilitySet::empty(), user, group })?;
        let work = Work { capabilities, user, group };
        work.carry_out().map_err(PrivilegeError::step("give up privileges"))?;
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        for ThreadPrivileges { thread, name, permitted, .. } in own_threads() {
            let kept = if thread == own { capabilities } else { CapabilitySet::empty() };
            let left = permitted - kept;
            if !left.is_empty() {
                return Err(PrivilegeError::Left { thread, name, left });
            }
        }
        Ok(())
    }
}

/// The calling thread and those that it makes gain nothing by exec, and keep what they have.
pub fn no_new_privileges() -> Result<(), PrivilegeError> {
    set_no_new_privs(true).map_err(PrivilegeError::step("give up gaining privileges"))
}

/// What all threads of this process may, as the kernel tells.
#[must_use]
pub fn own_threads() -> Vec<ThreadPrivileges> {
    let one = |thread: i32| {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            u64::from_str_radix(line.trim(), 16).ok().map(CapabilitySet::from_bits_retain)
        };
        Some(ThreadPrivileges {
            thread,
            name: threads::name(thread),
            permitted: set("CapPrm")? | set("CapEff")?,
            bounding: set("CapBnd")?,
        })
    };
    threads::all().into_iter().filter_map(one).collect()
}
