//! Privileges of a process's threads after initialization: capabilities, user and groups, system calls, core
//! dumps.
//!
//! A program that starts as root opens its devices and then calls [`Keep::in_all_threads`]. Each of its
//! threads, including those of libraries, permanently gives up all privileges that are not listed. This crate
//! does not depend on gateways or DPDK.

mod core_dump;
mod filter;
mod threads;
mod user;
mod yielding;

pub use core_dump::{Cores, leave_out_of_cores, set_cores};
pub use filter::{Call, Filter, FilterError, Violation};
pub use rustix::thread::CapabilitySet;
pub use user::{GroupId, User, UserError, UserId, group, user};
pub use yielding::{Keep, ThreadPrivileges, no_new_privileges, own_threads};

/// Reason why privileges could not be given up. A process that continues has more privileges than intended.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// A step failed.
    #[error("cannot {what}: {source}")]
    Step {
        /// The failed step.
        what: &'static str,
        /// The system error.
        #[source]
        source: std::io::Error,
    },
    /// A thread did not respond.
    #[error(
        "thread {thread} ({name}) has not given up its privileges: it does not respond to signal {signal}"
    )]
    Silent {
        /// The thread.
        thread: i32,
        /// Its name.
        name: String,
        /// The signal.
        signal: i32,
    },
    /// A thread has more capabilities than it should.
    #[error("thread {thread} ({name}) still has {left:?} after giving up what it does not need")]
    Left {
        /// The thread.
        thread: i32,
        /// Its name.
        name: String,
        /// The remaining capabilities.
        left: CapabilitySet,
    },
    /// A thread has a wrong user or group.
    #[error("thread {thread} ({name}) has {kind} {ids:?} and not {wanted}")]
    Stranger {
        /// The thread.
        thread: i32,
        /// Its name.
        name: String,
        /// "user" or "group".
        kind: &'static str,
        /// Real, effective, saved and file system ID.
        ids: [u32; 4],
        /// Expected ID.
        wanted: u32,
    },
    /// The kernel does not report this process's threads, so their privileges are unknown.
    #[error("cannot determine the threads of this process and their privileges: {what}; is /proc mounted?")]
    Unknown {
        /// The failed access.
        what: String,
    },
}

impl PrivilegeError {
    fn step(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::Step { what, source: source.into() }
    }
}
