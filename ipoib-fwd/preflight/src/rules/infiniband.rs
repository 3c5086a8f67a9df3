//! InfiniBand devices, their ports, and the ports' state in the fabric.

use config::{Driver, Mode, Segment};

use super::{firmware, listed};
use crate::finding::{Code, Finding};
use crate::machine::{Access, Adapter, AdapterPort, cable_socket};
use crate::subject::Subject;

/// Length of the encapsulation header in front of each packet, in bytes (RFC 4391 6).
const HEADER: u32 = 4;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    if subject.config.infiniband.is_soft() {
        return soft(subject, found);
    }
    let machine = subject.machine;
    if machine.adapters.is_empty() {
        // The software device may be in a part of the file that could not be read.
        if subject.is_file_faulty() {
            return;
        }
        let what = "there is no InfiniBand device";
        let help = "load the driver of a host channel adapter (modprobe mlx5_ib ib_uverbs ib_umad), or add [infiniband.soft] \
                    with ports = [{ link = \"shm:/run/ibfab.sock\" }] and start ibfab";
        found.push(subject.of_key(Code::DeviceNone, "infiniband.driver", None, what, help));
        return;
    }
    let mut shown = Vec::new();
    for (device, number) in subject.config.infiniband_ports() {
        let entry = subject.first_segment(|s| (subject.config.device_of(s), s.port) == (device, number));
        let Some((name, adapter)) = subject.adapter(device, number) else {
            let what = format!("there is no InfiniBand device {}", device.unwrap_or_default());
            let help = format!("this host has: {}", listed(machine.adapters.keys()));
            found.push(subject.of_key(Code::DeviceMissing, "segment.device", entry, what, help));
            continue;
        };
        if !shown.contains(&name) {
            shown.push(name);
            of_device(subject, name, adapter, found);
        }
        let Some(port) = adapter.ports.get(&number) else {
            let what = format!("{name} has no port {number}");
            let help = format!("its ports are: {}", listed(adapter.ports.keys()));
            found.push(subject.of_key(Code::PortMissing, "segment.port", entry, what, help));
            continue;
        };
        if !port.is_infiniband {
            let what = format!("port {number} of {name} is an Ethernet port, which carries no IPoIB");
            let help = format!(
                "use an InfiniBand port ({}), or change this one: mlxconfig -d {name} set LINK_TYPE_P{number}=1, and a cold start",
                infiniband_ports(subject)
            );
            found.push(subject.of_key(Code::PortEthernet, "segment.port", entry, what, help));
            continue;
        }
        of_port(subject, &format!("port {number} of {name}"), port, entry, found);
        for (at, segment) in subject.config.segments.iter().enumerate() {
            if (subject.config.device_of(segment), segment.port) == (device, number) {
                of_segment(subject, &format!("port {number} of {name}"), port, (at, segment), found);
            }
        }
    }
}

fn infiniband_ports(subject: &Subject<'_>) -> String {
    let all = subject.machine.adapters.iter().flat_map(|(name, adapter)| {
        let ports = adapter.ports.iter().filter(|(_, port)| port.is_infiniband);
        ports.map(move |(number, _)| format!("{name} port {number}"))
    });
    listed(all)
}

fn of_device(subject: &Subject<'_>, name: &str, adapter: &Adapter, found: &mut Vec<Finding>) {
    let is_mlx5 = name.starts_with("mlx5")
        || adapter.pci.as_ref().and_then(|pci| subject.machine.pci.get(pci)?.driver.as_deref())
            == Some("mlx5_core");
    if subject.config.infiniband.driver == Driver::Mlx5 && !is_mlx5 {
        let what = format!("{name} is not a ConnectX-4 or later, which the driver mlx5 needs");
        let help = "set driver = \"verbs\" or \"auto\"";
        found.push(subject.of_key(Code::DriverUnfit, "infiniband.driver", None, what, help));
    }
    let of = |what: &Option<String>| what.clone().unwrap_or_else(|| "unknown".to_owned());
    let what = format!("{name} has firmware {}, board {}", of(&adapter.firmware), of(&adapter.board));
    found.push(Finding::new(Code::Firmware, what, ""));
    found.extend(is_mlx5.then(|| firmware::check(name, adapter)).flatten());
}

