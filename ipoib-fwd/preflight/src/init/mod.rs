//! A first configuration from what a machine has: an InfiniBand port or the software ConnectX, an Ethernet port that nobody else needs,
//! lcores and memory for EAL. Of each port that it found the file says why it was or was not taken.

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

/// Most workers that are proposed.
const MOST_WORKERS: usize = 4;

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// One of the files is there.
    #[error("{} is there already and is not overwritten: name another file after --output", .0.display())]
    There(PathBuf),
    /// The name is that of EAL's arguments.
    #[error(
        "{} would be the configuration's file and that of EAL's arguments: name one that does not end in .env after --output, {} for instance",
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
        /// The system's answer.
        source: io::Error,
    },
}

/// A configuration and EAL's arguments for a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The gateway's configuration.
    pub configuration: String,
    /// EAL's arguments as an environment file of the unit.
    pub environment: String,
}

/// Lcores that are proposed, as EAL takes them.
struct Lcores {
    arguments: String,
    workers: usize,
    why: String,
}

impl Proposal {
    /// For a machine.
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

    /// Both in one text, EAL's arguments as comments.
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

    /// The file of EAL's arguments beside one of a configuration.
    #[must_use]
    pub fn environment_file(file: &Path) -> PathBuf {
        file.with_extension("env")
    }

    /// Writes a configuration, and EAL's arguments beside it in a file of that name with `.env` at its end. Overwrites nothing.
    pub fn write(&self, file: &Path) -> Result<PathBuf, InitError> {
        if file.to_str().is_none() {
            return Err(InitError::NotUtf8(file.to_owned()));
        }
        let beside = Self::environment_file(file);
        if beside == file {
            return Err(InitError::Same(beside));
        }
        // The key in it is a secret.
        create(file, &self.configuration, 0o600)?;
        create(&beside, &self.environment, 0o644).inspect_err(|_| {
            // Both or none; this one was made just now.
            let _ = fs::remove_file(file);
        })?;
        Ok(beside)
    }
}

fn create(file: &Path, text: &str, mode: u32) -> Result<(), InitError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(file);
    let written = opened.and_then(|mut opened| {
        opened.write_all(text.as_bytes()).inspect_err(|_| {
            // A part of it is worse than none, and would be in the way of the next attempt.
            let _ = fs::remove_file(file);
        })
    });
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => InitError::There(file.to_owned()),
        _ => InitError::Write { file: file.to_owned(), source },
    })
}

/// A new key for the gateways of a segment; `None` if the kernel has no random bits.
fn pair_key() -> Option<String> {
    let mut bits = [0; 16];
    let length = getrandom(&mut bits, GetRandomFlags::empty()).ok()?;
    (length == bits.len()).then(|| format!("{:032x}", u128::from_be_bytes(bits)))
}

/// Lcores: isolated ones of the port's node if there are any, else one beside the control lcore; one thread of each core.
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
        _ => (isolated, MOST_WORKERS, "workers on processors that the kernel leaves alone"),
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
        // A thread of the control lcore's core is better than none.
        workers.extend(processors.online.iter().find(|cpu| *cpu != main));
    }
    if workers.is_empty() {
        return Lcores {
            arguments: format!("--lcores 0@{main},1@{main}"),
            workers: 1,
            why: "there is one processor, which control and worker share".to_owned(),
        };
    }
    let all: LcoreSet = workers.iter().copied().chain([main]).collect();
    let chosen = if all.first() == Some(main) { String::new() } else { format!(" --main-lcore {main}") };
    let near = node.map(|node| format!(", on NUMA node {node} as the port")).unwrap_or_default();
    Lcores { arguments: format!("-l {all}{chosen}"), workers: workers.len(), why: format!("{why}{near}") }
}
