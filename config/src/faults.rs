//! Collects all errors of a configuration file. After an error, reading continues with the default value of
//! the key. Consequential errors are not reported.

use std::cell::RefCell;
use std::ops::Range;

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::ConfigError;
use crate::file::ConfigFile;
use crate::raw::Raw;
use crate::settings::{Config, Overrides};
use crate::source::Source;

/// Maximum number of reported errors.
const MOST: usize = 50;
/// Maximum number of bytes examined: some kinds of errors require another pass over the file.
const LOOKS: usize = 8 << 20;

/// The errors so far.
#[derive(Default)]
pub(crate) struct Faults(RefCell<Vec<ConfigError>>);

impl Faults {
    pub(crate) fn push(&self, error: ConfigError) {
        let mut all = self.0.borrow_mut();
        if all.len() < MOST {
            all.push(error);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

impl ConfigFile {
    /// Returns the valid part of the file, and up to 50 errors in file order.
    ///
    /// The error of [`ConfigFile::config`] is among them. If the number of workers is given, their limits are
    /// checked too ([`ConfigFile::check`]).
    #[must_use]
    pub fn examine(&self, overrides: &Overrides, workers: Option<u32>) -> (Config, Vec<ConfigError>) {
        let faults = Faults::default();
        let source = Source { faults: Some(&faults), ..self.source() };
        let read = source.long_enough().and_then(|()| match raw(&source, &faults) {
            Some(raw) => source.config(&raw, overrides),
            None => Ok(Config::from_overrides(overrides)),
        });
        let config = read.unwrap_or_else(|error| {
            faults.push(error);
            Config::from_overrides(overrides)
        });
        if faults.len() == 0 {
            let promises = workers.map_or_else(|| config.beyond_devices(), |n| config.promises(n));
            promises.into_iter().for_each(|promise| faults.push(source.located(promise)));
        }
        let mut errors = faults.0.into_inner();
        // In file order.
        errors.sort_by_key(|error| match error {
            ConfigError::File { place, .. } => (place.line, place.column),
            _ => (0, 0),
        });
        (config, errors)
    }
}

/// Parses the file without unknown keys and keys of a wrong type. Returns `None` if it is not TOML.
fn raw(source: &Source<'_>, faults: &Faults) -> Option<Raw> {
    let (mut root, errors) = DeTable::parse_recoverable(source.text);
    if !errors.is_empty() {
        let mut last = 0;
        for error in errors.iter().take(MOST) {
            // Later parser errors in the same line are usually consequences of the first one.
            let line = source.line(&error.span().unwrap_or(0..0));
            if std::mem::replace(&mut last, line) != line {
                faults.push(ConfigError::toml(source.file, source.text, error));
            }
        }
        return None;
    }
    for _ in 0..(LOOKS / source.text.len().max(1)).clamp(1, MOST) {
        match Raw::deserialize(toml::Deserializer::from(root.clone())) {
            Ok(raw) => return Some(raw),
            Err(error) => {
                faults.push(ConfigError::toml(source.file, source.text, &error));
                if !remove(root.get_mut(), &error.span()?) {
                    return None;
                }
            }
        }
    }
    None
}

/// Removes the innermost key at an error. Returns false if there is none.
fn remove(table: &mut DeTable<'_>, at: &Range<usize>) -> bool {
    let covers = |span: Range<usize>| span.start <= at.start && at.end <= span.end;
    let within = |value: &mut Spanned<DeValue<'_>>| match value.get_mut() {
        DeValue::Table(inner) => remove(inner, at),
        DeValue::Array(list) => list.iter_mut().any(|one| match one.get_mut() {
            DeValue::Table(inner) => remove(inner, at),
            _ => false,
        }),
        _ => false,
    };
    if table.iter_mut().any(|(_, value)| within(value)) {
        return true;
    }
    let found = table.iter().find(|(key, value)| covers(key.span()) || covers(value.span()));
    match found.map(|(key, _)| key.clone()) {
        Some(key) => table.remove(&key).is_some(),
        None => false,
    }
}
