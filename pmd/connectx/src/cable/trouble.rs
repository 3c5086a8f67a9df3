//! Errors and down reasons of a cable.

use std::io;
use std::path::PathBuf;

/// Why an end could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum CableError {
    /// A call on its socket failed.
    #[error("cannot {what} socket {name}")]
    Socket {
        /// The operation.
        what: &'static str,
        /// The socket's name or address.
        name: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// Another process listens there, or the file is not a socket.
    #[error("{0} is in use; if another ibfab is running, stop it, or use another socket")]
    InUse(String),
    /// The key file cannot be read.
    #[error("cannot read the cable's key file {}; see key-file in the cable's URL", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file contains no key.
    #[error(
        "{} contains no cable key; create one of 32 hexadecimal digits for both ends: openssl rand -hex 16",
        .0.display()
    )]
    Key(PathBuf),
    /// Other users have permissions on the key file.
    #[error("other users have permissions on the cable's key file {path}; remove them: chmod o= {path}", path = .0.display())]
    OpenKey(PathBuf),
}

/// Why a cable is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CableTrouble {
    /// No process listens at the other end.
    #[error("no process listens at the other end")]
    NoListener,
    /// No permission to connect.
    #[error("no permission to connect")]
    NotAllowed,
    /// The other end has closed the cable.
    #[error("the other end has closed the cable")]
    Gone,
    /// The other end does not answer.
    #[error("the other end does not answer")]
    Silent,
    /// The other end has another connector.
    #[error("the other end is already connected")]
    Busy,
    /// The other end uses another version of the cable protocol.
    #[error("the other end uses another version of the cable protocol; run the same release at both ends")]
    Version,
    /// The other end has another key, or only one of the ends has a key.
    #[error("the other end has another key, or one end has none; give both ends the same key-file")]
    Key,
    /// The other end violated the cable protocol and was disconnected.
    #[error("the other end violated the cable protocol and was disconnected")]
    Violation,
    /// The network interface is down or has no carrier.
    #[error("the network interface is down or has no carrier")]
    NoCarrier,
    /// The rings could not be allocated.
    #[error("not enough memory for the rings")]
    NoMemory,
}
