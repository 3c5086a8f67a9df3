//! What can be wrong with a cable.

use std::io;
use std::path::PathBuf;

/// Why an end could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum CableError {
    /// A call on its socket failed.
    #[error("cannot {what} socket {name}")]
    Socket {
        /// What was being done.
        what: &'static str,
        /// The socket's name or address.
        name: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Another process listens there, or the name is no socket.
    #[error("{0} is in use; is another ibfab running? Stop it or name another socket")]
    InUse(String),
    /// The file with the key cannot be read.
    #[error("cannot read the cable's key file {}; see key-file in the cable's URL", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The file holds no key.
    #[error(
        "{} holds no cable key; write 32 hexadecimal digits, the same at both ends: openssl rand -hex 16",
        .0.display()
    )]
    Key(PathBuf),
    /// Everybody has rights to the file with the key.
    #[error("everybody can open the cable's key file {path}; take the rights away: chmod o= {path}", path = .0.display())]
    OpenKey(PathBuf),
}

/// Why a cable is down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CableTrouble {
    /// Nobody listens at the other end.
    #[error("nobody listens at the other end")]
    NoListener,
    /// We may not connect.
    #[error("no permission to connect")]
    NotAllowed,
    /// The other end has gone.
    #[error("the other end has gone")]
    Gone,
    /// The other end does not answer.
    #[error("the other end does not answer")]
    Silent,
    /// The other end serves somebody else.
    #[error("the other end already has a partner")]
    Busy,
    /// The other end speaks another version of the cable protocol.
    #[error("the other end speaks another version of the cable protocol; run the same release at both ends")]
    Version,
    /// The other end has another key, or only one of the ends has a key.
    #[error("the other end has another key, or one end has none; give both ends the same key-file")]
    Key,
    /// The other end broke the rules and was cut off.
    #[error("the other end broke the rules of the cable and was cut off")]
    Violation,
    /// The network interface is down or has no carrier.
    #[error("the network interface is down or has no carrier")]
    NoCarrier,
    /// No memory could be had for the rings.
    #[error("no memory for the rings")]
    NoMemory,
}
