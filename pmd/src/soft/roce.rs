//! A software device with one Ethernet port on a network interface.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use gidcache::layout::LayoutError;
use gidcache::{Attributes, DeviceTable, GidType, Key, PortKind, PortSetup, RoceTypes, TableError};
use ib_wire::Gid;
use ib_wire::PortNumber;

use super::SoftHca;
use super::served::ServedGids;
use crate::gids::{DirectoryError, SharedError};
use crate::hca::{HcaError, LinkLayer};
use connectx::PortConfig;
use connectx::cable::{CableEnd, CableError, CableUrl, Transport};
use connectx::engine::EngineConfig;
use connectx::ethernet::{guid_of_mac, roce_mtu};
use interface;

/// Settings of such a device.
#[derive(Clone, Debug)]
pub struct RoceConfig {
    /// Its name.
    pub name: String,
    /// A `roce:` cable.
    pub cable: CableUrl,
    /// Source of its GIDs.
    pub gids: RoceGids,
    /// Seed for queue pair numbers.
    pub seed: u64,
}

/// Source of a port's GIDs.
#[derive(Clone, Debug)]
pub enum RoceGids {
    /// These IP addresses, each once, in entries 1 and up of the GID table. Entry 0 is the link-local GID of
    /// the interface's MAC address. The kernel should not have these addresses.
    Addresses(Vec<IpAddr>),
    /// The table that a service maintains for the interface in this directory
    /// ([`Directory`](crate::gids::Directory)). It contains the kernel's addresses. The device follows its
    /// changes ([`SoftHca::follow_gids`]).
    Served(PathBuf),
}

/// Reason why the device could not be created.
#[derive(Debug, thiserror::Error)]
pub enum RoceError {
    /// The cable is not an Ethernet link.
    #[error("{0} is not a link for an Ethernet port; use roce:INTERFACE")]
    NotEthernet(Box<CableUrl>),
    /// The interface does not exist or is not Ethernet.
    #[error("network interface {name}")]
    Interface {
        /// Its name.
        name: String,
        /// The system error.
        #[source]
        source: io::Error,
    },
    /// The interface's MTU is too small for RoCE.
    #[error(
        "network interface {name} has an MTU of {mtu}; RoCE requires at least 356: ip link set {name} mtu 4500"
    )]
    Mtu {
        /// Its name.
        name: String,
        /// Its MTU.
        mtu: usize,
    },
    /// The cable could not be opened.
    #[error(transparent)]
    Cable(#[from] CableError),
    /// There are more addresses than a GID table has entries.
    #[error("cannot create a GID table for {addresses} addresses")]
    Layout {
        /// Number of addresses.
        addresses: usize,
        /// The error of the table layout.
        #[source]
        source: LayoutError,
    },
    /// An address cannot be used for a port.
    #[error("the port's addresses")]
    Address(#[from] TableError),
    /// The directory with GID tables cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The service has no table for the interface.
    #[error(
        "no GIDs are served for {interface}: start the service with --roce {interface} (ipoib-fwd gids --serve)"
    )]
    Served {
        /// The interface.
        interface: String,
        /// The error.
        #[source]
        source: SharedError,
    },
    /// The device could not be created.
    #[error(transparent)]
    Hca(#[from] HcaError),
}

/// The only port.
pub(super) const PORT: PortNumber = PortNumber(1);

/// Table length for all addresses and the port's own one.
fn table_len(addresses: &[IpAddr]) -> u16 {
    u16::try_from(addresses.len() + 1).unwrap_or(u16::MAX)
}

