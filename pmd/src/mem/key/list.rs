//! Lists of memory pieces for a key.

use crate::mem::Mbuf;
use crate::mem::packet::Packet;

/// Bytes of a piece in a list that a device reads.
const ENTRY: usize = 16;

/// A list has no room for another piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the list has room for {room} pieces of memory")]
pub struct ListFull {
    /// Most pieces.
    pub room: usize,
}

/// The memory of a registration.
#[derive(Debug)]
pub enum Memory<P = Mbuf> {
    /// The data of a buffer's segments, one behind the other. It belongs to the key until that is free again.
    Chain(P),
    /// What was put into the list with [`PageList::push`].
    Listed,
}

/// Pieces of memory that a key is to name, one behind the other. It belongs to the queues from the post of a registration to its
/// completion, which hands it back empty; several in flight make a pipeline. Nothing is allocated once it is made.
///
/// Nobody else can have it meanwhile:
///
/// ```compile_fail,E0382
/// use pmd::hca::{MemoryWork, RcSlot, Registration};
///
/// fn register(queues: &mut impl MemoryWork, slot: RcSlot, work: Registration) {
///     let Registration { key, mut list, memory, start, len, rights } = work;
///     let posted = queues.register(slot, 1, Registration { key, list, memory, start, len, rights });
///     list.clear(); // The device may be reading it.
/// }
/// ```
///
/// One that lies in a buffer loses it with its queue pair, if that is taken out while the device may still read there: the buffer goes
/// home when the queue pair is destroyed, and the list has no room any more.
#[derive(Debug)]
pub struct PageList<P = Mbuf> {
    pieces: Vec<(u64, u32)>,
    room: usize,
    /// Where the device reads a list that is too long for a work request.
    outside: Option<P>,
    len: u64,
}

impl<P: Packet> PageList<P> {
    /// An empty list for so many pieces, which go into the work request: up to 52 on mlx5.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { pieces: Vec::with_capacity(room), room, outside: None, len: 0 }
    }

    /// An empty list for as many pieces as `buffer`, fresh from its pool, has room for, 16 bytes each: there the device reads them. The
    /// pool is registered with the device.
    #[must_use]
    pub fn in_buffer(buffer: P) -> Self {
        let room = buffer.room().1 as usize / ENTRY;
        Self { outside: Some(buffer), ..Self::new(room) }
    }

    /// Most pieces.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.room
    }

    /// Pieces in it.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes of all pieces.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True if it has no byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all pieces.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
    }

    /// Adds a piece of registered memory; one of no bytes is left out.
    ///
    /// # Safety
    ///
    /// Until the key is free again these bytes stay, and nobody but the device and the key's holders touches them.
    pub unsafe fn push(&mut self, address: u64, bytes: u32) -> Result<(), ListFull> {
        self.add(address, bytes)
    }

    /// Adds the pages of `1 << shift` bytes, at most 2 GiB, that begin at these addresses; all or none.
    ///
    /// # Safety
    ///
    /// As [`PageList::push`].
    pub unsafe fn push_pages(&mut self, shift: u8, pages: &[u64]) -> Result<(), ListFull> {
        match 1_u32.checked_shl(shift.into()) {
            Some(bytes) if pages.len() <= self.room - self.pieces.len() => {
                pages.iter().try_for_each(|page| self.add(*page, bytes))
            }
            _ => Err(ListFull { room: self.room }),
        }
    }

    /// The pieces of a buffer, in place of what it held.
    pub(crate) fn fill(&mut self, chain: &P) -> Result<(), ListFull> {
        self.clear();
        chain.pieces().try_for_each(|(address, bytes)| self.add(address, bytes))
    }

    fn add(&mut self, address: u64, bytes: u32) -> Result<(), ListFull> {
        if bytes == 0 {
            return Ok(());
        }
        if self.pieces.len() >= self.room {
            return Err(ListFull { room: self.room });
        }
        self.pieces.push((address, bytes));
        self.len += u64::from(bytes);
        Ok(())
    }

    /// Address and bytes of each piece.
    pub(crate) fn pieces(&self) -> &[(u64, u32)] {
        &self.pieces
    }

    /// Leaves its buffer behind, and all room with it, if it lies in one.
    pub(crate) const fn leave(&mut self) -> Option<P> {
        let buffer = self.outside.take();
        if buffer.is_some() {
            self.room = 0;
        }
        buffer
    }

    /// Where the device is to read the list, if it was made so.
    pub(crate) const fn outside(&mut self) -> Option<&mut P> {
        self.outside.as_mut()
    }
}