fn of_port(
    subject: &Subject<'_>,
    name: &str,
    port: &AdapterPort,
    entry: Option<usize>,
    found: &mut Vec<Finding>,
) {
    let place = subject.spot("segment.port", entry);
    if !port.is_active {
        let state = if port.state.is_empty() { "unknown" } else { &port.state };
        let what = format!("{name} is not active: {state}");
        let help = match state {
            "INIT" => "start a subnet manager: opensm, or the one of a switch",
            "DOWN" => "connect its cable",
            _ => "check ibstat; the gateway waits for the port",
        };
        found.push(Finding::new(Code::PortDown, what, help).at(place));
    } else if port.manager == 0 {
        let what = format!("{name} has no subnet manager, without which hosts are not found");
        found.push(
            Finding::new(Code::PortUnmanaged, what, "start one: opensm, or the one of a switch").at(place),
        );
    }
}

fn of_segment(
    subject: &Subject<'_>,
    name: &str,
    port: &AdapterPort,
    (at, segment): (usize, &Segment),
    found: &mut Vec<Finding>,
) {
    let pkey = segment.pkey;
    if port.is_active && !port.is_member(pkey.value()) {
        let key = if at < subject.config.segments.len() { "segment.pkey" } else { "infiniband.pkey" };
        let known = listed(port.pkeys.iter().map(|pkey| format!("{pkey:#06x}")));
        if port.pkeys.contains(&(pkey.value() & 0x7fff)) {
            let what = format!("{name} is a limited member of the partition of segment {}", segment.name);
            let help = format!(
                "make it a full member in the subnet manager ({pkey}, `=full` in OpenSM's partitions.conf)"
            );
            found.push(subject.of_key(Code::PKeyLimited, key, Some(at), what, help));
        } else {
            let what =
                format!("{name} does not have P_Key {pkey} of segment {}, which waits for it", segment.name);
            let help = format!("assign the key in the subnet manager; the port has: {known}");
            found.push(subject.of_key(Code::PKeyMissing, key, Some(at), what, help));
        }
    }
    if let Some(mtu) = port.mtu {
        fabric_mtu(subject, name, mtu.into(), (at, segment), found);
    }
}

/// Checks the MTU: datagrams carry packets up to the port's MTU without the header.
fn fabric_mtu(
    subject: &Subject<'_>,
    name: &str,
    mtu: u32,
    (at, segment): (usize, &Segment),
    found: &mut Vec<Finding>,
) {
    let (datagram, ethernet) = (mtu.saturating_sub(HEADER), u32::from(segment.mtu));
    if segment.mode == Mode::Datagram && datagram < ethernet {
        let what = format!(
            "segment {} has packets of up to {ethernet} bytes on Ethernet, and datagrams at {name} carry {datagram}",
            segment.name
        );
        let help = format!("mode = \"connected\", mtu = {datagram}, or a larger MTU in the fabric");
        found.push(subject.of_key(Code::FabricMtu, "segment.mtu", Some(at), what, help));
    }
}

fn soft(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    for (number, device) in subject.config.infiniband.soft.iter().enumerate() {
        for port in &device.ports {
            let Some(path) = cable_socket(&port.link) else { continue };
            if subject.machine.files.get(std::path::Path::new(path)) == Some(&Access::Missing) {
                let what =
                    format!("the other end of the cable {} of {} does not exist", port.link, device.name);
                let help = "start ibfab with a link with this URL; the gateway waits for it";
                found.push(subject.of_key(
                    Code::CableMissing,
                    "infiniband.soft.ports",
                    Some(number),
                    what,
                    help,
                ));
            }
        }
    }
    for (at, segment) in subject.config.segments.iter().enumerate() {
        let device = subject.config.infiniband.soft_device(segment.device.as_deref());
        let port = device.and_then(|device| device.ports.get(usize::from(segment.port).checked_sub(1)?));
        if let (Some(device), Some(port)) = (device, port) {
            let name = format!("port {} of {}", segment.port, device.name);
            fabric_mtu(subject, &name, port.mtu.into(), (at, segment), found);
        }
    }
}
