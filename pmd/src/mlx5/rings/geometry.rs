//! How large rings are for what was asked, by libmlx5's rules.

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

/// What will be posted to a send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOperations {
    /// Anything: a connected queue pair keeps room for the longest entry.
    All,
    /// SEND, with or without immediate.
    SendOnly,
}

/// What is asked of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpRequest {
    /// Transport service.
    pub transport: Transport,
    /// Sends outstanding, each of the largest size.
    pub send_wr: u32,
    /// Data segments of a send.
    pub send_sge: u32,
    /// Receives outstanding; 0 on a shared receive queue.
    pub recv_wr: u32,
    /// Data segments of a receive.
    pub recv_sge: u32,
    /// Bytes sent inline.
    pub inline_data: u32,
    /// What will be posted.
    pub operations: SendOperations,
}

/// Sizes and places of a queue pair's rings in one buffer, the receive ring first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpGeometry {
    /// Slots of the receive ring; 0 on a shared receive queue.
    pub rq_slots: u32,
    /// Bytes of a receive slot.
    pub rq_stride: u32,
    /// Blocks of 64 bytes of the send ring.
    pub sq_wqebbs: u32,
    /// Where the send ring begins in the buffer.
    pub sq_offset: u32,
    /// Bytes that can be sent inline.
    pub max_inline: u32,
    /// Data segments that a receive can have.
    pub max_recv_sge: u32,
}

impl QpGeometry {
    /// The geometry for `asked`; `None` if it is larger than 2^31 bytes.
    #[must_use]
    pub fn new(asked: &QpRequest) -> Option<Self> {
        let unit = size_of::<DataSegment>() as u32;
        let overhead = size_of::<ControlSegment>() as u32
            + match (asked.transport, asked.operations) {
                (Transport::Ud, _) => size_of::<DatagramAddress>() as u32,
                (Transport::Rc, SendOperations::SendOnly) => 0,
                // The longest head of all is the one of an UMR with the smallest list, 64 bytes.
                (Transport::Rc, SendOperations::All) => {
                    (size_of::<UmrControl>() + size_of::<MkeyContext>() + 64)
                        .max(size_of::<RemoteAddressSegment>() + size_of::<AtomicSegment>())
                        as u32
                }
            };
        let header = size_of::<InlineHeader>() as u32;
        let inline = if asked.inline_data == 0 {
            0
        } else {
            asked.inline_data.checked_add(header)?.checked_next_multiple_of(unit)?
        };
        let data = asked.send_sge.checked_mul(unit)?.max(inline);
        let send_size = overhead.checked_add(data)?.checked_next_multiple_of(WQEBB as u32)?;
        let sq_bytes = asked.send_wr.checked_mul(send_size)?.checked_next_power_of_two()?.max(WQEBB as u32);

        let (rq_slots, rq_stride) = if asked.recv_wr == 0 {
            (0, 1)
        } else {
            let stride = asked.recv_sge.max(1).checked_mul(unit)?.checked_next_power_of_two()?;
            let bytes = asked.recv_wr.checked_next_power_of_two()?.checked_mul(stride)?.max(WQEBB as u32);
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

    /// Bytes of the buffer that holds both rings.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.sq_offset as usize + self.sq_wqebbs as usize * WQEBB
    }
}

/// Sizes of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqGeometry {
    /// Slots that the driver posts to, a power of two; one of them always stays free.
    pub slots: u32,
    /// Slots of the whole ring: the second half, where there is one, is the library's wait queue for page faults.
    pub ring_slots: u32,
    /// Bytes of a slot, a power of two.
    pub stride: u32,
    /// Data segments that an entry can have.
    pub max_sge: u32,
}

impl SrqGeometry {
    /// The geometry for `wr` receives of `sge` segments on a device that allows `device_max_wr`; `None` if it allows less.
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

    /// Bytes of the ring.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.ring_slots as usize * self.stride as usize
    }
}

/// Size of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqGeometry {
    /// Entries of the ring, a power of two; one more than may be outstanding.
    pub slots: u32,
}

impl CqGeometry {
    /// The geometry for `cqe` outstanding entries; `None` if it is more than 2^22.
    #[must_use]
    pub fn new(cqe: u32) -> Option<Self> {
        let slots = cqe.checked_add(1)?.checked_next_power_of_two()?;
        (slots <= 1 << 22).then_some(Self { slots })
    }

    /// Bytes of the ring.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.slots as usize * super::CQE_SIZE
    }
}
