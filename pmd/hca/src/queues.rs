//! One worker's queues: their sizes, and who sent what they received.

use crate::MemoryKey;
use ib_wire::{Lid, PortNumber, Qpn, ServiceLevel};

/// Most packets that one poll returns and one round of posts takes. With 64 in place of 32 a worker takes 7 % fewer instructions for a packet to
/// InfiniBand, 5 % for one back: what a turn, a doorbell and a publication take is shared by twice as many.
pub const BURST: usize = 64;

/// Names the queues of one worker on one device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueuesId(pub u16);

/// Sizes of one worker's queues. Depths are work requests; devices round up to powers of two.
#[derive(Clone, Debug)]
pub struct QueuesConfig {
    /// Which worker.
    pub id: QueuesId,
    /// Receives for datagrams, which all datagram queue pairs share.
    pub ud_recv_depth: u32,
    /// Most receives for datagrams, all datagram queue pairs together, where these cannot share them: one that would have more
    /// posted is refused.
    pub ud_recv_most: u32,
    /// Depth of the connections' shared receive queue; 0 = datagrams only, no such queue.
    pub srq_depth: u32,
    /// Largest message that an SRQ entry must take, bytes (65,524 for IPoIB's largest).
    pub srq_message: usize,
    /// Raise [`SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) when fewer entries than this are posted; 0 = never.
    pub srq_limit: u32,
    /// Places for datagram queue pairs, 256 at most.
    pub max_ud: u16,
    /// Datagram queue pairs that there will be, as far as is known: where they cannot share receives, each gets that part of them.
    pub likely_ud: u16,
    /// Places for connected queue pairs, 65,536 at most.
    pub max_rc: u32,
    /// Most sends that may be outstanding at once, of all queue pairs together: sizes the completion queue of sends, and bounds
    /// the buffers that peers who take nothing can hold. Connections have no part in the last eighth, so that datagrams always go.
    pub max_sends: u32,
    /// One signalled send in this many.
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
    /// The datagram queue pair that it stands beside: what it receives names it.
    pub beside: UdSlot,
    /// Depth of the send queue. A passive one, which only ever sends its drain request, has four at least, others sixteen.
    pub send_depth: u32,
    /// True if its send completions go to the receive completion queue, so that the drain request's completion comes
    /// behind every receive of this queue pair (IBA 10.3.1); such a queue pair is not for data.
    pub passive: bool,
}

/// Place of a datagram queue pair in a worker's table. The control lcore deals them out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct UdSlot(pub u8);

/// Place of a connected queue pair in a worker's table. The control lcore deals them out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RcSlot(pub u16);

/// How a message came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// By a connection.
    Rc,
    /// By a connection, and it took the memory away from this key of ours: a SEND with invalidate.
    RcInvalidated(MemoryKey),
    /// As a datagram.
    Ud(UdSource),
}

/// The sender of a datagram, as its completion tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdSource {
    /// Source queue pair.
    pub qpn: Qpn,
    /// Source LID.
    pub slid: Lid,
    /// Service level.
    pub sl: ServiceLevel,
    /// Low bits of the LID that it was sent to, 7 bits: [`src_path_bits`](crate::AddressVector::src_path_bits) of an answer.
    /// A multicast LID's are nothing.
    pub dlid_path_bits: u8,
    /// P_Key index that matched.
    pub pkey_index: u16,
    /// True if the GRH area holds a GRH.
    pub has_grh: bool,
    /// True if it was sent to a multicast group.
    pub multicast: bool,
}

// It goes by value with each message: no longer than three words of four bytes.
const _: () = assert!(size_of::<UdSource>() == 12 && size_of::<Source>() == 12);
