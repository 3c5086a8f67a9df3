//! Devices of this host, whose tables the kernel or the subnet manager maintains. The service copies a table
//! when its device reports an event.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gidcache::{DeviceTable, Entry, PortSetup};
use pmd::gids::{Directory, MirrorError, share};
use pmd::hca::HcaError;
use pmd::shm::{Maintained, remove_left};
use pmd::verbs::GidDevice;

use super::log_changes;
use crate::gateway::random;

/// Maximum number of devices.
pub(super) const MAX_DEVICES: usize = 64;
/// Interval at which devices are enumerated without an event.
const LOOK: Duration = Duration::from_secs(2);
/// Interval at which a table is read without an event, in case of a change for which no event was reported.
const REREAD: Duration = Duration::from_secs(30);

/// The host's devices.
pub(super) trait Machine: Debug {
    /// An open device.
    type Device: Device;

    /// The names of all current devices.
    fn names(&self) -> Result<Vec<String>, HcaError>;

    /// Opens a device.
    fn open(&self, name: &str) -> Result<Self::Device, HcaError>;
}

/// An open device.
pub(super) trait Device: AsFd + Debug {
    /// The current name, if it differs from the name used to open the device.
    fn renamed(&self) -> Option<String>;

    /// Its ports.
    fn setups(&self) -> Result<Vec<PortSetup>, HcaError>;

    /// The entries of its tables.
    fn entries(&self) -> Result<Vec<Entry>, HcaError>;

    /// Takes its events. Returns true if its tables may have changed; an error if the device is gone.
    fn take_events(&self) -> Result<bool, HcaError>;
}

/// A device was renamed. A process that already uses the device does not see the new name in the verbs
/// library.
#[derive(Debug, thiserror::Error)]
#[error(
    "{was} is called {now} now: restart the service, which then serves all devices under their new names"
)]
pub struct Renamed {
    was: String,
    now: String,
}

/// The kernel's devices.
#[derive(Debug)]
pub(super) struct Kernel;

impl Machine for Kernel {
    type Device = GidDevice;

    fn names(&self) -> Result<Vec<String>, HcaError> {
        Ok(pmd::verbs::devices()?.into_iter().map(|device| device.name).collect())
    }

    fn open(&self, name: &str) -> Result<GidDevice, HcaError> {
        GidDevice::open(name)
    }
}

impl Device for GidDevice {
    fn renamed(&self) -> Option<String> {
        Self::renamed(self)
    }

    fn setups(&self) -> Result<Vec<PortSetup>, HcaError> {
        Self::setups(self)
    }

    fn entries(&self) -> Result<Vec<Entry>, HcaError> {
        Self::entries(self)
    }

    fn take_events(&self) -> Result<bool, HcaError> {
        Self::take_events(self)
    }
}

/// A device and its table.
#[derive(Debug)]
struct Served<D> {
    name: String,
    device: D,
    path: PathBuf,
    table: DeviceTable<Maintained>,
    /// True if an event has not been handled yet.
    stale: bool,
    reread: Instant,
}

impl<D: Device> Served<D> {
    fn new(name: &str, device: D, path: PathBuf, now: Instant) -> Result<Self, MirrorError> {
        let table = share(&device.setups()?, &path, random())?;
        Ok(Self { name: name.to_owned(), device, path, table, stale: true, reread: now })
    }

    /// Copies the table if it may have changed; an error if the device is gone or does not answer.
    fn copy(&mut self, now: Instant) -> Result<(), MirrorError> {
        self.stale |= self.device.take_events()? || now >= self.reread;
        if self.stale {
            let changes = self.table.mirror(&self.device.entries()?)?;
            log_changes(&self.name, &changes);
            self.reread = now + REREAD;
            self.stale = false;
        }
        Ok(())
    }

    /// Removes the table of a device that is gone for good, also for processes that have the table open.
    fn remove(self) {
        let name = &self.name;
        let emptied = self.table.mirror(&[]).map_err(MirrorError::from);
        self.table.heartbeat(0);
        let removed = self.table.reader().map_err(MirrorError::from).and_then(|reader| {
            let memory: &Maintained = reader.memory();
            Ok(memory.remove(&self.path)?)
        });
        match emptied.and(removed) {
            Ok(()) => tracing::info!("{name} is gone; its table was removed"),
            Err(error) => tracing::warn!("{name} is gone: {error}"),
        }
    }
}

