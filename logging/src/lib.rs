//! The log of a program: lines on standard error at the configured level, or entries with fields if standard
//! error is connected to the journal. The program is never blocked by a flood of entries, or by a journal or
//! reader that does not read.
#![forbid(unsafe_code)]

mod journal;
mod limit;
mod modules;
mod stream;

use std::error::Error;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd;

pub use config::LogLevel;
pub use modules::Modules;
pub use stream::Stream;

use tracing::field::Field;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

use journal::Journal;
use limit::Limit;

/// True if the journal reads this file. Lines may then start with a priority, as in sd-daemon(3).
#[must_use]
pub fn is_journal(file: impl AsFd) -> bool {
    journal::reads(file)
}

/// Formats a text for the journal, with error priority for each line.
fn with_error_priority(text: &str) -> String {
    text.lines().map(|line| format!("<3>{line}\n")).collect()
}

/// Formats the error with which a program exits, and its causes, on one line each. A cause that is already
/// part of an error's text is not repeated.
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

/// Writes the error with which a program exits to standard error.
pub fn tell_failure(program: &str, error: &dyn Error) {
    let text = failure(program, error);
    let text = if is_journal(std::io::stderr()) { with_error_priority(&text) } else { text };
    // An error cannot be reported, and the exit code stays the program's.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Name of a program.
#[derive(Clone, Copy, Debug)]
struct Program(&'static str);

impl Program {
    /// Returns the prefix of variables and fields: capitals, digits and underscores, with an underscore at
    /// the end.
    fn prefix(self) -> String {
        self.0.chars().map(capital).chain(['_']).collect()
    }

    /// Returns the environment variable with a filter, which overrides the configured level.
    fn variable(self) -> String {
        self.prefix() + "LOG"
    }
}

/// Converts a character for names of variables and journal fields.
const fn capital(letter: char) -> char {
    if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' }
}

/// Level names in the environment variable.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Parses the filter from the environment.
///
/// # Errors
///
/// An error describes the problem and the valid format. The configured level then applies, because a filter
/// that passes nothing would hide that very error.
fn filter_of(variable: &str, given: &str) -> Result<EnvFilter, String> {
    let wrong = |why: &str| {
        format!(
            "{variable}=\"{}\" {why}, so the configured level applies; set it to LEVEL,MODULE=LEVEL,... with {}, or unset it",
            given.escape_debug(),
            LEVELS.join(", ")
        )
    };
    if given.trim().is_empty() {
        return Err(wrong("is empty"));
    }
    let is_level = |word: &str| LEVELS.contains(&word.trim().to_ascii_lowercase().as_str());
    let mut has_level = false;
    for part in given.split(',') {
        match part.rsplit_once('=') {
            Some((_, level)) if is_level(level) => {}
            None if is_level(part) => has_level = true,
            _ => return Err(wrong(&format!("has `{}`, which contains no level", part.escape_debug()))),
        }
    }
    // Other modules log at the default level.
    let all = if has_level { given.to_owned() } else { format!("{},{given}", LogLevel::Info) };
    EnvFilter::try_new(all).map_err(|error| wrong(&format!("cannot be read ({error})")))
}

/// The log of this process.
#[derive(Clone, Debug)]
pub struct Log {
    program: Program,
    /// `None` if the environment sets the levels.
    filter: Option<Handle<EnvFilter, Registry>>,
    journal: Option<Journal>,
    /// Destination of lines without a journal.
    stream: Option<Stream>,
    limit: Limit,
}

/// True for a structured field: it is stored separately for programs, and the text contains the same
/// information.
fn is_structured(field: &Field) -> bool {
    matches!(field.name(), "segment" | "event")
}

/// Appends a field to a line.
fn write_field(line: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        _ if is_structured(field) => Ok(()),
        "message" => write!(line, "{value:?}{}", limit::note()),
        name => write!(line, " {name}={value:?}"),
    }
}

impl Log {
    /// Starts the log, once per process. The environment variable `PROGRAM_LOG` (`IPOIB_FWD_LOG`) sets the
    /// levels. Without it the default level applies until one is [set](Self::set).
    #[must_use]
    pub fn start(program: &'static str) -> Self {
        let program = Program(program);
        let variable = program.variable();
        let given = std::env::var_os(&variable).map(|given| filter_of(&variable, &given.to_string_lossy()));
        let (given, wrong) = match given {
            Some(Ok(filter)) => (Some(filter), None),
            Some(Err(wrong)) => (None, Some(wrong)),
            None => (None, None),
        };
        let configurable = given.is_none();
        let (filter, handle) =
            reload::Layer::new(given.unwrap_or_else(|| EnvFilter::new(LogLevel::Info.word())));
        let limit = Limit::default();
        let journal = Journal::of_standard_error(program);
        let stream = journal.is_none().then(|| Stream::stderr("entries of the log"));
        let lines = stream.clone().map(|stream| {
            tracing_subscriber::fmt::layer()
                .with_writer(stream)
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .fmt_fields(debug_fn(write_field))
        });
        let layers = tracing_subscriber::registry().with(filter).with(limit.clone());
        layers.with(journal.clone()).with(lines).init();
        if let Some(wrong) = wrong {
            tracing::warn!("{wrong}");
        }
        Self { program, filter: configurable.then_some(handle), journal, stream, limit }
    }

    /// Returns a log that is not the process's and logs nothing.
    #[must_use]
    pub fn silent() -> Self {
        Self {
            program: Program("silent"),
            filter: None,
            journal: None,
            stream: None,
            limit: Limit::default(),
        }
    }

    /// Reports the number of suppressed or lost entries that have not been reported, when the program exits.
    /// It takes at most half a second if the journal or reader does not read.
    pub fn finish(&self) {
        let held_back = self.limit.take_held_back();
        if held_back > 0 {
            tracing::warn!("suppressed log entries of the same kind: {held_back}");
        }
        if let Some(journal) = &self.journal {
            journal.finish();
        }
        if let Some(stream) = &self.stream {
            stream.finish();
        }
    }

    /// Sets the log level and the levels of single modules, unless the environment sets them.
    pub fn set(&self, level: LogLevel, modules: &Modules) {
        if self.filter.is_some()
            && let Err(e) = self.try_set(level, modules)
        {
            tracing::warn!("the log level does not change: {e}");
        }
    }

    /// Like [`Self::set`], but returns the reason if the levels cannot be set.
    pub fn try_set(&self, level: LogLevel, modules: &Modules) -> Result<(), String> {
        let Some(filter) = &self.filter else {
            return Err(format!(
                "{} in the environment of {} sets the log levels; start it without this variable",
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
        // One module logs more than the others.
        set(LogLevel::Warn, "endpoint=debug");
        assert!(tracing::enabled!(target: "endpoint::control", tracing::Level::DEBUG));
        assert!(!tracing::enabled!(target: "ipoib_fwd::gateway", tracing::Level::INFO));
        set(LogLevel::Info, "");
        assert!(!tracing::enabled!(target: "endpoint::control", tracing::Level::DEBUG));
        assert!(tracing::enabled!(target: "endpoint::control", tracing::Level::INFO));
    }

    #[test]
    fn a_filter_of_the_environment_is_heeded_or_refused_in_words() {
        for good in
            ["debug", "WARN", "info,endpoint=debug", "endpoint=debug", "off", "ipoib_fwd::gateway=trace,warn"]
        {
            assert!(filter_of("P_LOG", good).is_ok(), "{good}");
        }
        // Other modules log at the default level.
        assert!(filter_of("P_LOG", "endpoint=debug").unwrap().to_string().contains("info"));
        for bad in
            ["", " ", "infoo", "debug,", "endpoint=loud", "info;debug", "1", "endpoint", "=", "\x1b[2J"]
        {
            let why = filter_of("P_LOG", bad).unwrap_err();
            assert!(
                why.starts_with("P_LOG=\"") && why.contains("the configured level applies; set it to"),
                "{why}"
            );
            assert!(!why.contains('\x1b'), "{why}");
        }
    }

    #[test]
    fn each_cause_of_an_exit_is_reported_once() {
        use std::io;

        #[derive(Debug)]
        struct Failing(&'static str, Option<io::Error>);
        impl fmt::Display for Failing {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0)
            }
        }
        impl Error for Failing {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                self.1.as_ref().map(|cause| cause as _)
            }
        }
        let cause = || Some(io::Error::other("no disk"));
        assert_eq!(failure("p", &Failing("it fails", cause())), "p: it fails\n  because: no disk\n");
        assert_eq!(failure("p", &Failing("it fails: no disk", cause())), "p: it fails: no disk\n");
        assert_eq!(failure("p", &Failing("it fails", None)), "p: it fails\n");
    }

    #[test]
    fn a_log_that_the_environment_rules_says_so() {
        let why = Log::silent().try_set(LogLevel::Info, &Modules::default()).unwrap_err();
        assert!(why.contains("SILENT_LOG") && why.contains("start it without this variable"), "{why}");
    }
}
