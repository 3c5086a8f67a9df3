//! The files' texts. Writing to a string does not fail.

use std::fmt::Write as _;

use config::PKey;

use super::Lcores;
use super::ports::{EthernetChoice, EthernetPort, InfiniBandChoice, Said};
use crate::machine::Machine;
use crate::rules::{hugepages, mib};

/// The interface that is made where there is none to take.
const MADE: &str = "ipoib-gw0";

fn reasons(out: &mut String, said: &[Said]) {
    for Said { name, why } in said {
        let _ = writeln!(out, "# - {name}: {why}");
    }
}

pub(super) fn configuration(
    ethernet: &EthernetChoice,
    infiniband: &InfiniBandChoice,
    pair_key: Option<&str>,
) -> String {
    let mut out = String::from(
        "# The gateway of this machine, as `ipoib-fwd init` found it. `ipoib-fwd --print-config` explains these keys and all others;\n\
         # `ipoib-fwd --check` says what is wrong or unwise.\n\
         \n[gateway]\n\
         # The gateway's own address, and the subnet of both sides: it answers ping and is the source of ICMP messages.\n\
         #address = \"10.77.0.254/24\"\n",
    );
    if let Some(key) = pair_key {
        let _ = writeln!(
            out,
            "# All gateways between the same networks need the same key: copy this one to a second gateway. Without a key any host on one of\n\
             # the networks can stop them.\n\
             pair-key = \"{key}\""
        );
    }
    out.push_str("\n# Ethernet ports of this machine:\n");
    if ethernet.said.is_empty() {
        out.push_str("# - none\n");
    }
    reasons(&mut out, &ethernet.said);
    let _ = writeln!(out, "[ethernet]\nport = \"{}\"", ethernet.name());
    out.push_str("\n# InfiniBand ports of this machine:\n");
    if infiniband.said.is_empty() {
        out.push_str("# - none\n");
    }
    reasons(&mut out, &infiniband.said);
    let Some(taken) = &infiniband.taken else {
        out.push_str(
            "# So the software ConnectX takes their place, on a fabric made by ibfab (a link with this URL).\n\
             [infiniband.soft]\nports = [{ link = \"shm:/run/ibfab.sock\" }]\n",
        );
        return out;
    };
    let _ = writeln!(out, "[infiniband]\ndevice = \"{}\"\nport = {}", taken.device, taken.number);
    let full: Vec<PKey> = taken.port.pkeys.iter().filter_map(|pkey| PKey::new(*pkey)).collect();
    let own = if full.contains(&PKey::DEFAULT) { None } else { full.first() };
    match own {
        Some(pkey) => {
            let _ = writeln!(out, "# The port is no full member of the default partition.\npkey = {pkey}");
        }
        None if full.is_empty() => out.push_str(
            "# The port is a full member of no partition yet: the gateway waits until the subnet manager makes it one.\n",
        ),
        None => {}
    }
    let others: Vec<&PKey> =
        full.iter().filter(|pkey| Some(*pkey) != own && **pkey != PKey::DEFAULT).collect();
    if !others.is_empty() {
        out.push_str(
            "\n# The port is in further partitions. A section for each of them, and one for the keys above, joins them to VLANs:\n",
        );
        for (pkey, vlan) in others.into_iter().zip(100..) {
            let _ = writeln!(out, "#[[segment]]\n#vlan = {vlan}\n#pkey = {pkey}");
        }
    }
    out
}

pub(super) fn environment(
    machine: &Machine,
    ethernet: &EthernetChoice,
    lcores: &Lcores,
    needed: u64,
) -> String {
    let mut out = String::from(
        "# EAL's arguments, and further options of the gateway, as `ipoib-fwd init` made them. The first lcore controls, the others\n\
         # forward.\n",
    );
    let _ = writeln!(out, "# Lcores: {}.", lcores.why);
    let memory = if machine.memory.free(None) >= needed {
        out.push_str("# Memory: hugepages, of which enough are free.\n");
        "--in-memory".to_owned()
    } else {
        let _ = writeln!(
            out,
            "# Memory: ordinary pages, as {} MiB of hugepages are free and {} are needed. With enough of them\n\
             # ({})\n\
             # write --in-memory in place of --no-huge -m: it is about twice as fast.",
            machine.memory.free(None) >> 20,
            mib(needed),
            hugepages::advice(&machine.memory, None, needed)
        );
        format!("--no-huge -m {}", mib(needed))
    };
    let queues = if lcores.workers > 1 { format!(",qpairs={}", lcores.workers) } else { String::new() };
    let port = match &ethernet.port {
        EthernetPort::Pci(address) => format!("-a {address}"),
        EthernetPort::Interface(name) => {
            let _ = writeln!(
                out,
                "# Port: the kernel's interface {name}. A network card that is bound to vfio-pci is faster (dpdk-devbind.py -b vfio-pci\n\
                 # ADDRESS); then -a ADDRESS takes the place of --no-pci and --vdev, here and in the configuration."
            );
            format!("--no-pci --vdev net_af_packet0,iface={name}{queues}")
        }
        EthernetPort::Made => {
            let _ = writeln!(
                out,
                "# Port: an interface {MADE} that the gateway makes, as there is none to take. It has the port's own address, so that hosts of this\n\
                 # machine are on a bridge of another one: ip link add br0 address 02:00:00:00:00:01 type bridge; ip link set {MADE} master br0"
            );
            format!("--no-pci --vdev net_tap0,iface={MADE}")
        }
        EthernetPort::Null => {
            out.push_str("# Port: none that is connected, as there is none to take and none may be made.\n");
            "--no-pci --vdev net_null0".to_owned()
        }
    };
    let _ = writeln!(out, "EAL=\"{} {memory} {port}\"\nOPTIONS=", lcores.arguments);
    out
}
