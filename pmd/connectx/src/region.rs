//! The memory behind a key or a ring: one range, or many if the host's pages are scattered.

use crate::memory::HostMemory;

/// The memory behind a key or a ring.
#[derive(Clone, Debug)]
pub enum RegionMemory {
    /// One contiguous range.
    Whole(HostMemory),
    /// Several ranges.
    Pieces(MemoryPieces),
}

impl From<HostMemory> for RegionMemory {
    fn from(memory: HostMemory) -> Self {
        Self::Whole(memory)
    }
}

impl From<MemoryPieces> for RegionMemory {
    fn from(pieces: MemoryPieces) -> Self {
        match &*pieces.pieces {
            [(0, memory)] => Self::Whole(*memory),
            _ => Self::Pieces(pieces),
        }
    }
}

/// Memory ranges, each at its own offset. There may be holes between them.
#[derive(Clone, Debug, Default)]
pub struct MemoryPieces {
    pieces: Box<[(u64, HostMemory)]>,
    len: u64,
    holes: bool,
}

impl MemoryPieces {
    /// Builds the list from ranges in ascending order of offset. Ranges that are also adjacent in memory are
    /// merged. `None` if they overlap, are out of order, or end behind the last address.
    #[must_use]
    pub fn new(pieces: impl IntoIterator<Item = (u64, HostMemory)>) -> Option<Self> {
        let mut list: Vec<(u64, HostMemory)> = Vec::new();
        let (mut len, mut holes) = (0, false);
        for (offset, memory) in pieces {
            if memory.is_empty() {
                continue;
            }
            if offset < len {
                return None;
            }
            let hole = offset > len;
            holes |= hole;
            len = offset.checked_add(memory.len() as u64)?;
            match list.last_mut().filter(|_| !hole).and_then(|(_, last)| Some((last.joined(&memory)?, last)))
            {
                Some((joined, last)) => *last = joined,
                None => list.push((offset, memory)),
            }
        }
        Some(Self { pieces: list.into(), len, holes })
    }

    /// Number of ranges.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.pieces.len()
    }

    /// The range that contains byte `offset`, from that byte on.
    fn from(&self, offset: u64) -> Option<HostMemory> {
        let behind = self.pieces.partition_point(|&(at, _)| at <= offset);
        let &(at, memory) = self.pieces.get(behind.checked_sub(1)?)?;
        let skip = usize::try_from(offset - at).ok()?;
        memory.part(skip, memory.len().checked_sub(skip).filter(|&left| left > 0)?)
    }
}

impl RegionMemory {
    /// Bytes from the first to the last.
    #[must_use]
    pub const fn len(&self) -> u64 {
        match self {
            Self::Whole(memory) => memory.len() as u64,
            Self::Pieces(pieces) => pieces.len,
        }
    }

    /// True if there is no memory at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `len` bytes at `offset`, if they are contiguous.
    #[inline]
    #[must_use]
    pub fn slot(&self, offset: usize, len: usize) -> Option<HostMemory> {
        self.first(offset as u64, len).filter(|memory| memory.len() == len)
    }

    /// Copies the bytes at `offset` to `out`; false if some are missing.
    #[inline]
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        if let Self::Whole(memory) = self {
            return memory.part(offset, out.len()).is_some_and(|memory| memory.read(out));
        }
        let (mut at, mut rest) = (offset as u64, out);
        loop {
            let Some(memory) = self.first(at, rest.len()) else { return false };
            let Some((head, tail)) = rest.split_at_mut_checked(memory.len()) else { return false };
            memory.read(head);
            if tail.is_empty() {
                return true;
            }
            at += head.len() as u64;
            rest = tail;
        }
    }

    /// Copies the `N` bytes at `offset`; `None` if some are missing.
    #[inline(always)]
    pub(crate) fn array<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let mut out = [0; N];
        self.read(offset, &mut out).then_some(out)
    }

    /// True if there is memory for all `len` bytes at `offset`.
    pub(crate) fn has(&self, offset: u64, len: usize) -> bool {
        let Some(end) = offset.checked_add(len as u64).filter(|&end| end <= self.len()) else { return false };
        let Self::Pieces(pieces) = self else { return true };
        if !pieces.holes {
            return true;
        }
        let mut at = offset;
        while at < end {
            let Some(piece) = pieces.from(at) else { return false };
            at += piece.len() as u64;
        }
        true
    }

    /// The first contiguous range of the `len` bytes at `offset`, all of which must exist.
    #[inline]
    pub(crate) fn first(&self, offset: u64, len: usize) -> Option<HostMemory> {
        match self {
            Self::Whole(memory) => memory.part(usize::try_from(offset).ok()?, len),
            Self::Pieces(pieces) => {
                if !self.has(offset, len) {
                    return None;
                }
                if len == 0 {
                    return pieces.pieces.first().and_then(|(_, memory)| memory.part(0, 0));
                }
                let piece = pieces.from(offset)?;
                piece.part(0, piece.len().min(len))
            }
        }
    }
}
