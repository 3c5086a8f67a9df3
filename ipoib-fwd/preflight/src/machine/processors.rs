//! Processors.

use std::collections::BTreeMap;

use config::LcoreSet;

use super::files::Root;

/// The processors of a host.
#[derive(Clone, Default, Debug)]
pub struct Processors {
    /// Online processors; empty if unknown.
    pub online: LcoreSet,
    /// Isolated processors: the kernel's scheduler does not use them.
    pub isolated: LcoreSet,
    /// Processors without timer interrupts while one thread runs.
    pub tickless: LcoreSet,
    /// Frequency governors by processor.
    pub governors: BTreeMap<u16, String>,
    /// Threads of the same core, by processor; each set includes the processor itself.
    pub siblings: BTreeMap<u16, LcoreSet>,
    /// NUMA nodes by processor.
    pub nodes: BTreeMap<u16, u16>,
}

fn list(root: &Root, path: &str) -> LcoreSet {
    let text = root.text(path).unwrap_or_default();
    LcoreSet::from_list(&text).unwrap_or_default()
}

/// The number after a prefix, for instance of `node1`.
pub(super) fn number_of<'n>(name: &'n str, word: &str) -> Option<(u16, &'n str)> {
    Some((name.strip_prefix(word)?.parse().ok()?, name))
}

pub(super) fn read(root: &Root) -> Processors {
    const CPU: &str = "sys/devices/system/cpu";
    let online = list(root, &format!("{CPU}/online"));
    let (mut governors, mut siblings, mut nodes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for cpu in online.iter() {
        governors.extend(root.text(&format!("{CPU}/cpu{cpu}/cpufreq/scaling_governor")).map(|g| (cpu, g)));
        let threads = list(root, &format!("{CPU}/cpu{cpu}/topology/thread_siblings_list"));
        if !threads.is_empty() {
            siblings.insert(cpu, threads);
        }
    }
    for name in root.entries("sys/devices/system/node") {
        let Some((node, name)) = number_of(&name, "node") else { continue };
        let cpus = list(root, &format!("sys/devices/system/node/{name}/cpulist"));
        nodes.extend(cpus.iter().map(|cpu| (cpu, node)));
    }
    Processors {
        online,
        isolated: list(root, &format!("{CPU}/isolated")),
        tickless: list(root, &format!("{CPU}/nohz_full")),
        governors,
        siblings,
        nodes,
    }
}
