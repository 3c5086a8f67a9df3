//! The machine that runs a benchmark.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

/// The processors that this process may use.
pub(crate) fn processors() -> Vec<u32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let found = parse_list(list);
    if found.is_empty() { vec![0] } else { found }
}

fn parse_list(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// EAL's lcores: 0 is the control lcore, 1 forwards; on one processor both share it.
pub(crate) fn lcores() -> String {
    let processors = processors();
    let first = processors.first().copied().unwrap_or(0);
    let last = processors.last().copied().unwrap_or(0);
    format!("0@{first},1@{last}")
}

/// True if there is a processor for each worker and another one.
pub(crate) fn has_lcores(workers: u8) -> bool {
    processors().len() > usize::from(workers)
}

/// EAL's lcores: 0 for the generator and one for each worker, on separate processors if possible.
pub(crate) fn lcores_of(workers: u8) -> String {
    let processors = processors();
    if workers <= 1 || !has_lcores(workers) {
        return lcores();
    }
    let lcores: Vec<String> = processors
        .iter()
        .take(1 + usize::from(workers))
        .enumerate()
        .map(|(n, at)| format!("{n}@{at}"))
        .collect();
    lcores.join(",")
}

/// EAL's lcores: one for each worker on its own processor; 0, which only waits, shares the first.
pub(crate) fn worker_lcores(workers: u8) -> String {
    let processors = processors();
    let first = processors.first().copied().unwrap_or(0);
    let each = (1..=workers).zip(processors.iter().cycle()).map(|(n, at)| format!(",{n}@{at}"));
    format!("0@{first}{}", each.collect::<String>())
}

/// EAL's only lcore, on the processor of the worker.
pub(crate) fn one_lcore() -> String {
    format!("0@{}", processors().last().copied().unwrap_or(0))
}

/// The other processors, for programs that run at the same time; none if there is no other.
pub(crate) fn beside_one_lcore() -> Option<String> {
    let processors = processors();
    let (_, others) = processors.split_last()?;
    (!others.is_empty()).then(|| others.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

/// Set once, by the command line.
static NO_HUGE: AtomicBool = AtomicBool::new(false);

/// Disables hugepages from now on, for parallel runs, which would compete for them.
pub(crate) fn leave_hugepages() {
    NO_HUGE.store(true, Ordering::Relaxed);
}

/// EAL's arguments for memory: hugepages if enough are free, without a file system.
pub(crate) fn memory_arguments() -> Vec<String> {
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    if free >= 384 && !NO_HUGE.load(Ordering::Relaxed) {
        vec!["--in-memory".to_owned()]
    } else {
        plain_memory()
    }
}

/// EAL's arguments for memory without hugepages, which tools can trace, and without a file that other runs
/// would wait for.
pub(crate) fn plain_memory() -> Vec<String> {
    ["--no-huge", "--no-shconf", "-m", "768"].map(str::to_owned).into()
}

/// Load average of the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// A warning if other programs use the machine.
pub(crate) fn busy_warning() -> Option<String> {
    let load = load();
    (load > 0.5).then(|| {
        format!(
            "warning: the machine is busy (load average {load:.2}): this disturbs the results, and the ratio less so, as runs \
             take turns with the peer's"
        )
    })
}

/// Processor, number of them, kernel, memory in use.
pub(crate) fn describe() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map(|(_, m)| m);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{} x {}, Linux {}, EAL {}",
        processors().len(),
        model.unwrap_or("unknown processor").trim(),
        kernel.trim(),
        memory_arguments().join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_list("\t0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_list("7"), [7]);
        assert!(parse_list("x-y").is_empty());
    }
}
