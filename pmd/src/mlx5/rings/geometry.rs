//! Ring sizes for requested capacities, by libmlx5's rules.

use prm::{
    AtomicSegment, ControlSegment, DataSegment, DatagramAddress, InlineHeader, MkeyContext, NextSegment,
    RemoteAddressSegment, UmrControl, WQEBB,
};

/// Transport service of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable datagram.
    Ud,
}

/// Operations that a send queue supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOperations {
    /// All operations. A connected queue pair reserves room for the longest entry.
    All,
    /// SEND, with or without an immediate.
    SendOnly,
}

/// Requested capacities of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpRequest {
    /// Transport service.
    pub transport: Transport,
    /// Maximum number of outstanding sends, each of the largest size.
    pub send_wr: u32,
    /// Maximum number of data segments of a send.
    pub send_sge: u32,
    /// Maximum number of outstanding receives; 0 with a shared receive queue.
    pub recv_wr: u32,
    /// Maximum number of data segments of a receive.
    pub recv_sge: u32,
    /// Maximum inline data in bytes.
    pub inline_data: u32,
    /// Operations to support.
    pub operations: SendOperations,
}

/// Sizes and offsets of a queue pair's rings in one buffer. The receive ring comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpGeometry {
    /// Number of receive slots; 0 with a shared receive queue.
    pub rq_slots: u32,
    /// Length of a receive slot in bytes.
    pub rq_stride: u32,
    /// Number of WQEBBs (64 bytes) of the send ring.
    pub sq_wqebbs: u32,
    /// Offset of the send ring in the buffer.
    pub sq_offset: u32,
    /// Maximum inline data in bytes.
    pub max_inline: u32,
    /// Maximum number of data segments of a receive.
    pub max_recv_sge: u32,
}

impl QpGeometry {
    /// Computes the geometry. Returns `None` if it exceeds 2^31 bytes.
    #[must_use]
    pub fn new(request: &QpRequest) -> Option<Self> {
        let unit = size_of::<DataSegment>() as u32;
        let overhead = size_of::<ControlSegment>() as u32
            + match (request.transport, request.operations) {
                (Transport::Ud, _) => size_of::<DatagramAddress>() as u32,
                (Transport::Rc, SendOperations::SendOnly) => 0,
                // The longest head is that of a UMR with the smallest list, 64 bytes.
                (Transport::Rc, SendOperations::All) => {
                    (size_of::<UmrControl>() + size_of::<MkeyContext>() + 64)
                        .max(size_of::<RemoteAddressSegment>() + size_of::<AtomicSegment>())
                        as u32
                }
            };
        let header = size_of::<InlineHeader>() as u32;
        let inline = if request.inline_data == 0 {
            0
        } else {
            request.inline_data.checked_add(header)?.checked_next_multiple_of(unit)?
        };
        let data = request.send_sge.checked_mul(unit)?.max(inline);
        let send_size = overhead.checked_add(data)?.checked_next_multiple_of(WQEBB as u32)?;
        let sq_bytes = request.send_wr.checked_mul(send_size)?.checked_next_power_of_two()?.max(WQEBB as u32);

        let (rq_slots, rq_stride) = if request.recv_wr == 0 {
            (0, 1)
        } else {
            let stride = request.recv_sge.max(1).checked_mul(unit)?.checked_next_power_of_two()?;
            let bytes = request.recv_wr.checked_next_power_of_two()?.checked_mul(stride)?.max(WQEBB as u32);
            (bytes / stride, stride)
        };
        Some(Self {
            rq_slots,
            rq_stride,
            sq_wqebbs: sq_bytes / WQEBB as u32,
            sq_offset: rq_slots.checked_mul(rq_stride)?,
            max_inline: send_size - overhead - header,
            max_recv_sge: rq_stride / unit,
        })
    }

    /// Length in bytes of the buffer that contains both rings.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.sq_offset as usize + self.sq_wqebbs as usize * WQEBB
    }
}

/// Sizes of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqGeometry {
    /// Slots that the driver posts to, a power of two. One of them always stays free.
    pub slots: u32,
    /// Slots of the whole ring. The second half, if present, is the library's wait queue for page faults.
    pub ring_slots: u32,
    /// Length of a slot in bytes, a power of two.
    pub stride: u32,
    /// Maximum number of data segments of an entry.
    pub max_sge: u32,
}

impl SrqGeometry {
    /// Computes the geometry for `wr` receives of `sge` segments. Returns `None` if the device allows less
    /// (`device_max_wr`).
    #[must_use]
    pub fn new(wr: u32, sge: u32, device_max_wr: u32) -> Option<Self> {
        if wr > device_max_wr {
            return None;
        }
        let unit = size_of::<DataSegment>() as u32;
        let head = size_of::<NextSegment>() as u32;
        let stride = head.checked_add(sge.max(1).checked_mul(unit)?)?.checked_next_power_of_two()?;
        let slots = wr.checked_add(1)?.checked_next_power_of_two()?.max(2);
        // Slot numbers have 16 bits.
        if slots > 1 << 16 {
            return None;
        }
        let ring_slots = if slots * 2 <= device_max_wr { slots * 2 } else { slots };
        Some(Self { slots, ring_slots, stride, max_sge: (stride - head) / unit })
    }

    /// Length of the ring in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.ring_slots as usize * self.stride as usize
    }
}

/// Size of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqGeometry {
    /// Number of entries, a power of two and at least one more than can be outstanding.
    pub slots: u32,
}

impl CqGeometry {
    /// Computes the geometry for `cqe` outstanding entries. Returns `None` if the ring would exceed 2^22
    /// entries.
    #[must_use]
    pub fn new(cqe: u32) -> Option<Self> {
        let slots = cqe.checked_add(1)?.checked_next_power_of_two()?;
        (slots <= 1 << 22).then_some(Self { slots })
    }

    /// Length of the ring in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.slots as usize * super::CQE_SIZE
    }
}
