//! Devices of this machine, whose tables the kernel keeps, or its subnet manager: copied when a device tells of an event.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gidcache::DeviceTable;
use pmd::gids::{Directory, MirrorError, share};
use pmd::shm::Maintained;
use pmd::verbs::{GidDevice, devices};

use super::tell;
use crate::gateway::random;

/// Most devices that are served.
pub(super) const MAX_DEVICES: usize = 64;
/// Devices are looked for this often without an event.
const LOOK: Duration = Duration::from_secs(2);
/// A table is read this often without an event: a net for what no event tells.
const REREAD: Duration = Duration::from_secs(30);

/// One device and its table.
#[derive(Debug)]
struct Served {
    device: GidDevice,
    path: PathBuf,
    table: DeviceTable<Maintained>,
    /// An event has not been followed yet.
    stale: bool,
    reread: Instant,
}

impl Served {
    fn new(name: &str, path: PathBuf, now: Instant) -> Result<Self, MirrorError> {
        let device = GidDevice::open(name)?;
        let table = share(&device.setups()?, &path, random())?;
        Ok(Self { device, path, table, stale: true, reread: now })
    }

    /// Copies what may have changed; an error if the device is gone, or does not answer.
    fn copy(&mut self, now: Instant) -> Result<(), MirrorError> {
        self.stale |= self.device.take_events()? || now >= self.reread;
        if self.stale {
            let changes = self.table.mirror(&self.device.entries()?)?;
            tell(self.device.name(), &changes);
            self.reread = now + REREAD;
            self.stale = false;
        }
        Ok(())
    }

    /// The device is gone for good: so is its table, for those who have it open, too.
    fn remove(self) {
        let name = self.device.name();
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

/// All of them.
#[derive(Debug)]
pub(super) struct Devices {
    served: Vec<Served>,
    /// Devices of which it was said that they cannot be served.
    refused: BTreeSet<String>,
    look: Instant,
}

impl Devices {
    pub(super) const fn new(now: Instant) -> Self {
        Self { served: Vec::new(), refused: BTreeSet::new(), look: now }
    }

    /// Follows what has happened. `plugged`: a device may have come or gone; `links`: VLANs may have other numbers.
    pub(super) fn turn(&mut self, directory: &Directory, now: Instant, plugged: bool, links: bool) {
        let mut lost: Vec<String> = Vec::new();
        for served in &mut self.served {
            served.stale |= links;
            if let Err(error) = served.copy(now) {
                tracing::warn!("{}: {error}", served.device.name());
                lost.push(served.device.name().to_owned());
            }
        }
        if plugged || !lost.is_empty() || now >= self.look {
            self.look = now + LOOK;
            match devices() {
                Ok(there) => {
                    let there = there.into_iter().map(|device| device.name).collect();
                    self.follow(directory, there, &lost, now);
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    /// `lost` are those that did not answer: another device may have the name now, and is opened.
    fn follow(&mut self, directory: &Directory, mut there: Vec<String>, lost: &[String], now: Instant) {
        there.sort_unstable();
        self.refused.retain(|name| there.contains(name));
        for served in std::mem::take(&mut self.served) {
            let name = served.device.name().to_owned();
            match there.contains(&name) {
                // Its readers go on with the next one's table.
                true if lost.contains(&name) => drop(served),
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

    fn open(&self, directory: &Directory, name: &str, now: Instant) -> Result<Served, String> {
        if self.served.len() >= MAX_DEVICES {
            return Err(format!("{MAX_DEVICES} devices are served, which is the most"));
        }
        let path = directory.table(name).ok_or("no table can have this name")?;
        let mut served = Served::new(name, path, now).map_err(|error| error.to_string())?;
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
        self.served.iter().any(|served| served.device.name() == name)
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
