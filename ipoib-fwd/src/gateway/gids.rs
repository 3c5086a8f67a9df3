//! The gateway's copy of its device's GID table: for the control socket, and shared with other processes if
//! so configured.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use gidcache::{Difference, Entry};
use pmd::gids::{Mirror, MirrorError, is_table_name};
use pmd::hca::Control;
use pmd::shm::Maintained;
use pmd::verbs::interface_name;
use serde_json::{Value, json};

use crate::gids::Row;

/// Period of reading the table again without an event. Some changes have no event, for example a new tag of a
/// VLAN interface.
const LOOK: Duration = Duration::from_secs(30);
/// Period of the heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Where the copy is.
#[derive(Debug)]
enum Copy {
    Own(Mirror),
    Shared(Mirror<Maintained>, PathBuf),
}

/// See the module.
#[derive(Debug)]
pub(super) struct GatewayGids {
    copy: Copy,
    look: Instant,
    heartbeat: Instant,
    /// The last read succeeded.
    good: bool,
    changes: u64,
}

impl GatewayGids {
    /// A copy of the device's table, in `file` if other processes should read it.
    pub(super) fn new(
        device: &impl Control,
        file: Option<&Path>,
        seed: u64,
        now: Instant,
    ) -> Result<Self, MirrorError> {
        let copy = match file {
            Some(file) => Copy::Shared(Mirror::share(device, file, seed)?, file.to_owned()),
            None => Copy::Own(Mirror::new(device, seed)?),
        };
        let mut this = Self { copy, look: now, heartbeat: now, good: false, changes: 0 };
        this.refresh(device, now, true)?;
        Ok(this)
    }

    /// Copies entries that may have changed. `changed`: the device reported a change.
    pub(super) fn refresh(
        &mut self,
        device: &impl Control,
        now: Instant,
        changed: bool,
    ) -> Result<Vec<Difference>, MirrorError> {
        let mut changes = Vec::new();
        if changed || now >= self.look {
            self.look = now + LOOK;
            self.good = false;
            changes = match &mut self.copy {
                Copy::Own(mirror) => reread(mirror, device)?,
                Copy::Shared(mirror, _) => reread(mirror, device)?,
            };
            self.good = true;
            self.changes += changes.len() as u64;
        }
        // No heartbeat for a device that did not answer.
        if self.good && now >= self.heartbeat {
            self.heartbeat = now + HEARTBEAT;
            if let Copy::Shared(mirror, _) = &self.copy {
                mirror.beat();
            }
        }
        Ok(changes)
    }

    fn entries(&self) -> Vec<Entry> {
        match &self.copy {
            Copy::Own(mirror) => mirror.table().entries(),
            Copy::Shared(mirror, _) => mirror.table().entries(),
        }
    }

    /// The entries, with the device's name.
    pub(super) fn rows(&self, device: &str) -> Vec<Row> {
        self.entries().iter().map(|entry| Row::new(device, entry, interface_name)).collect()
    }

    /// State of the copy, for the control socket.
    pub(super) fn json(&self, device: &str) -> Value {
        let shared = match &self.copy {
            Copy::Own(_) => None,
            Copy::Shared(_, file) => Some(file.display().to_string()),
        };
        json!({"device": device, "shared": shared, "changes": self.changes})
    }
}

/// The file of a further device's table, next to the file of the first one. `None` if the device's name
/// contains a path, or collides with another file of [`pmd::shm`] there.
pub(super) fn device_file(file: &Path, device: &str) -> Option<PathBuf> {
    if !is_table_name(device) {
        return None;
    }
    let mut name = file.file_name()?.to_owned();
    name.push(".");
    name.push(device);
    Some(file.with_file_name(name))
}

fn reread<M: AsRef<[AtomicU64]>>(
    mirror: &mut Mirror<M>,
    device: &impl Control,
) -> Result<Vec<Difference>, MirrorError> {
    mirror.invalidate();
    mirror.refresh(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_devices_name_leads_a_file_elsewhere() {
        let file = Path::new("/run/gateway-gids");
        assert_eq!(device_file(file, "mlx5_1").unwrap(), Path::new("/run/gateway-gids.mlx5_1"));
        for name in ["", "lock", "new", "a.lock", "a.new", "..", "a/b", "/etc/passwd", "../x", "a\0b"] {
            assert_eq!(device_file(file, name), None, "{name:?}");
        }
        assert_eq!(device_file(Path::new("/"), "a"), None);
    }
}
