//! The log of a program: lines on standard error, as many as was asked for; entries with fields, where standard error is the journal's.
//! Neither a sender that fills it nor a journal or reader that takes nothing holds the program up.
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

/// Words for how much is logged, in the environment.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter that the environment gives. An error says what is wrong with it, and what to write: then the configured level
/// counts, since a filter that nothing passes would hide that very error.
fn filter_of(variable: &str, given: &str) -> Result<EnvFilter, String> {
    let wrong = |why: &str| {
        format!(
            "{variable}=\"{}\" {why}, so that the configured level counts; write LEVEL,MODULE=LEVEL,... with {}, or leave it unset",
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
            _ => return Err(wrong(&format!("has `{}`, which gives no level", part.escape_debug()))),
        }
    }
    // Modules that are not named log as they do by default.
    let all = if has_level { given.to_owned() } else { format!("{},{given}", LogLevel::Info) };
    EnvFilter::try_new(all).map_err(|error| wrong(&format!("cannot be read ({error})")))
}

/// The log of this process.
#[derive(Clone, Debug)]
pub struct Log {
    program: Program,
    /// `None` if the environment says how much is logged.
    filter: Option<Handle<EnvFilter, Registry>>,
    journal: Option<Journal>,
    /// Where lines go if there is no journal.
    stream: Option<Stream>,
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

    /// One that is not the process's: nothing is logged by it.
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

    /// The program ends: how many entries were held back or lost, of which nothing was said yet; with a
    /// journal or reader that takes nothing this takes half a second at most.
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
        if let Some(stream) = &self.stream {
            stream.finish();
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
    fn a_filter_of_the_environment_is_heeded_or_refused_in_words() {
        for good in
            ["debug", "WARN", "info,endpoint=debug", "endpoint=debug", "off", "ipoib_fwd::gateway=trace,warn"]
        {
            assert!(filter_of("P_LOG", good).is_ok(), "{good}");
        }
        // What is not named is logged as by default.
        assert!(filter_of("P_LOG", "endpoint=debug").unwrap().to_string().contains("info"));
        for bad in
            ["", " ", "infoo", "debug,", "endpoint=loud", "info;debug", "1", "endpoint", "=", "\x1b[2J"]
        {
            let why = filter_of("P_LOG", bad).unwrap_err();
            assert!(
                why.starts_with("P_LOG=\"") && why.contains("the configured level counts; write"),
                "{why}"
            );
            assert!(!why.contains('\x1b'), "{why}");
        }
    }

    #[test]
    fn each_cause_of_an_exit_is_reported_once() {
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
