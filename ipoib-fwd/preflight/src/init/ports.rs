//! Selects the ports of a first configuration, and gives a reason for each port.

use crate::machine::{AdapterPort, Link, Machine, PciDevice};

/// A port and the reason.
pub(super) struct Said {
    pub(super) name: String,
    pub(super) why: &'static str,
}

/// The kind of the Ethernet port.
pub(super) enum EthernetPort {
    /// A PCI device.
    Pci(String),
    /// An interface of the kernel.
    Interface(String),
    /// An interface that the gateway creates.
    Made,
    /// No port: packets sent to it are discarded.
    Null,
}

/// The selected Ethernet port, and the reasons for all ports.
pub(super) struct EthernetChoice {
    pub(super) port: EthernetPort,
    pub(super) said: Vec<Said>,
}

/// True for a name that is valid in an argument and in a quoted string.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// Why an interface cannot be used; `Ok` with its rank, where less is better.
fn rank(name: &str, link: &Link) -> Result<(u8, &'static str), &'static str> {
    match link {
        _ if !is_plain(name) => Err("not taken: its name is not valid in an argument"),
        Link { is_ethernet: false, .. } => Err("not taken: it is not an Ethernet interface"),
        Link { has_default_route: true, .. } => {
            Err("not taken: this host's default route uses it, or an interface on top of it")
        }
        Link { has_routes: true, .. } => {
            Err("not taken: this host has an address on it, or on an interface on top of it")
        }
        Link { master: Some(_), .. } => Err("not taken: it is a member of a bridge or a bond"),
        Link { uppers, .. } if !uppers.is_empty() => {
            Err("not taken: other interfaces are on it, a VLAN or a macvlan for instance")
        }
        Link { is_upper: true, .. } => Err("not taken: it is on top of other interfaces"),
        Link { pci: None, is_pair: false, .. } => Err("not taken: it has no other end"),
        Link { pci: Some(_), has_carrier: true, .. } => Ok((1, "usable: a network card with a carrier")),
        Link { pci: Some(_), .. } => Ok((3, "usable: a network card, currently without a carrier")),
        Link { has_carrier: true, .. } => Ok((2, "usable: an interface that is one end of a pair")),
        Link { .. } => Ok((4, "usable: an interface that is one end of a pair, currently without a carrier")),
    }
}

impl EthernetChoice {
    pub(super) fn of(machine: &Machine) -> Self {
        let mut said = Vec::new();
        let mut best: Option<(u8, EthernetPort)> = None;
        let mut offer = |rank: u8, port: EthernetPort| {
            if best.as_ref().is_none_or(|(known, _)| rank < *known) {
                best = Some((rank, port));
            }
        };
        let is_adapter =
            |address: &String| machine.adapters.values().any(|adapter| adapter.pci.as_ref() == Some(address));
        let for_vfio = |device: &PciDevice| {
            device.is_ethernet
                && matches!(device.driver.as_deref(), Some("vfio-pci" | "igb_uio" | "uio_pci_generic"))
        };
        for (address, _) in machine.pci.iter().filter(|(_, device)| for_vfio(device)) {
            said.push(Said {
                name: address.clone(),
                why: "usable: a network card with a driver for programs",
            });
            offer(0, EthernetPort::Pci(address.clone()));
        }
        for (name, link) in machine.links.iter().filter(|(name, _)| *name != "lo") {
            let shown: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            match rank(name, link) {
                Err(why) => said.push(Said { name: shown, why }),
                Ok((rank, why)) => {
                    said.push(Said { name: shown, why });
                    let shared = link.pci.as_ref().filter(|address| {
                        let driver = machine.pci.get(*address).and_then(|device| device.driver.as_deref());
                        driver == Some("mlx5_core") && is_adapter(address)
                    });
                    offer(
                        rank,
                        match shared {
                            Some(address) => EthernetPort::Pci(address.clone()),
                            None => EthernetPort::Interface(name.clone()),
                        },
                    );
                }
            }
        }
        let port = best.map_or_else(
            || if machine.process.may(12) { EthernetPort::Made } else { EthernetPort::Null },
            |(_, port)| port,
        );
        Self { port, said }
    }

    /// Its NUMA node.
    pub(super) fn node(&self, machine: &Machine) -> Option<u16> {
        let address = match &self.port {
            EthernetPort::Pci(address) => Some(address),
            EthernetPort::Interface(name) => machine.links.get(name)?.pci.as_ref(),
            EthernetPort::Made | EthernetPort::Null => None,
        };
        machine.pci.get(address?)?.node
    }

    /// The port's name in the configuration.
    pub(super) fn name(&self) -> &str {
        match &self.port {
            EthernetPort::Pci(address) => address,
            EthernetPort::Interface(_) => "net_af_packet0",
            EthernetPort::Made => "net_tap0",
            EthernetPort::Null => "net_null0",
        }
    }
}

/// An InfiniBand port.
pub(super) struct Taken {
    pub(super) device: String,
    pub(super) number: u8,
    pub(super) port: AdapterPort,
}

/// The selected InfiniBand port, if there is one, and the reasons for all ports.
pub(super) struct InfiniBandChoice {
    pub(super) taken: Option<Taken>,
    pub(super) said: Vec<Said>,
}

impl InfiniBandChoice {
    pub(super) fn of(machine: &Machine) -> Self {
        let mut said = Vec::new();
        let mut taken: Option<Taken> = None;
        for (device, adapter) in &machine.adapters {
            for (number, port) in &adapter.ports {
                let shown: String = device.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
                let why = match port {
                    _ if !is_plain(device) => "not taken: its name is not valid in the file",
                    AdapterPort { is_infiniband: false, .. } => "not taken: its link layer is Ethernet",
                    AdapterPort { is_active: true, .. } => "usable: active",
                    AdapterPort { .. } => "usable: currently not active",
                };
                said.push(Said { name: format!("{shown} port {number}"), why });
                let is_better = taken.as_ref().is_none_or(|known| port.is_active && !known.port.is_active);
                if why.starts_with("usable") && is_better {
                    taken = Some(Taken { device: device.clone(), number: *number, port: port.clone() });
                }
            }
        }
        Self { taken, said }
    }

    /// Its NUMA node.
    pub(super) fn node(&self, machine: &Machine) -> Option<u16> {
        machine.adapters.get(&self.taken.as_ref()?.device)?.node
    }
}
