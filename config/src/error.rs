//! Configuration errors with remedies.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Maximum length of a problem description in characters.
const LONGEST: usize = 400;

/// A location in a configuration file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Byte range in the file.
    pub span: Range<usize>,
}

impl Place {
    /// Returns the location of `span` in `text`.
    pub(crate) fn new(file: &Path, text: &str, span: Range<usize>) -> Self {
        let before = text.get(..span.start.min(text.len())).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Self {
            file: file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or_default().chars().count() + 1,
            span,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file.display(), self.line, self.column)
    }
}

/// Reason why the gateway cannot start with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}; specify a readable file after --config", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// An error in the file.
    #[error("{place}: {what}; {remedy}")]
    File {
        /// Location.
        place: Place,
        /// Problem.
        what: String,
        /// Remedy.
        remedy: String,
    },
    /// An error on the command line.
    #[error("command line: {what}; {remedy}")]
    CommandLine {
        /// Problem.
        what: String,
        /// Remedy.
        remedy: String,
    },
    /// A limit is exceeded.
    #[error("{key}: {what}; {remedy}")]
    Promise {
        /// The key, such as "buffers.count".
        key: &'static str,
        /// Problem.
        what: String,
        /// Remedy.
        remedy: String,
    },
}

impl ConfigError {
    /// Returns an error of the command line.
    pub(crate) fn command_line(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::CommandLine { what: what.into(), remedy: remedy.into() }
    }

    /// Returns an error in the file. Long quotations from an invalid file are truncated.
    pub(crate) fn in_file(place: Place, what: &str, remedy: impl Into<String>) -> Self {
        let what = match what.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}...", what.get(..end).unwrap_or_default()),
            None => what.to_owned(),
        };
        Self::File { place, what, remedy: remedy.into() }
    }

    /// Converts an error of TOML or serde and adds a remedy.
    pub(crate) fn toml(file: &Path, text: &str, error: &toml::de::Error) -> Self {
        let place = Place::new(file, text, error.span().unwrap_or(0..0));
        let message = error.message();
        if let Some(rest) = message.strip_prefix("unknown field ") {
            let mut words = rest.split('`').skip(1).step_by(2);
            let unknown = words.next().unwrap_or_default();
            let known: Vec<&str> = words.collect();
            let remedy = match nearest(unknown, &known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", known.join(", ")),
            };
            return Self::in_file(place, &format!("unknown key `{unknown}`"), remedy);
        }
        let remedy = if message.contains("unknown variant") {
            "use one of the listed values"
        } else if message.contains("duplicate key") {
            "keep one of the two"
        } else if message.contains("expected i64") {
            "write a whole number without quotes"
        } else if message.contains("expected a boolean") {
            "write true or false without quotes"
        } else if message.contains("expected a string") {
            "write the value in double quotes"
        } else if message.contains("map, expected a sequence") {
            "write the section name in double brackets, [[name]]: there can be several"
        } else if message.contains("expected a sequence") {
            "write a list in brackets, for example [\"10.78.0.0/16\"]"
        } else if message.contains("missing field") {
            "add it"
        } else {
            "write one `key = value` per line under a `[section]`, as the annotated default configuration does"
        };
        Self::in_file(place, &message.trim_end().replace('\n', ", "), remedy)
    }
}

/// Returns the known word nearest to `word`, if it is similar enough.
#[must_use]
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    // A word of this length is not a misspelled key.
    if word.len() > LONGEST {
        return None;
    }
    known
        .iter()
        .map(|k| (distance(word, k), *k))
        .min()
        .filter(|(d, k)| *d <= 1 + k.len().max(word.len()) / 3)
        .map(|(_, k)| k)
}

/// Levenshtein distance, ignoring case and the difference between `_` and `-`.
fn distance(a: &str, b: &str) -> usize {
    let plain = |c: char| if c == '_' { '-' } else { c.to_ascii_lowercase() };
    let b: Vec<char> = b.chars().map(plain).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().map(plain).enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, cb) in row.iter_mut().skip(1).zip(&b) {
            let best = (diagonal + usize::from(ca != *cb)).min(*cell + 1).min(left + 1);
            diagonal = std::mem::replace(cell, best);
            left = best;
        }
    }
    row.last().copied().unwrap_or(a.len())
}
