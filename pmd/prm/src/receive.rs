//! Segments of receive work queue entries. Those of a plain receive queue consist of data segments only.

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;

/// First segment of an entry of a shared receive queue: entries form a linked list.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NextSegment {
    /// Zero.
    pub reserved_0: U16,
    /// Slot of the entry behind this one. A device reads it when it consumes this entry; later it may change.
    pub next: U16,
    /// Signature; 0 if not used.
    pub signature: u8,
    /// Zero.
    pub reserved_5: [u8; 11],
}

layout!(NextSegment, 16, next @ 2, signature @ 4);
