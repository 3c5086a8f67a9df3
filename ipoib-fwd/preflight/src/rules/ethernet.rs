//! Ethernet ports: EAL's ports, and the kernel's interfaces below them.

use config::{EalArguments, nearest};

use super::listed;
use crate::finding::{Code, Finding, Severity};
use crate::subject::Subject;

/// A port of `--vdev`.
pub(super) struct Port<'v> {
    pub(super) name: &'v str,
    /// The complete argument.
    vdev: &'v str,
    /// The kernel's interfaces that it uses.
    pub(super) interfaces: Vec<&'v str>,
}

/// Prefixes of the drivers whose ports use existing interfaces.
const ON_INTERFACES: [&str; 5] = ["net_af_packet", "eth_af_packet", "net_af_xdp", "net_pcap", "eth_pcap"];

pub(super) fn ports(eal: &EalArguments) -> impl Iterator<Item = Port<'_>> {
    eal.vdevs.iter().map(|vdev| {
        let (name, options) = vdev.split_once(',').unwrap_or((vdev, ""));
        let is_on = ON_INTERFACES.iter().any(|driver| name.starts_with(driver));
        let keys = ["iface", "rx_iface", "rx_iface_in", "tx_iface"];
        let options = options.split(',').filter_map(|option| option.split_once('='));
        let mut interfaces: Vec<&str> =
            options.filter(|(key, _)| is_on && keys.contains(key)).map(|(_, value)| value).collect();
        interfaces.sort_unstable();
        interfaces.dedup();
        Port { name, vdev, interfaces }
    })
}

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let Some(eal) = subject.eal else { return };
    names(subject, eal, found);
    for port in ports(eal).filter(|port| !is_member(eal, port.name)) {
        longest(subject, &port, found);
    }
    for port in ports(eal) {
        for interface in &port.interfaces {
            one(subject, port.name, interface, found);
        }
    }
}

/// True for a member of a bond: it is a port, but not one of the gateway.
fn is_member(eal: &EalArguments, name: &str) -> bool {
    let mut bonds = eal.vdevs.iter().filter(|vdev| vdev.starts_with("net_bonding"));
    bonds.any(|bond| bond.split(['=', ',']).any(|word| word == name))
}

/// Minimum of `ethernet.mtu` and of `buffers.data-room`.
const LEAST_MTU: u32 = 576;
const LEAST_ROOM: u32 = 2048;
/// The largest packet that the AF_PACKET driver reports; larger ones depend on frames and interface.
const AF_PACKET_MTU: u16 = 1500;
/// Overhead of an AF_PACKET port's frame in bytes: the kernel's header, the link's header, a VLAN tag.
const AF_PACKET_OVERHEAD: u32 = 88;
/// The largest packet of net_tap.
const TAP_MTU: u32 = 1504;
/// Length of the link's header with a VLAN tag and of the checksum, in bytes.
const FRAME_OVERHEAD: u32 = 22;

fn is_af_packet(name: &str) -> bool {
    ["net_af_packet", "eth_af_packet"].iter().any(|driver| name.starts_with(driver))
}

/// Checks that a port carries packets of the configured size, as far as its driver's limits are known.
fn longest(subject: &Subject<'_>, port: &Port<'_>, found: &mut Vec<Finding>) {
    let (wanted, room) = (u32::from(subject.config.ethernet.mtu), subject.config.buffers.data_room);
    let is_of = |drivers: &[&str]| drivers.iter().any(|driver| port.name.starts_with(driver));
    let (most, why, help) = if is_of(&["net_tap"]) {
        (TAP_MTU, "net_tap does not support larger ones".to_owned(), "use another driver".to_owned())
    } else if is_of(&["net_pcap", "eth_pcap", "net_null", "eth_null"]) {
        let needed = (wanted + FRAME_OVERHEAD).next_multiple_of(64);
        let why = format!("its driver uses one buffer of data-room = {room} per frame");
        (u32::from(room) - FRAME_OVERHEAD, why, format!("data-room = {needed} in [buffers]"))
    } else if is_af_packet(port.name) {
        let frame = config::frame_of(port.vdev, room);
        let needed = (wanted + AF_PACKET_OVERHEAD).next_power_of_two().max(LEAST_ROOM);
        let help = match port.vdev.contains("framesz=") || port.vdev.contains("blocksz=") {
            true => format!(
                "data-room = {needed} in [buffers], with framesz={needed} or without framesz, blocksz and framecnt"
            ),
            false => format!("data-room = {needed} in [buffers], which increases the port's frames"),
        };
        (frame.saturating_sub(AF_PACKET_OVERHEAD), format!("its frames have {frame} bytes"), help)
    } else {
        return;
    };
    if wanted > most {
        let what =
            format!("{} carries packets up to {most} bytes, and ethernet.mtu = {wanted}: {why}", port.name);
        let help =
            if most < LEAST_MTU { help } else { format!("set mtu = {most} in [ethernet], or: {help}") };
        found.push(subject.of_key(Code::EthernetMtu, "ethernet.mtu", None, what, help));
    }
}

