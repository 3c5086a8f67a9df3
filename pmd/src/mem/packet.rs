//! Requirements of the queues on a packet buffer and its pool. DPDK's mbufs fulfill them. Other types allow
//! tests of ownership without an EAL.

use arrayvec::ArrayVec;

use super::{HEADROOM, Mbuf, Pool};

/// Maximum number of buffers that a worker holds between the pool and its receive queues.
pub const STASH: usize = 64;

/// Buffers held between pool and receive queues.
pub type Stash<P> = ArrayVec<P, STASH>;

/// A packet buffer: a chain of one or more segments. Dropping it returns it to its pool.
pub trait Packet: Sized + Send + std::fmt::Debug + 'static {
    /// Pool of fresh buffers.
    type Pool: PacketPool<Self>;

    /// Number of segments of the chain.
    fn segments(&self) -> usize;

    /// Returns address and length of each segment's data.
    fn pieces(&self) -> impl Iterator<Item = (u64, u32)>;

    /// Returns address and length of the data of a nonempty single-segment packet, and `None` for others.
    #[inline]
    fn only_piece(&self) -> Option<(u64, u32)> {
        if self.segments() == 1 { self.pieces().next().filter(|(_, len)| *len > 0) } else { None }
    }

    /// Returns address and length of a fresh buffer's room after the headroom.
    fn room(&self) -> (u64, u32);

    /// Sets a single-segment buffer from [`PacketPool::take`] to `len` bytes, at most its room, without
    /// offload metadata.
    fn fill(&mut self, len: u32);

    /// Writes `bytes` at offset `at` of a single-segment buffer's data and makes the data end after them.
    /// Returns false, without changes, if there is no room.
    fn lay(&mut self, at: usize, bytes: &[u8]) -> bool;

    /// Appends a chain to this single-segment buffer.
    fn append(&mut self, tail: Self);

    /// Returns the byte `distance` bytes in front of the data, or 0 if there is none.
    fn byte_before_data(&self, distance: usize) -> u8;

    /// Returns buffers to their pools.
    fn free_all(batch: &mut Stash<Self>) {
        batch.clear();
    }
}

/// A pool of packet buffers of one size.
pub trait PacketPool<P>: Send + 'static {
    /// Room after the headroom of each buffer in bytes.
    fn room(&self) -> u32;

    /// Adds `count` buffers, limited to what fits; all or none. Returns true on success.
    ///
    /// Their contents and data range are undefined until [`Packet::fill`].
    fn take(&mut self, count: usize, into: &mut Stash<P>) -> bool;

    /// True if all buffers lie within the `len` bytes from `start`.
    fn lies_within(&self, start: u64, len: u64) -> bool;
}

/// Ensures that `stash` holds at least `count` buffers. Fills it completely if possible. Returns false if the
/// pool is too empty.
#[inline]
pub(crate) fn top_up<P: Packet>(stash: &mut Stash<P>, pool: &mut P::Pool, count: usize) -> bool {
    if stash.len() >= count {
        return true;
    }
    let space = stash.remaining_capacity();
    pool.take(space, stash) || pool.take(count.saturating_sub(stash.len()).min(space), stash)
}

/// Moves the buffer of every `STEP`th slot to the stash, up to the first one for which there is no room.
///
/// Unlike a loop over `push`, it does not check the room and store the length for each buffer.
#[inline(always)]
pub(crate) fn stow<const STEP: usize, T, P>(
    stash: &mut Stash<P>,
    places: &mut [T],
    buf: impl Fn(&mut T) -> Option<P>,
) {
    let (mut len, room) = (stash.len(), stash.remaining_capacity());
    let end = stash.as_mut_ptr();
    let most = places.len().min(room * STEP);
    for place in places.get_mut(..most).unwrap_or_default().chunks_mut(STEP) {
        if let Some(buf) = place.first_mut().and_then(&buf) {
            // SAFETY: there is room for one of each of these slots after the original `len`.
            unsafe { end.add(len).write(buf) };
            len += 1;
        }
    }
    // SAFETY: `len` elements are written. A panic before this line would leak buffers, but never free them
    // twice.
    unsafe { stash.set_len(len) };
}

/// Builds a message of `len` bytes from a receive's first and other buffers, each with `room` bytes, as one
/// chain.
///
/// Returns the message and the number of buffers used. Returns `None` if the message is longer than the
/// receive or a buffer is missing.
#[inline(always)]
pub(crate) fn message<P: Packet>(
    first: &mut Option<P>,
    others: &mut [Option<P>],
    len: u32,
    room: u32,
) -> Option<(P, usize)> {
    if len > room {
        return chain(first, others, len, room);
    }
    // An empty message uses one buffer too.
    let mut buf = first.take()?;
    buf.fill(len);
    Some((buf, 1))
}

fn chain<P: Packet>(
    first: &mut Option<P>,
    others: &mut [Option<P>],
    len: u32,
    room: u32,
) -> Option<(P, usize)> {
    let used = len.div_ceil(room.max(1)) as usize;
    let others = others.get_mut(..used.checked_sub(1)?)?;
    if first.is_none() || others.iter().any(Option::is_none) {
        return None;
    }
    let mut rest = len - (used as u32 - 1) * room;
    let mut chain: Option<P> = None;
    // From the end, so that each step appends a chain to a single buffer.
    for place in others.iter_mut().rev().chain([first]) {
        let mut buf = place.take()?;
        buf.fill(rest);
        rest = room;
        if let Some(tail) = chain.take() {
            buf.append(tail);
        }
        chain = Some(buf);
    }
    chain.map(|chain| (chain, used))
}

impl Packet for Mbuf {
    type Pool = Pool;

    fn segments(&self) -> usize {
        self.segment_count()
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, u32)> {
        Self::segments(self).map(|s| (s.address(), s.bytes.len() as u32))
    }

    #[inline(always)]
    fn only_piece(&self) -> Option<(u64, u32)> {
        let data = self.data();
        (self.segment_count() == 1 && !data.is_empty()).then_some((data.as_ptr() as u64, data.len() as u32))
    }

    fn room(&self) -> (u64, u32) {
        let (address, length) = self.buffer();
        (address + HEADROOM as u64, length.saturating_sub(HEADROOM) as u32)
    }

    #[inline(always)]
    fn fill(&mut self, len: u32) {
        let fits = self.set_received(len as usize) || self.set_received(0);
        debug_assert!(fits && self.len() == len as usize, "a receive of {len} bytes in one buffer");
    }

    fn lay(&mut self, at: usize, bytes: &[u8]) -> bool {
        let fits = self.set_data(HEADROOM, at + bytes.len());
        if let Some(to) = self.data_mut().get_mut(at..).filter(|_| fits) {
            to.copy_from_slice(bytes);
        }
        fits
    }

    fn append(&mut self, tail: Self) {
        self.append_chain(tail);
    }

    fn byte_before_data(&self, distance: usize) -> u8 {
        self.before_data(distance).and_then(<[u8]>::first).copied().unwrap_or(0)
    }

    fn free_all(batch: &mut Stash<Self>) {
        Self::free_bulk(batch);
    }
}

impl PacketPool<Mbuf> for Pool {
    fn room(&self) -> u32 {
        self.data_room() as u32
    }

    fn take(&mut self, count: usize, into: &mut Stash<Mbuf>) -> bool {
        count <= into.remaining_capacity() && self.take_bulk(count, into)
    }

    fn lies_within(&self, start: u64, len: u64) -> bool {
        self.zones().iter().all(|zone| {
            let offset = zone.address.wrapping_sub(start);
            offset <= len && zone.length <= len - offset
        })
    }
}
