//! The state of a host, read from its `proc` and `sys`. Missing, unreadable and invalid values are unknown.

mod accounts;
mod dpdk;
mod files;
mod infiniband;
mod memory;
mod network;
mod paths;
mod pci;
mod process;
mod processors;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use config::Config;

pub(crate) use files::directory_of;

pub use accounts::Account;
pub use dpdk::DpdkProcess;
pub use infiniband::{Adapter, AdapterPort};
pub use memory::{Memory, Pages};
pub use network::Link;
pub(crate) use paths::drops_capabilities;
pub use paths::{PathKind, PathState};
pub use pci::{Iommu, PciDevice};
pub use process::{Access, Occupant, Process};
pub use processors::Processors;

use files::Root;

/// A host.
#[derive(Clone, Default, Debug)]
pub struct Machine {
    /// Its processors.
    pub processors: Processors,
    /// Its hugepages.
    pub memory: Memory,
    /// PCI devices by address.
    pub pci: BTreeMap<String, PciDevice>,
    /// The IOMMU.
    pub iommu: Iommu,
    /// RDMA devices by name.
    pub adapters: BTreeMap<String, Adapter>,
    /// Network interfaces by name.
    pub links: BTreeMap<String, Link>,
    /// Modules that are loaded, or built in and recognized by their directory.
    pub modules: BTreeSet<String>,
    /// The user of this process, by name if it has one.
    pub effective_user: String,
    /// Limits and rights of this process.
    pub process: Process,
    /// Access of this process to the device files, sockets and directories that the configuration needs.
    pub files: BTreeMap<PathBuf, Access>,
    /// Paths in the configuration.
    pub paths: BTreeMap<PathBuf, PathState>,
    /// The state directory, and the process that has locked it, if another gateway uses it.
    pub state_in_use: Option<(PathBuf, String)>,
    /// The occupant of the control socket's path.
    pub socket: Occupant,
    /// The running DPDK processes.
    pub dpdk: Vec<DpdkProcess>,
    /// The configured user.
    pub user: Account,
    /// The configured group.
    pub group: Account,
}

/// The path of a cable's socket, for instance from `shm:/path?option`.
pub(crate) fn cable_socket(link: &str) -> Option<&str> {
    let path = link.strip_prefix("shm:")?;
    Some(path.split_once('?').map_or(path, |(path, _)| path))
}

impl Machine {
    /// Reads the state below a root directory: `/` for this host.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let root = Root::new(root);
        Self {
            processors: processors::read(&root),
            memory: memory::read(&root),
            pci: pci::read(&root),
            iommu: pci::iommu(&root),
            adapters: infiniband::read(&root),
            links: network::read(&root),
            modules: root.entries("sys/module").into_iter().collect(),
            effective_user: process::effective_user(&root),
            process: process::read(&root),
            files: BTreeMap::new(),
            paths: BTreeMap::new(),
            state_in_use: None,
            socket: Occupant::Nobody,
            dpdk: Vec::new(),
            user: Account::Known,
            group: Account::Known,
        }
    }

    /// Finds the interfaces of this host that are one end of a veth pair.
    pub fn find_pairs(&mut self) {
        network::find_pairs(&mut self.links);
    }

    /// Reads the access to the files that a configuration needs, looks up its user and group, and queries the
    /// offloads of this host's interfaces.
    pub fn look_at_files(&mut self, config: &Config) {
        let mut paths: Vec<PathBuf> = ["/dev/vfio/vfio", "/dev/net/tun"].map(PathBuf::from).to_vec();
        paths.extend(self.adapters.values().flat_map(Adapter::device_files));
        let groups = self.pci.values().filter_map(|device| device.group);
        paths.extend(groups.map(|group| PathBuf::from(format!("/dev/vfio/{group}"))));
        let cables = config.infiniband.soft.iter().flat_map(|soft| &soft.ports);
        paths.extend(cables.filter_map(|port| cable_socket(&port.link).map(PathBuf::from)));
        self.files = paths.into_iter().map(|path| (path.clone(), Access::of(&path))).collect();
        self.paths = paths::read(config);
        if let Some(path) = &config.gateway.control_socket {
            self.socket = Occupant::of(path);
        }
        self.dpdk = dpdk::read(&dpdk::runtime_directory());
        self.user = config.gateway.user.as_deref().map(Account::of_user).unwrap_or_default();
        self.group = config.gateway.group.as_deref().map(Account::of_group).unwrap_or_default();
        network::complete(&mut self.links);
        self.find_pairs();
        for (name, link) in &mut self.links {
            // An interface that is gone, or does not support the query, merges nothing.
            link.joins = interface::joins_packets(name).unwrap_or_default();
        }
    }
}
