//! Event queue entries.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;

/// Bytes of an event queue entry.
pub const EQE_SIZE: usize = 64;

/// An event queue entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Eqe {
    /// Zero.
    pub reserved_0: u8,
    /// See [`EventType`].
    pub kind: u8,
    /// Zero.
    pub reserved_2: u8,
    /// Subtype of the event.
    pub subtype: u8,
    /// Zero.
    pub reserved_4: [u8; 28],
    /// Data specific to the type.
    pub data: [u8; Self::DATA],
    /// Zero.
    pub reserved_60: [u8; 2],
    /// Signature, if used.
    pub signature: u8,
    /// Bit 0 changes with each lap; 0 in the first one. The driver fills a new queue with 1.
    pub owner: u8,
}

impl Eqe {
    /// Bytes of data.
    pub const DATA: usize = 28;

    /// The data of events of a queue: its number in the last word.
    #[must_use]
    pub fn of_queue(number: u32) -> [u8; Self::DATA] {
        let mut data = [0; Self::DATA];
        if let Some(last) = data.last_chunk_mut() {
            *last = number.to_be_bytes();
        }
        data
    }

    /// The data of events of a port.
    #[must_use]
    pub const fn of_port(port: u8) -> [u8; Self::DATA] {
        let mut data = [0; Self::DATA];
        data[8] = port << 4;
        data
    }

    /// The data of a completion queue overrun: its number in the first word, and the syndrome.
    #[must_use]
    pub fn of_overrun(number: u32) -> [u8; Self::DATA] {
        let mut data = [0; Self::DATA];
        if let Some(first) = data.first_chunk_mut() {
            *first = number.to_be_bytes();
        }
        data[11] = 1;
        data
    }

    /// The data of completed commands: a bit for each entry of the command queue.
    #[must_use]
    pub fn of_commands(entries: u32) -> [u8; Self::DATA] {
        let mut data = [0; Self::DATA];
        if let Some(first) = data.first_chunk_mut() {
            *first = entries.to_be_bytes();
        }
        data
    }
}

impl Default for Eqe {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

layout!(Eqe, 64, kind @ 1, subtype @ 3, data @ 32, owner @ 63);

/// Type of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EventType {
    /// An armed completion queue has a completion.
    Completion = 0x00,
    /// Data arrived before the connection was established.
    CommunicationEstablished = 0x02,
    /// A send queue is drained.
    SqDrained = 0x03,
    /// A completion queue has failed.
    CqError = 0x04,
    /// A queue pair has failed.
    QpFatal = 0x05,
    /// The peer of a connection sent an invalid request.
    QpRequestError = 0x10,
    /// The peer of a connection accessed memory without permission.
    QpAccessError = 0x11,
    /// A shared receive queue has failed.
    SrqError = 0x12,
    /// A port: see [`port_event`].
    Port = 0x09,
    /// Commands have completed.
    Command = 0x0a,
    /// The device requests pages or returns them.
    PageRequest = 0x0b,
    /// A queue pair on a shared receive queue has consumed its last receive.
    LastWqe = 0x13,
    /// A shared receive queue fell below its limit.
    SrqLimit = 0x14,
}

/// Subtypes of port events.
pub mod port_event {
    /// No link.
    pub const DOWN: u8 = 1;
    /// Active.
    pub const ACTIVE: u8 = 4;
    /// It has a link, and waits for the subnet manager.
    pub const INITIALIZED: u8 = 5;
    /// The LID, or the subnet manager's LID, changed.
    pub const LID: u8 = 6;
    /// The P_Key table changed.
    pub const PKEY: u8 = 7;
    /// The GID table changed.
    pub const GUID: u8 = 8;
    /// The subnet manager requests that clients register again.
    pub const REREGISTER: u8 = 9;
}
