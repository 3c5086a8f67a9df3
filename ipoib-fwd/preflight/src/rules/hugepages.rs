//! Memory for packet buffers.

use std::path::Path;

use super::eal_options::{has, value};
use super::{listed, mib};
use crate::finding::{Code, Finding, Severity};
use crate::machine::Memory;
use crate::subject::Subject;

/// Overhead of a buffer in bytes: the pool's header, the mbuf, the headroom.
const BUFFER_OVERHEAD: u64 = 64 + 128 + 128;
/// Bytes in hugepages in addition to the buffers: the pool's ring and caches, EAL's own tables, ports' rings.
const OTHER_MEMORY: u64 = 8 << 20;
/// EAL's default with `--no-huge`, in bytes.
const NO_HUGE_DEFAULT: u64 = 64 << 20;

/// Bytes that a gateway with `workers` workers needs from EAL.
pub(crate) fn needed(config: &config::Config, workers: u32) -> u64 {
    let count =
        config.buffers.count.map_or_else(|| config.buffers_needed(workers), std::num::NonZeroU32::get);
    let each = (u64::from(config.buffers.data_room) + BUFFER_OVERHEAD).next_multiple_of(64);
    u64::from(count) * each + OTHER_MEMORY
}

/// The command to have `needed` bytes free, on one node or in total, in addition to those in use. It does not
/// use vm.nr_hugepages, which counts pages of the kernel's default size.
pub(crate) fn advice(memory: &Memory, node: Option<u16>, needed: u64) -> String {
    let size = memory.smallest();
    let count = memory.taken(node, size).saturating_add(needed.div_ceil(size)).max(1);
    let directory = match node {
        Some(node) => format!("/sys/devices/system/node/node{node}/hugepages"),
        None => "/sys/kernel/mm/hugepages".to_owned(),
    };
    format!("echo {count} > {directory}/hugepages-{}kB/nr_hugepages", size >> 10)
}

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let Some(eal) = subject.eal else { return };
    let memory = &subject.machine.memory;
    let workers = u32::try_from(subject.workers().len()).unwrap_or(1).max(1);
    let needed = needed(subject.config, workers);
    let requested = value(&eal.arguments, "-m")
        .and_then(|text| text.parse::<u64>().ok())
        .map(|mib| mib.saturating_mul(1 << 20));
    if has(&eal.arguments, "--no-huge") {
        let given = requested.unwrap_or(NO_HUGE_DEFAULT);
        if given < needed {
            let what = format!(
                "EAL has {} MiB, and the packet buffers of this configuration need {}",
                mib(given),
                mib(needed)
            );
            found.push(Finding::new(Code::MemoryTooSmall, what, format!("use -m {}", mib(needed))));
        }
        let what = "the gateway runs without hugepages (--no-huge), at about half the speed";
        found.push(Finding::new(
            Code::HugepagesUnused,
            what,
            "reserve hugepages, and replace --no-huge by --in-memory",
        ));
        return;
    }
    let size = memory.smallest();
    let reserve = format!(
        "{} (pages of {} MiB; to make it permanent, add hugepagesz={}K hugepages=NUMBER to the kernel's command line), or run without hugepages: --no-huge -m {}",
        advice(memory, None, needed),
        mib(size),
        size >> 10,
        mib(needed)
    );
    if memory.reserved() == 0 {
        let what = format!("no hugepages are reserved, and this configuration needs {} MiB", mib(needed));
        found.push(Finding::new(Code::HugepagesNone, what, reserve));
        return;
    }
    let free = memory.free(None);
    // What a gateway that was killed has left there is the next one's.
    let may_be_left = memory.has_files && !has(&eal.arguments, "--in-memory") && memory.reserved() >= needed;
    if free == 0 && !may_be_left {
        let what = format!(
            "no hugepages are free of {} MiB that are reserved, and this configuration needs {} MiB",
            mib(memory.reserved()),
            mib(needed)
        );
        found.push(Finding::new(Code::HugepagesNone, what, reserve));
        return;
    }
    if free < needed {
        let what = format!(
            "{} MiB of hugepages are free of {} reserved, and this configuration needs {}",
            free >> 20,
            mib(memory.reserved()),
            mib(needed)
        );
        let severity = if may_be_left { Severity::Warning } else { Severity::Error };
        found.push(Finding::new(Code::HugepagesTooFew, what, reserve).as_severe_as(severity));
    } else if let [node] = subject.worker_nodes().as_slice()
        && memory.free(Some(*node)) < needed
        && memory.pages.iter().any(|pages| pages.node.is_some_and(|other| other != *node))
    {
        let what = format!(
            "{} MiB of hugepages are free on NUMA node {node}, where the workers are, and they need {}",
            memory.free(Some(*node)) >> 20,
            mib(needed)
        );
        found.push(Finding::new(Code::HugepagesNode, what, advice(memory, Some(*node), needed)));
    }
    if !has(&eal.arguments, "--in-memory") && memory.mounts.is_empty() {
        let what = "hugepages are reserved but no hugetlbfs is mounted";
        let help = "use --in-memory, or mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages";
        found.push(Finding::new(Code::HugepagesNotMounted, what, help));
    }
    if let Some(directory) = value(&eal.arguments, "--huge-dir")
        && !memory.mounts.iter().any(|mount| Path::new(directory).starts_with(mount))
    {
        let what = format!("--huge-dir {directory} is not in a mounted hugetlbfs");
        let help = format!("hugetlbfs is mounted at: {}", listed(memory.mounts.iter().map(|m| m.display())));
        let severity = if has(&eal.arguments, "--in-memory") { Severity::Warning } else { Severity::Error };
        found.push(Finding::new(Code::HugepagesNotMounted, what, help).as_severe_as(severity));
    }
}
