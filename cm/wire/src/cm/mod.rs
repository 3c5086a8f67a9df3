//! Communication management (IBA 12.6): the messages that set up and end connections.

pub mod ipoib;
mod message;
mod path;
mod reject;
mod request;
mod sidr;
mod teardown;

pub use message::{AttributeId, CmError, Message};
pub use path::{AlternatePathResponse, AprStatus, LoadAlternatePath, PathInfo};
pub use reject::{InfoLength, MessageRejected, Reject, RejectReason};
pub use request::{
    ExtendedTransport, Failover, MaxCmRetries, PathMtu, Reply, Request, RetryCount, RnrRetry, Transport,
};
pub use sidr::{SidrReply, SidrRequest, SidrStatus};
pub use teardown::{DisconnectReply, DisconnectRequest, MessageMraed, MessageReceiptAck, ReadyToUse};

pub use crate::sa::FlowLabel;

/// Version of the class's format.
pub const CLASS_VERSION: u8 = 2;
/// Offset of the class-specific part of a datagram.
const BODY: usize = 24;

#[cfg(test)]
mod tests;
