//! Errors of the gateway.

use std::fmt;
use std::path::PathBuf;

use config::{ConfigFile, Place};
use connectx::cable::{CableError, CableUrlError};
use dataplane::capture::CaptureError;
use dataplane::control::ControlError;
use endpoint::EndpointError;
use pmd::eal::{EalError, LcoreId};
use pmd::eth::EthError;
use pmd::gids::MirrorError;
use pmd::hca::HcaError;
use pmd::mem::PoolError;

/// Why the gateway did not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The command line or the file.
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    /// EAL.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// The packet buffers.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An Ethernet port.
    #[error(transparent)]
    Ethernet(#[from] EthError),
    /// A host channel adapter.
    #[error(transparent)]
    Hca(#[from] HcaError),
    /// An endpoint.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The URL of a link of the software ConnectX.
    #[error("infiniband.soft.ports: {0}")]
    CableUrl(#[from] CableUrlError),
    /// A link of the software ConnectX.
    #[error("infiniband.soft.ports: {0}")]
    Link(#[from] CableError),
    /// The copy of the device's GID table.
    #[error("gateway.gids: {0}")]
    Gids(#[from] MirrorError),
    /// The control loop.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The thread that writes captures.
    #[error("cannot start the thread that writes captures")]
    CaptureThread(#[source] std::io::Error),
    /// The thread that keeps known hosts.
    #[error("cannot start the thread that saves known hosts")]
    HostsThread(#[source] std::io::Error),
    /// Another gateway uses the state directory.
    #[error(transparent)]
    State(#[from] crate::state_directory::StateDirectoryInUse),
    /// The user or group under which the gateway runs.
    #[error(transparent)]
    User(#[from] privileges::UserError),
    /// Privileges could not be dropped.
    #[error("{0}; to run without that, write privileges = \"keep\" in [gateway]")]
    Privileges(#[from] privileges::PrivilegeError),
    /// System calls could not be filtered.
    #[error("{0}; to run without that, write seccomp = \"off\" in [gateway]")]
    Filter(#[from] privileges::FilterError),
    /// No lcore is left to forward packets.
    #[error(
        "lcore {0} controls and none is left to forward packets: name at least two lcores, for instance -l 0-1"
    )]
    NoWorker(LcoreId),
    /// A value of the configuration file that cannot be used.
    #[error(transparent)]
    At(#[from] Placed),
    /// The validation before the start found an error.
    #[error("{0}")]
    Refused(String),
    /// Something that this version does not support.
    #[error("{0}")]
    Unsupported(String),
    /// The report could not be written.
    #[error("cannot write the report {path}")]
    Report {
        /// Its path.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: std::io::Error,
    },
}

impl GatewayError {
    /// Describes a finding of the validation with its location, and the number of further errors.
    pub(super) fn refused(finding: &preflight::Finding, others: usize) -> Self {
        let place =
            finding.at.as_ref().map(|at| format!("{}:{}:{}: ", at.file.display(), at.line, at.column));
        let more = match others {
            0 => String::new(),
            1 => " (--check lists one more error)".to_owned(),
            n => format!(" (--check lists {n} more errors)"),
        };
        // Both may have the name of another process, which chooses it.
        let (what, help) = (preflight::printable(&finding.what), preflight::printable(&finding.help));
        Self::Refused(format!("{}{what}; {help}{more}", place.unwrap_or_default()))
    }
}

/// An error in the configuration file, with its location.
#[derive(Debug)]
pub struct Placed {
    place: Place,
    error: Box<GatewayError>,
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.error)
    }
}

impl std::error::Error for Placed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Finds the location of errors in the configuration file, if there is one.
#[derive(Debug)]
pub(super) struct Places(pub(super) Option<ConfigFile>);

impl Places {
    /// Adds the location of `key` to an error; see [`ConfigFile::place`].
    pub(super) fn at(&self, key: &str, entry: Option<usize>, error: impl Into<GatewayError>) -> GatewayError {
        match (&self.0, error.into()) {
            // The error has its location, or there is no file.
            (None, error) | (_, error @ (GatewayError::Config(_) | GatewayError::At(_))) => error,
            (Some(file), error) => Placed { place: file.place(key, entry), error: Box::new(error) }.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use preflight::{Code, Severity};
    use std::io;

    #[test]
    fn no_error_of_the_gateway_names_a_cause_twice() {
        let io = || io::Error::other("CAUSE");
        let call = || HcaError::Io { what: "CALL".to_owned(), source: io() };
        let cable = || CableError::Socket { what: "bind", name: "NAME".to_owned(), source: io() };
        let url: CableUrlError = "tcp:WORD".parse::<connectx::cable::CableUrl>().unwrap_err();
        let step = || privileges::PrivilegeError::Step { what: "STEP", source: io() };
        let missing = || config::ConfigError::Read { file: PathBuf::from("FILE"), source: io() };
        let socket = dataplane::telemetry::TelemetryError::Socket {
            path: PathBuf::from("PATH"),
            what: "bind",
            source: io(),
            hint: "",
        };
        let shm = pmd::shm::ShmError::Call { what: "map", path: PathBuf::from("PATH"), source: io() };
        let errors: Vec<(GatewayError, &[&str])> = vec![
            (missing().into(), &["FILE", "CAUSE"]),
            (call().into(), &["CALL", "CAUSE"]),
            (EndpointError::from(call()).into(), &["CALL", "CAUSE"]),
            (url.into(), &["WORD"]),
            (cable().into(), &["NAME", "CAUSE"]),
            (MirrorError::from(shm).into(), &["PATH", "CAUSE"]),
            (MirrorError::from(call()).into(), &["CALL", "CAUSE"]),
            (ControlError::Runtime(io()).into(), &["CAUSE"]),
            (ControlError::from(socket).into(), &["PATH", "CAUSE"]),
            (CaptureError { path: PathBuf::from("PATH"), source: io() }.into(), &["PATH", "CAUSE"]),
            (GatewayError::CaptureThread(io()), &["CAUSE"]),
            (step().into(), &["STEP", "CAUSE"]),
            (GatewayError::Report { path: PathBuf::from("PATH"), source: io() }, &["PATH", "CAUSE"]),
        ];
        let path = std::env::temp_dir().join(format!("causes-{}.toml", std::process::id()));
        std::fs::write(&path, "[infiniband.soft]\nports = []\n").unwrap();
        let places = Places(Some(ConfigFile::read(&path).unwrap()));
        std::fs::remove_file(&path).unwrap();
        let placed = places.at("infiniband.soft.ports", None, cable());
        for (error, words) in errors.into_iter().chain([(placed, &["NAME", "CAUSE"][..])]) {
            let said = logging::failure("p", &error);
            for word in words {
                assert_eq!(said.matches(word).count(), 1, "{word} in {said}");
            }
        }
    }

    #[test]
    fn a_finding_reaches_the_terminal_without_control_characters() {
        let (what, help) = ("a\x1b[2Jb".to_owned(), "c\nd".to_owned());
        let finding =
            preflight::Finding { severity: Severity::Error, code: Code::PrefixTaken, what, at: None, help };
        assert_eq!(GatewayError::refused(&finding, 0).to_string(), "a [2Jb; c d");
    }

    #[test]
    fn what_is_wrong_with_a_gid_table_is_said_once() {
        let error = pmd::shm::ShmError::Maintained { path: PathBuf::from("/run/gids"), process: None };
        let said = error.to_string();
        let error = GatewayError::from(MirrorError::from(error));
        assert_eq!(logging::failure("p", &error).matches(&said).count(), 1, "{error}");
    }
}
