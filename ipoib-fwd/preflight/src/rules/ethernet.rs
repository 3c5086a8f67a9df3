//! Ethernet ports: which EAL is told of, and the interfaces of the kernel below them.

use config::{EalArguments, nearest};

use super::listed;
use crate::finding::{Code, Finding};
use crate::subject::Subject;

/// A port of `--vdev`.
struct Port<'v> {
    name: &'v str,
    /// Interfaces of the kernel that it is on.
    interfaces: Vec<&'v str>,
}

/// Drivers of ports on interfaces that are there, by the beginnings of their names.
const ON_INTERFACES: [&str; 5] = ["net_af_packet", "eth_af_packet", "net_af_xdp", "net_pcap", "eth_pcap"];

fn ports(eal: &EalArguments) -> impl Iterator<Item = Port<'_>> {
    eal.vdevs.iter().map(|vdev| {
        let (name, options) = vdev.split_once(',').unwrap_or((vdev, ""));
        let is_on = ON_INTERFACES.iter().any(|driver| name.starts_with(driver));
        let keys = ["iface", "rx_iface", "rx_iface_in", "tx_iface"];
        let options = options.split(',').filter_map(|option| option.split_once('='));
        let mut interfaces: Vec<&str> =
            options.filter(|(key, _)| is_on && keys.contains(key)).map(|(_, value)| value).collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        Port { name, interfaces }
    })
}

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let Some(eal) = subject.eal else { return };
    names(subject, eal, found);
    for port in ports(eal) {
        for interface in &port.interfaces {
            one(subject, port.name, interface, found);
        }
    }
}

/// That each port of the configuration is one that EAL makes.
fn names(subject: &Subject<'_>, eal: &EalArguments, found: &mut Vec<Finding>) {
    // Without a list of what it may EAL takes whatever there is.
    if !eal.pci_restricted {
        return;
    }
    // A bond's members are ports, but not the gateway's.
    let bonds: Vec<&str> =
        eal.vdevs.iter().map(String::as_str).filter(|v| v.starts_with("net_bonding")).collect();
    let is_member = |name: &str| bonds.iter().any(|bond| bond.split(['=', ',']).any(|word| word == name));
    let adapters: Vec<&str> =
        subject.machine.adapters.values().filter_map(|adapter| adapter.pci.as_deref()).collect();
    let known: Vec<&str> = ports(eal)
        .map(|port| port.name)
        .filter(|name| ["net_", "eth_"].iter().any(|kind| name.starts_with(kind)))
        .chain(eal.allowed.iter().map(String::as_str).filter(|address| !adapters.contains(address)))
        .filter(|name| !is_member(name))
        .collect();
    for name in subject.config.ethernet_ports() {
        let entry = subject.first_segment(|segment| segment.ethernet.as_deref() == name);
        match name {
            // An adapter may be named for its Ethernet port, too.
            Some(name) if known.contains(&name) || eal.allowed.iter().any(|address| address == name) => {}
            Some(name) => {
                let what = format!("no argument of EAL makes the Ethernet port {name}");
                let near =
                    nearest(name, &known).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
                let help =
                    format!("{near}EAL is told of: {}; others by -a ADDRESS or --vdev NAME", listed(&known));
                found.push(subject.of_key(Code::EthernetUnknown, "segment.ethernet", entry, what, help));
            }
            None if known.len() == 1 => {}
            None => {
                let what = match known.as_slice() {
                    [] => "EAL is given no Ethernet port".to_owned(),
                    _ => {
                        format!("EAL is given several Ethernet ports ({}), and none is named", listed(&known))
                    }
                };
                let help = match known.first() {
                    None => "give it one: -a PCI-ADDRESS or --vdev net_af_packet0,iface=DEVICE".to_owned(),
                    Some(first) => format!("write for instance port = \"{first}\" into [ethernet]"),
                };
                found.push(subject.of_key(Code::EthernetUnnamed, "ethernet.port", None, what, help));
            }
        }
    }
}

/// An interface of the kernel below a port.
fn one(subject: &Subject<'_>, port: &str, name: &str, found: &mut Vec<Finding>) {
    let machine = subject.machine;
    let Some(link) = machine.links.get(name) else {
        let there = machine.links.iter().filter(|(_, link)| link.is_ethernet && link.role().is_none());
        let what = format!("the interface {name} of {port} is not there");
        let help = format!("interfaces that it could have: {}", listed(there.map(|(name, _)| name)));
        found.push(Finding::new(Code::InterfaceMissing, what, help));
        return;
    };
    if !link.is_ethernet {
        let what = format!("{name}, the interface of {port}, is none of Ethernet");
        found.push(Finding::new(Code::InterfaceKind, what, "name an Ethernet interface"));
        return;
    }
    if let Some(role) = link.role() {
        let what = format!("the interface of {port} is {name}, {role}");
        let help = "give the gateway an interface of its own: the kernel would answer beside it";
        found.push(Finding::new(Code::LoginInterface, what, help));
    }
    if let Some(master) = &link.master {
        let what =
            format!("{name}, the interface of {port}, is a member of {master}, which takes its packets, too");
        found.push(Finding::new(Code::InterfaceMember, what, format!("ip link set dev {name} nomaster")));
    } else if !link.uppers.is_empty() {
        let uppers = listed(link.uppers.iter().take(4));
        let what = format!("{name}, the interface of {port}, carries {uppers}, which gets its packets, too");
        let help =
            "give the gateway an interface of its own: tags of VLANs are its segments' (vlan = NUMBER)";
        found.push(Finding::new(Code::InterfaceMember, what, help));
    }
    if !link.is_up {
        let what = format!("{name}, the interface of {port}, is down");
        found.push(Finding::new(Code::InterfaceDown, what, format!("ip link set dev {name} up")));
    } else if !link.has_carrier {
        let what = format!("{name}, the interface of {port}, has no carrier");
        found.push(Finding::new(Code::InterfaceDown, what, "plug its cable in, or bring the other end up"));
    }
    let wanted = subject.config.ethernet.mtu;
    if let Some(mtu) = link.mtu.filter(|mtu| *mtu < wanted.into()) {
        let what =
            format!("packets of {wanted} bytes do not fit {name}, the interface of {port}: its MTU is {mtu}");
        let help = format!("ip link set dev {name} mtu {wanted}, or mtu = {mtu} in [ethernet]");
        found.push(subject.of_key(Code::InterfaceMtu, "ethernet.mtu", None, what, help));
    }
    if !link.joins.is_empty() {
        let how = listed(&link.joins);
        let what = format!(
            "the kernel joins packets that come in at {name}, the interface of {port} ({how}): what is then longer than a \
             frame of the port is lost"
        );
        let help =
            link.joins.iter().fold(format!("ethtool -K {name}"), |help, what| format!("{help} {what} off"));
        found.push(Finding::new(Code::InterfaceOffloads, what, help));
    }
}
