//! Errors of the control path of a device.

use std::io;

/// Why a request to a device failed.
#[derive(Debug, thiserror::Error)]
pub enum HcaError {
    /// The device, port or object does not exist.
    #[error("{what} {name} does not exist")]
    NotFound {
        /// Kind of object.
        what: &'static str,
        /// Its name or number.
        name: String,
    },
    /// An argument exceeds what the device supports.
    #[error("{what}: {value} is not supported (the device allows {limit})")]
    Unsupported {
        /// Name of the attribute.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The permitted values.
        limit: String,
    },
    /// A transition that the queue pair's state does not allow (IBA 10.3.1).
    #[error("queue pair {qpn}: {to} is not allowed in state {from}")]
    BadTransition {
        /// The queue pair.
        qpn: ib_wire::Qpn,
        /// The state that it is in.
        from: &'static str,
        /// The requested transition.
        to: &'static str,
    },
    /// No memory, ring slot or number left.
    #[error("out of {0}")]
    Exhausted(&'static str),
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// The operation.
        what: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The device is gone: unplugged, reset, or its driver unloaded. It can only be closed.
    #[error("{0} was taken away: it was removed or reset, or its driver was unloaded")]
    Gone(String),
    /// The environment does not meet the device's needs; the text names the remedy.
    #[error("{0}")]
    Environment(String),
}
