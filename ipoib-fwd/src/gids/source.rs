//! Where the list comes from: devices of this machine, a gateway that is asked, a table that somebody shares.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dataplane::telemetry::{TelemetryError, ask};
use pmd::gids::{DirectoryError, SharedError, SharedGids, Standing};
use pmd::hca::HcaError;
use pmd::shm::ShmError;
use pmd::verbs::{GidDevice, devices, interface_name};
use serde::Deserialize;

use super::row::Row;

/// How long a gateway may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

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
    /// The shared table's memory.
    #[error(transparent)]
    Memory(#[from] ShmError),
    /// The shared table.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// The directory of a service.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
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
        "{}: nobody maintains this table: process {process}, which did, is gone or has let go of it; what it left is stale. Start the service or the gateway again",
        file.display()
    )]
    Dead {
        /// The file.
        file: PathBuf,
        /// The process.
        process: u32,
    },
    /// The maintainer of the shared table does not speak for it.
    #[error(
        "{}: process {process} has this table now and has not looked after it yet, or is ending; it may be stale", file.display()
    )]
    Unsaid {
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
    /// A service's directory has no table that is asked for.
    #[error(
        "no GID table{} in {}: the service has no such device, or has not been started (systemctl start ipoib-gids, or \
         ipoib-fwd gids --serve)", only.as_ref().map_or_else(String::new, |name| format!(" of {name}")), directory.display()
    )]
    NothingServed {
        /// The directory.
        directory: PathBuf,
        /// The device.
        only: Option<String>,
    },
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
    Shared(SharedGids),
    /// One of the tables that a service serves under this name, which is followed when that is started again.
    Served(String, SharedGids),
}

impl Source {
    /// A shared table.
    pub fn shared(file: &Path) -> Result<Self, GidsError> {
        Ok(Self::Shared(SharedGids::open(file)?))
    }

    /// A table of a service's, in the directory that is this user's.
    pub fn served(directory: &Path, name: &str, owner: u32) -> Result<Self, GidsError> {
        Ok(Self::Served(name.to_owned(), SharedGids::open_of(&directory.join(name), owner)?))
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
            Self::Gateway(_) | Self::Shared(_) | Self::Served(..) => None,
        }
    }

    /// True for the device of this name, or a service's table of it.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        match self {
            Self::Device(device) => device.name() == name,
            Self::Served(of, _) => of == name,
            Self::Gateway(_) | Self::Shared(_) => false,
        }
    }

    /// The name of a service's table and why it may be stale, if it may. One that has been begun anew is opened anew.
    pub fn standing(&mut self) -> Option<(&str, Option<GidsError>)> {
        let Self::Served(_, shared) = self else { return None };
        let followed = shared.follow().map_err(GidsError::from);
        let worth = followed.and_then(|_| self.check()).err();
        let Self::Served(name, _) = self else { return None };
        Some((name, worth))
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
            Self::Shared(shared) => {
                rows_of(shared, &shared.path().file_name().unwrap_or_default().to_string_lossy())
            }
            Self::Served(name, shared) => rows_of(shared, name),
        }
    }

    /// An error if what it has is not what it is.
    pub fn check(&self) -> Result<(), GidsError> {
        match self {
            Self::Device(device) => Ok(device.take_events().map(|_| ())?),
            Self::Gateway(_) => Ok(()),
            Self::Shared(shared) | Self::Served(_, shared) => {
                let file = shared.path().to_owned();
                match shared.standing()? {
                    Standing::Current => Ok(()),
                    Standing::Unsaid(process) => Err(GidsError::Unsaid { file, process }),
                    Standing::Silent(process, silence) => {
                        Err(GidsError::Silent { file, process, seconds: silence.as_secs() })
                    }
                    Standing::Dead(process) => Err(GidsError::Dead { file, process }),
                }
            }
        }
    }

    /// Readable when there may be something new; `None` for a source that has to be asked again and again.
    #[must_use]
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Device(device) => Some(device.as_fd()),
            Self::Gateway(_) | Self::Shared(_) | Self::Served(..) => None,
        }
    }
}

fn rows_of(shared: &SharedGids, name: &str) -> Result<Vec<Row>, GidsError> {
    let mut entries = Vec::new();
    let read = shared.reader().entries(&mut entries);
    read.map_err(|source| GidsError::Unsettled { file: shared.path().to_owned(), source })?;
    Ok(entries.iter().map(|entry| Row::new(name, entry, interface_name)).collect())
}
