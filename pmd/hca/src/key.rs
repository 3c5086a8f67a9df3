//! Memory keys, and the rights that they grant.

/// A memory key: an index in the device's table (24 bits) and a tag (8 bits). A new registration under the
/// same index uses the next tag, so that holders of the old key are refused (IBA 10.6.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryKey(u32);

impl MemoryKey {
    /// Creates a key from its 32 bits.
    #[must_use]
    pub const fn new(bits: u32) -> Self {
        Self(bits)
    }

    /// Its 32 bits, as an lkey or an rkey.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The index in the device's table.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The tag, which is chosen by the owner.
    #[must_use]
    pub const fn tag(self) -> u8 {
        self.0 as u8
    }

    /// The same index with the next tag. Tag 0 is skipped, because a device leaves it in a freed key.
    #[must_use]
    pub const fn next(self) -> Self {
        let tag = match self.tag().wrapping_add(1) {
            0 => 1,
            tag => tag,
        };
        Self(self.0 & 0xffff_ff00 | tag as u32)
    }
}

impl std::fmt::Debug for MemoryKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Rights that a key grants. The owner's device may always read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeyRights {
    /// The owner's device may write: receives and RDMA READ responses.
    pub local_write: bool,
    /// Peers may read.
    pub remote_read: bool,
    /// Peers may write; needs `local_write` (IBA 10.6.3).
    pub remote_write: bool,
    /// Peers may execute atomic operations; needs `local_write`.
    pub remote_atomic: bool,
}

impl KeyRights {
    /// For the owner's own sends and receives.
    pub const LOCAL: Self =
        Self { local_write: true, remote_read: false, remote_write: false, remote_atomic: false };
    /// For the owner's own sends.
    pub const SEND: Self =
        Self { local_write: false, remote_read: false, remote_write: false, remote_atomic: false };
    /// For a peer's RDMA READs.
    pub const READ: Self =
        Self { local_write: false, remote_read: true, remote_write: false, remote_atomic: false };
    /// For a peer's RDMA WRITEs.
    pub const WRITE: Self =
        Self { local_write: true, remote_read: false, remote_write: true, remote_atomic: false };

    /// True if a device accepts this combination.
    #[must_use]
    pub const fn are_consistent(self) -> bool {
        self.local_write || !(self.remote_write || self.remote_atomic)
    }
}

/// How a device registers memory from a send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastRegistration {
    /// The operation.
    pub by: RegisteredBy,
    /// Most memory ranges of one key.
    pub max_pieces: u32,
    /// A peer's SEND can invalidate a key.
    pub remote_invalidate: bool,
    /// An RDMA READ can invalidate the key that its response is written to.
    pub read_invalidate: bool,
}

/// The operation that registers a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisteredBy {
    /// UMR entries of mlx5: any list of memory ranges.
    Umr,
    /// Type 2 memory windows: one range of one registered region.
    Window,
}

/// What a memory operation waits for (IBA 10.8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fence {
    /// Queue order only.
    #[default]
    None,
    /// Completion of earlier RDMA READs and atomics.
    Reads,
    /// Completion of all earlier requests.
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_255_tags_and_never_the_one_of_a_freed_key() {
        let first = MemoryKey::new(0x1234_5601);
        let mut key = first;
        for _ in 0..255 {
            assert_eq!((key.index(), key.tag() == 0), (0x12_3456, false));
            key = key.next();
        }
        assert_eq!(key, first);
        assert_eq!(MemoryKey::new(0xff).next(), MemoryKey::new(1));
    }

    #[test]
    fn peers_write_only_where_the_owner_may() {
        assert!(KeyRights::WRITE.are_consistent() && KeyRights::READ.are_consistent());
        assert!(!KeyRights { remote_write: true, ..KeyRights::READ }.are_consistent());
        assert!(!KeyRights { remote_atomic: true, ..KeyRights::default() }.are_consistent());
    }
}
