//! Gives up all privileges except those to keep.

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::user::{GroupId, UserId};
use crate::{PrivilegeError, threads};

/// Upper limit of capability numbers, including those of later kernels.
const MOST: u32 = 64;

/// Privileges that a process keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// Capabilities that the calling thread keeps, if it has them. Other threads keep none.
    pub capabilities: CapabilitySet,
    /// New user of all threads, if it changes.
    pub user: Option<UserId>,
    /// New group of all threads, if it changes.
    pub group: Option<GroupId>,
}

/// Work of each thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    capabilities: CapabilitySet,
    user: Option<UserId>,
    group: Option<GroupId>,
}

/// Privileges of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadPrivileges {
    /// Thread ID.
    pub thread: i32,
    /// Its name.
    pub name: String,
    /// Real, effective, saved and file system user IDs.
    pub users: [u32; 4],
    /// Group IDs, in the same order.
    pub groups: [u32; 4],
    /// Capabilities that it has or can raise.
    pub permitted: CapabilitySet,
    /// Capabilities that programs it executes could have.
    pub bounding: CapabilitySet,
}

impl Work {
    /// Async-signal-safe: only makes system calls.
    pub(crate) fn carry_out(&self) -> Result<(), Errno> {
        // No exec gains privileges from here on.
        set_no_new_privs(true)?;
        for number in 0..MOST {
            match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
                // Beyond the last capability of the kernel.
                Err(Errno::INVAL) => break,
                // Without CAP_SETPCAP it stays. It has no effect, since exec gains nothing.
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
    /// Makes all threads of the process give up the other privileges, and prevents regaining them through
    /// exec. Fails if a thread still has more.
    pub fn in_all_threads(&self) -> Result<(), PrivilegeError> {
        let Self { capabilities, user, group } = *self;
        threads::everywhere_else(&Work { capabilities: CapabilitySet::empty(), user, group })?;
        let work = Work { capabilities, user, group };
        work.carry_out().map_err(PrivilegeError::step("give up privileges"))?;
        let own = threads::own();
        own_threads()?.into_iter().try_for_each(|thread| {
            let kept = if thread.thread == own { capabilities } else { CapabilitySet::empty() };
            self.check(thread, kept)
        })
    }

    /// Checks that a thread has the expected privileges and IDs.
    fn check(&self, thread: ThreadPrivileges, kept: CapabilitySet) -> Result<(), PrivilegeError> {
        let ThreadPrivileges { thread, name, users, groups, permitted, .. } = thread;
        let left = permitted - kept;
        if !left.is_empty() {
            return Err(PrivilegeError::Left { thread, name, left });
        }
        let wanted =
            [("user", users, self.user.map(|id| id.0)), ("group", groups, self.group.map(|id| id.0))];
        for (kind, ids, wanted) in wanted {
            if let Some(wanted) = wanted.filter(|&wanted| ids != [wanted; 4]) {
                return Err(PrivilegeError::Stranger { thread, name, kind, ids, wanted });
            }
        }
        Ok(())
    }
}

/// Prevents the calling thread, and threads it creates, from gaining privileges through exec. They keep what
/// they have.
pub fn no_new_privileges() -> Result<(), PrivilegeError> {
    set_no_new_privs(true).map_err(PrivilegeError::step("disable gaining privileges"))
}

/// Returns the privileges of all threads of this process, as reported by the kernel.
pub fn own_threads() -> Result<Vec<ThreadPrivileges>, PrivilegeError> {
    let one = |thread: i32| match std::fs::read_to_string(format!("/proc/self/task/{thread}/status")) {
        Ok(status) => Some(
            parse(thread, &status)
                .ok_or_else(|| threads::unknown(format!("/proc/self/task/{thread}/status lacks a field"))),
        ),
        // It has ended in the meantime.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => None,
        Err(error) => Some(Err(threads::unknown(format!("/proc/self/task/{thread}/status: {error}")))),
    };
    threads::all()?.into_iter().filter_map(one).collect()
}

/// Parses a thread's `status` (proc_pid_status(5)).
fn parse(thread: i32, status: &str) -> Option<ThreadPrivileges> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let set = |name| u64::from_str_radix(field(name)?.trim(), 16).ok().map(CapabilitySet::from_bits_retain);
    let ids = |name| {
        let ids: Option<Vec<u32>> = field(name)?.split_whitespace().map(|id| id.parse().ok()).collect();
        ids?.try_into().ok()
    };
    Some(ThreadPrivileges {
        thread,
        name: field("Name")?.trim().to_owned(),
        users: ids("Uid")?,
        groups: ids("Gid")?,
        permitted: set("CapPrm")? | set("CapEff")?,
        bounding: set("CapBnd")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\trte-worker\nUid:\t5\t5\t5\t5\nGid:\t6\t6\t6\t6\nCapInh:\t0000000000000000\n\
        CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\n";

    #[test]
    fn a_thread_with_more_than_it_should_have_is_an_error() {
        let keep =
            Keep { capabilities: CapabilitySet::empty(), user: Some(UserId(5)), group: Some(GroupId(6)) };
        let check = |status: &str| keep.check(parse(1, status).unwrap(), CapabilitySet::empty());
        check(STATUS).unwrap();
        for (kind, there, other) in [
            ("user", "Uid:\t5\t5\t5\t5", "Uid:\t5\t5\t0\t5"),
            ("group", "Gid:\t6\t6\t6\t6", "Gid:\t0\t6\t6\t6"),
        ] {
            let error = check(&STATUS.replace(there, other)).unwrap_err();
            assert!(matches!(&error, PrivilegeError::Stranger { kind: k, .. } if *k == kind), "{error}");
        }
        let error =
            check(&STATUS.replace("CapPrm:\t0000000000000000", "CapPrm:\t0000000000002000")).unwrap_err();
        assert!(matches!(error, PrivilegeError::Left { .. }), "{error}");
    }

    #[test]
    fn a_status_that_lacks_a_field_is_none() {
        for field in ["Name", "Uid", "Gid", "CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(parse(1, &STATUS.replace(field, "Other")), None, "{field}");
        }
        assert_eq!(parse(1, &STATUS.replace("Uid:\t5\t5\t5\t5", "Uid:\t5")), None);
    }
}
