//! Lists of memory pieces for keys.

use crate::mem::Mbuf;
use crate::mem::packet::Packet;

/// Length of an entry in a list that a device reads, in bytes.
const ENTRY: usize = 16;
/// Lists are padded to groups of this many entries for the device.
pub(crate) const GROUP: usize = 4;
/// Alignment in bytes of a list outside its work request (Linux's `MLX5_UMR_ALIGN`).
const ALIGN: u64 = 2048;

/// The list has no room for another piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the list has room for {room} pieces of memory")]
pub struct ListFull {
    /// Maximum number of pieces.
    pub room: usize,
}

/// Memory of a registration.
#[derive(Debug)]
pub enum Memory<P = Mbuf> {
    /// The data of a buffer's segments, in order. The key owns the buffer until the key is free again.
    Chain(P),
    /// The pieces added to the list with [`PageList::push`].
    Listed,
}

/// The memory pieces of a key, in the order of its address range. They need not be contiguous in memory.
///
/// The queues own the list from the post of a registration to its completion, which returns it empty. Use
/// several lists for a pipeline. It allocates only on creation.
///
/// While it is posted, the caller cannot access it:
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
/// A list in a buffer loses the buffer if its queue pair is removed while the device may still read it. The
/// buffer is then freed with the queue pair, and the list has no room any more.
#[derive(Debug)]
pub struct PageList<P = Mbuf> {
    pieces: Vec<(u64, u32)>,
    room: usize,
    /// Memory for a list that is too long for a work request.
    outside: Option<Outside<P>>,
    len: u64,
}

/// Memory of a list outside its work request.
#[derive(Debug)]
pub(crate) struct Outside<P> {
    buffer: P,
    /// Offset of the list in the buffer.
    offset: usize,
}

impl<P: Packet> Outside<P> {
    /// Returns the address of the list for the device.
    pub(crate) fn address(&self) -> u64 {
        self.buffer.room().0 + self.offset as u64
    }

    /// Writes `bytes` at offset `at` of the list. Returns false if there is no room.
    pub(crate) fn lay(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.buffer.lay(self.offset + at, bytes)
    }
}

impl<P: Packet> PageList<P> {
    /// Creates an empty list with room for `room` pieces, which are copied into the work request: up to 52 on
    /// mlx5.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self { pieces: Vec::with_capacity(room), room, outside: None, len: 0 }
    }

    /// Creates an empty list in `buffer`, with room for all pieces of 16 bytes that fit. The device reads
    /// them there.
    ///
    /// The buffer must be fresh from its pool, and the pool must be registered with the device. The list
    /// starts at the first multiple of 2,048 bytes in the buffer, so up to 2,047 bytes are unused. A buffer
    /// with 4,096 bytes of room holds at least 124 pieces.
    #[must_use]
    pub fn in_buffer(buffer: P) -> Self {
        let (address, len) = buffer.room();
        let offset = (address.next_multiple_of(ALIGN) - address) as usize;
        let room = (len as usize).saturating_sub(offset) / ENTRY / GROUP * GROUP;
        Self { outside: Some(Outside { buffer, offset }), ..Self::new(room) }
    }

    /// Maximum number of pieces.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.room
    }

    /// Number of pieces.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Total length of all pieces in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True if the list contains no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes all pieces.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.len = 0;
    }

    /// Adds a piece of registered memory. An empty piece is omitted.
    ///
    /// # Safety
    ///
    /// The bytes stay valid until the key is free again. Until then only the device and the users of the key
    /// access them.
    pub unsafe fn push(&mut self, address: u64, bytes: u32) -> Result<(), ListFull> {
        self.add(address, bytes)
    }

    /// Adds pages of `1 << shift` bytes, at most 2 GiB, at these addresses; all or none.
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

    /// Replaces the contents with the segments of a buffer.
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

    /// Returns address and length of each piece.
    pub(crate) fn pieces(&self) -> &[(u64, u32)] {
        &self.pieces
    }

    /// Gives up the buffer of the list, and with it all room.
    pub(crate) fn leave(&mut self) -> Option<P> {
        let outside = self.outside.take()?;
        self.room = 0;
        Some(outside.buffer)
    }

    /// Returns the memory of the list, if it is outside the work request.
    pub(crate) const fn outside(&mut self) -> Option<&mut Outside<P>> {
        self.outside.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer without memory that only has an address.
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
            // The last byte of the room is writable, and the next one is not.
            if room > 0 {
                assert!(outside.lay((room - GROUP) * ENTRY, &[0; GROUP * ENTRY]));
            }
            assert!(!outside.lay(room * ENTRY, &[0; GROUP * ENTRY]), "{address:#x} {len}");
        }
    }
}