/// Removes the table of a device that was already not served when it disappeared.
fn sweep(directory: &Directory, name: &str) {
    match directory.table(name).map(|path| remove_left(&path)) {
        Some(Ok(true)) => tracing::info!("{name} is gone; its table was removed"),
        Some(Err(error)) => tracing::warn!("{name} is gone: {error}"),
        Some(Ok(false)) | None => {}
    }
}

/// All served devices.
#[derive(Debug)]
pub(super) struct Devices<M: Machine> {
    machine: M,
    served: Vec<Served<M::Device>>,
    /// Devices that cannot be served and that have been reported.
    refused: BTreeSet<String>,
    look: Instant,
}

impl<M: Machine> Devices<M> {
    pub(super) const fn new(machine: M, now: Instant) -> Self {
        Self { machine, served: Vec::new(), refused: BTreeSet::new(), look: now }
    }

    /// Handles what has happened. `plugged`: a device may have been added or removed. `links`: the numbers of
    /// VLANs may have changed.
    pub(super) fn turn(
        &mut self,
        directory: &Directory,
        now: Instant,
        plugged: bool,
        links: bool,
    ) -> Result<(), Renamed> {
        let mut lost: Vec<String> = Vec::new();
        for served in &mut self.served {
            served.stale |= links;
            if let Err(error) = served.copy(now) {
                tracing::warn!("{}: {error}", served.name);
                served.stale = true;
                lost.push(served.name.clone());
            }
        }
        if plugged || !lost.is_empty() || now >= self.look {
            self.look = now + LOOK;
            for served in &self.served {
                if let Some(now) = served.device.renamed() {
                    return Err(Renamed { was: served.name.clone(), now });
                }
            }
            match self.machine.names() {
                Ok(there) => self.follow(directory, there, &lost, now),
                Err(error) => {
                    tracing::warn!("{error}");
                    // They would be readable forever. They are opened again when the list shows that they are
                    // there.
                    self.served.retain(|served| !lost.contains(&served.name));
                    self.refused.extend(lost);
                }
            }
        }
        Ok(())
    }

    /// Applies the list of device names. `lost` are the devices that did not answer: another device may have
    /// the name by now, so they are opened again.
    fn follow(&mut self, directory: &Directory, mut there: Vec<String>, lost: &[String], now: Instant) {
        there.sort_unstable();
        self.refused.retain(|name| {
            let is_there = there.contains(name);
            if !is_there {
                sweep(directory, name);
            }
            is_there
        });
        for served in std::mem::take(&mut self.served) {
            match there.contains(&served.name) {
                // Its readers continue with the table of the next device.
                true if lost.contains(&served.name) => drop(served),
                true => self.served.push(served),
                false => served.remove(),
            }
        }
        for name in there {
            if self.has(&name) {
                continue;
            }
            match self.open(directory, &name, now) {
                Ok(served) => {
                    self.refused.remove(&name);
                    self.served.push(served);
                }
                Err(why) => {
                    if self.refused.insert(name.clone()) {
                        tracing::warn!("{name} is not served: {why}");
                    }
                }
            }
        }
    }

    fn open(&self, directory: &Directory, name: &str, now: Instant) -> Result<Served<M::Device>, String> {
        if self.served.len() >= MAX_DEVICES {
            return Err(format!("{MAX_DEVICES} devices are already served, the maximum"));
        }
        let path = directory.table(name).ok_or("the name is not valid for a table")?;
        let device = self.machine.open(name).map_err(|error| error.to_string())?;
        let mut served = Served::new(name, device, path, now).map_err(|error| error.to_string())?;
        served.copy(now).map_err(|error| error.to_string())?;
        Ok(served)
    }

    /// Confirms the tables that match their devices; 0 withdraws the confirmation of all tables.
    pub(super) fn beat(&self, time: u64) {
        for served in self.served.iter().filter(|served| time == 0 || !served.stale) {
            served.table.heartbeat(time);
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.served.iter().any(|served| served.name == name)
    }

    pub(super) fn count(&self) -> usize {
        self.served.len()
    }

    pub(super) fn gids(&self) -> usize {
        self.served.iter().map(|served| served.table.entries().len()).sum()
    }

    /// Describes the devices that are left out.
    pub(super) fn trouble(&self) -> Option<String> {
        let first = self.refused.first()?;
        Some(format!("{} not served, including {first}: see the log", self.refused.len()))
    }

    pub(super) fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.served.iter().map(|served| served.device.as_fd())
    }
}
