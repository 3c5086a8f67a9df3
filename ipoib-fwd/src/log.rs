//! The log: lines on standard error, as many as the configuration asks for.

use config::LogLevel;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::Formatter;
use tracing_subscriber::reload::Handle;

/// The environment's filter, which goes before the configured level.
const VARIABLE: &str = "IPOIB_FWD_LOG";

/// The log of this process.
#[derive(Clone, Debug)]
pub struct Log {
    /// `None` if the environment says how much is logged.
    filter: Option<Handle<EnvFilter, Writer>>,
}

type Writer = Formatter<
    tracing_subscriber::fmt::format::DefaultFields,
    tracing_subscriber::fmt::format::Format,
    fn() -> std::io::Stderr,
>;

impl Log {
    /// Starts it, once a process: `IPOIB_FWD_LOG` says how much, or else the default level until one is [set](Self::set).
    #[must_use]
    pub fn start() -> Self {
        use std::io::IsTerminal as _;
        let given = EnvFilter::try_from_env(VARIABLE).ok();
        let configurable = given.is_none();
        let builder = tracing_subscriber::fmt()
            .with_writer(std::io::stderr as fn() -> std::io::Stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_env_filter(given.unwrap_or_else(|| EnvFilter::new(LogLevel::Info.word())))
            .with_filter_reloading();
        let filter = configurable.then(|| builder.reload_handle());
        builder.with_target(false).init();
        Self { filter }
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
