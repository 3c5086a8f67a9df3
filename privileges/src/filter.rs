//! Filters of system calls (seccomp(2)): who is under one makes the calls of its list and no others.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Bit of `prot` in mmap and mprotect: memory that may be executed.
const PROT_EXEC: u64 = libc::PROT_EXEC as u64;

/// A system call that a thread may make, and why.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Its name.
    pub name: &'static str,
    /// Its number on this machine.
    pub number: i64,
    /// What it is for.
    pub why: &'static str,
}

/// What becomes of a thread that makes another call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The process ends by SIGSYS, and the kernel's log says why.
    Kill,
    /// The kernel's log says so, and the call is made.
    Log,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It cannot be made for this machine.
    #[error("cannot make a filter of system calls for this machine: {0}")]
    Make(#[from] seccompiler::BackendError),
    /// The kernel did not take it.
    #[error("the kernel does not take a filter of system calls (seccomp): {0}")]
    Apply(#[from] seccompiler::Error),
}

/// A filter, ready for threads.
#[derive(Clone, Debug)]
pub struct Filter(BpfProgram);

impl Filter {
    /// Allows the calls of these lists. No memory becomes executable, whatever they say.
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

    /// The calling thread, and those that it makes, are under it from here on, and for good.
    pub fn apply(&self) -> Result<(), FilterError> {
        Ok(seccompiler::apply_filter(&self.0)?)
    }

    /// All threads of this process are.
    pub fn apply_to_all(&self) -> Result<(), FilterError> {
        Ok(seccompiler::apply_filter_all_threads(&self.0)?)
    }
}

fn not_executable() -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(PROT_EXEC), 0)?;
    SeccompRule::new(vec![condition])
}
