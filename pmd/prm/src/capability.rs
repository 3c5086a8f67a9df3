//! What a device says that it can: fields of the general capabilities, 256 bytes.

/// Bytes of one kind of capabilities.
pub const CAPABILITIES: usize = 0x1000;

/// A field: a run of bits, counted from the most significant one of the first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BitField {
    first: usize,
    width: usize,
}

impl BitField {
    /// `width` bits from bit `bit` of byte `byte` on.
    #[must_use]
    pub const fn new(byte: usize, bit: usize, width: usize) -> Self {
        Self { first: byte * 8 + bit, width }
    }

    /// Writes the low bits of `value`; what lies behind the end of `bytes` is left out.
    pub fn set(self, bytes: &mut [u8], value: u64) {
        for n in 0..self.width {
            let at = self.first + n;
            let Some(byte) = bytes.get_mut(at / 8) else { return };
            let mask = 0x80 >> (at % 8);
            let one = (value >> (self.width - 1 - n)) & 1 == 1;
            *byte = if one { *byte | mask } else { *byte & !mask };
        }
    }

    /// Reads the field; what lies behind the end is zero.
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> u64 {
        (self.first..self.first + self.width).fold(0, |value, at| {
            let byte = bytes.get(at / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - at % 8) & 1)
        })
    }
}

/// Kinds of capabilities: the modifier of the query is twice the kind, and one more for what is in force.
pub const GENERAL: u16 = 0;

/// Fields of the general capabilities. `log` stands for a binary logarithm.
#[expect(missing_docs, reason = "the names say it")]
pub mod general {
    use super::BitField;

    pub const VHCA_ID: BitField = BitField::new(0x06, 0, 16);
    pub const LOG_MAX_SRQ_SIZE: BitField = BitField::new(0x10, 0, 8);
    pub const LOG_MAX_QP_SIZE: BitField = BitField::new(0x11, 0, 8);
    pub const LOG_MAX_QP: BitField = BitField::new(0x13, 3, 5);
    pub const LOG_MAX_SRQ: BitField = BitField::new(0x15, 3, 5);
    pub const MAX_SGL: BitField = BitField::new(0x18, 0, 8);
    pub const LOG_MAX_CQ_SIZE: BitField = BitField::new(0x19, 0, 8);
    pub const LOG_MAX_CQ: BitField = BitField::new(0x1b, 3, 5);
    pub const LOG_MAX_EQ_SIZE: BitField = BitField::new(0x1c, 0, 8);
    pub const LOG_MAX_MKEY: BitField = BitField::new(0x1d, 2, 6);
    pub const LOG_MAX_EQ: BitField = BitField::new(0x1f, 4, 4);
    pub const MAX_INDIRECTION: BitField = BitField::new(0x20, 0, 8);
    pub const LOG_MAX_REGION: BitField = BitField::new(0x21, 1, 7);
    pub const LOG_MAX_KLM_LIST: BitField = BitField::new(0x23, 2, 6);
    pub const LOG_MAX_READS_OUT: BitField = BitField::new(0x29, 2, 6);
    pub const LOG_MAX_READS_IN: BitField = BitField::new(0x2b, 2, 6);
    /// 0 for 8 entries, each more doubles them.
    pub const GID_TABLE_SIZE: BitField = BitField::new(0x2e, 0, 16);
    /// 0 for 128 entries, each more doubles them.
    pub const PKEY_TABLE_SIZE: BitField = BitField::new(0x32, 0, 16);
    /// Ports are asked about by commands, not by management datagrams.
    pub const IB_VIRT: BitField = BitField::new(0x34, 2, 1);
    pub const LOCAL_ACK_DELAY: BitField = BitField::new(0x35, 3, 5);
    /// 0 for InfiniBand, 1 for Ethernet.
    pub const PORT_TYPE: BitField = BitField::new(0x36, 6, 2);
    pub const NUM_PORTS: BitField = BitField::new(0x37, 0, 8);
    pub const LOG_MAX_MESSAGE: BitField = BitField::new(0x38, 3, 5);
    pub const CQE_VERSION: BitField = BitField::new(0x3f, 4, 4);
    /// Keys are not made and changed by work requests.
    pub const UMR_ENTITY_SIZE_DISABLED: BitField = BitField::new(0x40, 7, 1);
    pub const CQ_RESIZE: BitField = BitField::new(0x44, 1, 1);
    pub const CQ_MODERATION: BitField = BitField::new(0x44, 2, 1);
    pub const BLOCK_LOOPBACK_MULTICAST: BitField = BitField::new(0x45, 0, 1);
    pub const XRC: BitField = BitField::new(0x47, 4, 1);
    pub const UD: BitField = BitField::new(0x47, 5, 1);
    pub const UC: BitField = BitField::new(0x47, 6, 1);
    pub const RC: BitField = BitField::new(0x47, 7, 1);
    pub const LOG_PAGE_SIZE: BitField = BitField::new(0x4b, 0, 8);
    /// Doorbells may bring whole work queue entries.
    pub const BLUE_FLAME: BitField = BitField::new(0x4c, 0, 1);
    pub const LOG_DOORBELL_REGISTER: BitField = BitField::new(0x4d, 3, 5);
    pub const MAX_SEND_WQE: BitField = BitField::new(0x52, 0, 16);
    pub const MAX_RECEIVE_WQE: BitField = BitField::new(0x56, 0, 16);
    pub const MAX_QP_PER_GROUP: BitField = BitField::new(0x5c, 7, 25);
    pub const LOG_MAX_GROUPS: BitField = BitField::new(0x63, 0, 8);
    pub const LOG_MAX_PD: BitField = BitField::new(0x65, 3, 5);
    pub const LOG_MAX_XRCD: BitField = BitField::new(0x67, 3, 5);
}
