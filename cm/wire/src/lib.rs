//! The formats of an InfiniBand wire: packet headers, CRCs, management datagrams, CM and SA messages, and the
//! IPoIB encapsulation. The crate consists of views over bytes and values that can only be legal. It has no
//! I/O, no clock and no state.
//!
//! Multi-byte fields are big endian on the wire and host-order numbers in the types of this crate.
#![forbid(unsafe_code)]

pub mod cm;
pub mod crc;
pub mod ipoib;
mod layout;
pub mod mad;
pub mod number;
pub mod packet;
pub mod perf;
pub mod rmpp;
pub mod sa;
pub mod smp;

pub use number::{
    CommId, Gid, Guid, Lid, Mtu, PKey, PortNumber, Psn, QKey, Qpn, Rate, Rkey, ServiceId, ServiceLevel, Tid,
    TimeoutCode, XrcSrqn,
};
