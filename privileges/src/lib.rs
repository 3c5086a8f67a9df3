//! What the threads of a process may, once it has what it needs: capabilities, user and groups, system calls, core dumps.
//!
//! A program that starts as root opens its devices and then calls [`Keep::in_all_threads`]: each of its threads, those of libraries too,
//! gives up all that is not on the list, for good. Nothing here knows of gateways or DPDK.

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

/// Why privileges could not be given up. A process that goes on then has more of them than was meant.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// A step failed.
    #[error("cannot {what}: {source}")]
    Step {
        /// The step.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A thread did not do as it was asked.
    #[error("thread {thread} ({name}) has not given up its privileges: it does not answer signal {signal}")]
    Silent {
        /// The thread.
        thread: i32,
        /// Its name.
        name: String,
        /// The signal.
        signal: i32,
    },
    /// A thread has more than it should.
    #[error("thread {thread} ({name}) still has {left:?} after giving up what it does not need")]
    Left {
        /// The thread.
        thread: i32,
        /// Its name.
        name: String,
        /// What it still has.
        left: CapabilitySet,
    },
    /// A thread is not who it should be.
    #[error("thread {thread} ({name}) has {kind} {ids:?} and not {wanted}")]
    Stranger {
        /// The thread.
        thread: i32,
        /// Its name.
        name: String,
        /// "user" or "group".
        kind: &'static str,
        /// Real, effective, saved and that for files.
        ids: [u32; 4],
        /// What all of them should be.
        wanted: u32,
    },
    /// The kernel does not tell of this process's threads, so that nobody knows who has given up what.
    #[error("cannot find out which threads this process has, and what they may: {what}; is /proc mounted?")]
    Unknown {
        /// What is missing.
        what: String,
    },
}

impl PrivilegeError {
    fn step(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::Step { what, source: source.into() }
    }
}
