//! Memory work on connections: fast registration, and operations on a peer's memory (IBA 10.6, 10.7.2; the memory management
//! extensions of Linux).

use ::hca::{BURST, Fence, KeyRights, MemoryKey, PostError, RcSlot, WcStatus};
use arrayvec::ArrayVec;

use super::Queues;
use crate::mem::Mbuf;
use crate::mem::key::{DoubtfulKey, FreeKey, Memory, PageList, RegisteredKey};

/// Finished work of one poll.
pub type DoneBurst<P = Mbuf> = ArrayVec<Done<P>, BURST>;

/// A key to register and with what.
#[derive(Debug)]
pub struct Registration<P = Mbuf> {
    /// The key; it gets its next tag.
    pub key: FreeKey,
    /// Where the list goes.
    pub list: PageList<P>,
    /// The memory.
    pub memory: Memory<P>,
    /// Address that users are to name the first byte by.
    pub start: u64,
    /// Bytes from the start of the list that the key is to name; `None` = all.
    pub len: Option<u64>,
    /// What may be done with it.
    pub rights: KeyRights,
}

/// A chain to be sent as one piece of memory, and what that takes.
#[derive(Debug)]
pub struct ChainSend<P = Mbuf> {
    /// The key that is to name it; it gets its next tag.
    pub key: FreeKey,
    /// Where the list goes.
    pub list: PageList<P>,
    /// The message: any number of segments that key and list have room for.
    pub buf: P,
}

/// Memory of the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteMemory {
    /// Address, as the other end's key has it.
    pub address: u64,
    /// The other end's key.
    pub rkey: MemoryKey,
}

/// Why memory work was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkError {
    /// As any other post.
    #[error(transparent)]
    Post(#[from] PostError),
    /// Peers would write where the owner may not (IBA 10.6.3).
    #[error("a key that peers may write to or do atomic operations on needs the right of local writes, too")]
    Rights,
    /// The list has more pieces than the key can name, the list has room for, or fit into the work request.
    #[error("{asked} pieces of memory, where there is room for {room}")]
    Pieces {
        /// Pieces.
        asked: usize,
        /// Room.
        room: usize,
    },
    /// Longer than the list, nothing, or over the end of the address space.
    #[error("{len} bytes from {start:#x} of a list of {listed} bytes")]
    Range {
        /// First address.
        start: u64,
        /// Bytes of the key.
        len: u64,
        /// Bytes of the list.
        listed: u64,
    },
    /// The device has no such operation.
    #[error("this device cannot do it")]
    NotSupported,
}

/// Work that was not taken, and why.
#[derive(Debug)]
pub struct Returned<T> {
    /// What was to be posted, unchanged.
    pub work: T,
    /// The reason.
    pub error: WorkError,
}

/// Work that is done or has failed. Each post has one, in the order of posts on each connection.
#[derive(Debug)]
pub struct Done<P = Mbuf> {
    /// The connection.
    pub slot: RcSlot,
    /// What its poster called it.
    pub ticket: u32,
    /// Outcome.
    pub status: WcStatus,
    /// What comes back.
    pub what: Outcome<P>,
}

/// What comes back of memory work.
#[derive(Debug)]
pub enum Outcome<P = Mbuf> {
    /// The key has its memory; the list is empty.
    Registered(RegisteredKey<P>, PageList<P>),
    /// The key is free, and its memory the poster's again.
    Invalidated(FreeKey, Option<P>),
    /// A registration that failed, or whose connection did: the key may have its memory or not. The list is empty; if the connection was
    /// taken out before the device had read it, a list in a buffer has no room any more (see [`PageList`]).
    NotRegistered(DoubtfulKey<P>, PageList<P>),
    /// An invalidation that failed, or whose connection did.
    NotInvalidated(DoubtfulKey<P>),
    /// A SEND, RDMA WRITE or RDMA READ: its buffer, after a READ that succeeded with what it read.
    Transferred(P),
    /// A chain that was sent as one piece: all that it took. The list is empty.
    ChainSent(ChainSend<P>),
    /// A chain that may have been sent or not: its connection failed, and the status says by what, if it was by this chain. The key has the
    /// chain. The list is as that of [`Outcome::NotRegistered`].
    ChainNotSent(DoubtfulKey<P>, PageList<P>),
}

/// Memory work on a worker's connections. Each post is followed by one [`Done`], and belongs to the queues until then. The device sees
/// it at the next [`Queues::ring`].
pub trait MemoryWork: Queues {
    /// FAST_REG: the key has the memory as soon as this is done; what is posted behind it on the same connection may use it at once.
    #[expect(clippy::result_large_err, reason = "what is not taken is handed back")]
    fn register(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        work: Registration,
    ) -> Result<MemoryKey, Returned<Registration>>;

    /// LOCAL_INV: takes the memory away from a key. What is posted before it and uses the key must be done, or fenced off.
    fn invalidate(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        key: RegisteredKey,
        fence: Fence,
    ) -> Result<(), Returned<RegisteredKey>>;

    /// SEND that takes the memory away from a key of the other end.
    fn send_invalidating(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        rkey: MemoryKey,
        buf: Mbuf,
    ) -> Result<(), Returned<Mbuf>>;

    /// SEND of a chain that has more segments than a work request can name: FAST_REG, a SEND of one piece, and LOCAL_INV behind a fence, in
    /// one post with one [`Done`]. What is posted behind it waits until the peer has taken it. All three count as sends outstanding.
    fn send_chain(&mut self, slot: RcSlot, ticket: u32, work: ChainSend) -> Result<(), Returned<ChainSend>>;

    /// RDMA WRITE of a buffer's data, with a number for the other end if there is one.
    fn write(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        to: RemoteMemory,
        buf: Mbuf,
        immediate: Option<u32>,
    ) -> Result<(), Returned<Mbuf>>;

    /// RDMA READ into a buffer's data, all of it.
    fn read(
        &mut self,
        slot: RcSlot,
        ticket: u32,
        from: RemoteMemory,
        into: Mbuf,
    ) -> Result<(), Returned<Mbuf>>;

    /// Takes what [`Queues::poll_send`] found to be finished, up to the burst's capacity, oldest first.
    fn take_done(&mut self, done: &mut DoneBurst);
}
