//! What a reload changes: the difference of two configurations, all or nothing.

use crate::key::Reload;
use crate::segment::{Segment, SegmentName};
use crate::settings::Config;

/// What is to be done so that a running gateway is as a new configuration says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Segments to take away, before any is added. One that is in `added` too was joined to something else, under the
    /// same name.
    pub removed: Vec<SegmentName>,
    /// Segments to add.
    pub added: Vec<Segment>,
    /// Segments that stay what they join, with new routes, subnets, address, mode, MTU or priority: as they are to be.
    pub changed: Vec<Segment>,
    /// Keys outside of segments that differ, for instance "gateway.idle". All of them can change while the gateway runs.
    pub keys: Vec<String>,
}

impl Change {
    /// True if there is nothing to do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.changed.is_empty() && self.keys.is_empty()
    }

    /// True if the key, as in "gateway.idle", differs.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|k| k == key)
    }
}

/// Why a running gateway cannot become what a new configuration says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{key} cannot change while the gateway runs: {why}; {remedy}")]
pub struct Refused {
    /// The key, or the first of several.
    pub key: String,
    /// What it would take.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
}

impl Refused {
    fn restart(key: impl Into<String>, why: impl Into<String>) -> Self {
        let remedy = "put the old value back, or restart the gateway".to_owned();
        Self { key: key.into(), why: why.into(), remedy }
    }
}

impl Config {
    /// What has to change so that a gateway that runs with this configuration is as `new` says; refused as a whole if
    /// anything of it takes a restart.
    pub fn difference(&self, new: &Self) -> Result<Change, Refused> {
        let mut change = Change::default();
        for (section, keys) in [
            ("gateway", self.gateway.differing(&new.gateway)),
            ("ethernet", self.ethernet.differing(&new.ethernet)),
            ("infiniband", self.infiniband.differing(&new.infiniband)),
            ("buffers", self.buffers.differing(&new.buffers)),
        ] {
            for (key, reload) in keys {
                let key = format!("{section}.{}", key.replace('_', "-"));
                match reload {
                    Reload::Live => change.keys.push(key),
                    Reload::Segment => {}
                    Reload::Restart => {
                        return Err(Refused::restart(key, "queues and devices are made with it"));
                    }
                    Reload::Shrink => {
                        return Err(Refused::restart(
                            key,
                            "what was made for the smaller value is too small",
                        ));
                    }
                }
            }
        }
        self.same_soft_devices(new)?;
        for (key, old, new) in [
            ("ethernet", names(self.ethernet_ports()), names(new.ethernet_ports())),
            ("device", names(self.devices()), names(new.devices())),
        ] {
            // A port or device that no segment uses any more stays open.
            if let Some(unknown) = new.iter().find(|name| !old.contains(name)) {
                let why = format!("{unknown} is not among those in use since the start ({})", old.join(", "));
                return Err(Refused::restart(format!("segment.{key}"), why));
            }
        }
        self.segment_changes(new, &mut change);
        Ok(change)
    }

    fn same_soft_devices(&self, new: &Self) -> Result<(), Refused> {
        let (old, new) = (&self.infiniband.soft, &new.infiniband.soft);
        if old.len() != new.len() {
            return Err(Refused::restart("infiniband.soft-device", "devices are made at the start"));
        }
        for (old, new) in old.iter().zip(new) {
            let key = match old.differing(new).first() {
                Some((key, _)) => key.replace('_', "-"),
                None if old.ports != new.ports => "ports".to_owned(),
                None => continue,
            };
            return Err(Refused::restart(format!("infiniband.soft.{key}"), "devices are made at the start"));
        }
        Ok(())
    }

    fn segment_changes(&self, new: &Self, change: &mut Change) {
        for old in &self.segments {
            match new.segments.iter().find(|s| s.name == old.name) {
                None => change.removed.push(old.name.clone()),
                Some(same) if same == old => {}
                Some(same) if old.joins_as(same) => change.changed.push(same.clone()),
                Some(other) => {
                    change.removed.push(old.name.clone());
                    change.added.push(other.clone());
                }
            }
        }
        let is_new = |s: &&Segment| self.segments.iter().all(|old| old.name != s.name);
        change.added.extend(new.segments.iter().filter(is_new).cloned());
    }
}

impl Segment {
    /// True if both join the same: what differs can change while they run.
    #[must_use]
    pub fn joins_as(&self, other: &Self) -> bool {
        self.differing(other).iter().all(|(_, reload)| *reload == Reload::Live)
    }
}

fn names<'n>(all: impl Iterator<Item = Option<&'n str>>) -> Vec<String> {
    all.map(|name| name.map_or_else(|| "the only one".to_owned(), |name| format!("`{name}`"))).collect()
}
