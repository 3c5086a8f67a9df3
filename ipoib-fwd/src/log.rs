//! The log: lines on standard error, as many as the configuration asks for; entries with fields, where standard error is the journal's.

mod journal;

use std::fmt;
use std::io::IsTerminal as _;
use std::os::fd::AsFd;

use config::LogLevel;
use tracing::field::Field;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

use journal::Journal;

/// The environment's filter, which goes before the configured level.
const VARIABLE: &str = "IPOIB_FWD_LOG";

/// True if the journal reads what is written there: lines may have a priority in front, as sd-daemon(3) has them.
#[must_use]
pub fn is_journal(file: impl AsFd) -> bool {
    journal::reads(file)
}

/// A text for the journal: each of its lines an error.
#[must_use]
pub fn with_error_priority(text: &str) -> String {
    text.lines().map(|line| format!("<3>{line}\n")).collect()
}

/// The log of this process.
#[derive(Clone, Debug)]
pub struct Log {
    /// `None` if the environment says how much is logged.
    filter: Option<Handle<EnvFilter, Registry>>,
    journal: Option<Journal>,
}

/// True for a field that stands beside the text, for programs: the text says the same.
fn is_beside(field: &Field) -> bool {
    matches!(field.name(), "segment" | "event")
}

/// A field in a line.
fn write_field(line: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        _ if is_beside(field) => Ok(()),
        "message" => write!(line, "{value:?}"),
        name => write!(line, " {name}={value:?}"),
    }
}

impl Log {
    /// Starts it, once a process: `IPOIB_FWD_LOG` says how much, or else the default level until one is [set](Self::set).
    #[must_use]
    pub fn start() -> Self {
        let given = EnvFilter::try_from_env(VARIABLE).ok();
        let configurable = given.is_none();
        let (filter, handle) =
            reload::Layer::new(given.unwrap_or_else(|| EnvFilter::new(LogLevel::Info.word())));
        let journal = Journal::of_standard_error();
        let lines = journal.is_none().then(|| {
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .fmt_fields(debug_fn(write_field))
        });
        tracing_subscriber::registry().with(filter).with(journal.clone()).with(lines).init();
        Self { filter: configurable.then_some(handle), journal }
    }

    /// One that is not the process's: nothing is logged by it.
    #[cfg(test)]
    pub(crate) const fn silent() -> Self {
        Self { filter: None, journal: None }
    }

    /// The program ends: a journal that has lost entries is told how many, which takes half a second at most.
    pub fn finish(&self) {
        if let Some(journal) = &self.journal {
            journal.finish();
        }
    }

    /// Logs as much as `level` from now on, unless the environment says how much.
    pub fn set(&self, level: LogLevel) {
        if let Some(filter) = &self.filter
            && let Err(e) = filter.reload(EnvFilter::new(level.word()))
        {
            tracing::warn!("the log level stays: {e}");
        }
    }

    /// Logs as much as `level`, and of single modules as much as `modules` says, `MODULE=LEVEL,…`. An error says why not.
    pub fn set_with(&self, level: LogLevel, modules: &str) -> Result<(), String> {
        let Some(filter) = &self.filter else {
            return Err(format!(
                "{VARIABLE} in the gateway's environment says what is logged; start it without"
            ));
        };
        let all = format!("{level},{modules}");
        let new = EnvFilter::try_new(all.trim_end_matches(',')).map_err(|e| e.to_string())?;
        filter.reload(new).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_changes_while_the_log_runs() {
        if std::env::var_os(VARIABLE).is_some() {
            return;
        }
        let log = Log::start();
        assert!(tracing::enabled!(tracing::Level::INFO) && !tracing::enabled!(tracing::Level::DEBUG));
        log.set(LogLevel::Debug);
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        log.set(LogLevel::Error);
        assert!(tracing::enabled!(tracing::Level::ERROR) && !tracing::enabled!(tracing::Level::WARN));
        // One module says more than the others.
        log.set_with(LogLevel::Warn, "endpoint=debug").unwrap();
        assert!(tracing::enabled!(target: "endpoint::control", tracing::Level::DEBUG));
        assert!(!tracing::enabled!(target: "ipoib_fwd::gateway", tracing::Level::INFO));
        log.set_with(LogLevel::Info, "").unwrap();
        assert!(!tracing::enabled!(target: "endpoint::control", tracing::Level::DEBUG));
        assert!(tracing::enabled!(target: "endpoint::control", tracing::Level::INFO));
    }
}
