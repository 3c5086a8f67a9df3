//! What a core dump may hold.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::PrivilegeError;

/// Bits of `/proc/self/coredump_filter` (core(5)): private anonymous memory, which stacks and the heap are, and the headers of programs. Not
/// there: memory that processes share, and hugepages of either kind.
const WITHOUT_PACKETS: &str = "0x11";

/// What a core dump holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cores {
    /// There is none, and no other process of the user's reads this one's memory.
    None,
    /// Stacks and the heap, no shared memory and no hugepages.
    Lean,
    /// As the system has it.
    Full,
}

/// Says what a core dump will hold, if there is one. To be called before the user changes: after that the file is root's.
pub fn leave_out_of_cores(cores: Cores) -> Result<(), PrivilegeError> {
    if cores != Cores::Lean {
        return Ok(());
    }
    std::fs::write("/proc/self/coredump_filter", WITHOUT_PACKETS)
        .map_err(|source| PrivilegeError::Step { what: "write /proc/self/coredump_filter", source })
}

/// From now on there are such core dumps, or none. To be called after the user has changed: that puts it back.
pub fn set_cores(cores: Cores) -> Result<(), PrivilegeError> {
    let behaviour = match cores {
        Cores::None => DumpableBehavior::NotDumpable,
        Cores::Lean | Cores::Full => DumpableBehavior::Dumpable,
    };
    set_dumpable_behavior(behaviour).map_err(PrivilegeError::step("say whether there is a core dump"))
}
