//! Device files and capabilities.

use std::path::Path;

use super::ethernet;
use crate::finding::{Code, Finding};
use crate::machine::Access;
use crate::subject::Subject;

/// Capability numbers (capabilities(7)).
const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const SYS_ADMIN: u32 = 21;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    adapters(subject, found);
    let Some(eal) = subject.eal else { return };
    let machine = subject.machine;
    let groups = eal.allowed.iter().filter_map(|address| {
        let device = machine.pci.get(address)?;
        (device.driver.as_deref() == Some("vfio-pci")).then_some(device.group)
    });
    let groups: Vec<Option<u32>> = groups.collect();
    if !groups.is_empty() {
        file(subject, Path::new("/dev/vfio/vfio"), "modprobe vfio-pci", found);
    }
    for group in groups.into_iter().flatten() {
        file(subject, Path::new(&format!("/dev/vfio/{group}")), "modprobe vfio-pci", found);
    }
    let has =
        |drivers: &[&str]| eal.vdevs.iter().any(|vdev| drivers.iter().any(|driver| vdev.starts_with(driver)));
    if has(&["net_tap"]) {
        file(subject, Path::new("/dev/net/tun"), "modprobe tun", found);
    }
    // net_pcap with packet files has no interface.
    let is_on_interface = ethernet::ports(eal).any(|port| {
        let drivers = ["net_af_packet", "eth_af_packet", "net_pcap", "eth_pcap"];
        !port.interfaces.is_empty() && drivers.iter().any(|driver| port.name.starts_with(driver))
    });
    let wanted = [
        (is_on_interface, NET_RAW, "CAP_NET_RAW", "ports on interfaces of the kernel"),
        // The drivers set the interface's MTU and modes at the start, even if they do not change.
        (
            has(&["net_af_packet", "eth_af_packet", "net_tap", "net_af_xdp"]),
            NET_ADMIN,
            "CAP_NET_ADMIN",
            "ports on interfaces of the kernel",
        ),
        (
            eal.value_of("--iova-mode") == Some("pa"),
            SYS_ADMIN,
            "CAP_SYS_ADMIN",
            "physical addresses (--iova-mode pa)",
        ),
    ];
    for (_, _, name, what_for) in
        wanted.into_iter().filter(|(is, number, ..)| *is && !machine.process.may(*number))
    {
        let what = format!("this process lacks {name}, which {what_for} need");
        let help = "run as root, or grant the capability (AmbientCapabilities= of a unit, setcap)";
        found.push(Finding::new(Code::CapabilityMissing, what, help));
    }
}

fn adapters(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    if subject.config.infiniband.is_soft() {
        return;
    }
    for (device, port) in subject.config.infiniband_ports() {
        let Some((name, adapter)) = subject.adapter(device, port) else { continue };
        let files = [(adapter.verbs.as_ref(), "ib_uverbs"), (adapter.management.get(&port), "ib_umad")];
        for (name_of_file, module) in files {
            match name_of_file {
                Some(of) => file(
                    subject,
                    &Path::new("/dev/infiniband").join(of),
                    &format!("modprobe {module}"),
                    found,
                ),
                None => {
                    let what = format!(
                        "programs cannot use port {port} of {name}: {module} has no device file for it"
                    );
                    found.push(Finding::new(Code::DeviceFileMissing, what, format!("modprobe {module}")));
                }
            }
        }
    }
}

fn file(subject: &Subject<'_>, path: &Path, remedy: &str, found: &mut Vec<Finding>) {
    match subject.machine.files.get(path) {
        Some(Access::Granted) | None => {}
        Some(Access::Missing) => {
            let what = format!("{} does not exist", path.display());
            found.push(Finding::new(Code::DeviceFileMissing, what, remedy));
        }
        Some(Access::Refused) => {
            let what = format!("{} cannot be opened: permission denied", path.display());
            let help = "run as root, or give the user access to it";
            found.push(Finding::new(Code::DeviceFileForbidden, what, help));
        }
    }
}
