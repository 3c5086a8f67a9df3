//! SwitchInfo and the forwarding tables (IBA 14.2.5.4, 14.2.5.10, 14.2.5.12).

use crate::TimeoutCode;
use crate::layout::{Field, layout, narrow_number};

/// LIDs in one block of the linear forwarding table.
pub const LFT_BLOCK_LEN: usize = 64;
/// Entry of the linear forwarding table that drops packets (IBA 14.2.5.10).
pub const LFT_NO_PORT: u8 = 255;
/// Multicast LIDs in one block of the multicast forwarding table.
pub const MFT_BLOCK_LEN: usize = 32;
/// Ports that one position of the multicast forwarding table covers.
pub const MFT_PORTS: usize = 16;

narrow_number! {
    /// Two bits of optimized SL-to-VL programming.
    SlToVlProgramming(u8, 2)
}

layout! {
    /// State and configuration of a switch.
    pub struct SwitchInfo[64] {
        /// Entries of the linear forwarding table.
        linear_cap: u16 = 0 @ 0, 16;
        /// Entries of the random forwarding table.
        random_cap: u16 = 2 @ 0, 16;
        /// Entries of the multicast forwarding table.
        multicast_cap: u16 = 4 @ 0, 16;
        /// Last LID in use in the linear table.
        linear_top: u16 = 6 @ 0, 16;
        /// Port for LIDs without an entry in the random table.
        default_port: u8 = 8 @ 0, 8;
        /// Port for unknown multicast packets from any other port.
        default_multicast_primary: u8 = 9 @ 0, 8;
        /// Port for unknown multicast packets that arrived on the primary default port.
        default_multicast_not_primary: u8 = 10 @ 0, 8;
        /// Maximum lifetime of a packet in the switch.
        life_time: TimeoutCode = 11 @ 0, 5;
        /// The state of a port changed; writing 1 clears the bit.
        port_state_change: bool = 11 @ 5, 1;
        /// Optimized SL-to-VL programming.
        sl_to_vl_programming: SlToVlProgramming = 11 @ 6, 2;
        /// Maximum LIDs per port.
        lids_per_port: u16 = 12 @ 0, 16;
        /// Entries of the partition enforcement table of each port.
        partition_enforcement_cap: u16 = 14 @ 0, 16;
        /// Supports inbound partition enforcement.
        enforce_in: bool = 16 @ 0, 1;
        /// Supports outbound partition enforcement.
        enforce_out: bool = 16 @ 1, 1;
        /// Supports an inbound filter for raw packets.
        filter_raw_in: bool = 16 @ 2, 1;
        /// Supports an outbound filter for raw packets.
        filter_raw_out: bool = 16 @ 3, 1;
        /// Port 0 has the attributes of a channel adapter's port.
        enhanced_port0: bool = 16 @ 4, 1;
        /// Last multicast LID in use.
        multicast_top: u16 = 18 @ 0, 16;
    }
}

impl Default for SwitchInfo {
    fn default() -> Self {
        Self::parse(&[0; Self::LEN])
    }
}

layout! {
    /// Egress ports of 64 LIDs; the first LID is 64 times the attribute modifier.
    pub struct LinearForwardingBlock[64] {
        /// One port per LID; [`LFT_NO_PORT`] drops packets.
        ports: [u8; LFT_BLOCK_LEN] = 0 @ 0, 512;
    }
}

/// Masks of 16 ports for 32 multicast LIDs (see [`MulticastForwardingBlock::modifier`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MulticastForwardingBlock {
    /// Bit n of a mask is port 16 · position + n.
    pub masks: [u16; MFT_BLOCK_LEN],
}

impl MulticastForwardingBlock {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// Attribute modifier of a block of 32 multicast LIDs from 0xC000 + 32 · `block`, and of 16 ports from
    /// 16 · `position`.
    #[must_use]
    pub const fn modifier(block: u16, position: u8) -> u32 {
        (block & 0x1ff) as u32 | ((position & 0xf) as u32) << 28
    }

    /// The block and position that a modifier names.
    #[must_use]
    pub const fn place(modifier: u32) -> (u16, u8) {
        (modifier as u16 & 0x1ff, (modifier >> 28) as u8)
    }
}

impl Field for MulticastForwardingBlock {
    fn get(bytes: &[u8], at: usize, _width: usize) -> Self {
        let mut masks = [0; MFT_BLOCK_LEN];
        for (i, mask) in masks.iter_mut().enumerate() {
            *mask = Field::get(bytes, at + i * 16, 16);
        }
        Self { masks }
    }

    fn put(&self, bytes: &mut [u8], at: usize, _width: usize) {
        for (i, mask) in self.masks.iter().enumerate() {
            mask.put(bytes, at + i * 16, 16);
        }
    }
}
