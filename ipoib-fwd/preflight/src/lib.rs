//! Checks before a gateway starts. [`Subject::check`] finds problems of the configuration, the host and the
//! fabric. [`Proposal`] is a first configuration for a host.
//!
//! A [`Machine`] is read once, from a root directory with `proc` and `sys`. Nothing is changed or started.
//! Functions without side effects derive the findings from it; each file of `rules` has one subject.
#![forbid(unsafe_code)]

mod finding;
mod init;
mod machine;
mod report;
mod rules;
mod shell;
mod subject;

pub use finding::{Code, Finding, Severity, Spot};
pub use init::{InitError, Proposal};
pub use machine::{
    Access, Account, Adapter, AdapterPort, DpdkProcess, Iommu, Link, Machine, Memory, Occupant, Pages,
    PathKind, PathState, PciDevice, Process, Processors,
};
pub use report::{Report, printable};
pub use shell::{shell_path, shell_word};
pub use subject::Subject;

#[cfg(test)]
mod tests;
