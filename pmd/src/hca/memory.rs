//! Memory work on connections: fast registration, and operations on a peer's memory (IBA 10.6, 10.7.2; the
//! memory management extensions of Linux).

use ::hca::{BURST, Fence, KeyRights, MemoryKey, PostError, RcSlot, WcStatus};
use arrayvec::ArrayVec;

use super::Queues;
use crate::mem::Mbuf;
use crate::mem::key::{DoubtfulKey, FreeKey, Memory, PageList, RegisteredKey};

/// Finished work returned by one poll.
pub type DoneBurst<P = Mbuf> = ArrayVec<Done<P>, BURST>;

/// A key to register and its new contents.
#[derive(Debug)]
pub struct Registration<P = Mbuf> {
    /// The key. The registration increments its tag.
    pub key: FreeKey,
    /// Storage for the list of pieces.
    pub list: PageList<P>,
    /// The memory.
    pub memory: Memory<P>,
    /// Address at which users of the key see the first byte.
    pub start: u64,
    /// Length of the range in bytes, from the start of the list; `None` for all.
    pub len: Option<u64>,
    /// Operations that the key permits.
    pub rights: KeyRights,
}

/// A chain to send as one memory segment, with the required key and list.
#[derive(Debug)]
pub struct ChainSend<P = Mbuf> {
    /// Key for the chain. The registration increments its tag.
    pub key: FreeKey,
    /// Storage for the list of pieces.
    pub list: PageList<P>,
    /// The message. Its number of segments is limited by key and list.
    pub buf: P,
}

/// Memory of the remote end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteMemory {
    /// Address as defined by the remote key.
    pub address: u64,
    /// Remote key.
    pub rkey: MemoryKey,
}

/// Reason why memory work was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkError {
    /// Same as for any other post.
    #[error(transparent)]
    Post(#[from] PostError),
    /// Remote rights require the local write right (IBA 10.6.3).
    #[error("a key with remote write or atomic rights also requires the local write right")]
    Rights,
    /// The list has more pieces than the key, the list or the work request has room for.
    #[error("{asked} pieces of memory exceed the limit of {room}")]
    Pieces {
        /// Number of pieces.
        asked: usize,
        /// Maximum number of pieces.
        room: usize,
    },
    /// The range is empty, exceeds the list, or wraps around the address space.
    #[error("{len} bytes from {start:#x} of a list of {listed} bytes")]
    Range {
        /// First address.
        start: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Length of the list in bytes.
        listed: u64,
    },
    /// The device does not support the operation.
    #[error("this device does not support the operation")]
    NotSupported,
}

/// Rejected work with the reason.
#[derive(Debug)]
pub struct Returned<T> {
    /// The work, unchanged.
    pub work: T,
    /// The reason.
    pub error: WorkError,
}

/// Work that has completed or failed. Each post has exactly one result. Results of a connection come in
/// posting order.
#[derive(Debug)]
pub struct Done<P = Mbuf> {
    /// The connection.
    pub slot: RcSlot,
    /// Ticket that the poster assigned.
    pub ticket: u32,
    /// Completion status.
    pub status: WcStatus,
    /// Resources that are returned.
    pub what: Outcome<P>,
}

/// Resources returned by memory work.
#[derive(Debug)]
pub enum Outcome<P = Mbuf> {
    /// The key now covers its memory. The list is empty.
    Registered(RegisteredKey<P>, PageList<P>),
    /// The key is free. Its memory belongs to the poster again.
    Invalidated(FreeKey, Option<P>),
    /// A failed registration, or one on a failed connection. Whether the key covers the memory is unknown.
    ///
    /// The list is empty. If the connection was removed before the device had read a list in a buffer, that
    /// list has no room any more (see [`PageList`]).
    NotRegistered(DoubtfulKey<P>, PageList<P>),
    /// A failed invalidation, or one on a failed connection.
    NotInvalidated(DoubtfulKey<P>),
    /// The buffer of a SEND, RDMA WRITE or RDMA READ. After a successful READ it contains the data.
    Transferred(P),
    /// A chain was sent as one segment. All its resources are returned; the list is empty.
    ChainSent(ChainSend<P>),
    /// A chain that may or may not have been sent because its connection failed.
    ///
    /// If this chain caused the failure, the status is the reason. The key holds the chain. The list is as
    /// for [`Outcome::NotRegistered`].
    ChainNotSent(DoubtfulKey<P>, PageList<P>),
}

/// Memory work on a worker's connections. The queues own posted work until they return its [`Done`]. The
/// device sees it after the next [`Queues::ring`].
pub trait MemoryWork: Queues {
    /// FAST_REG: assigns memory to a key. Later posts on the same connection may use the key immediately.
    #[expect(clippy::result_large_err, reason = "work that is not accepted is handed back")]
    fn register(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        work: Registration,
    ) -> Result<MemoryKey, Returned<Registration>>;

    /// LOCAL_INV: removes the memory from a key. Earlier posts that use the key must have completed or be
    /// ordered by a fence.
    fn invalidate(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        key: RegisteredKey,
        fence: Fence,
    ) -> Result<(), Returned<RegisteredKey>>;

    /// SEND that also invalidates a key of the remote end.
    fn send_invalidating(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        rkey: MemoryKey,
        buf: Mbuf,
    ) -> Result<(), Returned<Mbuf>>;

    /// Sends a chain with more segments than a work request supports.
    ///
    /// One post consists of FAST_REG, a SEND of one segment, and LOCAL_INV behind a fence, with one [`Done`].
    /// Later posts wait until the peer has acknowledged the message. All three requests count as outstanding
    /// sends.
    fn send_chain(&mut self, slot: RcSlot, ticket: u32, work: ChainSend) -> Result<(), Returned<ChainSend>>;

    /// RDMA WRITE of a buffer's data, optionally with an immediate.
    fn write(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        to: RemoteMemory,
        buf: Mbuf,
        immediate: Option<u32>,
    ) -> Result<(), Returned<Mbuf>>;

    /// RDMA READ that fills all of a buffer's data.
    fn read(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        from: RemoteMemory,
        into: Mbuf,
    ) -> Result<(), Returned<Mbuf>>;

    /// Returns work that [`Queues::poll_send`] found finished, oldest first, up to the burst's capacity.
    fn take_done(&mut self, done: &mut DoneBurst);
}
