//! Base transport header (IBA 9.2).

use super::Opcode;
use crate::{PKey, Psn, Qpn};

/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;

/// Base transport header without its pad count, which follows from the payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The receiver shall raise an event.
    pub solicited: bool,
    /// Path migration state: set when migrated, the state of a queue pair that has no alternate path.
    pub migrated: bool,
    /// Partition.
    pub pkey: PKey,
    /// Forward congestion was met. Not covered by the ICRC.
    pub fecn: bool,
    /// Backward notification of congestion. Not covered by the ICRC.
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// An acknowledge is wanted.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// The twelve bytes; `pad` is 0 to 3.
    #[must_use]
    #[inline]
    pub const fn to_bytes(self, pad: u8) -> [u8; BTH_LEN] {
        let [k0, k1] = self.pkey.0.to_be_bytes();
        let [q0, q1, q2] = self.dest_qpn.to_be_bytes();
        let [p0, p1, p2] = self.psn.to_be_bytes();
        [
            self.opcode.to_byte(),
            (self.solicited as u8) << 7 | (self.migrated as u8) << 6 | (pad & 3) << 4,
            k0,
            k1,
            (self.fecn as u8) << 7 | (self.becn as u8) << 6,
            q0,
            q1,
            q2,
            (self.ack_request as u8) << 7,
            p0,
            p1,
            p2,
        ]
    }

    /// Reads the header. The second result is the pad count, the third the transport version, which must be 0.
    #[must_use]
    #[inline]
    pub const fn from_bytes(b: &[u8; BTH_LEN]) -> (Self, u8, u8) {
        let bth = Self {
            opcode: Opcode::from_byte(b[0]),
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pkey: PKey(u16::from_be_bytes([b[2], b[3]])),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qpn: Qpn::from_be_bytes([b[5], b[6], b[7]]),
            ack_request: b[8] & 0x80 != 0,
            psn: Psn::from_be_bytes([b[9], b[10], b[11]]),
        };
        (bth, b[1] >> 4 & 3, b[1] & 0xf)
    }
}
