//! Capabilities of a device: fields of the general capabilities, 256 bytes.

/// Size of one kind of capabilities in bytes.
pub const CAPABILITIES: usize = 0x1000;

/// A field: consecutive bits, counted from the most significant bit of the first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BitField {
    first: usize,
    width: usize,
}

impl BitField {
    /// A field of `width` bits from bit `bit` of byte `byte` on.
    #[must_use]
    pub const fn new(byte: usize, bit: usize, width: usize) -> Self {
        Self { first: byte * 8 + bit, width }
    }

    /// Writes the low bits of `value`; bits behind the end of `bytes` are ignored.
    pub fn set(self, bytes: &mut [u8], value: u64) {
        for n in 0..self.width {
            let at = self.first + n;
            let Some(byte) = bytes.get_mut(at / 8) else { return };
            let mask = 0x80 >> (at % 8);
            let one = (value >> (self.width - 1 - n)) & 1 == 1;
            *byte = if one { *byte | mask } else { *byte & !mask };
        }
    }

    /// Reads the field; bits behind the end are zero.
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> u64 {
        (self.first..self.first + self.width).fold(0, |value, at| {
            let byte = bytes.get(at / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - at % 8) & 1)
        })
    }
}

/// Kinds of capabilities. The modifier of the query is twice the kind, plus one for the current values.
pub const GENERAL: u16 = 0;
/// Capabilities of atomic operations.
pub const ATOMIC: u16 = 3;

/// Fields of the general capabilities. `log` means a binary logarithm.
#[expect(missing_docs, reason = "the names are self-explanatory")]
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
    /// 0 for 8 entries; each increment doubles them.
    pub const GID_TABLE_SIZE: BitField = BitField::new(0x2e, 0, 16);
    /// Counter sets count out-of-sequence events.
    pub const OUT_OF_SEQUENCE_COUNT: BitField = BitField::new(0x30, 0, 1);
    /// Counter sets count retransmissions by cause.
    pub const RETRANSMISSION_COUNTS: BitField = BitField::new(0x30, 2, 1);
    /// Number of counter sets for queue pairs.
    pub const MAX_COUNTER_SETS: BitField = BitField::new(0x30, 6, 10);
    /// 0 for 128 entries; each increment doubles them.
    pub const PKEY_TABLE_SIZE: BitField = BitField::new(0x32, 0, 16);
    /// Ports are queried by commands, not by management datagrams.
    pub const IB_VIRT: BitField = BitField::new(0x34, 2, 1);
    pub const LOCAL_ACK_DELAY: BitField = BitField::new(0x35, 3, 5);
    /// 0 for InfiniBand, 1 for Ethernet.
    pub const PORT_TYPE: BitField = BitField::new(0x36, 6, 2);
    pub const NUM_PORTS: BitField = BitField::new(0x37, 0, 8);
    pub const LOG_MAX_MESSAGE: BitField = BitField::new(0x38, 3, 5);
    pub const CQE_VERSION: BitField = BitField::new(0x3f, 4, 4);
    /// UMR entries do not work on keys for lists of keys.
    pub const UMR_WITHOUT_INDIRECT: BitField = BitField::new(0x41, 1, 1);
    /// Atomic operations; see [`super::atomic`].
    pub const ATOMIC: BitField = BitField::new(0x43, 6, 1);
    pub const CQ_RESIZE: BitField = BitField::new(0x44, 1, 1);
    pub const CQ_MODERATION: BitField = BitField::new(0x44, 2, 1);
    pub const BLOCK_LOOPBACK_MULTICAST: BitField = BitField::new(0x45, 0, 1);
    /// Memory windows of types 1 and 2B.
    pub const MEMORY_WINDOWS: BitField = BitField::new(0x46, 1, 1);
    pub const XRC: BitField = BitField::new(0x47, 4, 1);
    pub const UD: BitField = BitField::new(0x47, 5, 1);
    pub const UC: BitField = BitField::new(0x47, 6, 1);
    pub const RC: BitField = BitField::new(0x47, 7, 1);
    pub const LOG_PAGE_SIZE: BitField = BitField::new(0x4b, 0, 8);
    /// Doorbells may contain whole work queue entries.
    pub const BLUE_FLAME: BitField = BitField::new(0x4c, 0, 1);
    pub const LOG_DOORBELL_REGISTER: BitField = BitField::new(0x4d, 3, 5);
    pub const MAX_SEND_WQE: BitField = BitField::new(0x52, 0, 16);
    pub const MAX_RECEIVE_WQE: BitField = BitField::new(0x56, 0, 16);
    pub const MAX_QP_PER_GROUP: BitField = BitField::new(0x5c, 7, 25);
    pub const LOG_MAX_GROUPS: BitField = BitField::new(0x63, 0, 8);
    pub const LOG_MAX_PD: BitField = BitField::new(0x65, 3, 5);
    pub const LOG_MAX_XRCD: BitField = BitField::new(0x67, 3, 5);
    /// Users that send commands of their own; 0 for none.
    pub const LOG_MAX_USERS: BitField = BitField::new(0x8c, 3, 5);
    /// Ticks of the device's clock per millisecond.
    pub const CLOCK_KHZ: BitField = BitField::new(0x9c, 0, 32);
}

/// Fields of the capabilities of atomic operations.
pub mod atomic {
    use super::BitField;

    /// Byte order of responses of 8 bytes in memory: [`BIG_ENDIAN`] or [`HOST_ENDIAN`]. Set by SET_HCA_CAP.
    pub const ANSWER_ORDER: BitField = BitField::new(0x08, 0, 2);
    /// [`HOST_ENDIAN`] is supported.
    pub const HOST_ORDER_SUPPORTED: BitField = BitField::new(0x08, 6, 1);
    /// Operations: see [`COMPARE_SWAP`].
    pub const OPERATIONS: BitField = BitField::new(0x12, 0, 16);
    /// Sizes that queue pairs support, each a bit at its binary logarithm: see [`EIGHT_BYTES`].
    pub const SIZES: BitField = BitField::new(0x16, 0, 16);

    /// In [`ANSWER_ORDER`]: the most significant byte first.
    pub const BIG_ENDIAN: u64 = 0;
    /// In [`ANSWER_ORDER`]: the host's byte order.
    pub const HOST_ENDIAN: u64 = 1;
    /// In [`OPERATIONS`].
    pub const COMPARE_SWAP: u64 = 1;
    /// In [`OPERATIONS`].
    pub const FETCH_ADD: u64 = 2;
    /// In [`SIZES`].
    pub const EIGHT_BYTES: u64 = 1 << 3;
}
