//! Options of `softhca`: keys of a file, or command-line options with the same names.

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
/// Longest path of a UNIX socket (`sun_path` without its final zero).
const MAX_SOCKET_PATH: usize = 107;

/// The software ConnectX as a PCI device: a vfio-user server, which a virtual machine monitor attaches to its
/// guest.
///
/// Every option can also be set in the file, as a key of the same name; the command line takes precedence. A
/// device has one port, or two if --cable or --port-guid is given twice: first for port 1, then for port 2.
/// In the file two ports are two tables, `[[port]]`, each with `guid` and `cable`.
#[derive(Clone, Parser, Debug, Default)]
#[command(version)]
pub struct Options {
    /// Read options from FILE (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// All other options.
    #[command(flatten)]
    pub keys: Keys,
}

/// Settings of the file and the command line.
#[derive(Clone, Args, Debug, Default)]
pub struct Keys {
    /// Listen at this UNIX socket.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// GUID of node and system, 16 hexadecimal digits [default: derived from the socket's path].
    #[arg(long, value_name = "GUID")]
    pub node_guid: Option<String>,
    /// GUID of a port, port 1 first [default: the node's GUID plus the port number].
    #[arg(long, value_name = "GUID")]
    pub port_guid: Vec<String>,
    /// Cable of a port, port 1 first: shm:/path/to.sock, udp:LOCAL-PEER or none; udp:LOCAL-PEER?key-file=PATH
    /// authenticates every datagram [default: none].
    #[arg(long, value_name = "URL")]
    pub cable: Vec<String>,
    /// Act as a virtual function: ports send and accept data packets only with a GRH. The subnet manager's
    /// paths then need a hop limit of at least 1 [default: false].
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub grh_required: Option<bool>,
    /// Node description, at most 64 bytes.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,
    /// Seed of the queue pair numbers [default: the node's GUID].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Run on this core only; keep other threads off it [default: any core].
    #[arg(long, value_name = "NUMBER")]
    pub lcore: Option<usize>,
    /// Write counters to FILE (JSON) on SIGUSR1 and on exit.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Most queue pairs, a power of two from 16 [default: 8192, the maximum].
    #[arg(long, value_name = "NUMBER")]
    pub queue_pairs: Option<u64>,
    /// Most completion queues, a power of two from 16 [default: 4096, the maximum].
    #[arg(long, value_name = "NUMBER")]
    pub completion_queues: Option<u64>,
    /// Most shared receive queues, a power of two from 16 [default: 4096, the maximum].
    #[arg(long, value_name = "NUMBER")]
    pub shared_receive_queues: Option<u64>,
    /// Most memory keys, a power of two from 64 [default: 65536, the maximum].
    #[arg(long, value_name = "NUMBER")]
    pub memory_keys: Option<u64>,
    /// Most event queues, a power of two from 8 to 128 [default: 32].
    #[arg(long, value_name = "NUMBER")]
    pub event_queues: Option<u64>,
    /// Most programs of the guest with commands of their own (DEVX), plus two, one of which is for the
    /// driver: a power of two from 4 to 4096. Fast-registration keys of programs (mlx5dv_create_mkey) need
    /// it. Set it only if the guest trusts the users that may open its devices: such a program can have a
    /// shared receive queue at any address of the guest [default: none].
    #[arg(long, value_name = "NUMBER")]
    pub users: Option<u64>,
    /// Log level: error, warn, info or debug; SOFTHCA_LOG in the environment takes precedence [default:
    /// info].
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Log levels of single modules, for example softhca::hca=debug,connectx=warn [default: the log level].
    #[arg(long, value_name = "MODULE=LEVEL,...")]
    pub log_filter: Option<String>,
}

/// The same settings as keys of the file.
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

/// Where a setting comes from.
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

/// An error in the options of `softhca`.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The file cannot be read.
    #[error("{}: {source}; use a readable file with --config", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is malformed.
    #[error("{}:{line}: {what}; `softhca --help` lists all keys", .path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// No socket.
    #[error("no socket; set --socket PATH, or the key `socket` in the file")]
    NoSocket,
    /// An invalid value.
    #[error("{place}: {what}; {remedy}")]
    Value {
        /// Where it is set.
        place: Place,
        /// The error.
        what: String,
        /// The remedy.
        remedy: String,
    },
}

/// The validated options.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Socket to listen at.
    pub socket: PathBuf,
    /// Core to run on.
    pub lcore: Option<usize>,
    /// Report file.
    pub report: Option<PathBuf>,
    /// Log level.
    pub log: LogLevel,
    /// Log levels of single modules.
    pub log_filter: Modules,
    /// Configuration of the device.
    pub hca: HcaConfig,
}

/// A value and its origin.
struct Setting<T> {
    value: T,
    place: Place,
}

impl<T> Setting<T> {
    fn wrong(&self, what: impl Into<String>, remedy: impl Into<String>) -> OptionsError {
        OptionsError::Value { place: self.place.clone(), what: what.into(), remedy: remedy.into() }
    }
}

