//! One worker's queues: their sizes, and the sources of received messages.

use crate::MemoryKey;
use ib_wire::{Lid, PortNumber, Qpn, ServiceLevel};

/// Most packets of one poll and of one round of posts. A larger burst amortizes the cost of an iteration, a
/// doorbell and a table refresh.
pub const BURST: usize = 64;

/// Identifies the queues of one worker on one device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueuesId(pub u16);

/// Sizes of one worker's queues. Depths are work requests; devices round up to powers of two.
#[derive(Clone, Debug)]
pub struct QueuesConfig {
    /// The worker.
    pub id: QueuesId,
    /// Receives for datagrams, shared by all datagram queue pairs.
    pub ud_recv_depth: u32,
    /// Most receives for datagrams of all datagram queue pairs together, if they cannot share them. A queue
    /// pair that would exceed it is refused.
    pub ud_recv_most: u32,
    /// Depth of the connections' shared receive queue; 0 = datagrams only, no such queue.
    pub srq_depth: u32,
    /// Largest message that fits an SRQ entry, in bytes (65,524 for IPoIB's largest).
    pub srq_message: usize,
    /// Raise [`SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) when fewer entries than this are posted;
    /// 0 = never.
    pub srq_limit: u32,
    /// Slots for datagram queue pairs, at most 256.
    pub max_ud: u16,
    /// Expected number of datagram queue pairs. If they cannot share receives, each gets this fraction of
    /// them.
    pub likely_ud: u16,
    /// Slots for connected queue pairs, at most 65,536.
    pub max_rc: u32,
    /// Most outstanding sends of all queue pairs together. It sizes the completion queue of sends, and bounds
    /// the buffers held by peers that do not receive. Connections cannot use the last eighth, so that
    /// datagrams can always be sent.
    pub max_sends: u32,
    /// One signaled send in this many.
    pub signal_every: u32,
}

/// One datagram queue pair on a worker's queues.
#[derive(Clone, Copy, Debug)]
pub struct UdConfig {
    /// The worker's queues.
    pub queues: QueuesId,
    /// Port of the device.
    pub port: PortNumber,
    /// Depth of the send queue.
    pub send_depth: u32,
}

/// One connected queue pair on a worker's queues.
#[derive(Clone, Copy, Debug)]
pub struct RcConfig {
    /// The worker's queues.
    pub queues: QueuesId,
    /// Port of the device.
    pub port: PortNumber,
    /// The datagram queue pair that it is assigned to, which its received messages name.
    pub beside: UdSlot,
    /// Depth of the send queue: at least four for a passive one, which only ever sends its drain request, at
    /// least sixteen for others.
    pub send_depth: u32,
    /// True if its send completions go to the receive completion queue, so that the drain request completes
    /// behind every receive of this queue pair (IBA 10.3.1). Such a queue pair is not for data.
    pub passive: bool,
}

/// Slot of a datagram queue pair in a worker's table, assigned by the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UdSlot(pub u8);

/// Slot of a connected queue pair in a worker's table, assigned by the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RcSlot(pub u16);

/// How a message arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Over a connection.
    Rc,
    /// Over a connection, as a SEND with invalidate that invalidated this key of ours.
    RcInvalidated(MemoryKey),
    /// As a datagram.
    Ud(UdSource),
}

/// The sender of a datagram, from its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdSource {
    /// Source queue pair.
    pub qpn: Qpn,
    /// Source LID.
    pub slid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low bits of the destination LID, 7 bits: the [`src_path_bits`](crate::AddressVector::src_path_bits) of
    /// a reply. Meaningless for a multicast LID.
    pub dlid_path_bits: u8,
    /// P_Key index that matched.
    pub pkey_index: u16,
    /// True if the GRH area holds a GRH.
    pub has_grh: bool,
    /// True if it was sent to a multicast group.
    pub multicast: bool,
}

// Passed by value with each message: at most three words of four bytes.
const _: () = assert!(size_of::<UdSource>() == 12 && size_of::<Source>() == 12);
