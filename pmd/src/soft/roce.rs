//! A software device with one Ethernet port on a network interface.

use std::io;
use std::net::IpAddr;

use gidcache::{Attributes, GidType, Key};
use ib_wire::PortNumber;

use super::SoftHca;
use crate::hca::{HcaError, LinkLayer};
use connectx::PortConfig;
use connectx::cable::{CableEnd, CableError, CableUrl, Transport};
use connectx::engine::EngineConfig;
use connectx::ethernet::{guid_of_mac, roce_mtu};
use interface;

/// What such a device is made with.
#[derive(Clone, Debug)]
pub struct RoceConfig {
    /// Its name.
    pub name: String,
    /// A `roce:` cable.
    pub cable: CableUrl,
    /// Its IP addresses: entries 1 and up of the GID table. Entry 0 is the link-local GID of the interface's MAC address. The
    /// kernel should not have them.
    pub addresses: Vec<IpAddr>,
    /// Where queue pair numbers are drawn from.
    pub seed: u64,
}

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum RoceError {
    /// The cable is of another kind.
    #[error("{0} is no link for an Ethernet port; write roce:INTERFACE")]
    NotEthernet(CableUrl),
    /// The interface is not there or not Ethernet.
    #[error("network interface {name}")]
    Interface {
        /// Its name.
        name: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The interface's packets are too short for RoCE.
    #[error(
        "network interface {name} has an MTU of {mtu}; RoCE needs 356 at least: ip link set {name} mtu 4500"
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
    /// The device could not be made.
    #[error(transparent)]
    Hca(#[from] HcaError),
}

impl SoftHca {
    /// A device whose only port, 1, is on a network interface. It has the interface's MAC address, and the largest MTU that
    /// the interface's allows.
    pub fn roce(config: &RoceConfig) -> Result<Self, RoceError> {
        const PORT: PortNumber = PortNumber(1);
        let Transport::Ethernet { interface: name } = &config.cable.transport else {
            return Err(RoceError::NotEthernet(config.cable.clone()));
        };
        let failed = |source| RoceError::Interface { name: name.clone(), source };
        let mac = interface::mac(name).map_err(failed)?;
        let ip_mtu = interface::mtu(name).map_err(failed)?;
        let max_mtu = roce_mtu(ip_mtu).ok_or_else(|| RoceError::Mtu { name: name.clone(), mtu: ip_mtu })?;
        let guid = guid_of_mac(mac);
        let link_layer = LinkLayer::Ethernet;
        let gid_table = u16::try_from(config.addresses.len() + 1).unwrap_or(u16::MAX);
        let mut hca = Self::with_ports(EngineConfig {
            node_guid: guid,
            description: config.name.clone(),
            ports: vec![PortConfig { guid, max_mtu, link_layer, gid_table }],
            seed: config.seed,
        })?;
        let addresses = config.addresses.iter().map(|address| gidcache::gid_of_address(*address));
        for (index, gid) in (0..).zip([gidcache::link_local_gid(mac)].into_iter().chain(addresses)) {
            let key = Key { gid, gid_type: GidType::RoceV2, ifindex: None };
            hca.engine.lock().set_gid(PORT, index, Some(Attributes { key, vlan: None }))?;
        }
        hca.set_cable(PORT, Some(CableEnd::connect(&config.cable)?))?;
        Ok(hca)
    }
}
