//! Changes of a reload: the difference between two configurations, applied completely or not at all.

use std::path::Path;

use crate::buffers::first_of_each;
use crate::error::ConfigError;
use crate::key::{Key, Reload};
use crate::resolve::read;
use crate::segment::{Segment, SegmentName};
use crate::settings::{Config, Overrides, RawBuffers, RawEthernet, RawGateway, RawInfiniBand};
use crate::source::Source;

/// Steps that make a running gateway match a new configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Segments to remove before any is added. A segment that is also in `added` has the same name but joins
    /// different networks.
    pub removed: Vec<SegmentName>,
    /// Segments to add.
    pub added: Vec<Segment>,
    /// Segments that join the same networks, with new routes, subnets, address, mode, MTU or priority. They
    /// have their new values.
    pub changed: Vec<Segment>,
    /// Changed keys outside of segments, such as "gateway.idle". All of them can change while the gateway
    /// runs.
    pub keys: Vec<String>,
}

impl Change {
    /// True if there are no changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.changed.is_empty() && self.keys.is_empty()
    }

    /// True if the key, such as "gateway.idle", changes.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|k| k == key)
    }
}

/// Reason why a running gateway cannot apply a new configuration.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{key} cannot change while the gateway runs: {why}; {remedy}")]
pub struct Refused {
    /// The key, or the first of several.
    pub key: String,
    /// Index of the segment or software device, counted from 0 in file order.
    pub entry: Option<usize>,
    /// Reason.
    pub why: String,
    /// Remedy.
    pub remedy: String,
}

impl Refused {
    fn restart(key: impl Into<String>, why: impl Into<String>) -> Self {
        let remedy = "restart needed: put the old value back, or restart the gateway".to_owned();
        Self { key: key.into(), entry: None, why: why.into(), remedy }
    }
}

impl Config {
    /// Reads a running gateway's file again. Returns the new configuration with command line overrides, and
    /// the changes for a gateway with `workers` workers.
    ///
    /// # Errors
    ///
    /// An error contains the file and the line. Nothing must be changed then.
    pub fn reload(
        &self,
        file: &Path,
        overrides: &Overrides,
        workers: u32,
    ) -> Result<(Self, Change), ConfigError> {
        let text = read(file)?;
        self.reload_text(file, &text, overrides, workers)
    }

    /// Like [`Config::reload`], with the file's text.
    pub(crate) fn reload_text(
        &self,
        file: &Path,
        text: &str,
        overrides: &Overrides,
        workers: u32,
    ) -> Result<(Self, Change), ConfigError> {
        let source = Source { file, text, faults: None };
        let mut new = Self::parse_with(file, text, overrides)?;
        // Before the check: connections and buffers are divided among all open ports.
        new.open = self.open_ports();
        new.check(workers).map_err(|error| source.located(error))?;
        let change = self.difference(&new).map_err(|refused| {
            let Refused { key, entry, why, remedy } = refused;
            let (key, span, given) = source.place_in_force(&key, entry);
            let left_out = if given { "" } else { ", not even to the default by leaving it out" };
            source.error(span, format!("{key} cannot change while the gateway runs{left_out}: {why}"), remedy)
        })?;
        Ok((new, change))
    }

    /// Returns the changes from this running configuration to `new`. Fails as a whole if any change requires
    /// a restart.
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
                        return Err(Refused::restart(key, "it is only applied at startup"));
                    }
                    Reload::Shrink => return Err(Refused::restart(key, "it can only be reduced")),
                }
            }
        }
        self.same_soft_devices(new)?;
        self.same_ports(new)?;
        self.segment_changes(new, &mut change);
        Ok(change)
    }

    /// Returns all keys outside of segments that may change while the gateway runs, in the format of
    /// [`Change::keys`].
    #[must_use]
    pub fn live_keys() -> Vec<String> {
        let sections = [
            ("gateway", RawGateway::keys()),
            ("ethernet", RawEthernet::keys()),
            ("infiniband", RawInfiniBand::keys()),
            ("buffers", RawBuffers::keys()),
        ];
        let live = |key: &Key| matches!(key.reload, Reload::Live | Reload::Shrink);
        let of = |(section, keys): (&str, Vec<Key>)| {
            let live =
                keys.into_iter().filter(live).map(|key| format!("{section}.{}", key.name.replace('_', "-")));
            live.collect::<Vec<_>>()
        };
        sections.into_iter().flat_map(of).collect()
    }

    /// Checks that no segment uses a port that is not open. A port that no segment uses any more stays open.
    fn same_ports(&self, new: &Self) -> Result<(), Refused> {
        let quoted = |name: Option<&str>| name.map_or("the only one".to_owned(), |name| format!("`{name}`"));
        let port = |(device, port): (Option<&str>, u8)| format!("port {port} of {}", quoted(device));
        type Name<'n> = &'n dyn Fn(&Segment) -> String;
        let kinds: [(&str, Vec<String>, Name<'_>); 3] = [
            ("ethernet", self.ethernet_ports().map(quoted).collect(), &|s| quoted(s.ethernet.as_deref())),
            (
                "device",
                first_of_each(self.infiniband_ports().map(|(device, _)| quoted(device))).collect(),
                &|s| quoted(new.device_of(s)),
            ),
            ("port", self.infiniband_ports().map(port).collect(), &|s| port((new.device_of(s), s.port))),
        ];
        for (key, open, name) in kinds {
            for (index, segment) in new.segments.iter().enumerate() {
                let wanted = name(segment);
                if !open.contains(&wanted) {
                    let why = format!("{wanted} is not among those that are open ({})", open.join(", "));
                    let refused = Refused::restart(format!("segment.{key}"), why);
                    return Err(Refused { entry: Some(index), ..refused });
                }
            }
        }
        Ok(())
    }

    fn same_soft_devices(&self, new: &Self) -> Result<(), Refused> {
        let (old, new) = (&self.infiniband.soft, &new.infiniband.soft);
        if old.len() != new.len() {
            return Err(Refused::restart("infiniband.soft-device", "devices are created at startup"));
        }
        for (index, (old, new)) in old.iter().zip(new).enumerate() {
            let key = match old.differing(new).first() {
                Some((key, _)) => key.replace('_', "-"),
                None if old.ports != new.ports => "ports".to_owned(),
                None => continue,
            };
            let refused =
                Refused::restart(format!("infiniband.soft.{key}"), "devices are created at startup");
            return Err(Refused { entry: Some(index), ..refused });
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
    /// True if both join the same networks. All other keys can change at run time.
    #[must_use]
    pub fn joins_as(&self, other: &Self) -> bool {
        self.differing(other).iter().all(|(_, reload)| *reload == Reload::Live)
    }
}
