//! What `softhca` is told when it starts: keys of a file, or options of the same names.

use std::path::{Path, PathBuf};

use clap::Parser;
use connectx::cable::{CableUrl, CableUrlError};
use ib_wire::Guid;
use serde::Deserialize;

use crate::hca::HcaConfig;

/// The port's GUID if none is given: the node's and one.
const NEXT: u64 = 1;

/// The software ConnectX as a PCI device: a vfio-user server, which a virtual machine monitor attaches to its guest.
///
/// Every option can stand in the file, too, as a key of the same name; the command line wins.
#[derive(Clone, Parser, Deserialize, Debug, Default)]
#[command(version)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Options {
    /// Read options from FILE (TOML).
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Listen at this UNIX socket.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// GUID of node and system, 16 hexadecimal digits [default: drawn from the socket's path].
    #[arg(long, value_name = "GUID")]
    pub node_guid: Option<String>,
    /// GUID of the port [default: the node's and one].
    #[arg(long, value_name = "GUID")]
    pub port_guid: Option<String>,
    /// Where the port's cable goes: shm:/path/to.sock or udp:LOCAL-PEER [default: nowhere].
    #[arg(long, value_name = "URL")]
    pub cable: Option<String>,
    /// Node description.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Where queue pair numbers are drawn from [default: the node's GUID].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
}

/// What is wrong with what `softhca` is told.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not as it should be.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: Box<toml::de::Error>,
    },
    /// No socket.
    #[error("where to listen is not said; give --socket PATH")]
    NoSocket,
    /// A GUID cannot be read.
    #[error("{key}: `{text}` is no GUID other than 0; write 16 hexadecimal digits, with or without colons")]
    Guid {
        /// Option.
        key: &'static str,
        /// What it says.
        text: String,
    },
    /// The cable cannot be read.
    #[error("cable: {0}")]
    Cable(#[from] CableUrlError),
    /// The cable is none for an InfiniBand port.
    #[error("cable: `{0}` is for Ethernet ports; this port takes shm: and udp:")]
    Ethernet(String),
}

/// What it is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it listens.
    pub socket: PathBuf,
    /// The device.
    pub hca: HcaConfig,
}

fn guid(key: &'static str, text: &str) -> Result<Guid, OptionsError> {
    let digits: String = text.trim_start_matches("0x").chars().filter(|c| *c != ':').collect();
    let number = if digits.len() <= 16 { u64::from_str_radix(&digits, 16).unwrap_or(0) } else { 0 };
    if number == 0 { Err(OptionsError::Guid { key, text: text.into() }) } else { Ok(Guid(number)) }
}

/// A GUID of its own for each socket, locally administered (FNV-1a over the path).
fn drawn(socket: &Path) -> Guid {
    let bytes = socket.as_os_str().as_encoded_bytes();
    let hash =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    Guid(0x0202_c903_0000_0000 | hash & 0x00ff_fff0)
}

impl Options {
    /// The file's keys where the command line says nothing.
    pub fn with_file(mut self) -> Result<Self, OptionsError> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let text = std::fs::read_to_string(&path)
            .map_err(|source| OptionsError::Read { path: path.clone(), source })?;
        let file: Self =
            toml::from_str(&text).map_err(|source| OptionsError::Parse { path, source: Box::new(source) })?;
        self.socket = self.socket.or(file.socket);
        self.node_guid = self.node_guid.or(file.node_guid);
        self.port_guid = self.port_guid.or(file.port_guid);
        self.cable = self.cable.or(file.cable);
        self.description = self.description.or(file.description);
        self.seed = self.seed.or(file.seed);
        Ok(self)
    }

    /// Checks everything.
    pub fn plan(self) -> Result<Plan, OptionsError> {
        let socket = self.socket.ok_or(OptionsError::NoSocket)?;
        let node_guid = match &self.node_guid {
            Some(text) => guid("node-guid", text)?,
            None => drawn(&socket),
        };
        let port_guid = match &self.port_guid {
            Some(text) => guid("port-guid", text)?,
            None => Guid(node_guid.0.wrapping_add(NEXT)),
        };
        let cable: Option<CableUrl> = self.cable.as_deref().map(str::parse).transpose()?;
        if let Some(url) = self.cable.filter(|url| url.starts_with("roce:")) {
            return Err(OptionsError::Ethernet(url));
        }
        let hca = HcaConfig {
            node_guid,
            port_guid,
            description: self.description.unwrap_or_else(|| "software ConnectX".into()),
            cable,
            seed: self.seed.unwrap_or(node_guid.0),
        };
        Ok(Plan { socket, hca })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[&str]) -> Options {
        Options::try_parse_from(std::iter::once(&"softhca").chain(list)).unwrap()
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let path = std::env::temp_dir().join(format!("softhca-options-{}.toml", std::process::id()));
        std::fs::write(&path, "socket = '/tmp/a'\nnode-guid = '02:c9:3:0a1b:2c0'\nseed = 7\n").unwrap();
        let plan = options(&["--config", path.to_str().unwrap(), "--socket", "/tmp/b"]);
        let plan = plan.with_file().unwrap().plan().unwrap();
        assert_eq!((plan.socket, plan.hca.seed), ("/tmp/b".into(), 7));
        assert_eq!(plan.hca.port_guid.0, plan.hca.node_guid.0 + 1);
        std::fs::write(&path, "sock = '/tmp/a'\n").unwrap();
        let error = options(&["--config", path.to_str().unwrap()]).with_file().unwrap_err();
        assert!(error.to_string().contains("line 1") && error.to_string().contains("sock"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |list: &[&str]| options(list).plan().unwrap_err().to_string();
        assert!(refused(&[]).contains("--socket"));
        assert!(refused(&["--socket", "/s", "--node-guid", "xyz"]).contains("node-guid"));
        assert!(refused(&["--socket", "/s", "--port-guid", "0"]).contains("port-guid"));
        assert!(refused(&["--socket", "/s", "--node-guid", "00112233445566778"]).contains("node-guid"));
        assert!(refused(&["--socket", "/s", "--cable", "roce:eth0"]).contains("Ethernet"));
        assert!(refused(&["--socket", "/s", "--cable", "tcp:x"]).contains("cable"));
    }

    #[test]
    fn sockets_have_guids_of_their_own() {
        let of = |path: &str| options(&["--socket", path]).plan().unwrap().hca.node_guid;
        assert!(of("/a") == of("/a") && of("/a") != of("/b"));
    }
}
