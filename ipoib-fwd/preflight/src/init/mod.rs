//! Generates a first configuration for a host: an InfiniBand port or the software ConnectX, an Ethernet port
//! that is not in use, and lcores and memory for EAL. The file has the reason for each port that was selected
//! or not.

mod ports;
mod text;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use config::{Config, LcoreSet};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::machine::Machine;
use crate::rules::hugepages;
use ports::{EthernetChoice, InfiniBandChoice};

/// Maximum number of workers in a proposal.
const MOST_WORKERS: usize = 4;

/// Why the files were not written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// One of the files exists.
    #[error("{} is there already and is not overwritten: name another file after --output", .0.display())]
    There(PathBuf),
    /// The configuration's file would have the name of the file of EAL's arguments.
    #[error(
        "{} would also be the file of EAL's arguments: after --output, give a name that does not end in .env, {} for instance",
        .0.display(), .0.with_extension("toml").display()
    )]
    Same(PathBuf),
    /// The name is not UTF-8: the gateway's command line could not name it.
    #[error("{} is not UTF-8, and the gateway takes UTF-8 arguments only: name another file after --output", .0.display())]
    NotUtf8(PathBuf),
    /// A file cannot be written.
    #[error("{}: cannot be written: {source}; name another file after --output", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A configuration and EAL's arguments for a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The gateway's configuration.
    pub configuration: String,
    /// EAL's arguments, as an environment file of the systemd unit.
    pub environment: String,
}

/// The proposed lcores, as EAL's arguments.
struct Lcores {
    arguments: String,
    workers: usize,
    why: String,
}

impl Proposal {
    /// Creates the proposal for a host.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        let infiniband = InfiniBandChoice::of(machine);
        let ethernet = EthernetChoice::of(machine);
        let lcores = lcores(machine, infiniband.node(machine).or(ethernet.node(machine)));
        let workers = u32::try_from(lcores.workers).unwrap_or(1);
        let needed = hugepages::needed(&Config::default(), workers);
        Self {
            configuration: text::configuration(&ethernet, &infiniband, pair_key().as_deref()),
            environment: text::environment(machine, &ethernet, &lcores, needed),
        }
    }

    /// Both files in one text, with EAL's arguments as comments.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{}\n# EAL's arguments, for gateway.env:\n", self.configuration);
        for line in self.environment.lines() {
            out.push_str("# ");
            out.push_str(line.strip_prefix("# ").unwrap_or(line));
            out.push('\n');
        }
        out
    }

    /// The file of EAL's arguments for a configuration file.
    #[must_use]
    pub fn environment_file(file: &Path) -> PathBuf {
        file.with_extension("env")
    }

    /// Writes the configuration, and EAL's arguments to a file with the same name and the extension `.env`.
    /// Overwrites no file.
    pub fn write(&self, file: &Path) -> Result<PathBuf, InitError> {
        if file.to_str().is_none() {
            return Err(InitError::NotUtf8(file.to_owned()));
        }
        let environment_file = Self::environment_file(file);
        if environment_file == file {
            return Err(InitError::Same(environment_file));
        }
        // The configuration has a secret key.
        create(file, &self.configuration, 0o600)?;
        create(&environment_file, &self.environment, 0o644).inspect_err(|_| {
            // Write both or none; the configuration was created just now.
            let _ = fs::remove_file(file);
        })?;
        Ok(environment_file)
    }
}

fn create(file: &Path, text: &str, mode: u32) -> Result<(), InitError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(file);
    let written = opened.and_then(|mut opened| {
        opened.write_all(text.as_bytes()).inspect_err(|_| {
            // Remove an incomplete file: it would also prevent the next attempt.
            let _ = fs::remove_file(file);
        })
    });
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => InitError::There(file.to_owned()),
        _ => InitError::Write { file: file.to_owned(), source },
    })
}

/// A random key for the gateways of a segment; `None` if the kernel has no random bits.
fn pair_key() -> Option<String> {
    let mut bits = [0; 16];
    let length = getrandom(&mut bits, GetRandomFlags::empty()).ok()?;
    (length == bits.len()).then(|| format!("{:032x}", u128::from_be_bytes(bits)))
}

/// Selects lcores: isolated ones of the port's node if there are any, otherwise one next to the control
/// lcore. At most one thread of each core is a worker.
fn lcores(machine: &Machine, node: Option<u16>) -> Lcores {
    let processors = &machine.processors;
    let is_near = |cpu: &u16| node.is_none() || processors.nodes.get(cpu).copied() == node;
    let near: Vec<u16> = processors.online.iter().filter(is_near).collect();
    let isolated: Vec<u16> = near.iter().copied().filter(|cpu| processors.isolated.contains(*cpu)).collect();
    let free = |cpu: &u16| !processors.isolated.contains(*cpu);
    let main =
        near.iter().copied().find(free).or(processors.online.iter().find(free)).or(processors.online.first());
    let main = main.unwrap_or(0);
    let (candidates, most, why) = match isolated.as_slice() {
        [] => (near, 1, "no processor is isolated (isolcpus), so one worker"),
        _ => (isolated, MOST_WORKERS, "workers on isolated processors"),
    };
    let siblings = |cpu: u16| processors.siblings.get(&cpu).copied().unwrap_or_default();
    let mut workers: Vec<u16> = Vec::new();
    for cpu in candidates {
        let is_taken = |other: u16| other == cpu || siblings(other).contains(cpu);
        if workers.len() < most && !is_taken(main) && !workers.iter().copied().any(is_taken) {
            workers.push(cpu);
        }
    }
    if workers.is_empty() {
        // A thread of the control lcore's core is better than no worker.
        workers.extend(processors.online.iter().find(|cpu| *cpu != main));
    }
    if workers.is_empty() {
        return Lcores {
            arguments: format!("--lcores 0@{main},1@{main}"),
            workers: 1,
            why: "there is one processor, shared by the control lcore and the worker".to_owned(),
        };
    }
    let all: LcoreSet = workers.iter().copied().chain([main]).collect();
    let chosen = if all.first() == Some(main) { String::new() } else { format!(" --main-lcore {main}") };
    let near = node.map(|node| format!(", on the port's NUMA node {node}")).unwrap_or_default();
    Lcores { arguments: format!("-l {all}{chosen}"), workers: workers.len(), why: format!("{why}{near}") }
}
