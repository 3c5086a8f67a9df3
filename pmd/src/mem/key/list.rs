//! Lists of memory pieces for a key.

use crate::mem::Mbuf;
use crate::mem::packet::Packet;

/// Bytes of a piece in a list that a device reads.
const ENTRY: usize = 16;
/// Pieces are laid out for the device in groups of this many.
pub(crate) const GROUP: usize = 4;
/// A list outside of its work request begins at a multiple of this many bytes (Linux's `MLX5_UMR_ALIGN`).
const ALIGN: u64 = 2048;

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
    outside: Option<Outside<P>>,
    len: u64,
}

/// Memory of a list outside of its work request.
#[derive(Debug)]
pub(crate) struct Outside<P> {
    buffer: P,
    /// Where the list begins in the buffer's room.
    offset: usize,
}

impl<P: Packet> Outside<P> {
    /// Where the device reads the list.
    pub(crate) fn address(&self) -> u64 {
        self.buffer.room().0 + self.offset as u64
    }

    /// Writes `bytes` at byte `at` of the list; false if there is no room.
    pub(crate) fn lay(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.buffer.lay(self.offset + at, bytes)
    }
}

impl<P: Packet> PageList<P> {
    /// An empty list for so many pieces, which go into the work request: up to 52 on mlx5.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { pieces: Vec::with_capacity(room), room, outside: None, len: 0 }
    }

    /// An empty list for as many pieces as `buffer`, fresh from its pool, has room for, 16 bytes each: there the device reads them. The
    /// pool is registered with the device.
    ///
    /// The list begins at the first multiple of 2,048 bytes in the buffer, so that up to 2,047 bytes are lost: at least 124 pieces fit
    /// 4,096 bytes of room.
    #[must_use]
    pub fn in_buffer(buffer: P) -> Self {
        let (address, len) = buffer.room();
        let offset = (address.next_multiple_of(ALIGN) - address) as usize;
        let room = (len as usize).saturating_sub(offset) / ENTRY / GROUP * GROUP;
        Self { outside: Some(Outside { buffer, offset }), ..Self::new(room) }
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
    pub(crate) fn leave(&mut self) -> Option<P> {
        let outside = self.outside.take()?;
        self.room = 0;
        Some(outside.buffer)
    }

    /// Where the device is to read the list, if it was made so.
    pub(crate) const fn outside(&mut self) -> Option<&mut Outside<P>> {
        self.outside.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer without memory, for its address.
    #[derive(Debug)]
    struct At(u64, u32);

    impl crate::mem::packet::PacketPool<At> for () {
        fn room(&self) -> u32 {
            0
        }

        fn take(&mut self, _: usize, _: &mut crate::mem::packet::Stash<At>) -> bool {
            false
        }

        fn lies_within(&self, _: u64, _: u64) -> bool {
            true
        }
    }

    impl Packet for At {
        type Pool = ();

        fn segments(&self) -> usize {
            1
        }

        fn pieces(&self) -> impl Iterator<Item = (u64, u32)> {
            [(self.0, self.1)].into_iter()
        }

        fn room(&self) -> (u64, u32) {
            (self.0, self.1)
        }

        fn fill(&mut self, _: u32) {}

        fn lay(&mut self, at: usize, bytes: &[u8]) -> bool {
            at + bytes.len() <= self.1 as usize
        }

        fn append(&mut self, _: Self) {}

        fn byte_before_data(&self, _: usize) -> u8 {
            0
        }
    }

    #[test]
    fn a_list_in_a_buffer_begins_at_a_multiple_of_2048() {
        for (address, len, begin, room) in [
            (0x10_0000, 4096, 0x10_0000, 256),
            (0x10_0040, 4096, 0x10_0800, 132),
            (0x10_0001, 4096, 0x10_0800, 128),
            (0x10_07ff, 4096, 0x10_0800, 252),
            (0x10_0800, 2048, 0x10_0800, 128),
            (0x10_0840, 2048, 0x10_1000, 4),
            (0x10_0001, 2048, 0x10_0800, 0),
            (0x10_0001, 64, 0x10_0800, 0),
        ] {
            let mut list = PageList::in_buffer(At(address, len));
            assert_eq!(list.room(), room, "{address:#x} {len}");
            let outside = list.outside().unwrap();
            assert_eq!(outside.address(), begin);
            // The last byte of the room is there, and no byte behind it.
            if room > 0 {
                assert!(outside.lay((room - GROUP) * ENTRY, &[0; GROUP * ENTRY]));
            }
            assert!(!outside.lay(room * ENTRY, &[0; GROUP * ENTRY]), "{address:#x} {len}");
        }
    }
}
