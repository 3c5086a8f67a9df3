//! Where the list comes from: devices of this machine, a gateway that is asked, a table that somebody shares.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dataplane::telemetry::{TelemetryError, ask};
use gidcache::Reader;
use pmd::hca::HcaError;
use pmd::shm::{ReadOnly, ShmError, monotonic_nanoseconds};
use pmd::verbs::{GidDevice, devices, interface_name};
use serde::Deserialize;

use super::row::Row;

/// How long a gateway may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A maintainer gives a sign of life every second.
const SILENCE: Duration = Duration::from_secs(5);

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum GidsError {
    /// A device of this machine.
    #[error(transparent)]
    Device(#[from] HcaError),
    /// The gateway.
    #[error(transparent)]
    Gateway(#[from] TelemetryError),
    /// The gateway's answer is none.
    #[error("the gateway's list of GIDs is not as expected")]
    Answer(#[from] serde_json::Error),
    /// The service manager.
    #[error("the service manager cannot be told anything")]
    Service(#[source] std::io::Error),
    /// The shared table.
    #[error(transparent)]
    Shared(#[from] ShmError),
    /// The file is no shared table.
    #[error("{file} is no shared GID table")]
    NoTable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        #[source]
        source: gidcache::layout::LayoutError,
    },
    /// The shared table changes too fast, or holds nonsense.
    #[error("{}: {source}", file.display())]
    Unsettled {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: gidcache::Unsettled,
    },
    /// The maintainer of the shared table is dead.
    #[error(
        "{}: nobody maintains this table: process {process}, which did, is gone; what it left is stale. Start the gateway again",
        file.display()
    )]
    Dead {
        /// The file.
        file: PathBuf,
        /// The process.
        process: u32,
    },
    /// The maintainer of the shared table is there and does nothing.
    #[error(
        "{}: process {process}, which maintains this table, has given no sign of life for {seconds} s; the table may be stale",
        file.display()
    )]
    Silent {
        /// The file.
        file: PathBuf,
        /// The process.
        process: u32,
        /// How long.
        seconds: u64,
    },
    /// There is nothing to list.
    #[error(
        "no GID table: this machine has no RDMA device (modprobe the adapter's driver and ib_uverbs), and no gateway with a \
         software one listens on {}; name its control socket with --socket", .0.display()
    )]
    Nothing(PathBuf),
    /// No device of this name.
    #[error("no device {name}: there are {seen}")]
    NoDevice {
        /// The name.
        name: String,
        /// What there is.
        seen: String,
    },
    /// Writing failed.
    #[error("cannot write the list")]
    Output(#[source] std::io::Error),
}

/// A gateway's answer to `/gids`.
#[derive(Deserialize)]
struct GatewayGids {
    gids: Vec<Row>,
}

/// Where some rows come from.
#[derive(Debug)]
pub enum Source {
    /// A device of this machine.
    Device(GidDevice),
    /// A gateway that listens on this socket. Its device may be one of this machine's.
    Gateway(PathBuf),
    /// A table in a file.
    Shared {
        /// The file.
        file: PathBuf,
        /// The mapping, to see whether anybody maintains it.
        memory: ReadOnly,
        /// Its reader.
        reader: Reader<ReadOnly>,
    },
}

impl Source {
    /// A shared table.
    pub fn shared(file: &Path) -> Result<Self, GidsError> {
        let memory = ReadOnly::open(file)?;
        let reader = Reader::attach(memory.clone());
        let reader = reader.map_err(|source| GidsError::NoTable { file: file.to_owned(), source })?;
        Ok(Self::Shared { file: file.to_owned(), memory, reader })
    }

    /// A device of this machine.
    pub fn named(device: &str) -> Result<Self, GidsError> {
        Ok(Self::Device(GidDevice::open(device)?))
    }

    /// All devices of this machine, and what is wrong with those that cannot be opened.
    pub fn devices() -> Result<(Vec<Self>, Vec<HcaError>), GidsError> {
        let (mut open, mut failed) = (Vec::new(), Vec::new());
        for device in devices()? {
            match GidDevice::open(&device.name) {
                Ok(device) => open.push(Self::Device(device)),
                Err(e) => failed.push(e),
            }
        }
        Ok((open, failed))
    }

    /// The device's name, if it is one of this machine's.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Device(device) => Some(device.name()),
            Self::Gateway(_) | Self::Shared { .. } => None,
        }
    }

    /// What it has now.
    pub fn rows(&self) -> Result<Vec<Row>, GidsError> {
        match self {
            Self::Device(device) => {
                let entries = device.entries()?;
                Ok(entries.iter().map(|entry| Row::new(device.name(), entry, interface_name)).collect())
            }
            Self::Gateway(socket) => {
                let GatewayGids { gids } = serde_json::from_value(ask(socket, "/gids", PATIENCE)?)?;
                Ok(gids)
            }
            Self::Shared { file, reader, .. } => {
                let mut entries = Vec::new();
                let read = reader.entries(&mut entries);
                read.map_err(|source| GidsError::Unsettled { file: file.clone(), source })?;
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                Ok(entries.iter().map(|entry| Row::new(&name, entry, interface_name)).collect())
            }
        }
    }

    /// An error if what it has is not what it is.
    pub fn check(&self) -> Result<(), GidsError> {
        match self {
            Self::Device(device) => Ok(device.take_events().map(|_| ())?),
            Self::Gateway(_) => Ok(()),
            Self::Shared { file, memory, reader } => {
                let maintainer = reader.maintainer();
                let (file, process) = (file.clone(), maintainer.process);
                if !memory.is_maintained()? {
                    return Err(GidsError::Dead { file, process });
                }
                let since =
                    Duration::from_nanos(monotonic_nanoseconds().saturating_sub(maintainer.heartbeat));
                if since > SILENCE {
                    return Err(GidsError::Silent { file, process, seconds: since.as_secs() });
                }
                Ok(())
            }
        }
    }

    /// Readable when there may be something new; `None` for a source that has to be asked again and again.
    #[must_use]
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Device(device) => Some(device.as_fd()),
            Self::Gateway(_) | Self::Shared { .. } => None,
        }
    }
}
