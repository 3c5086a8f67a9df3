//! Global route header (IBA 8.3).

use crate::Gid;

/// Bytes of the global route header.
pub const GRH_LEN: usize = 40;

/// Next header of a GRH: a BTH follows (IBA 8.3.5).
pub const GRH_NEXT_HEADER: u8 = 0x1b;

/// Global route header without its payload length, which is computed from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits; higher bits are dropped on writing.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
}

impl Grh {
    /// Converts to forty bytes; `payload_len` counts from the BTH to the ICRC.
    #[must_use]
    #[inline]
    pub fn to_bytes(self, payload_len: u16) -> [u8; GRH_LEN] {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let mut out = [0; GRH_LEN];
        out[..4].copy_from_slice(&first.to_be_bytes());
        out[4..6].copy_from_slice(&payload_len.to_be_bytes());
        out[6] = GRH_NEXT_HEADER;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.sgid.0);
        out[24..40].copy_from_slice(&self.dgid.0);
        out
    }

    /// Reads the header without checks; the parser checks version, next header and length. The second result
    /// is the payload length.
    #[must_use]
    #[inline]
    pub fn from_bytes(b: &[u8; GRH_LEN]) -> (Self, u16) {
        let mut sgid = Gid::ZERO;
        let mut dgid = Gid::ZERO;
        sgid.0.copy_from_slice(&b[8..24]);
        dgid.0.copy_from_slice(&b[24..40]);
        let first = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        let grh = Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: b[7],
            sgid,
            dgid,
        };
        (grh, u16::from_be_bytes([b[4], b[5]]))
    }
}
