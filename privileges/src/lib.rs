//! What the threads of a process may, once it has what it needs: capabilities, user and groups, system calls, core dumps.
//!
//! A program that starts as root opens its devices and then calls [`Keep::in_all_threads`]: each of its threads, those of libraries too,
//! gives up all that is not on the list, for good. Nothing here knows of gateways or DPDK.

mod core_dump;
mod filter;
mod threads;
mod user;
mod yielding;

pub use core_dump::{Cores, set_cores};
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
}

impl PrivilegeError {
    fn step(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::Step { what, source: source.into() }
    }
}
