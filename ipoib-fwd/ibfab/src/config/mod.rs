//! The fabric's configuration file. `ibfab --print-config` shows every key ([`print()`]).

mod keys;
mod source;

#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use connectx::cable::CableUrl;
use ib_wire::smp::Lmc;
use ib_wire::{Gid, Guid, Mtu, PKey};
use ipoib::link::Mode;
use logging::{LogLevel, Modules};

use crate::subnet::Partition;
pub use keys::print;
use source::Source;

/// Largest number of virtual hosts: each has its own queues and buffers.
pub const MAX_HOSTS: usize = 64;
/// Largest number of switches.
pub const MAX_SWITCHES: usize = 64;
/// Largest number of partitions: the limit of a port's table.
pub const MAX_PARTITIONS: usize = 128;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read; name a readable file after --config", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is not TOML, has unknown keys, or a value is invalid.
    #[error("{}:{line}:{column}: {what}", .file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The problem and a remedy.
        what: String,
    },
}

/// A whole fabric.
#[derive(Clone, Debug)]
pub struct FabricConfig {
    /// Largest MTU of its ports.
    pub mtu: Mtu,
    /// Subnet prefix.
    pub prefix: u64,
    /// Hop limit of all paths.
    pub hop_limit: u8,
    /// LID mask control: each port of an adapter has 2^`lmc` LIDs.
    pub lmc: Lmc,
    /// SM_Key of clients that may list the members of a group; 0 = no client may.
    pub sm_key: u64,
    /// Keep CRCs also on cables that do not need them.
    pub keep_crcs: bool,
    /// Log level.
    pub log: LogLevel,
    /// Log levels of single modules.
    pub log_filter: Modules,
    /// Its switches, at least one; the first has the subnet manager.
    pub switches: Vec<SwitchConfig>,
    /// Cables between switches.
    pub trunks: Vec<TrunkConfig>,
    /// Partitions; empty if there is only the default one.
    pub partitions: Vec<Partition>,
    /// Ports for other processes.
    pub links: Vec<LinkConfig>,
    /// Virtual hosts.
    pub hosts: Vec<HostConfig>,
}

/// A switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchConfig {
    /// Its name.
    pub name: String,
    /// Its GUID.
    pub guid: Guid,
    /// Its external ports.
    pub ports: u8,
}

/// A port of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of the switch in the configuration.
    pub switch: usize,
    /// Number of the port, from 1.
    pub port: u8,
}

/// A cable between two switches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrunkConfig {
    /// Its ends.
    pub ends: [Place; 2],
    /// Names of its ends in reports.
    pub names: [String; 2],
    /// True if it is plugged in.
    pub up: bool,
}

/// A port for another process.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkConfig {
    /// Its name in reports.
    pub name: String,
    /// Its address.
    pub url: CableUrl,
    /// Its port.
    pub place: Place,
    /// Switches may be behind it.
    pub trunk: bool,
}

/// A virtual host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// Its name in reports.
    pub name: String,
    /// Network namespace of its interface; `None` for that of the process.
    pub netns: Option<String>,
    /// Its interface.
    pub tun: String,
    /// Its IP address.
    pub address: Ipv4Addr,
    /// Bits of the network part.
    pub prefix: u8,
    /// Next hop of packets outside of its subnet.
    pub gateway: Option<Ipv4Addr>,
    /// IP MTU of its interface.
    pub mtu: u32,
    /// Datagram or connected.
    pub mode: Mode,
    /// Its partition.
    pub pkey: PKey,
    /// GUID of its channel adapter; the port's is one more.
    pub guid: Guid,
    /// Its port needs a GRH in every packet.
    pub grh_required: bool,
    /// Its port.
    pub place: Place,
}

impl FabricConfig {
    /// Reads a file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(file, &text)
    }

    /// Reads `text`, the contents of `file`.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        Source::new(file, text).read()
    }

    /// Returns the first difference from `other` that cannot be applied while the fabric is in use; `None`
    /// without any.
    #[must_use]
    pub fn fixed_difference(&self, other: &Self) -> Option<&'static str> {
        let cables = |config: &Self| config.trunks.iter().map(|t| t.ends).collect::<Vec<_>>();
        let differs = [
            (self.mtu != other.mtu, "fabric.mtu"),
            (self.keep_crcs != other.keep_crcs, "fabric.keep_crcs"),
            (self.sm_key != other.sm_key, "fabric.sm_key"),
            (self.lmc != other.lmc, "fabric.lmc"),
            (self.switches != other.switches, "switches or their ports"),
            (cables(self) != cables(other), "trunks"),
            (self.links != other.links, "links"),
            (self.hosts != other.hosts, "hosts"),
        ];
        differs.into_iter().find(|(differs, _)| *differs).map(|(_, what)| what)
    }

    /// Returns the partitions for the subnet manager: the default one if none is configured.
    #[must_use]
    pub fn effective_partitions(&self) -> Vec<Partition> {
        if self.partitions.is_empty() {
            vec![Partition { mtu: self.mtu, ..Partition::default_ipoib() }]
        } else {
            self.partitions.clone()
        }
    }

    /// Returns hosts that are members of no partition of theirs: their links wait.
    pub fn hosts_without_partition(&self) -> impl Iterator<Item = &HostConfig> {
        self.hosts.iter().filter(|host| {
            let at = self.switches.get(host.place.switch).map(|s| (s.guid, host.place.port));
            let of_host = |p: &&Partition| p.pkey.base() == host.pkey.base();
            let partitions = self.effective_partitions();
            let key = partitions.iter().find(of_host).and_then(|p| p.key_of(Guid(host.guid.0 + 1), at));
            key.is_none()
        })
    }
}

/// The prefix of a file without one.
const DEFAULT_PREFIX: u64 = Gid::DEFAULT_PREFIX;