/// Checks that EAL creates each port of the configuration.
fn names(subject: &Subject<'_>, eal: &EalArguments, found: &mut Vec<Finding>) {
    // Without a list of allowed devices, EAL takes all that exist.
    if !eal.pci_restricted {
        return;
    }
    let adapters: Vec<&str> =
        subject.machine.adapters.values().filter_map(|adapter| adapter.pci.as_deref()).collect();
    let known: Vec<&str> = ports(eal)
        .map(|port| port.name)
        .filter(|name| ["net_", "eth_"].iter().any(|kind| name.starts_with(kind)))
        .chain(eal.allowed.iter().map(String::as_str).filter(|address| !adapters.contains(address)))
        .filter(|name| !is_member(eal, name))
        .collect();
    for name in subject.config.ethernet_ports() {
        let entry = subject.first_segment(|segment| segment.ethernet.as_deref() == name);
        match name {
            // An adapter may be named for its Ethernet port, too. A representor's name starts with that of
            // its device.
            Some(name)
                if known.contains(&name) || eal.allowed.iter().any(|device| is_port_of(device, name)) => {}
            Some(name) => {
                let what = format!("no argument of EAL creates the Ethernet port {name}");
                let near =
                    nearest(name, &known).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
                let help =
                    format!("{near}EAL has: {}; add others with -a ADDRESS or --vdev NAME", listed(&known));
                found.push(subject.of_key(Code::EthernetUnknown, "segment.ethernet", entry, what, help));
            }
            None if known.len() == 1 => {}
            None => {
                let what = match known.as_slice() {
                    [] => "EAL has no Ethernet port".to_owned(),
                    _ => {
                        format!("EAL has several Ethernet ports ({}), and none is selected", listed(&known))
                    }
                };
                let help = match known.first() {
                    None => "add one: -a PCI-ADDRESS or --vdev net_af_packet0,iface=DEVICE".to_owned(),
                    Some(first) => format!("set for instance port = \"{first}\" in [ethernet]"),
                };
                found.push(subject.of_key(Code::EthernetUnnamed, "ethernet.port", None, what, help));
            }
        }
    }
}

/// True for the name of one of a device's ports: `0000:81:00.0` or `0000:81:00.0_representor_vf0`.
fn is_port_of(device: &str, name: &str) -> bool {
    name.strip_prefix(device).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// Checks an interface of the kernel below a port.
fn one(subject: &Subject<'_>, port: &str, name: &str, found: &mut Vec<Finding>) {
    let machine = subject.machine;
    let Some(link) = machine.links.get(name) else {
        let there = machine.links.iter().filter(|(_, link)| link.is_ethernet && link.role().is_none());
        let what = format!("the interface {name} of {port} does not exist");
        let help = format!("available interfaces: {}", listed(there.map(|(name, _)| name)));
        found.push(Finding::new(Code::InterfaceMissing, what, help));
        return;
    };
    if !link.is_ethernet {
        let what = format!("{name}, the interface of {port}, is not an Ethernet interface");
        found.push(Finding::new(Code::InterfaceKind, what, "use an Ethernet interface"));
        return;
    }
    if let Some(role) = link.role() {
        let what = format!("the interface of {port} is {name}, {role}");
        let help = "give the gateway a dedicated interface: the kernel would answer packets, too";
        found.push(Finding::new(Code::LoginInterface, what, help));
    }
    if let Some(master) = &link.master {
        let what = format!(
            "{name}, the interface of {port}, is a member of {master}, which also receives its packets"
        );
        found.push(Finding::new(Code::InterfaceMember, what, format!("ip link set dev {name} nomaster")));
    } else if !link.uppers.is_empty() {
        let uppers = listed(link.uppers.iter().take(4));
        let what =
            format!("{name}, the interface of {port}, carries {uppers}, which also receives its packets");
        let help = "give the gateway a dedicated interface; its segments handle VLAN tags (vlan = NUMBER)";
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
        // The MTU of a VLAN or a macvlan is at most that of the interface below it.
        let mut all = machine.links.iter();
        let below = all.find(|(_, below)| {
            below.uppers.iter().any(|upper| upper == name) && below.mtu.is_some_and(|mtu| mtu < wanted.into())
        });
        let raise = match below {
            Some((below, _)) => format!("ip link set dev {below} mtu {wanted}, then the same for {name}"),
            None => format!("ip link set dev {name} mtu {wanted}"),
        };
        let help = if mtu < LEAST_MTU { raise } else { format!("{raise}, or mtu = {mtu} in [ethernet]") };
        found.push(match (is_af_packet(port), wanted > AF_PACKET_MTU) {
            (true, false) if below.is_some() => {
                subject.of_key(Code::InterfaceMtu, "ethernet.mtu", None, what, help)
            }
            (true, true) => subject.of_key(Code::EthernetMtu, "ethernet.mtu", None, what, help),
            (true, false) => {
                let help = "none needed: the start sets the interface's MTU to this value";
                let finding = subject.of_key(Code::InterfaceMtu, "ethernet.mtu", None, what, help);
                finding.as_severe_as(Severity::Note)
            }
            (false, _) => subject.of_key(Code::InterfaceMtu, "ethernet.mtu", None, what, help),
        });
    }
    if link.is_pair {
        let what = format!(
            "{name}, the interface of {port}, is one end of a veth pair: unless TX checksum offload is off at the other end, its \
             packets have no TCP and UDP checksums: ping works, TCP does not"
        );
        let help = "run at the other end: ethtool -K INTERFACE tx off";
        found.push(Finding::new(Code::InterfaceChecksums, what, help));
    }
    if !link.joins.is_empty() {
        let how = listed(&link.joins);
        let what = format!(
            "the kernel merges packets that {name}, the interface of {port}, receives ({how}): a packet that is then longer than a \
             frame of the port is lost"
        );
        let help =
            link.joins.iter().fold(format!("ethtool -K {name}"), |help, what| format!("{help} {what} off"));
        found.push(Finding::new(Code::InterfaceOffloads, what, help));
    }
}
