//! The address of a datagram.

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout;

/// Address vector of a datagram, preceded by the destination's queue pair and key.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DatagramAddress {
    /// Q_Key.
    pub qkey: U32,
    /// Zero.
    pub reserved_4: U32,
    /// Destination queue pair (24 bits), with [`DatagramAddress::EXTENDED`].
    pub dqp: U32,
    /// Static rate in mlx5's own code (upper 4 bits), service level (lower 4).
    pub rate_sl: u8,
    /// Low bits of the source LID, 7 bits.
    pub path_bits: u8,
    /// Destination LID.
    pub rlid: U16,
    /// Zero.
    pub reserved_16: U32,
    /// MAC address of a RoCE destination.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// [`DatagramAddress::GRH`], index of the source GID (bits 20 to 27), flow label (20 bits).
    pub gid_flow: U32,
    /// Destination GID.
    pub rgid: [u8; 16],
}

impl DatagramAddress {
    /// In `dqp`: this is the 48-byte form, which the driver always writes. Without it only the first
    /// [`DatagramAddress::BASE`] bytes exist, and there is no GRH.
    pub const EXTENDED: u32 = 0x8000_0000;
    /// Bytes of the short form.
    pub const BASE: usize = 16;
    /// In `gid_flow`: the packet has a GRH.
    pub const GRH: u32 = 1 << 30;
}

layout!(
    DatagramAddress, 48, dqp @ 8, rate_sl @ 12, path_bits @ 13, rlid @ 14, rmac @ 20, traffic_class @ 26, hop_limit @ 27,
    gid_flow @ 28, rgid @ 32
);
