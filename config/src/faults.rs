//! All errors of a configuration file at once. Reading goes on behind an error with the value that the key would have if it were not
//! given; what only follows from an error is not told.

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

/// Most errors that are told.
const MOST: usize = 50;
/// Most bytes that are looked at: each error of some kinds takes another look at the file.
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
    /// What the file says as far as it is right, and everything that is wrong with it: up to 50 errors in the order of the file, that of
    /// [`ConfigFile::config`] among them. With a number of workers, what they can hold is checked too ([`ConfigFile::check`]).
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
        // As one reads.
        errors.sort_by_key(|error| match error {
            ConfigError::File { place, .. } => (place.line, place.column),
            _ => (0, 0),
        });
        (config, errors)
    }
}

/// The file as TOML has it, without the keys that are unknown or of another type. `None` if it is no TOML.
fn raw(source: &Source<'_>, faults: &Faults) -> Option<Raw> {
    let (mut root, errors) = DeTable::parse_recoverable(source.text);
    if !errors.is_empty() {
        let mut last = 0;
        for error in errors.iter().take(MOST) {
            // What the parser stumbles over behind an error in a line is most often the same error.
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

/// Takes the innermost key out that an error is about; false if there is none.
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
