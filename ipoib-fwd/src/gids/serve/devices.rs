//! Devices of this machine, whose tables the kernel keeps, or its subnet manager: copied when a device tells of an event.

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

use super::tell;
use crate::gateway::random;

/// Most devices that are served.
pub(super) const MAX_DEVICES: usize = 64;
/// Devices are looked for this often without an event.
const LOOK: Duration = Duration::from_secs(2);
/// A table is read this often without an event: a net for what no event tells.
const REREAD: Duration = Duration::from_secs(30);

/// The devices that there are.
pub(super) trait Machine: Debug {
    /// One that is open.
    type Device: Device;

    /// Names of all, at this moment.
    fn names(&self) -> Result<Vec<String>, HcaError>;

    /// Opens one.
    fn open(&self, name: &str) -> Result<Self::Device, HcaError>;
}

/// A device, open.
pub(super) trait Device: AsFd + Debug {
    /// The name that it has now, if it is not the one by which it was opened.
    fn renamed(&self) -> Option<String>;

    /// Its ports.
    fn setups(&self) -> Result<Vec<PortSetup>, HcaError>;

    /// What its tables hold.
    fn entries(&self) -> Result<Vec<Entry>, HcaError>;

    /// Takes its events. True if its tables may hold something else now; an error if it is gone.
    fn take_events(&self) -> Result<bool, HcaError>;
}

/// A device has another name than its table. The verbs library does not see that in a process that knows the device already.
#[derive(Debug, thiserror::Error)]
#[error(
    "{was} is called {now} now: start the service again, which then serves all devices under their names"
)]
pub struct Renamed {
    was: String,
    now: String,
}

/// Those of the kernel.
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

/// One device and its table.
#[derive(Debug)]
struct Served<D> {
    name: String,
    device: D,
    path: PathBuf,
    table: DeviceTable<Maintained>,
    /// An event has not been followed yet.
    stale: bool,
    reread: Instant,
}

impl<D: Device> Served<D> {
    fn new(name: &str, device: D, path: PathBuf, now: Instant) -> Result<Self, MirrorError> {
        let table = share(&device.setups()?, &path, random())?;
        Ok(Self { name: name.to_owned(), device, path, table, stale: true, reread: now })
    }

    /// Copies what may have changed; an error if the device is gone, or does not answer.
    fn copy(&mut self, now: Instant) -> Result<(), MirrorError> {
        self.stale |= self.device.take_events()? || now >= self.reread;
        if self.stale {
            let changes = self.table.mirror(&self.device.entries()?)?;
            tell(&self.name, &changes);
            self.reread = now + REREAD;
            self.stale = false;
        }
        Ok(())
    }

    /// The device is gone for good: so is its table, for those who have it open, too.
    fn remove(self) {
        let name = &self.name;
        let emptied = self.table.mirror(&[]).map_err(MirrorError::from);
        self.table.heartbeat(0);
        let removed = self.table.reader().map_err(MirrorError::from).and_then(|reader| {
            let memory: &Maintained = reader.memory();
            Ok(memory.remove(&self.path)?)
        });
        match emptied.and(removed) {
            Ok(()) => tracing::info!("{name} is gone, and its table with it"),
            Err(error) => tracing::warn!("{name} is gone: {error}"),
        }
    }
}

/// Removes the table of a device that was not served any more when it went.
fn sweep(directory: &Directory, name: &str) {
    match directory.table(name).map(|path| remove_left(&path)) {
        Some(Ok(true)) => tracing::info!("{name} is gone, and its table with it"),
        Some(Err(error)) => tracing::warn!("{name} is gone: {error}"),
        Some(Ok(false)) | None => {}
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Devices<M: Machine> {
    machine: M,
    served: Vec<Served<M::Device>>,
    /// Devices of which it was said that they cannot be served.
    refused: BTreeSet<String>,
    look: Instant,
}

impl<M: Machine> Devices<M> {
    pub(super) const fn new(machine: M, now: Instant) -> Self {
        Self { machine, served: Vec::new(), refused: BTreeSet::new(), look: now }
    }

    /// Follows what has happened. `plugged`: a device may have come or gone; `links`: VLANs may have other numbers.
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
                    // They would call for ever, and are opened anew when it is known that they are there.
                    self.served.retain(|served| !lost.contains(&served.name));
                    self.refused.extend(lost);
                }
            }
        }
        Ok(())
    }

    /// `lost` are those that did not answer: another device may have the name now, and is opened.
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
                // Its readers go on with the next one's table.
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
            return Err(format!("{MAX_DEVICES} devices are served, which is the most"));
        }
        let path = directory.table(name).ok_or("no table can have this name")?;
        let device = self.machine.open(name).map_err(|error| error.to_string())?;
        let mut served = Served::new(name, device, path, now).map_err(|error| error.to_string())?;
        served.copy(now).map_err(|error| error.to_string())?;
        Ok(served)
    }

    /// Speaks for the tables that are as their devices'; 0 takes all that back.
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

    /// What to say of devices that are left out.
    pub(super) fn trouble(&self) -> Option<String> {
        let first = self.refused.first()?;
        Some(format!("{} not served, {first} among them: see the log", self.refused.len()))
    }

    pub(super) fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.served.iter().map(|served| served.device.as_fd())
    }
}
