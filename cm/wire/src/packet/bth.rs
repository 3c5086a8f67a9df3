//! Base transport header (IBA 9.2).

use super::Opcode;
use crate::{PKey, Psn, Qpn};

/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;

/// Base transport header without its pad count, which is computed from the payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bth {
    /// Opcode.
    pub opcode: Opcode,
    /// The receiver should raise an event.
    pub solicited: bool,
    /// Path migration state. It is set when migrated and on a queue pair without an alternate path.
    pub migrated: bool,
    /// Partition.
    pub pkey: PKey,
    /// Forward explicit congestion notification. Not covered by the ICRC.
    pub fecn: bool,
    /// Backward explicit congestion notification. Not covered by the ICRC.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// An acknowledge is requested.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Converts to twelve bytes; `pad` is 0 to 3.
    #[must_use]
    #[inline(always)]
    pub const fn to_bytes(self, pad: u8) -> [u8; BTH_LEN] {
        let flags = (self.solicited as u32) << 23 | (self.migrated as u32) << 22 | (pad as u32 & 3) << 20;
        let word0 = (self.opcode.to_byte() as u32) << 24 | flags | self.pkey.0 as u32;
        let word1 = (self.fecn as u32) << 31 | (self.becn as u32) << 30 | self.dest_qpn.get();
        let word2 = (self.ack_request as u32) << 31 | self.psn.get();
        // Whole words: the compiler would assemble single bytes one by one.
        let [a, b, c, d] = word0.to_be_bytes();
        let [e, f, g, h] = word1.to_be_bytes();
        let [i, j, k, l] = word2.to_be_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// Reads the header. The second result is the pad count; the third is the transport version, which must
    /// be 0.
    #[must_use]
    #[inline(always)]
    pub const fn from_bytes(b: &[u8; BTH_LEN]) -> (Self, u8, u8) {
        let word0 = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        let word1 = u32::from_be_bytes([b[4], b[5], b[6], b[7]]);
        let word2 = u32::from_be_bytes([b[8], b[9], b[10], b[11]]);
        let bth = Self {
            opcode: Opcode::from_byte((word0 >> 24) as u8),
            solicited: word0 & 1 << 23 != 0,
            migrated: word0 & 1 << 22 != 0,
            pkey: PKey(word0 as u16),
            fecn: word1 & 1 << 31 != 0,
            becn: word1 & 1 << 30 != 0,
            dest_qpn: Qpn::new(word1),
            ack_request: word2 & 1 << 31 != 0,
            psn: Psn::new(word2),
        };
        (bth, (word0 >> 20) as u8 & 3, (word0 >> 16) as u8 & 0xf)
    }
}
