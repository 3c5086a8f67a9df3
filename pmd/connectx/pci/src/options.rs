//! What `softhca` is told when it starts: keys of a file, or options of the same names.

mod ports;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser};
use ib_wire::Guid;
use logging::{LogLevel, Modules};
use serde::Deserialize;
use toml::Spanned;

use ports::FilePort;

use crate::hca::{HcaConfig, Table, TableSizes};
use crate::lcore::Allowed;

/// Longest node description (IBA 14.2.5.2).
const MAX_DESCRIPTION: usize = 64;
/// Longest path of a UNIX socket (`sun_path` less its final zero).
const MAX_SOCKET_PATH: usize = 107;

/// The software ConnectX as a PCI device: a vfio-user server, which a virtual machine monitor attaches to its guest.
///
/// Every option can stand in the file, too, as a key of the same name; the command line wins. A device has one port, or two if --cable
/// or --port-guid stands twice: first for port 1, then for port 2. In the file two ports are two tables, `[[port]]`, each with `guid` and `cable`.
#[derive(Clone, Parser, Debug, Default)]
#[command(version)]
pub struct Options {
    /// Read options from FILE (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// All others.
    #[command(flatten)]
    pub keys: Keys,
}

/// What the file and the command line can say.
#[derive(Clone, Args, Debug, Default)]
pub struct Keys {
    /// Listen at this UNIX socket.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// GUID of node and system, 16 hexadecimal digits [default: drawn from the socket's path].
    #[arg(long, value_name = "GUID")]
    pub node_guid: Option<String>,
    /// GUID of a port, 1 first [default: the node's and one; for port 2 the node's and two].
    #[arg(long, value_name = "GUID")]
    pub port_guid: Vec<String>,
    /// Where a port's cable goes, port 1 first: shm:/path/to.sock, udp:LOCAL-PEER or none; udp:LOCAL-PEER?key-file=PATH authenticates
    /// every datagram [default: none].
    #[arg(long, value_name = "URL")]
    pub cable: Vec<String>,
    /// Be a virtual function: ports that send nothing without a GRH and take nothing without one. The subnet manager's paths then need a
    /// hop limit of at least 1 [default: false].
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub grh_required: Option<bool>,
    /// Node description, 64 bytes at most.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Where queue pair numbers are drawn from [default: the node's GUID].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Run on this core alone, which others are best kept off [default: wherever the system likes].
    #[arg(long, value_name = "NUMBER")]
    pub lcore: Option<usize>,
    /// Write what it has counted to FILE (JSON) at SIGUSR1 and at its end.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Most queue pairs, a power of two from 16 [default: 8192, the most].
    #[arg(long, value_name = "NUMBER")]
    pub queue_pairs: Option<u64>,
    /// Most completion queues, a power of two from 16 [default: 4096, the most].
    #[arg(long, value_name = "NUMBER")]
    pub completion_queues: Option<u64>,
    /// Most shared receive queues, a power of two from 16 [default: 4096, the most].
    #[arg(long, value_name = "NUMBER")]
    pub shared_receive_queues: Option<u64>,
    /// Most memory keys, a power of two from 64 [default: 65536, the most].
    #[arg(long, value_name = "NUMBER")]
    pub memory_keys: Option<u64>,
    /// Most event queues, a power of two from 8 to 128 [default: 32].
    #[arg(long, value_name = "NUMBER")]
    pub event_queues: Option<u64>,
    /// Most programs of the guest that may give commands of their own (DEVX), and two, one of them for the driver: a power of two from 4 to 4096. Fast-registration
    /// keys of programs (mlx5dv_create_mkey) need it. Only where the guest trusts who may open its devices: such a program
    /// can have a shared receive queue at any address of the guest [default: none may].
    #[arg(long, value_name = "NUMBER")]
    pub users: Option<u64>,
    /// How much is logged: error, warn, info or debug, each with what stands before it; SOFTHCA_LOG in the environment goes before [default: info].
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// How much single modules log, for instance softhca::hca=debug,connectx=warn [default: as the others].
    #[arg(long, value_name = "MODULE=LEVEL,...")]
    pub log_filter: Option<String>,
}

