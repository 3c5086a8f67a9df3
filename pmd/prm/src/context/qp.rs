//! Queue pairs.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bar::UAR_PAGE_MASK;
use crate::layout;

/// Services of a queue pair.
pub mod qp_service {
    /// Reliable connection.
    pub const RC: u8 = 0;
    /// Unreliable connection.
    pub const UC: u8 = 1;
    /// Unreliable datagram.
    pub const UD: u8 = 2;
    /// Extended reliable connection: a target without a send queue, otherwise an initiator.
    pub const XRC: u8 = 3;
    /// Queue pair 0.
    pub const SMI: u8 = 7;
    /// Queue pair 1.
    pub const GSI: u8 = 8;
    /// Registration of memory by work requests only.
    pub const UMR: u8 = 0xc;
}

/// States of a queue pair.
pub mod qp_state {
    /// RESET.
    pub const RST: u8 = 0;
    /// INIT.
    pub const INIT: u8 = 1;
    /// RTR.
    pub const RTR: u8 = 2;
    /// RTS.
    pub const RTS: u8 = 3;
    /// SQE.
    pub const SQER: u8 = 4;
    /// SQD, drained.
    pub const SQD: u8 = 5;
    /// ERR.
    pub const ERR: u8 = 6;
    /// SQD, not drained yet.
    pub const SQ_DRAINING: u8 = 7;
}

/// Source of a queue pair's receives.
pub mod rq_type {
    /// Its own ring.
    pub const OWN: u8 = 0;
    /// A shared receive queue.
    pub const SHARED: u8 = 1;
    /// None.
    pub const NONE: u8 = 3;
}

/// Mask of the optional parameters of a transition.
pub mod opt_param {
    /// The peer may read.
    pub const REMOTE_READ: u32 = 1 << 1;
    /// The peer may execute atomic operations.
    pub const REMOTE_ATOMIC: u32 = 1 << 2;
    /// The peer may write.
    pub const REMOTE_WRITE: u32 = 1 << 3;
    /// P_Key index.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// Q_Key.
    pub const QKEY: u32 = 1 << 5;
    /// Limit of reads to the peer.
    pub const READS_OUT: u32 = 1 << 8;
    /// Limit of reads from the peer.
    pub const READS_IN: u32 = 1 << 9;
    /// Port.
    pub const PORT: u32 = 1 << 16;
}

/// An address path.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AddressPath {
    /// Flags.
    pub flags: U16,
    /// P_Key index.
    pub pkey_index: U16,
    /// Zero.
    pub reserved_4: u8,
    /// Bit 7: with a GRH; below: source path bits.
    pub grh_path_bits: u8,
    /// Destination LID.
    pub rlid: U16,
    /// ACK timeout, 5 bits at 3.
    pub ack_timeout: u8,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Static rate, 4 bits.
    pub rate: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class (8 bits at 20) and flow label (20 bits).
    pub class_flow: U32,
    /// Destination GID.
    pub rgid: [u8; 16],
    /// Fields of Ethernet ports.
    pub ethernet: U32,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Port.
    pub port: u8,
    /// Destination MAC address.
    pub rmac: [u8; 6],
}

layout!(
    AddressPath, 44, pkey_index @ 2, grh_path_bits @ 5, rlid @ 6, ack_timeout @ 8, sgid_index @ 9, rate @ 0xa, hop_limit @ 0xb,
    class_flow @ 0xc, rgid @ 0x10, sl @ 0x24, port @ 0x25
);

impl AddressPath {
    /// In `grh_path_bits`: with a GRH.
    pub const GRH: u8 = 0x80;
}

/// A queue pair's context.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct QpContext {
    /// State, 4 bits at 4.
    pub state: u8,
    /// See [`qp_service`].
    pub service: u8,
    /// Flags.
    pub flags_2: U16,
    /// Flags ([`QpContext::BLOCK_LOOPBACK`]); protection domain, 24 bits.
    pub pd: U32,
    /// MTU (3 bits at 5) and binary logarithm of the longest message (5 bits).
    pub mtu_msg: u8,
    /// Binary logarithms of the number of receives (4 bits at 3) and of their size in units of 16 bytes (3
    /// bits).
    pub rq_size_stride: u8,
    /// Bit 7: no send queue; binary logarithm of the number of WQEBBs (4 bits at 3).
    pub sq_size: u8,
    /// Flags: see [`QpContext::RESERVED_LKEY`].
    pub flags_11: u8,
    /// Set of counters (8 bits at 24); doorbell page, 24 bits.
    pub uar: U32,
    /// Zero.
    pub reserved_16: u8,
    /// Identifier in completions.
    pub user_index: [u8; 3],
    /// Binary logarithm of the page size, in units of 4096 bytes (5 bits at 24); the peer's queue pair (24
    /// bits).
    pub page_remote: U32,
    /// Path.
    pub path: AddressPath,
    /// Alternate path.
    pub alternate: AddressPath,
    /// Interval of acknowledge requests.
    pub log_ack_request: u8,
    /// Binary logarithm of the limit of reads and atomics to the peer (3 bits at 5); retries, 3 bits.
    pub retry: u8,
    /// Retries after RNR NAKs, 3 bits at 5; a flag ([`QpContext::FAST_REGISTRATION`]).
    pub rnr_retry: u8,
    /// Flags.
    pub flags_115: u8,
    /// Zero.
    pub reserved_116: U32,
    /// PSN of the next send, 24 bits.
    pub send_psn: U32,
    /// Completion queue of sends, 24 bits.
    pub send_cq: U32,
    /// Fields not used here.
    pub reserved_128: [u8; 16],
    /// Binary logarithm of the limit of reads and atomics from the peer (3 bits at 5); mode of atomic
    /// operations ([`QpContext::ATOMIC_MODE`]).
    pub log_rra: U16,
    /// Remote rights (3 bits at 13: read, write, atomics) and offset in the first page (6 bits at 6), in
    /// units of a 64th of a page.
    pub access_offset: U16,
    /// RNR NAK timer (5 bits at 24), and PSN of the next receive (24 bits).
    pub rnr_receive_psn: U32,
    /// XRC domain, 24 bits.
    pub xrcd: U32,
    /// Completion queue of receives, 24 bits.
    pub receive_cq: U32,
    /// Address of the doorbell record.
    pub dbrec: U64,
    /// Q_Key.
    pub qkey: U32,
    /// See [`rq_type`] (3 bits at 24); shared receive queue (24 bits).
    pub rq_srq: U32,
    /// Counters, for queries, and fields not used here.
    pub reserved_176: [u8; 56],
}

