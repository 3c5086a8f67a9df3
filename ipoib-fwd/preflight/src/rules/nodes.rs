//! NUMA nodes of ports and workers.

use std::collections::BTreeMap;

use super::listed;
use crate::finding::{Code, Finding};
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let nodes = subject.worker_nodes();
    let Some(first) = nodes.first() else { return };
    if nodes.len() > 1 {
        let what = format!("workers are on several NUMA nodes: {}", listed(&nodes));
        let help = "move all workers to the node of the ports";
        found.push(Finding::new(Code::LcoresNodes, what, help));
    }
    let machine = subject.machine;
    let mut ports: BTreeMap<String, u16> = BTreeMap::new();
    for address in subject.eal.iter().flat_map(|eal| &eal.allowed) {
        ports.extend(machine.pci.get(address).and_then(|d| d.node).map(|node| (address.clone(), node)));
    }
    if !subject.config.infiniband.is_soft() {
        for (device, port) in subject.config.infiniband_ports() {
            let adapter = subject.adapter(device, port);
            ports.extend(adapter.and_then(|(name, adapter)| Some((name.clone(), adapter.node?))));
        }
    }
    for (port, node) in ports.iter().filter(|(_, node)| !nodes.contains(node)) {
        let near = machine.processors.nodes.iter().filter(|(_, of)| *of == node).map(|(cpu, _)| *cpu);
        let near: config::LcoreSet = near.collect();
        let what = format!(
            "{port} is on NUMA node {node}, and the workers on {first}: each packet crosses between the nodes"
        );
        let help = format!("use lcores of node {node}: {near}");
        found.push(Finding::new(Code::PortNode, what, help));
    }
}
