//! Limits of the process.

use config::EalArguments;

use super::{hugepages, mib};
use crate::finding::{Code, Finding};
use crate::subject::Subject;

/// Number of the capability that lifts the limit (capabilities(7)).
const IPC_LOCK: u32 = 14;
/// Files that a gateway opens, without those of its workers and ports.
const FILES: u64 = 128;
/// Files of a worker: its wake-up sources, and its queues' events.
const FILES_OF_WORKER: u64 = 32;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let process = &subject.machine.process;
    let workers = u32::try_from(subject.workers().len()).unwrap_or(1).max(1);
    let takes_pci = subject.eal.is_some_and(|eal| !eal.allowed.is_empty());
    let buffers = if subject.config.infiniband.is_soft() && !takes_pci {
        0
    } else {
        hugepages::needed(subject.config, workers)
    };
    let rings = subject.eal.map_or(0, EalArguments::locked_rings);
    // The capability to lock memory lifts the limit.
    let is_free = process.capabilities.is_some_and(|all| all >> IPC_LOCK & 1 == 1);
    for (needed, of) in
        [(buffers, "packet buffers are locked for adapters"), (rings, "rings are locked for net_af_packet")]
    {
        if let Some(limit) = process.memlock.filter(|limit| *limit < needed && !is_free) {
            let what = format!("{} MiB of {of}, and this process can lock {} KiB", mib(needed), limit >> 10);
            let help = "ulimit -l unlimited, LimitMEMLOCK=infinity in a unit, or CAP_IPC_LOCK";
            found.push(Finding::new(Code::LimitMemlock, what, help));
        }
    }
    let files = FILES + FILES_OF_WORKER * u64::from(workers);
    if let Some(limit) = process.nofile.filter(|limit| *limit < files) {
        let what = format!(
            "this process can open {limit} files, and a gateway with {workers} worker(s) needs {files}"
        );
        found.push(Finding::new(Code::LimitNofile, what, "ulimit -n 65536, or LimitNOFILE=65536 in a unit"));
    }
}
