//! Header of the reliable multi-packet protocol (IBA 13.6.2), bytes 24 to 35 of datagrams of the classes that
//! use it.

use crate::layout::{layout, open_enum};
use crate::{TimeoutCode, layout};

layout! {
    /// The RMPP header. In DATA and ACK the two words are the segment number, and the payload length or the
    /// new window last.
    pub struct RmppHeader[12] {
        /// Version; 1 where RMPP is in use.
        version: u8 = 0 @ 0, 8;
        /// Packet type.
        kind: RmppType = 1 @ 0, 8;
        /// Response time; 31 = none given.
        response_time: TimeoutCode = 2 @ 0, 5;
        /// Flags.
        flags: RmppFlags = 2 @ 5, 3;
        /// Status of ABORT and STOP.
        status: u8 = 3 @ 0, 8;
        /// Segment number, from 1.
        segment: u32 = 4 @ 0, 32;
        /// Payload length in the first and last DATA packet, new window last in ACK.
        length: u32 = 8 @ 0, 32;
    }
}

impl RmppHeader {
    /// The header of a datagram that does not use RMPP.
    pub const INACTIVE: Self = Self {
        version: 0,
        kind: RmppType::None,
        response_time: TimeoutCode::new(0),
        flags: RmppFlags::empty(),
        status: 0,
        segment: 0,
        length: 0,
    };
}

open_enum! {
    /// RMPP packet type (IBA 13.6.2.1).
    pub enum RmppType(u8) {
        /// Not in use.
        None = 0,
        /// Data.
        Data = 1,
        /// Acknowledgement.
        Ack = 2,
        /// Terminates the transfer: out of resources.
        Stop = 3,
        /// Terminates the transfer: an error.
        Abort = 4,
    }
}

bitflags::bitflags! {
    /// RMPP flags.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct RmppFlags: u8 {
        /// RMPP is in use.
        const ACTIVE = 1;
        /// First packet.
        const FIRST = 2;
        /// Last packet.
        const LAST = 4;
    }
}

layout::integer_field! { RmppFlags: |v| Self::from_bits_truncate(v as u8), |s| s.bits(); }