/// The same in the file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct FileKeys {
    socket: Option<Spanned<PathBuf>>,
    node_guid: Option<Spanned<String>>,
    port_guid: Option<Spanned<String>>,
    cable: Option<Spanned<String>>,
    port: Vec<Spanned<FilePort>>,
    grh_required: Option<bool>,
    description: Option<Spanned<String>>,
    seed: Option<Spanned<u64>>,
    lcore: Option<Spanned<usize>>,
    report: Option<Spanned<PathBuf>>,
    queue_pairs: Option<Spanned<u64>>,
    completion_queues: Option<Spanned<u64>>,
    shared_receive_queues: Option<Spanned<u64>>,
    memory_keys: Option<Spanned<u64>>,
    event_queues: Option<Spanned<u64>>,
    users: Option<Spanned<u64>>,
    log: Option<Spanned<String>>,
    log_filter: Option<Spanned<String>>,
}

/// Where something is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// An option of the command line.
    Option(&'static str),
    /// A key of the file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: &'static str,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(key) => write!(f, "--{key}"),
            Self::File { path, line, key } => write!(f, "{}:{line}: {key}", path.display()),
        }
    }
}

/// What is wrong with what `softhca` is told.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The file cannot be read.
    #[error("{}: {source}; name a file that can be read after --config", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not as it should be.
    #[error("{}:{line}: {what}; `softhca --help` tells of all keys", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// No socket.
    #[error("where to listen is not said; give --socket PATH, or the key `socket` in the file")]
    NoSocket,
    /// A value that cannot be.
    #[error("{place}: {what}; {remedy}")]
    Value {
        /// Where it is said.
        place: Place,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: String,
    },
}

/// What it is to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it listens.
    pub socket: PathBuf,
    /// The core that it keeps to.
    pub lcore: Option<usize>,
    /// Where it writes what it has counted.
    pub report: Option<PathBuf>,
    /// How much it logs.
    pub log: LogLevel,
    /// How much single modules of it log.
    pub log_filter: Modules,
    /// The device.
    pub hca: HcaConfig,
}

/// A value and where it is said.
struct Told<T> {
    value: T,
    place: Place,
}

impl<T> Told<T> {
    fn wrong(&self, what: impl Into<String>, remedy: impl Into<String>) -> OptionsError {
        OptionsError::Value { place: self.place.clone(), what: what.into(), remedy: remedy.into() }
    }
}

/// The file, as text in which places are found.
#[derive(Default)]
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    fn read(path: &Path) -> Result<Self, OptionsError> {
        let failed = |source| OptionsError::Read { path: path.to_owned(), source };
        Ok(Self { path: path.to_owned(), text: std::fs::read_to_string(path).map_err(failed)? })
    }

    fn line(&self, at: usize) -> usize {
        self.text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
    }

    fn keys(&self) -> Result<FileKeys, OptionsError> {
        toml::from_str(&self.text).map_err(|error| OptionsError::Parse {
            path: self.path.clone(),
            line: self.line(error.span().map_or(0, |span| span.start)),
            what: error.message().to_owned(),
        })
    }

    /// What the command line says, or else the file.
    fn told<T>(&self, key: &'static str, line: Option<T>, file: Option<Spanned<T>>) -> Option<Told<T>> {
        if let Some(value) = line {
            return Some(Told { value, place: Place::Option(key) });
        }
        let file = file?;
        let place = self.place(key, file.span().start);
        Some(Told { value: file.into_inner(), place })
    }

    fn place(&self, key: &'static str, at: usize) -> Place {
        Place::File { path: self.path.clone(), line: self.line(at), key }
    }
}

fn guid(told: &Told<String>) -> Result<Guid, OptionsError> {
    let text = &told.value;
    let digits: String = text.trim_start_matches("0x").chars().filter(|c| *c != ':').collect();
    // An empty group is that of an IPv6 address.
    let good = digits.len() <= 16 && !text.contains("::");
    let number = if good { u64::from_str_radix(&digits, 16).unwrap_or(0) } else { 0 };
    if number == 0 {
        let remedy = "write 16 hexadecimal digits, with or without colons";
        return Err(told.wrong(format!("`{text}` is no GUID other than 0"), remedy));
    }
    Ok(Guid(number))
}

fn lcore(told: &Told<usize>) -> Result<usize, OptionsError> {
    let core = told.value;
    match Allowed::now() {
        Ok(allowed) if allowed.has(core) => Ok(core),
        Ok(allowed) => {
            let what = format!("core {core} is none that this process may use");
            Err(told.wrong(what, format!("choose one of {allowed}")))
        }
        Err(error) => {
            Err(told.wrong(format!("the system does not tell its cores: {error}"), "leave the core away"))
        }
    }
}

