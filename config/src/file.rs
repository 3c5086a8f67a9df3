//! The configuration file with its text, so that later errors can refer to it too.

use std::path::{Path, PathBuf};

use crate::error::{ConfigError, Place};
use crate::resolve::read;
use crate::settings::{Config, Overrides};
use crate::source::Source;

/// A configuration file as read.
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

    /// Wraps a text, for tests.
    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self { path: "gateway.toml".into(), text: text.to_owned() }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn source(&self) -> Source<'_> {
        Source { file: &self.path, text: &self.text, faults: None }
    }

    /// Parses the file and applies the command line overrides.
    pub fn config(&self, overrides: &Overrides) -> Result<Config, ConfigError> {
        Config::parse_with(&self.path, &self.text, overrides)
    }

    /// Like [`Config::check`], with the location of the key that exceeds a limit.
    pub fn check(&self, config: &Config, workers: u32) -> Result<(), ConfigError> {
        let source = self.source();
        config.check(workers).map_err(|error| source.located(error))
    }

    /// Returns the location of the value in force for a key: for example "gateway.gids", "segment.port" of a
    /// segment, or "infiniband.soft.ports" of a software device.
    ///
    /// `entry` is the index of the segment or device in file order. If the value is not given, the location
    /// is its section or the start of the file.
    #[must_use]
    pub fn place(&self, key: &str, entry: Option<usize>) -> Place {
        let (_, span, _) = self.source().place_in_force(key, entry);
        Place::new(&self.path, &self.text, span)
    }
}

impl Config {
    /// Reads a file and applies the command line overrides.
    pub fn load(file: &Path, overrides: &Overrides) -> Result<Self, ConfigError> {
        ConfigFile::read(file)?.config(overrides)
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
        let file = |text: &str| ConfigFile::of(text);
        let line = |key: &str, segment| file(TEXT).place(key, segment).line;
        assert_eq!(line("segment.ethernet", Some(0)), 2, "the default");
        assert_eq!(line("segment.ethernet", Some(1)), 18);
        assert_eq!(line("segment.port", Some(1)), 16, "neither contains it");
        assert_eq!(line("segment.name", Some(1)), 16);
        assert_eq!(file(TEXT).place("segment.device", Some(1)).to_string(), "gateway.toml:19:1");
        assert_eq!([0, 1].map(|device| line("infiniband.soft.ports", Some(device))), [6, 10]);
        let first = format!("[infiniband.soft]\nports = [{{ link = \"shm:/0\" }}]\n{TEXT}");
        assert_eq!(
            [0, 1, 2].map(|device| file(&first).place("infiniband.soft.ports", Some(device)).line),
            [2, 8, 12]
        );
        assert_eq!(file("[infiniband]\nport = 7\n").place("segment.port", Some(0)).line, 2);
        assert_eq!(file("").place("segment.port", Some(0)).to_string(), "gateway.toml:1:1");
    }
}
