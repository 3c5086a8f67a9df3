//! `--file-prefix`: two DPDK processes cannot have the same one.

use config::EalArguments;

use super::eal_options::{has, value};
use crate::finding::{Code, Finding};
use crate::machine::Machine;

/// EAL's prefix if none is given.
const DEFAULT: &str = "rte";

pub(crate) fn check(machine: &Machine, eal: &EalArguments, found: &mut Vec<Finding>) {
    // Without a shared configuration there is no file to lock.
    if ["--in-memory", "--no-shconf"].iter().any(|option| has(&eal.arguments, option)) {
        return;
    }
    let prefix = value(&eal.arguments, "--file-prefix").unwrap_or(DEFAULT);
    let Some(holder) = machine.dpdk.iter().find(|process| process.prefix == prefix) else { return };
    let process = match (holder.pid, &holder.name) {
        (Some(pid), Some(name)) => format!("process {pid} ({name})"),
        (Some(pid), None) => format!("process {pid}"),
        (None, _) => "a process".to_owned(),
    };
    let which = if prefix == DEFAULT { " (the default)" } else { "" };
    let what =
        format!("{process} runs DPDK with --file-prefix {prefix}{which}, and two cannot have the same");
    let help = "give this gateway another one, --file-prefix NAME, or stop that process (unless it is the gateway that this \
                configuration is for)";
    found.push(Finding::new(Code::PrefixTaken, what, help));
}