impl SoftHca {
    /// Creates a device whose only port, 1, is on a network interface. It uses the interface's MAC address
    /// and the largest MTU that fits the interface's.
    pub fn roce(config: &RoceConfig) -> Result<Self, RoceError> {
        let Transport::Ethernet { interface: name } = &config.cable.transport else {
            return Err(RoceError::NotEthernet(Box::new(config.cable.clone())));
        };
        let failed = |source| RoceError::Interface { name: name.clone(), source };
        let mac = interface::mac(name).map_err(failed)?;
        let ip_mtu = interface::mtu(name).map_err(failed)?;
        let max_mtu = roce_mtu(ip_mtu).ok_or_else(|| RoceError::Mtu { name: name.clone(), mtu: ip_mtu })?;
        let guid = guid_of_mac(mac);
        let link_layer = LinkLayer::Ethernet;
        let served = match &config.gids {
            RoceGids::Addresses(_) => None,
            RoceGids::Served(directory) => Some(ServedGids::open(directory, name, Instant::now())?),
        };
        let gid_table = match &config.gids {
            RoceGids::Addresses(addresses) => table_len(addresses),
            RoceGids::Served(_) => served.as_ref().map_or(1, ServedGids::len),
        };
        let mut hca = Self::with_ports(EngineConfig {
            node_guid: guid,
            description: config.name.clone(),
            ports: vec![PortConfig { guid, max_mtu, link_layer, gid_table }],
            seed: config.seed,
        })?;
        if let RoceGids::Addresses(addresses) = &config.gids {
            hca.fill_gids(mac, addresses)?;
        }
        hca.served = served;
        hca.follow_gids(Instant::now());
        hca.set_cable(PORT, Some(CableEnd::connect(&config.cable)?))?;
        Ok(hca)
    }

    /// Fills the GID table by the rules of the kernel.
    fn fill_gids(&self, mac: [u8; 6], addresses: &[IpAddr]) -> Result<(), RoceError> {
        let entry =
            |gid: Gid| Attributes { key: Key { gid, gid_type: GidType::RoceV2, ifindex: None }, vlan: None };
        let setup =
            PortSetup { number: PORT, len: table_len(addresses), kind: PortKind::Roce(RoceTypes::V2) };
        let table = DeviceTable::new(&[setup], self.gid_provider(), 0)
            .map_err(|source| RoceError::Layout { addresses: addresses.len(), source })?;
        table.add_default(PORT, entry(gidcache::link_local_gid(mac)))?;
        for address in addresses {
            table.add(PORT, entry(gidcache::gid_of_address(*address)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ib_wire::Mtu;

    use super::*;
    use crate::hca::Control;

    pub(in crate::soft) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// Creates a device without a cable and without GIDs.
    pub(in crate::soft) fn device_with(gid_table: u16) -> SoftHca {
        let guid = guid_of_mac(MAC);
        let port = PortConfig { guid, max_mtu: Mtu::B1024, link_layer: LinkLayer::Ethernet, gid_table };
        let description = "an Ethernet port".to_owned();
        SoftHca::with_ports(EngineConfig { node_guid: guid, description, ports: vec![port], seed: 1 })
            .unwrap()
    }

    fn device(addresses: &[&str]) -> Result<SoftHca, RoceError> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let hca = device_with(table_len(&addresses));
        hca.fill_gids(MAC, &addresses)?;
        Ok(hca)
    }

    #[test]
    fn an_address_has_one_entry_behind_the_ports_own() {
        let own = gidcache::link_local_gid(MAC);
        let own_address = std::net::Ipv6Addr::from_octets(own.0).to_string();
        let hca = device(&["10.0.0.1", "2001:db8::1", "10.0.0.1", &own_address]).unwrap();
        let gids: Vec<_> = hca.gids().unwrap().iter().map(|entry| (entry.index, entry.gid())).collect();
        let of = |address: &str| gidcache::gid_of_address(address.parse().unwrap());
        assert_eq!(gids, [(0, own), (1, of("10.0.0.1")), (2, of("2001:db8::1"))]);
    }

    #[test]
    fn what_is_no_address_of_a_port_is_refused() {
        for wrong in ["::", "ff02::1"] {
            let error = device(&["10.0.0.1", wrong]).unwrap_err();
            assert!(matches!(error, RoceError::Address(TableError::NotAGid(_))), "{error:?}");
        }
    }
}
