//! Before a gateway starts: what is wrong or unwise in its configuration, the machine and the fabric ([`Subject::check`]), and a first
//! configuration from what a machine has ([`Proposal`]).
//!
//! A [`Machine`] is read once, from a root directory with `proc` and `sys` in it, and nothing is changed or started. Findings are made
//! from it by functions without side effects, one file of `rules` a subject.
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
pub use report::Report;
pub use shell::{shell_path, shell_word};
pub use subject::Subject;

#[cfg(test)]
mod tests;
