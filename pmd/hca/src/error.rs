//! What the cold side of a device can answer beside success.

use std::io;

/// Why a request to a device failed.
#[derive(Debug, thiserror::Error)]
pub enum HcaError {
    /// The device, port or object is not there.
    #[error("{what} {name} does not exist")]
    NotFound {
        /// Kind of object.
        what: &'static str,
        /// Its name or number.
        name: String,
    },
    /// An argument is outside what the device supports.
    #[error("{what}: {value} is not supported (the device allows {limit})")]
    Unsupported {
        /// Name of the attribute.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// What would do.
        limit: String,
    },
    /// A transition that the queue pair's state does not allow (IBA 10.3.1).
    #[error("queue pair {qpn}: {to} is not allowed in state {from}")]
    BadTransition {
        /// The queue pair.
        qpn: ib_wire::Qpn,
        /// The state that it is in.
        from: &'static str,
        /// The transition that was asked for.
        to: &'static str,
    },
    /// No memory, no ring slot, no number left.
    #[error("out of {0}")]
    Exhausted(&'static str),
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The device was taken away: unplugged, reset, or its driver unloaded. Nothing but closing it makes sense any more.
    #[error("{0} was taken away: it was removed or reset, or its driver was unloaded")]
    Gone(String),
    /// The environment is not as the device needs it; the text names the remedy.
    #[error("{0}")]
    Environment(String),
}
