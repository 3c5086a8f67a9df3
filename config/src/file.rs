//! The configuration file with its text: what is found to be wrong later than it is read points into it all the same.

use std::path::{Path, PathBuf};

use crate::error::{ConfigError, Place};
use crate::resolve::read;
use crate::settings::{Config, Overrides};
use crate::source::Source;

/// Keys of segments, and those that they are as if a segment does not have them.
const DEFAULTS: [(&str, &str); 3] = [
    ("segment.ethernet", "ethernet.port"),
    ("segment.device", "infiniband.device"),
    ("segment.port", "infiniband.port"),
];

/// A configuration file as it was when it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self { path: path.to_owned(), text: read(path)? })
    }

    fn source(&self) -> Source<'_> {
        Source { file: &self.path, text: &self.text }
    }

    /// What the file says, with the command line's overrides on top.
    pub fn config(&self, overrides: &Overrides) -> Result<Config, ConfigError> {
        Config::parse_with(&self.path, &self.text, overrides)
    }

    /// [`Config::check`], with the place of the key that promises too much.
    pub fn check(&self, config: &Config, workers: u32) -> Result<(), ConfigError> {
        let source = self.source();
        config.check(workers).map_err(|error| source.located(error))
    }

    /// Where a key such as "gateway.gids" stands, or "segment.port" of a segment by its number in the order of the file, or what that
    /// is as by default. If none of them is given, its section or the file's begin.
    #[must_use]
    pub fn place(&self, key: &str, segment: Option<usize>) -> Place {
        let source = self.source();
        let (mut span, given) = source.place_of(key, segment);
        if !given && let Some((_, default)) = DEFAULTS.iter().find(|(own, _)| *own == key) {
            let (general, given) = source.place_of(default, None);
            // A segment that says nothing of it is the better place than a section that says nothing.
            if given || span.is_empty() {
                span = general;
            }
        }
        Place::new(&self.path, &self.text, span)
    }

    /// Where the ports of a software device are, by its number among [`InfiniBand::soft`](crate::InfiniBand::soft).
    #[must_use]
    pub fn place_of_soft(&self, device: usize) -> Place {
        let source = self.source();
        let (first, there) = source.place_of("infiniband.soft.ports", None);
        let (span, _) = match device.checked_sub(usize::from(there)) {
            Some(further) => source.place_of("infiniband.soft-device.ports", Some(further)),
            None => (first, true),
        };
        Place::new(&self.path, &self.text, span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
[ethernet]
port = \"e0\"

[[infiniband.soft-device]]
name = \"a\"
ports = [{ link = \"shm:/1\" }]

[[infiniband.soft-device]]
name = \"b\"
ports = [{ link = \"shm:/2\" }]

[[segment]]
vlan = 1
device = \"a\"

[[segment]]
vlan = 1
ethernet = \"e1\"
device = \"b\"
";

    #[test]
    fn the_place_of_what_a_segment_leaves_out_is_that_of_the_default_or_its_own() {
        let file = |text: &str| ConfigFile { path: "g.toml".into(), text: text.to_owned() };
        let line = |key: &str, segment| file(TEXT).place(key, segment).line;
        assert_eq!(line("segment.ethernet", Some(0)), 2, "the default");
        assert_eq!(line("segment.ethernet", Some(1)), 18);
        assert_eq!(line("segment.port", Some(1)), 16, "neither says it");
        assert_eq!(line("segment", Some(1)), 16);
        assert_eq!(file(TEXT).place("segment.device", Some(1)).to_string(), "g.toml:19:1");
        assert_eq!([0, 1].map(|device| file(TEXT).place_of_soft(device).line), [6, 10]);
        let first = format!("[infiniband.soft]\nports = [{{ link = \"shm:/0\" }}]\n{TEXT}");
        assert_eq!([0, 1, 2].map(|device| file(&first).place_of_soft(device).line), [2, 8, 12]);
        assert_eq!(file("[infiniband]\nport = 7\n").place("segment.port", Some(0)).line, 2);
        assert_eq!(file("").place("segment.port", Some(0)).to_string(), "g.toml:1:1");
    }
}
