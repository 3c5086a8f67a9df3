//! Tables of software RoCE ports: the GIDs follow from the addresses of an interface, by the kernel's rules.

use std::sync::Arc;

use gidcache::netlink::{Audience as _, Notice};
use gidcache::rules::Binding;
use gidcache::{Entry, Manager, PortKind, PortSetup, RoceTypes, Rules, differences};
use ib_wire::PortNumber;
use pmd::gids::{Directory, share};
use pmd::shm::Maintained;

use super::{ServeError, log_changes};
use crate::gateway::random;

/// Maximum number of interfaces.
pub(super) const MAX_INTERFACES: usize = 32;
/// Entries of a table: the software device's default.
const GIDS: u16 = connectx::DEFAULT_GIDS;
/// The software device speaks RoCE v2.
const TYPES: RoceTypes = RoceTypes::V2;
const PORT: PortNumber = PortNumber(1);
/// Length of an interface's name in bytes (IFNAMSIZ, without the zero).
const LONGEST_NAME: usize = 15;
/// Maximum number of failed changes that are logged one by one at a time.
const LOGGED: usize = 4;

/// The table of an interface.
#[derive(Debug)]
struct Served {
    /// Name of the table.
    name: String,
    manager: Manager<Maintained>,
    entries: Vec<Entry>,
}

impl Served {
    fn new(directory: &Directory, interface: &str) -> Result<Self, ServeError> {
        let name = pmd::gids::roce_table(interface);
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':');
        let is_name =
            !interface.is_empty() && interface.len() <= LONGEST_NAME && interface.chars().all(plain);
        let path = directory.table(&name).filter(|_| is_name);
        let path = path.ok_or_else(|| ServeError::Interface(interface.to_owned()))?;
        let setup = [PortSetup { number: PORT, len: GIDS, kind: PortKind::Roce(TYPES) }];
        let table = share(&setup, &path, random())
            .map_err(|source| ServeError::Table { name: name.clone(), source })?;
        let mut rules = Rules::new();
        rules.bind(PORT, Binding::Name(interface.to_owned()), TYPES);
        let entries = table.entries();
        Ok(Self { name, manager: Manager::new(Arc::new(table), rules), entries })
    }

    fn apply(&mut self) {
        let applied = self.manager.apply();
        for (change, error) in applied.failures.iter().take(LOGGED) {
            tracing::warn!("{}: {error}; {change:?} waits until there is room", self.name);
        }
        if let Some(more) = applied.failures.len().checked_sub(LOGGED).filter(|more| *more > 0) {
            tracing::warn!("{}: {more} more changes wait", self.name);
        }
        if applied.added + applied.deleted > 0 {
            let now = self.manager.table().entries();
            log_changes(&self.name, &differences(&self.entries, &now));
            self.entries = now;
        }
    }
}

/// The tables of all interfaces.
#[derive(Debug)]
pub(super) struct Interfaces(Vec<Served>);

impl Interfaces {
    pub(super) fn new(directory: &Directory, names: &[String]) -> Result<Self, ServeError> {
        if names.len() > MAX_INTERFACES {
            return Err(ServeError::TooMany(names.len()));
        }
        if let Some((_, twice)) =
            names.iter().enumerate().find(|(at, name)| names.iter().take(*at).any(|n| n == *name))
        {
            return Err(ServeError::Twice(twice.clone()));
        }
        let served = names.iter().map(|name| Served::new(directory, name));
        Ok(Self(served.collect::<Result<_, _>>()?))
    }

    /// Handles a notification of the kernel; all interfaces share one stream.
    pub(super) fn hear(&mut self, notice: &Notice) {
        for served in &mut self.0 {
            served.manager.rules().hear(notice);
        }
    }

    /// Updates the tables.
    pub(super) fn apply(&mut self) {
        self.0.iter_mut().for_each(Served::apply);
    }

    pub(super) fn beat(&self, time: u64) {
        for served in &self.0 {
            served.manager.table().heartbeat(time);
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|served| served.name == name)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn gids(&self) -> usize {
        self.0.iter().map(|served| served.entries.len()).sum()
    }
}