layout!(
    QpContext, 0xe8, service @ 1, pd @ 4, mtu_msg @ 8, rq_size_stride @ 9, sq_size @ 0xa, flags_11 @ 0xb, uar @ 0xc, user_index @ 0x11,
    page_remote @ 0x14, path @ 0x18, alternate @ 0x44, retry @ 0x71, rnr_retry @ 0x72, send_psn @ 0x78, send_cq @ 0x7c,
    access_offset @ 0x92, rnr_receive_psn @ 0x94, xrcd @ 0x98, receive_cq @ 0x9c, dbrec @ 0xa0, qkey @ 0xa8, rq_srq @ 0xac
);

impl Default for QpContext {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

impl QpContext {
    /// In `pd`: it does not receive its own packets to a group.
    pub const BLOCK_LOOPBACK: u32 = 1 << 30;
    /// In `log_rra`: mode of atomic operations, 0 for none.
    pub const ATOMIC_MODE: u16 = 0xf;
    /// In `flags_11`: its work requests may use the reserved key.
    pub const RESERVED_LKEY: u8 = 0x10;
    /// In `rnr_retry`: it may set the memory of keys by page addresses. A driver sets this only for its own
    /// queue pairs.
    pub const FAST_REGISTRATION: u8 = 0x08;
    /// In `sq_size`: no send queue.
    pub const NO_SQ: u8 = 0x80;

    /// Number of receives in its own ring.
    #[must_use]
    pub const fn receives(&self) -> usize {
        1 << ((self.rq_size_stride >> 3) & 0xf)
    }

    /// Bytes of a receive.
    #[must_use]
    pub const fn receive_stride(&self) -> usize {
        16 << (self.rq_size_stride & 7)
    }

    /// True if it has no send ring.
    #[must_use]
    pub const fn has_no_sends(&self) -> bool {
        self.sq_size & Self::NO_SQ != 0
    }

    /// WQEBBs of its send ring.
    #[must_use]
    pub const fn send_blocks(&self) -> usize {
        if self.has_no_sends() { 0 } else { 1 << ((self.sq_size >> 3) & 0xf) }
    }

    /// The doorbell page of its sends.
    #[must_use]
    pub const fn uar_page(&self) -> u32 {
        self.uar.get() & UAR_PAGE_MASK
    }

    /// Its set of counters; 0 for none.
    #[must_use]
    pub const fn counter_set(&self) -> u8 {
        (self.uar.get() >> 24) as u8
    }

    /// True if the peer may read.
    #[must_use]
    pub const fn remote_read(&self) -> bool {
        self.access_offset.get() & 1 << 15 != 0
    }

    /// True if the peer may write.
    #[must_use]
    pub const fn remote_write(&self) -> bool {
        self.access_offset.get() & 1 << 14 != 0
    }

    /// True if the peer may execute atomic operations: they are permitted, and their mode is set.
    #[must_use]
    pub const fn remote_atomic(&self) -> bool {
        self.access_offset.get() & 1 << 13 != 0 && self.log_rra.get() & Self::ATOMIC_MODE != 0
    }

    /// Limit of reads and atomics from the peer.
    #[must_use]
    pub const fn reads_in(&self) -> u8 {
        1 << ((self.log_rra.get() >> 5) & 7)
    }

    /// Limit of reads and atomics to the peer.
    #[must_use]
    pub const fn reads_out(&self) -> u8 {
        1 << (self.retry >> 5)
    }

    /// Binary logarithm of the page size, in units of 4096 bytes.
    #[must_use]
    pub const fn log_page_size(&self) -> u8 {
        (self.page_remote.get() >> 24) as u8 & 0x1f
    }

    /// Offset in the first page, in units of a 64th of a page.
    #[must_use]
    pub const fn page_offset(&self) -> u8 {
        (self.access_offset.get() >> 6) as u8 & 0x3f
    }

    /// Source of its receives: see [`rq_type`].
    #[must_use]
    pub const fn rq_type(&self) -> u8 {
        (self.rq_srq.get() >> 24) as u8 & 7
    }
}
