//! System call filters (seccomp(2)): a thread with a filter can only make the calls of its lists.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Bit of `prot` in mmap and mprotect for executable memory.
const PROT_EXEC: u64 = libc::PROT_EXEC as u64;

/// A permitted system call with the reason.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// Its number on this architecture.
    pub number: i64,
    /// Purpose.
    pub why: &'static str,
}

/// Action for any other system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Kill the process with SIGSYS. The kernel log contains the call.
    Kill,
    /// Log the call in the kernel log and execute it.
    Log,
}

/// Reason why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The filter cannot be generated for this architecture.
    #[error("cannot create a system call filter for this machine: {0}")]
    Make(#[from] seccompiler::BackendError),
    /// The kernel rejected the filter.
    #[error("the kernel does not accept a system call filter (seccomp): {0}")]
    Apply(#[from] seccompiler::Error),
}

/// A filter that can be applied to threads.
#[derive(Clone, Debug)]
pub struct Filter(BpfProgram);

impl Filter {
    /// Permits the calls of these lists. They never permit executable memory.
    pub fn new(lists: &[&[Call]], violation: Violation) -> Result<Self, FilterError> {
        let mut rules = BTreeMap::new();
        for call in lists.iter().copied().flatten() {
            let rule = match call.number {
                libc::SYS_mmap | libc::SYS_mprotect => vec![not_executable()?],
                _ => Vec::new(),
            };
            rules.insert(call.number, rule);
        }
        let beyond = match violation {
            Violation::Kill => SeccompAction::KillProcess,
            Violation::Log => SeccompAction::Log,
        };
        let machine = std::env::consts::ARCH.try_into()?;
        Ok(Self(SeccompFilter::new(rules, beyond, SeccompAction::Allow, machine)?.try_into()?))
    }

    /// Applies the filter permanently to the calling thread and the threads that it creates.
    pub fn apply(&self) -> Result<(), FilterError> {
        Ok(seccompiler::apply_filter(&self.0)?)
    }

    /// Applies the filter to all threads of this process.
    pub fn apply_to_all(&self) -> Result<(), FilterError> {
        Ok(seccompiler::apply_filter_all_threads(&self.0)?)
    }
}

fn not_executable() -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(PROT_EXEC), 0)?;
    SeccompRule::new(vec![condition])
}
