//! What the queues need of a packet buffer and its pool. DPDK's mbufs have it; so that ownership can be tested without
//! an environment, other things can, too.

use arrayvec::ArrayVec;

/// Most buffers that a worker keeps in hand between the pool and its receive queues.
pub const STASH: usize = 64;

/// Buffers in hand.
pub type Stash<P> = ArrayVec<P, STASH>;

/// A packet buffer: a chain of one or more segments. Dropping it gives it back to its pool.
pub trait Packet: Sized + Send + std::fmt::Debug + 'static {
    /// Where fresh ones come from.
    type Pool: PacketPool<Self>;

    /// Segments of the chain.
    fn segments(&self) -> usize;

    /// Address and bytes of the data of each segment.
    fn pieces(&self) -> impl Iterator<Item = (u64, u32)>;

    /// Address and bytes of the room behind the headroom of a fresh buffer.
    fn room(&self) -> (u64, u32);

    /// A fresh buffer of one segment holds `len` bytes now, at most its room.
    fn fill(&mut self, len: u32);

    /// Hangs a chain behind this buffer of one segment.
    fn append(&mut self, tail: Self);

    /// The byte `distance` in front of the data; 0 if there is none.
    fn byte_before_data(&self, distance: usize) -> u8;

    /// Gives buffers back to their pools.
    fn free_all(batch: &mut Stash<Self>) {
        batch.clear();
    }
}

/// A pool of packet buffers of one size.
pub trait PacketPool<P>: Send + 'static {
    /// Bytes of room behind the headroom of each buffer.
    fn room(&self) -> u32;

    /// Adds `count` fresh buffers, at most what fits; all or none. Returns whether it did.
    fn take(&mut self, count: usize, into: &mut Stash<P>) -> bool;
}
