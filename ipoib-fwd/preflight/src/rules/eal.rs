//! EAL's arguments: which network cards it would take.

use config::ConfigError;

use super::{eal_options, eal_prefix, listed};
use crate::finding::{Code, Finding};
use crate::machine::Machine;
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let Some(eal) = subject.eal else {
        if !subject.errors.iter().any(|error| matches!(error, ConfigError::CommandLine { .. })) {
            let what = "EAL's arguments are not given: nothing is said of lcores, memory and Ethernet ports";
            let help = "give them as at the start, with what is the gateway's behind `--`: \
                        ipoib-fwd -l 0-1 --no-pci -- --check --config FILE";
            found.push(Finding::new(Code::EalMissing, what, help));
        }
        return;
    };
    if let (_, Some(unknown)) = eal_options::read(&eal.arguments) {
        found.push(Finding::new(Code::EalInvalid, format!("command line: {}", unknown.what), unknown.help));
    }
    eal_prefix::check(subject.machine, eal, found);
    if !eal.pci_restricted {
        let logins = login_devices(subject.machine, &eal.blocked);
        let which = match logins.as_slice() {
            [] => String::new(),
            names => format!(", among them what this machine is reached by ({})", listed(names)),
        };
        let but = match eal.blocked.as_slice() {
            [] => String::new(),
            blocked => format!(" but for {}", listed(blocked)),
        };
        let what = format!("EAL may take every network card that it can drive{but}{which}");
        let help = "name the gateway's own with -a ADDRESS, or give --no-pci";
        found.push(Finding::new(Code::PciUnrestricted, what, help));
    }
    for fault in eal.ring_faults(subject.config.buffers.data_room) {
        found.push(super::configuration::of_error(subject, &fault));
    }
    for address in &eal.allowed {
        let Some(device) = subject.machine.pci.get(address) else {
            if config::is_pci_address(address) {
                let what = format!("there is no PCI device {address}");
                let cards = subject.machine.pci.iter().filter(|(_, device)| device.is_ethernet);
                let help = format!("network cards are: {}", listed(cards.map(|(name, _)| name)));
                found.push(Finding::new(Code::PciMissing, what, help));
            }
            continue;
        };
        let user = subject.machine.links.iter().find(|(_, link)| link.pci.as_ref() == Some(address));
        if let Some((name, role)) = user.and_then(|(name, link)| Some((name, link.role()?))) {
            let what = format!("-a {address} is {name}, {role}");
            let help = "name another card, or reach the machine by another one first";
            found.push(Finding::new(Code::LoginInterface, what, help));
        }
        if !device.is_for_programs() {
            let driver = device.driver.as_deref().unwrap_or("none");
            let what = format!("{address} is bound to the driver {driver}, which leaves it to the kernel");
            let help = format!("modprobe vfio-pci && dpdk-devbind.py -b vfio-pci {address}");
            found.push(Finding::new(Code::PciKernelDriver, what, help));
        }
    }
}

/// PCI devices by which routes of the machine lead, without those that EAL leaves alone.
fn login_devices(machine: &Machine, blocked: &[String]) -> Vec<String> {
    let links = machine.links.iter().filter(|(_, link)| match &link.pci {
        Some(pci) => link.role().is_some() && !blocked.contains(pci),
        // Below it may be a bus that is not PCI; networks within the machine are no cards.
        None => link.has_default_route,
    });
    links.map(|(name, link)| link.pci.as_ref().map_or(name.clone(), |pci| format!("{name}, {pci}"))).collect()
}