/// A GUID of its own for each socket, locally administered (FNV-1a over the path).
fn drawn(socket: &Path) -> Guid {
    let bytes = socket.as_os_str().as_encoded_bytes();
    let hash =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    Guid(0x0202_c903_0000_0000 | hash & 0x00ff_fff0)
}

/// A word that itself says what it may be.
fn word<T: FromStr<Err = String>>(told: &Told<String>) -> Result<T, OptionsError> {
    told.value.parse().map_err(|what: String| told.wrong(what, "write one of these, or leave it away"))
}

impl Options {
    /// Reads the file and checks everything.
    pub fn plan(self) -> Result<Plan, OptionsError> {
        let file = self.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
        let (line, keys) = (self.keys, file.keys()?);
        let socket = file.told("socket", line.socket, keys.socket).ok_or(OptionsError::NoSocket)?;
        if !(1..=MAX_SOCKET_PATH).contains(&socket.value.as_os_str().len()) {
            let what = format!("`{}` is no path of 1 to {MAX_SOCKET_PATH} bytes", socket.value.display());
            return Err(socket.wrong(what, "choose a shorter one, for instance in /run"));
        }
        let node_guid = match file.told("node-guid", line.node_guid, keys.node_guid) {
            Some(told) => guid(&told)?,
            None => drawn(&socket.value),
        };
        let (port, second_port) = {
            let alone = FilePort { guid: keys.port_guid, cable: keys.cable };
            ports::ports(&file, node_guid, keys.port, alone, line.port_guid, line.cable)?
        };
        let description = match file.told("description", line.description, keys.description) {
            Some(told) if told.value.len() > MAX_DESCRIPTION => {
                let what = format!("{} bytes are too many", told.value.len());
                return Err(told.wrong(what, format!("a node description has {MAX_DESCRIPTION} at most")));
            }
            Some(told) => told.value,
            None => "software ConnectX".into(),
        };
        let seed = file.told("seed", line.seed, keys.seed).map_or(node_guid.0, |told| told.value);
        let lcore = file.told("lcore", line.lcore, keys.lcore).as_ref().map(lcore).transpose()?;
        let report = file.told("report", line.report, keys.report).map(|told| told.value);
        let mut tables = TableSizes::default();
        for (table, key, line, keys) in [
            (Table::QueuePairs, "queue-pairs", line.queue_pairs, keys.queue_pairs),
            (Table::CompletionQueues, "completion-queues", line.completion_queues, keys.completion_queues),
            (
                Table::SharedReceiveQueues,
                "shared-receive-queues",
                line.shared_receive_queues,
                keys.shared_receive_queues,
            ),
            (Table::MemoryKeys, "memory-keys", line.memory_keys, keys.memory_keys),
            (Table::EventQueues, "event-queues", line.event_queues, keys.event_queues),
        ] {
            let Some(told) = file.told(key, line, keys) else { continue };
            if !tables.set(table, told.value) {
                let (least, most) = (1u64 << table.sizes().start(), 1u64 << table.sizes().end());
                let what = format!("a table of {} entries cannot be", told.value);
                let remedy = format!("write a power of two from {least} to {most}");
                return Err(told.wrong(what, remedy));
            }
        }
        if let Some(told) = file.told("users", line.users, keys.users)
            && !tables.set_users(told.value)
        {
            let what = format!("{} users cannot be", told.value);
            return Err(told.wrong(what, "write a power of two from 4 to 4096, or leave it away for none"));
        }
        let log = file.told("log", line.log, keys.log).as_ref().map(word).transpose()?;
        let log_filter =
            file.told("log-filter", line.log_filter, keys.log_filter).as_ref().map(word).transpose()?;
        let grh_required = line.grh_required.or(keys.grh_required).unwrap_or(false);
        let hca = HcaConfig { node_guid, description, port, second_port, grh_required, seed, tables };
        let log = log.unwrap_or(LogLevel::Info);
        Ok(Plan { socket: socket.value, lcore, report, log, log_filter: log_filter.unwrap_or_default(), hca })
    }
}

#[cfg(test)]
mod tests;
