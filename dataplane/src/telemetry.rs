//! The control socket: JSON over a UNIX seqpacket socket in the format of DPDK telemetry v2.
//!
//! On connection the server sends `{"version":…,"pid":…,"max_output_len":…}`. A client sends `/command` or
//! `/command,parameters`, one message each, and receives `{"/command": answer}`. An answer longer than the
//! system's message limit (`net.core.wmem_max`) is split into several messages. All of these except the last
//! have `max_output_len` bytes.
//!
//! A command may have repeated answers of the same form ([`Reply::Follow`]), until the client sends another
//! request or disconnects. If the server ends it, the last answer is `{"/command": null}`, and the server
//! closes the connection.

mod client;
mod feed;
mod places;
mod server;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde_json::Value;
use tokio::sync::oneshot;

pub use client::{Client, ask};
pub use feed::{Feed, Subscription};
pub use places::MAX_CLIENTS;
pub use server::MAX_FOLLOWERS;
pub(crate) use server::Server;

/// Maximum length of an answer. A longer one is replaced by an error.
pub const MAX_ANSWER: usize = 16 << 20;
/// Maximum length of a message, if the system allows it.
const MAX_MESSAGE: usize = 1 << 20;
/// Maximum length of a request.
pub const MAX_REQUEST: usize = 1024;

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Command with its leading slash.
    pub name: String,
    /// Parameters after the first comma.
    pub parameters: Option<String>,
}

/// A single answer: a value or an error text.
pub type Answer = Result<Value, String>;

/// Reply to a request.
#[derive(Debug)]
pub enum Reply {
    /// A single answer.
    Once(Value),
    /// A single answer that is not available yet. Dropping the sender sends none.
    Later(oneshot::Receiver<Answer>),
    /// Repeated answers for each event.
    Follow(Subscription),
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        Self::Once(value)
    }
}

/// A request with its reply channel.
#[derive(Debug)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// Channel for the reply.
    pub answer: oneshot::Sender<Result<Reply, String>>,
}

/// Error of the control socket.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A step failed.
    #[error("control socket {path}: cannot {what}: {source}{hint}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The failed step.
        what: &'static str,
        /// The system error.
        source: io::Error,
        /// A remedy that starts with punctuation, or an empty text.
        hint: &'static str,
    },
    /// Another process serves the socket.
    #[error(
        "control socket {0}: another process serves it; stop it or choose another path with --control-socket"
    )]
    InUse(PathBuf),
    /// The path contains something that this program did not create.
    #[error("control socket {0}: the path is occupied by {1}; choose another path with --control-socket")]
    Occupied(PathBuf, &'static str),
    /// The answer violates the protocol.
    #[error("control socket {path}: bad answer: {what}")]
    Protocol {
        /// Its path.
        path: PathBuf,
        /// The violation.
        what: String,
    },
    /// The program answered with an error.
    #[error("{0}")]
    Refused(String),
}

impl Command {
    /// Parses a client's message.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the request is not UTF-8".to_owned())?;
        let text = text.trim_end_matches(['\n', '\0']);
        if !text.starts_with('/') {
            return Err("a request must start with a slash, as in /stats".to_owned());
        }
        Ok(match text.split_once(',') {
            Some((name, parameters)) => {
                Self { name: name.to_owned(), parameters: Some(parameters.to_owned()) }
            }
            None => Self { name: text.to_owned(), parameters: None },
        })
    }
}

/// Users of the socket: its owner, and optionally a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// User ID of the owner, if other than this process's user.
    pub user: Option<u32>,
    /// ID of a group whose members may use it too.
    pub group: Option<u32>,
}

impl Access {
    /// Applies the access rights to a socket that nobody listens on yet. The owner is changed last, because
    /// only the owner may change the mode.
    fn give(self, path: &Path) -> io::Result<()> {
        let mode = if self.group.is_some() { 0o660 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        if self == Self::default() { Ok(()) } else { lchown(path, self.user, self.group) }
    }
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests;
