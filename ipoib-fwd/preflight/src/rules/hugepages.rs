//! Memory for packet buffers.

use super::eal_options::{has, value};
use super::{listed, mib};
use crate::finding::{Code, Finding, Severity};
use crate::machine::Memory;
use crate::subject::Subject;

/// Bytes of a buffer beside its data: the pool's head, the mbuf, the headroom.
const BESIDE_DATA: u64 = 64 + 128 + 128;
/// Bytes for what is in hugepages beside the buffers: the pool's ring and caches, EAL's own tables, ports' rings.
const BESIDE_BUFFERS: u64 = 8 << 20;
/// Bytes that EAL takes with `--no-huge` if it is not told.
const WITHOUT_A_WORD: u64 = 64 << 20;

/// Bytes that a gateway of so many workers wants from EAL.
pub(crate) fn needed(config: &config::Config, workers: u32) -> u64 {
    let count =
        config.buffers.count.map_or_else(|| config.buffers_needed(workers), std::num::NonZeroU32::get);
    let each = (u64::from(config.buffers.data_room) + BESIDE_DATA).next_multiple_of(64);
    u64::from(count) * each + BESIDE_BUFFERS
}

/// How to have so many bytes free, on one node or on all, whatever others have taken. Not by vm.nr_hugepages, which counts pages of the
/// size that the kernel was started with.
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
    let asked = value(&eal.arguments, "-m")
        .and_then(|text| text.parse::<u64>().ok())
        .map(|mib| mib.saturating_mul(1 << 20));
    if has(&eal.arguments, "--no-huge") {
        let given = asked.unwrap_or(WITHOUT_A_WORD);
        if given < needed {
            let what = format!(
                "EAL is given {} MiB, and the packet buffers of this configuration need {}",
                mib(given),
                mib(needed)
            );
            found.push(Finding::new(Code::MemoryTooSmall, what, format!("give it -m {}", mib(needed))));
        }
        let what = "the gateway is told to do without hugepages (--no-huge), which about halves its speed";
        found.push(Finding::new(
            Code::HugepagesUnused,
            what,
            "reserve some, and give --in-memory in its place",
        ));
        return;
    }
    let size = memory.smallest();
    let reserve = format!(
        "{} (pages of {} MiB; hugepagesz={}K hugepages=NUMBER on the kernel's command line keeps it), or do without: --no-huge -m {}",
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
        let help =
            "give EAL --in-memory, or mkdir -p /dev/hugepages && mount -t hugetlbfs nodev /dev/hugepages";
        found.push(Finding::new(Code::HugepagesNotMounted, what, help));
    }
    if let Some(directory) = value(&eal.arguments, "--huge-dir")
        && !memory.mounts.iter().any(|mount| mount.as_os_str() == directory)
    {
        let what = format!("--huge-dir {directory} is no mounted hugetlbfs");
        let help = format!("hugetlbfs is mounted at: {}", listed(memory.mounts.iter().map(|m| m.display())));
        let severity = if has(&eal.arguments, "--in-memory") { Severity::Warning } else { Severity::Error };
        found.push(Finding::new(Code::HugepagesNotMounted, what, help).as_severe_as(severity));
    }
}
