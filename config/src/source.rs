//! Access to values of the file, and errors with their location in it.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, Place};
use crate::faults::Faults;
use crate::value::{Fault, Value};

/// A configuration file and its text.
#[derive(Clone, Copy)]
pub(crate) struct Source<'f> {
    pub(crate) file: &'f Path,
    pub(crate) text: &'f str,
    /// Collects errors so that reading continues; without it the first error ends it.
    pub(crate) faults: Option<&'f Faults>,
}

impl Source<'_> {
    /// Returns a key's value, or `base` if it is not given.
    pub(crate) fn value<T: Value>(
        &self,
        key: &str,
        raw: Option<&Spanned<T::Raw>>,
        legal: Option<T::Legal>,
        base: T,
    ) -> Result<T, ConfigError> {
        let Some(raw) = raw else { return Ok(base) };
        match T::read(&key.replace('_', "-"), raw.get_ref().clone(), legal) {
            Ok(value) => Ok(value),
            Err(Fault { what, remedy, span }) => {
                self.keep(Err(self.error(span.unwrap_or_else(|| raw.span()), what, remedy)), base)
            }
        }
    }

    /// If errors are collected, replaces an error with `base`.
    pub(crate) fn keep<T>(&self, result: Result<T, ConfigError>, base: T) -> Result<T, ConfigError> {
        match (result, self.faults) {
            (Err(error), Some(faults)) => {
                faults.push(error);
                Ok(base)
            }
            (result, _) => result,
        }
    }

    /// Number of collected errors, used to skip consequential errors.
    pub(crate) fn kept(&self) -> usize {
        self.faults.map_or(0, Faults::len)
    }

    pub(crate) fn error(
        &self,
        span: Range<usize>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ConfigError {
        ConfigError::in_file(Place::new(self.file, self.text, span), &what.into(), remedy)
    }

    /// Returns the key that provides a value, its location, and true.
    ///
    /// If no key is given, the location is that of [`Source::place_of`]. Defaults of segments are in other
    /// sections, and software devices are in either of two sections.
    pub(crate) fn place_in_force(&self, key: &str, entry: Option<usize>) -> (String, Range<usize>, bool) {
        let listed = entry.filter(|_| key.starts_with("infiniband.soft."));
        if let Some(n) = listed {
            let first = usize::from(self.place_of("infiniband.soft", None).1);
            let (key, entry) = match n.checked_sub(first) {
                Some(n) => (key.replacen("soft.", "soft-device.", 1), Some(n)),
                None => (key.to_owned(), None),
            };
            let (span, given) = self.place_of(&key, entry);
            return (key, span, given);
        }
        let (span, given) = self.place_of(key, entry);
        let inherited = match key {
            "segment.ethernet" => Some("ethernet.port"),
            "segment.device" => Some("infiniband.device"),
            "segment.port" => Some("infiniband.port"),
            _ => None,
        };
        match inherited.filter(|_| !given).map(|other| (other, self.place_of(other, None))) {
            Some((other, (span, true))) => (other.to_owned(), span, true),
            _ => (key.to_owned(), span, given),
        }
    }

    /// Returns the location of a key such as "gateway.idle", or "segment.port" of a segment by index, and
    /// true. If it is not given, returns its section or the start of the file, and false.
    pub(crate) fn place_of(&self, key: &str, entry: Option<usize>) -> (Range<usize>, bool) {
        let mut at = (0..0, false);
        let Ok(root) = DeTable::parse(self.text) else { return at };
        let mut table = root.get_ref();
        let mut words = key.split('.').peekable();
        while let Some(word) = words.next() {
            let Some((name, value)) = table.iter().find(|(name, _)| *name.get_ref() == word) else { break };
            at = (name.span(), words.peek().is_none());
            if at.1 {
                break;
            }
            let next = match (value.get_ref(), entry) {
                (DeValue::Array(list), Some(n)) => list.get(n).inspect(|one| at.0 = one.span()),
                (DeValue::Table(_), _) => Some(value),
                _ => None,
            };
            let Some(DeValue::Table(next)) = next.map(Spanned::get_ref) else { break };
            table = next;
        }
        at
    }

    /// Adds the location of a key to its error.
    pub(crate) fn located(&self, error: ConfigError) -> ConfigError {
        match error {
            ConfigError::Promise { key, what, remedy } => {
                self.error(self.place_of(key, None).0, format!("{key}: {what}"), remedy)
            }
            error => error,
        }
    }

    /// Returns the line of a location, from 1.
    pub(crate) fn line(&self, span: &Range<usize>) -> usize {
        Place::new(self.file, self.text, span.clone()).line
    }
}
