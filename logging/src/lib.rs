//! The log of a program: lines on standard error, as many as was asked for; entries with fields, where standard error is the journal's.
//! Neither who fills it nor a journal that takes nothing holds the program up.
#![forbid(unsafe_code)]

mod journal;
mod limit;
mod modules;

use std::error::Error;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd;

pub use config::LogLevel;
pub use modules::Modules;

use tracing::field::Field;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

use journal::Journal;
use limit::Limit;

/// True if the journal reads what is written there: lines may have a priority in front, as sd-daemon(3) has them.
#[must_use]
pub fn is_journal(file: impl AsFd) -> bool {
    journal::reads(file)
}

/// A text for the journal: each of its lines an error.
fn with_error_priority(text: &str) -> String {
    text.lines().map(|line| format!("<3>{line}\n")).collect()
}

/// What a program ends with: the error and its causes, on one line each. Many an error's text has its cause in it, which is not told twice.
#[must_use]
pub fn failure(program: &str, error: &dyn Error) -> String {
    let mut said = format!("{program}: {error}\n");
    for cause in std::iter::successors(error.source(), |e| (*e).source()).map(ToString::to_string) {
        if !said.contains(&cause) {
            said += &format!("  because: {cause}\n");
        }
    }
    said
}

/// Tells on standard error what a program ends with.
pub fn tell_failure(program: &str, error: &dyn Error) {
    let text = failure(program, error);
    let text = if is_journal(std::io::stderr()) { with_error_priority(&text) } else { text };
    // Nobody reads it: then there is nobody to tell, and the exit code stays the program's.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// What a program calls itself.
#[derive(Clone, Copy, Debug)]
struct Program(&'static str);

impl Program {
    /// In names of variables and fields: capitals, digits and underscores, and one behind it.
    fn prefix(self) -> String {
        self.0.chars().map(capital).chain(['_']).collect()
    }

    /// The environment's filter, which goes before what was configured.
    fn variable(self) -> String {
        self.prefix() + "LOG"
    }
}

/// As names of variables and the journal's fields have it.
const fn capital(letter: char) -> char {
    if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' }
}

/// The log of this process.
#[derive(Clone, Debug)]
pub struct Log {
    program: Program,
    /// `None` if the environment says how much is logged.
    filter: Option<Handle<EnvFilter, Registry>>,
    journal: Option<Journal>,
    limit: Limit,
}

/// True for a field that stands beside the text, for programs: the text says the same.
fn is_beside(field: &Field) -> bool {
    matches!(field.name(), "segment" | "event")
}

/// A field in a line.
fn write_field(line: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        _ if is_beside(field) => Ok(()),
        "message" => write!(line, "{value:?}{}", limit::note()),
        name => write!(line, " {name}={value:?}"),
    }
}

impl Log {
    /// Starts it, once a process: `PROGRAM_LOG` in the environment (`IPOIB_FWD_LOG`) says how much, or else the default level until one is
    /// [set](Self::set).
    #[must_use]
    pub fn start(program: &'static str) -> Self {
        let program = Program(program);
        let given = EnvFilter::try_from_env(program.variable()).ok();
        let configurable = given.is_none();
        let (filter, handle) =
            reload::Layer::new(given.unwrap_or_else(|| EnvFilter::new(LogLevel::Info.word())));
        let limit = Limit::default();
        let journal = Journal::of_standard_error(program);
        let lines = journal.is_none().then(|| {
            tracing_subscriber::fmt::layer()
                .with_writer(std::io::stderr)
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .fmt_fields(debug_fn(write_field))
        });
        let layers = tracing_subscriber::registry().with(filter).with(limit.clone());
        layers.with(journal.clone()).with(lines).init();
        Self { program, filter: configurable.then_some(handle), journal, limit }
    }

    /// One that is not the process's: nothing is logged by it.
    #[must_use]
    pub fn silent() -> Self {
        Self { program: Program("silent"), filter: None, journal: None, limit: Limit::default() }
    }

    /// The program ends: how many entries were held back or lost, of which nothing was said yet; with a journal that takes nothing this takes half a second at
    /// most.
    pub fn finish(&self) {
        let held_back = self.limit.take_held_back();
        if held_back > 0 {
            tracing::warn!(
                "entries of the log that were held back, as there were too many of the same: {held_back}"
            );
        }
        if let Some(journal) = &self.journal {
            journal.finish();
        }
    }

    /// Logs as much as `level` from now on, and of single modules as much as these say, unless the environment says how much.
    pub fn set(&self, level: LogLevel, modules: &Modules) {
        if self.filter.is_some()
            && let Err(e) = self.try_set(level, modules)
        {
            tracing::warn!("the log level stays: {e}");
        }
    }

    /// The same for who wants to know whether it is so. An error says why not.
    pub fn try_set(&self, level: LogLevel, modules: &Modules) -> Result<(), String> {
        let Some(filter) = &self.filter else {
            return Err(format!(
                "{} in the environment of {} says what is logged; start it without",
                self.program.variable(),
                self.program.0
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
        let log = Log::start("some-test");
        assert_eq!(log.program.variable(), "SOME_TEST_LOG");
        let set = |level, modules: &str| log.try_set(level, &modules.parse().unwrap()).unwrap();
        assert!(tracing::enabled!(tracing::Level::INFO) && !tracing::enabled!(tracing::Level::DEBUG));
        set(LogLevel::Debug, "");
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        log.set(LogLevel::Error, &Modules::default());
        assert!(tracing::enabled!(tracing::Level::ERROR) && !tracing::enabled!(tracing::Level::WARN));
        // One module says more than the others.
        set(LogLevel::Warn, "endpoint=debug");
        assert!(tracing::enabled!(target: "endpoint::control", tracing::Level::DEBUG));
        assert!(!tracing::enabled!(target: "ipoib_fwd::gateway", tracing::Level::INFO));
        set(LogLevel::Info, "");
        assert!(!tracing::enabled!(target: "endpoint::control", tracing::Level::DEBUG));
        assert!(tracing::enabled!(target: "endpoint::control", tracing::Level::INFO));
    }

    #[test]
    fn each_cause_of_an_end_is_told_once() {
        use std::io;

        #[derive(Debug)]
        struct Told(&'static str, Option<io::Error>);
        impl fmt::Display for Told {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0)
            }
        }
        impl Error for Told {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                self.1.as_ref().map(|cause| cause as _)
            }
        }
        let cause = || Some(io::Error::other("no disk"));
        assert_eq!(failure("p", &Told("it fails", cause())), "p: it fails\n  because: no disk\n");
        assert_eq!(failure("p", &Told("it fails: no disk", cause())), "p: it fails: no disk\n");
        assert_eq!(failure("p", &Told("it fails", None)), "p: it fails\n");
    }

    #[test]
    fn a_log_that_the_environment_rules_says_so() {
        let why = Log::silent().try_set(LogLevel::Info, &Modules::default()).unwrap_err();
        assert!(why.contains("SILENT_LOG") && why.contains("start it without"), "{why}");
    }
}
