//! Contents of core dumps.

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::PrivilegeError;

/// Bits of `/proc/self/coredump_filter` (core(5)) for private anonymous memory, which contains stacks and the
/// heap, and for program headers. It excludes memory shared by processes, and hugepages of either kind.
const WITHOUT_PACKETS: &str = "0x11";

/// Contents of a core dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cores {
    /// No core dump, and no other process of the user may read this process's memory.
    None,
    /// Stacks and the heap, without shared memory and hugepages.
    Lean,
    /// The system's default.
    Full,
}

/// Sets the contents of a later core dump. Call it before the user changes: afterwards the file belongs to
/// root.
pub fn leave_out_of_cores(cores: Cores) -> Result<(), PrivilegeError> {
    if cores != Cores::Lean {
        return Ok(());
    }
    std::fs::write("/proc/self/coredump_filter", WITHOUT_PACKETS)
        .map_err(|source| PrivilegeError::Step { what: "write /proc/self/coredump_filter", source })
}

/// Enables or disables core dumps. Call it after the user has changed, which resets the setting.
pub fn set_cores(cores: Cores) -> Result<(), PrivilegeError> {
    let behaviour = match cores {
        Cores::None => DumpableBehavior::NotDumpable,
        Cores::Lean | Cores::Full => DumpableBehavior::Dumpable,
    };
    set_dumpable_behavior(behaviour).map_err(PrivilegeError::step("enable or disable core dumps"))
}