/// The text of the file, to find line numbers.
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

    /// The value from the command line, otherwise from the file.
    fn setting<T>(&self, key: &'static str, line: Option<T>, file: Option<Spanned<T>>) -> Option<Setting<T>> {
        if let Some(value) = line {
            return Some(Setting { value, place: Place::Option(key) });
        }
        let file = file?;
        let place = self.place(key, file.span().start);
        Some(Setting { value: file.into_inner(), place })
    }

    fn place(&self, key: &'static str, at: usize) -> Place {
        Place::File { path: self.path.clone(), line: self.line(at), key }
    }
}

fn guid(setting: &Setting<String>) -> Result<Guid, OptionsError> {
    let text = &setting.value;
    let digits: String = text.trim_start_matches("0x").chars().filter(|c| *c != ':').collect();
    // An empty group is part of an IPv6 address.
    let good = digits.len() <= 16 && !text.contains("::");
    let number = if good { u64::from_str_radix(&digits, 16).unwrap_or(0) } else { 0 };
    if number == 0 {
        let remedy = "use 16 hexadecimal digits, with or without colons";
        return Err(setting.wrong(format!("`{text}` is not a nonzero GUID"), remedy));
    }
    Ok(Guid(number))
}

fn lcore(setting: &Setting<usize>) -> Result<usize, OptionsError> {
    let core = setting.value;
    match Allowed::now() {
        Ok(allowed) if allowed.has(core) => Ok(core),
        Ok(allowed) => {
            let what = format!("core {core} is not available to this process");
            Err(setting.wrong(what, format!("choose one of {allowed}")))
        }
        Err(error) => {
            Err(setting.wrong(format!("cannot read the available cores: {error}"), "omit the core"))
        }
    }
}

/// A GUID derived from the socket's path (FNV-1a), locally administered.
fn drawn(socket: &Path) -> Guid {
    let bytes = socket.as_os_str().as_encoded_bytes();
    let hash =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    Guid(0x0202_c903_0000_0000 | hash & 0x00ff_fff0)
}

/// A value whose parse error lists the permitted values.
fn word<T: FromStr<Err = String>>(setting: &Setting<String>) -> Result<T, OptionsError> {
    setting.value.parse().map_err(|what: String| setting.wrong(what, "use one of these, or omit it"))
}

impl Options {
    /// Reads the file and validates all settings.
    pub fn plan(self) -> Result<Plan, OptionsError> {
        let file = self.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
        let (line, keys) = (self.keys, file.keys()?);
        let socket = file.setting("socket", line.socket, keys.socket).ok_or(OptionsError::NoSocket)?;
        if !(1..=MAX_SOCKET_PATH).contains(&socket.value.as_os_str().len()) {
            let what = format!("`{}` is not a path of 1 to {MAX_SOCKET_PATH} bytes", socket.value.display());
            return Err(socket.wrong(what, "use a shorter one, for example in /run"));
        }
        let node_guid = match file.setting("node-guid", line.node_guid, keys.node_guid) {
            Some(setting) => guid(&setting)?,
            None => drawn(&socket.value),
        };
        let (port, second_port) = {
            let alone = FilePort { guid: keys.port_guid, cable: keys.cable };
            ports::ports(&file, node_guid, keys.port, alone, line.port_guid, line.cable)?
        };
        let description = match file.setting("description", line.description, keys.description) {
            Some(setting) if setting.value.len() > MAX_DESCRIPTION => {
                let what = format!("{} bytes are too many", setting.value.len());
                return Err(
                    setting.wrong(what, format!("a node description has at most {MAX_DESCRIPTION} bytes"))
                );
            }
            Some(setting) => setting.value,
            None => "software ConnectX".into(),
        };
        let seed = file.setting("seed", line.seed, keys.seed).map_or(node_guid.0, |setting| setting.value);
        let lcore = file.setting("lcore", line.lcore, keys.lcore).as_ref().map(lcore).transpose()?;
        let report = file.setting("report", line.report, keys.report).map(|setting| setting.value);
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
            let Some(setting) = file.setting(key, line, keys) else { continue };
            if !tables.set(table, setting.value) {
                let (least, most) = (1u64 << table.sizes().start(), 1u64 << table.sizes().end());
                let what = format!("invalid table size {}", setting.value);
                let remedy = format!("use a power of two from {least} to {most}");
                return Err(setting.wrong(what, remedy));
            }
        }
        if let Some(setting) = file.setting("users", line.users, keys.users)
            && !tables.set_users(setting.value)
        {
            let what = format!("invalid number of users {}", setting.value);
            return Err(setting.wrong(what, "use a power of two from 4 to 4096, or omit it for none"));
        }
        let log = file.setting("log", line.log, keys.log).as_ref().map(word).transpose()?;
        let log_filter =
            file.setting("log-filter", line.log_filter, keys.log_filter).as_ref().map(word).transpose()?;
        let grh_required = line.grh_required.or(keys.grh_required).unwrap_or(false);
        let hca = HcaConfig { node_guid, description, port, second_port, grh_required, seed, tables };
        let log = log.unwrap_or(LogLevel::Info);
        Ok(Plan { socket: socket.value, lcore, report, log, log_filter: log_filter.unwrap_or_default(), hca })
    }
}

#[cfg(test)]
mod tests;
