//! Keys of a file that have no effect on its configuration.

use crate::error::Place;
use crate::file::ConfigFile;
use crate::settings::Config;
use crate::source::Source;
use crate::word::Mode;

/// A key without effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnusedKey {
    /// The key, for example "infiniband.pkey".
    pub key: &'static str,
    /// Location.
    pub place: Place,
    /// Problem and reason.
    pub what: String,
    /// Remedy.
    pub remedy: &'static str,
}

/// Keys that only apply to connections. Keys that [`Config::budget`] uses in every mode are not included.
const OF_CONNECTIONS: [&str; 3] =
    ["infiniband.retry-count", "infiniband.rnr-retry", "infiniband.connection-idle-seconds"];

/// Defaults of segments, with the corresponding key of a segment.
const DEFAULTS: [(&str, &str); 7] = [
    ("gateway.priority", "priority"),
    ("ethernet.port", "ethernet"),
    ("infiniband.device", "device"),
    ("infiniband.port", "port"),
    ("infiniband.pkey", "pkey"),
    ("infiniband.scope", "scope"),
    ("infiniband.mode", "mode"),
];

/// Number of buffers that any device supports in one send, unless `send-segments` is smaller.
const MOST_PIECES: u32 = 36;

const TAKE_OUT: &str = "remove it";

impl ConfigFile {
    /// Returns the keys of this file that have no effect in `config`, which was created from it, in file
    /// order.
    #[must_use]
    pub fn unused_keys(&self, config: &Config) -> Vec<UnusedKey> {
        let source = self.source();
        let mut found = Found { source: &source, differing: differing(config), keys: Vec::new() };
        found.of_mode(config);
        found.of_long_messages(config);
        found.of_software_devices(config);
        found.of_segments(config);
        found.keys.sort_by_key(|unused| unused.place.span.start);
        found.keys.dedup_by_key(|unused| unused.place.span.start);
        found.keys
    }
}

/// Returns the keys that differ from the default configuration. Explicit default values are not reported.
fn differing(config: &Config) -> Vec<String> {
    let default = Config::default();
    let sections = [
        ("gateway", config.gateway.differing(&default.gateway)),
        ("ethernet", config.ethernet.differing(&default.ethernet)),
        ("infiniband", config.infiniband.differing(&default.infiniband)),
    ];
    let keys =
        sections.into_iter().flat_map(|(section, keys)| keys.into_iter().map(move |(key, _)| (section, key)));
    keys.map(|(section, key)| format!("{section}.{}", key.replace('_', "-"))).collect()
}

struct Found<'s> {
    source: &'s Source<'s>,
    differing: Vec<String>,
    keys: Vec<UnusedKey>,
}

impl Found<'_> {
    /// Adds a key if the file sets it to a value other than its default.
    fn given(&mut self, key: &'static str, why: impl Into<String>, remedy: &'static str) {
        if self.differs(key) {
            self.section(key, why, remedy);
        }
    }

    fn differs(&self, key: &str) -> bool {
        self.differing.iter().any(|differing| differing == key)
    }

    /// Adds a key or a section if the file contains it.
    fn section(&mut self, key: &'static str, why: impl Into<String>, remedy: &'static str) {
        self.add(key, format!("{key} has no effect: {}", why.into()), remedy);
    }

    fn add(&mut self, key: &'static str, what: String, remedy: &'static str) {
        let (span, is_given) = self.source.place_of(key, None);
        if is_given {
            let place = Place::new(self.source.file, self.source.text, span);
            self.keys.push(UnusedKey { key, place, what, remedy });
        }
    }

    fn of_mode(&mut self, config: &Config) {
        if config.segments.iter().all(|segment| segment.mode == Mode::Datagram) {
            for key in OF_CONNECTIONS.into_iter().filter(|key| self.differs(key)).collect::<Vec<_>>() {
                let what = format!(
                    "{key} has no effect until `ctl mode connected`: every segment is in datagram mode"
                );
                self.add(key, what, "remove it, or write mode = \"connected\"");
            }
        }
    }

    fn of_long_messages(&mut self, config: &Config) {
        let pieces = config.segments_per_frame();
        let most = config.infiniband.send_segments.unwrap_or(MOST_PIECES);
        if pieces <= most {
            let mtu = config.ethernet.mtu;
            let why = format!(
                "a packet of ethernet.mtu = {mtu} needs {pieces} buffer(s), and a send supports {most}"
            );
            self.given("infiniband.long-messages", why.clone(), TAKE_OUT);
            self.given("infiniband.send-segments", why, TAKE_OUT);
        }
    }

    fn of_software_devices(&mut self, config: &Config) {
        let infiniband = &config.infiniband;
        if infiniband.soft.is_empty() {
            return;
        }
        if !infiniband.is_soft() {
            let driver = infiniband.driver;
            for key in ["infiniband.soft", "infiniband.soft-device"] {
                let why = format!("driver = \"{driver}\" does not use a software ConnectX");
                self.section(key, why, "remove it, or write driver = \"soft\"");
            }
            return;
        }
        let (_, named) = self.source.place_of("infiniband.soft.name", None);
        let (_, soft) = self.source.place_of("infiniband.soft", None);
        if soft && !named {
            let why = "the software ConnectX of [infiniband.soft] is used, and this key only sets its name";
            self.given(
                "infiniband.device",
                why,
                "write the name into [infiniband.soft], or driver = \"mlx5\"",
            );
        }
    }

    /// Adds a default that every segment overrides.
    fn of_segments(&mut self, config: &Config) {
        let (_, sections) = self.source.place_of("segment", None);
        if !sections {
            return;
        }
        for (key, own) in DEFAULTS {
            let own = format!("segment.{own}");
            if (0..config.segments.len()).all(|entry| self.source.place_of(&own, Some(entry)).1) {
                self.given(key, format!("every [[segment]] has {own} of its own"), TAKE_OUT);
            }
        }
    }
}
