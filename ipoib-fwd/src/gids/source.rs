//! Sources of the list: devices of this host, a gateway, and shared tables.

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

/// Time limit for a gateway's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no list.
#[derive(Debug, thiserror::Error)]
pub enum GidsError {
    /// A device of this host.
    #[error(transparent)]
    Device(#[from] HcaError),
    /// The gateway.
    #[error(transparent)]
    Gateway(#[from] TelemetryError),
    /// The gateway's answer is not valid.
    #[error("the gateway's list of GIDs is not as expected")]
    Answer(#[from] serde_json::Error),
    /// The service manager.
    #[error("cannot notify the service manager")]
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
    /// The shared table changes too fast or is not valid.
    #[error("{}: {source}", file.display())]
    Unsettled {
        /// The file.
        file: PathBuf,
        /// The error.
        source: gidcache::Unsettled,
    },
    /// The maintainer of the shared table is dead.
    #[error(
        "{}: the table is stale: its maintainer, process {process}, is gone or has released it. Restart the service or the gateway",
        file.display()
    )]
    Dead {
        /// The file.
        file: PathBuf,
        /// The process.
        process: u32,
    },
    /// The maintainer of the shared table has not confirmed it.
    #[error(
        "{}: the table may be stale: its maintainer, process {process}, has not confirmed it yet, or is exiting", file.display()
    )]
    Unsaid {
        /// The file.
        file: PathBuf,
        /// The process.
        process: u32,
    },
    /// The maintainer of the shared table is alive and silent.
    #[error(
        "{}: the table may be stale: its maintainer, process {process}, has been silent for {seconds} s",
        file.display()
    )]
    Silent {
        /// The file.
        file: PathBuf,
        /// The process.
        process: u32,
        /// Duration of the silence in seconds.
        seconds: u64,
    },
    /// There is nothing to list.
    #[error(
        "no GID table: this host has no RDMA device (modprobe the adapter's driver and ib_uverbs), and no gateway with a \
         software device listens on {}; give its control socket with --socket", .0.display()
    )]
    Nothing(PathBuf),
    /// A service's directory does not have the requested table.
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
    #[error("no device {name}; available: {seen}")]
    NoDevice {
        /// The name.
        name: String,
        /// The available devices.
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

/// A source of rows.
#[derive(Debug)]
pub enum Source {
    /// A device of this host.
    Device(GidDevice),
    /// A gateway that listens on this socket. Its device may be a device of this host, too.
    Gateway(PathBuf),
    /// A table in a file.
    Shared(SharedGids),
    /// A table of a service, with its name. The source follows the table when the service is restarted.
    Served(String, SharedGids),
}

impl Source {
    /// A shared table.
    pub fn shared(file: &Path) -> Result<Self, GidsError> {
        Ok(Self::Shared(SharedGids::open(file)?))
    }

    /// A table of a service, in a directory of this user.
    pub fn served(directory: &Path, name: &str, owner: u32) -> Result<Self, GidsError> {
        Ok(Self::Served(name.to_owned(), SharedGids::open_of(&directory.join(name), owner)?))
    }

    /// A device of this host.
    pub fn named(device: &str) -> Result<Self, GidsError> {
        Ok(Self::Device(GidDevice::open(device)?))
    }

    /// All devices of this host, and the errors of those that cannot be opened.
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

    /// The device's name, for a device of this host.
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

    /// The name of a service's table, and why it may be stale, if it may. A table that was replaced is opened
    /// again.
    pub fn standing(&mut self) -> Option<(&str, Option<GidsError>)> {
        let Self::Served(_, shared) = self else { return None };
        let followed = shared.follow().map_err(GidsError::from);
        let worth = followed.and_then(|_| self.check()).err();
        let Self::Served(name, _) = self else { return None };
        Some((name, worth))
    }

    /// Reads the current rows.
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

    /// Returns an error if the rows may be stale.
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

    /// Becomes readable when there may be changes; `None` for a source that must be polled.
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
