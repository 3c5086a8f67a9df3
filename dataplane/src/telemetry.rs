//! The control socket: JSON over a UNIX seqpacket socket in the shape of DPDK telemetry v2.
//!
//! A client connects and is greeted with `{"version":…,"pid":…,"max_output_len":…}`. It sends `/command` or
//! `/command,parameters`, one message each, and gets `{"/command": answer}`. What the system's bound of a message
//! (`net.core.wmem_max`) does not take in one comes in several, of which all but the last have `max_output_len` bytes.
//!
//! A command may be answered again and again ([`Reply::Follow`]), each time in the same shape, until the client asks something else or closes.
//! If the server ends it, the last answer is `{"/command": null}`, and the server closes.

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

/// Longest answer; a longer one is replaced by an error that says so.
pub const MAX_ANSWER: usize = 16 << 20;
/// Longest message, as far as the system takes it.
const MAX_MESSAGE: usize = 1 << 20;
/// Longest request.
pub const MAX_REQUEST: usize = 1024;

/// What a client asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The command with its leading slash.
    pub name: String,
    /// What came behind the first comma.
    pub parameters: Option<String>,
}

/// What it is told once: a value, or why not.
pub type Answer = Result<Value, String>;

/// What it is told.
#[derive(Debug)]
pub enum Reply {
    /// This.
    Once(Value),
    /// What is told later: somebody else has to do it first. Who drops the other end says nothing.
    Later(oneshot::Receiver<Answer>),
    /// What happens, as it does.
    Follow(Subscription),
}

impl From<Value> for Reply {
    fn from(value: Value) -> Self {
        Self::Once(value)
    }
}

/// A command and the way back.
#[derive(Debug)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<Reply, String>>,
}

/// Why the control socket does not work.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A step failed.
    #[error("control socket {path}: cannot {what}: {source}{hint}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The step.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
        /// The remedy, beginning with punctuation; empty where none is known.
        hint: &'static str,
    },
    /// Somebody answers on it.
    #[error(
        "control socket {0}: another process serves it; stop that one or choose another path with --control-socket"
    )]
    InUse(PathBuf),
    /// What is there was not made by this program.
    #[error("control socket {0}: {1} is there already and stays; choose another path with --control-socket")]
    Occupied(PathBuf, &'static str),
    /// The answer was not what this protocol says.
    #[error("control socket {path}: bad answer: {what}")]
    Protocol {
        /// Its path.
        path: PathBuf,
        /// What was wrong.
        what: String,
    },
    /// The program answered with an error.
    #[error("{0}")]
    Refused(String),
}

impl Command {
    /// From a client's bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the request is not UTF-8".to_owned())?;
        let text = text.trim_end_matches(['\n', '\0']);
        if !text.starts_with('/') {
            return Err("a request begins with a slash, as in /stats".to_owned());
        }
        Ok(match text.split_once(',') {
            Some((name, parameters)) => {
                Self { name: name.to_owned(), parameters: Some(parameters.to_owned()) }
            }
            None => Self { name: text.to_owned(), parameters: None },
        })
    }
}

/// Who may use the socket: its user, and a group if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Number of the user whose the socket shall be, if not of this process's.
    pub user: Option<u32>,
    /// Number of the group whose members may use it, too.
    pub group: Option<u32>,
}

impl Access {
    /// Applies to the socket at a path, on which nobody listens yet. It is given away last: after that its mode is another user's to say.
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
