//! EAL's arguments: the network cards that it takes.

use config::ConfigError;

use super::{eal_options, eal_prefix, listed};
use crate::finding::{Code, Finding};
use crate::machine::Machine;
use crate::subject::Subject;

pub(crate) fn check(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let Some(eal) = subject.eal else {
        if !subject.errors.iter().any(|error| matches!(error, ConfigError::CommandLine { .. })) {
            let what = "EAL's arguments are not given: lcores, memory and Ethernet ports are not checked";
            let help = "give them as at the start, and the gateway's arguments after `--`: \
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
            names => format!(", including the one that connects this host ({})", listed(names)),
        };
        let but = match eal.blocked.as_slice() {
            [] => String::new(),
            blocked => format!(" except {}", listed(blocked)),
        };
        let what = format!("EAL may take every network card that it supports{but}{which}");
        let help = "select the gateway's card with -a ADDRESS, or give --no-pci";
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
                let help = format!("network cards: {}", listed(cards.map(|(name, _)| name)));
                found.push(Finding::new(Code::PciMissing, what, help));
            }
            continue;
        };
        let user = subject.machine.links.iter().find(|(_, link)| link.pci.as_ref() == Some(address));
        if let Some((name, role)) = user.and_then(|(name, link)| Some((name, link.role()?))) {
            let what = format!("-a {address} is {name}, {role}");
            let help = "use another card, or connect this host by another one first";
            found.push(Finding::new(Code::LoginInterface, what, help));
        }
        if !device.is_for_programs() {
            let driver = device.driver.as_deref().unwrap_or("none");
            let what = format!("{address} is bound to the kernel driver {driver}, which programs cannot use");
            let help = format!("modprobe vfio-pci && dpdk-devbind.py -b vfio-pci {address}");
            found.push(Finding::new(Code::PciKernelDriver, what, help));
        }
    }
}

/// PCI devices that carry routes of this host, except those that EAL does not take.
fn login_devices(machine: &Machine, blocked: &[String]) -> Vec<String> {
    let links = machine.links.iter().filter(|(_, link)| match &link.pci {
        Some(pci) => link.role().is_some() && !blocked.contains(pci),
        // The interface may be on a bus other than PCI. Networks within the host have no card.
        None => link.has_default_route,
    });
    links.map(|(name, link)| link.pci.as_ref().map_or(name.clone(), |pci| format!("{name}, {pci}"))).collect()
}
