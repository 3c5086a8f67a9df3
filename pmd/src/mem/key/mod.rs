//! Typed handles of memory keys that are registered from a send queue.
//!
//! A key is in one of four states. Each call moves it to the next:
//!
//! ```text
//!               register                   completion
//!   FreeKey ───────────────> (the queues) ───────────> RegisteredKey
//!      ^                          │ flushed                  │ invalidate, or a peer's SEND did
//!      │ recreated                v                          v
//!      └─────────────────── DoubtfulKey <───────────── (the queues) ──> FreeKey
//! ```
//!
//! Each registration increments the tag internally, so callers cannot forget it.

mod list;
mod pool;

use ::hca::{KeyRights, MemoryKey};

pub(crate) use list::GROUP;
pub use list::{ListFull, Memory, PageList};
pub use pool::{KeyPool, KeyPoolConfig, KeyPoolStatistics};

/// A key without memory. It exists until its device is closed, or until it is returned to the device.
#[derive(PartialEq, Eq, Debug)]
pub struct FreeKey {
    key: MemoryKey,
    pieces: u32,
}

impl FreeKey {
    /// Wraps a key created by a device, with room for `pieces` pieces. Only backends may call it.
    #[must_use]
    pub const fn new(key: MemoryKey, pieces: u32) -> Self {
        Self { key, pieces }
    }

    /// Returns the key with the tag of its last registration.
    #[must_use]
    pub const fn key(&self) -> MemoryKey {
        self.key
    }

    /// Maximum number of memory pieces.
    #[must_use]
    pub const fn pieces(&self) -> u32 {
        self.pieces
    }
}

/// A key with memory. Peers and queues may use it as [`RegisteredKey::key`] until it is invalidated.
#[derive(Debug)]
pub struct RegisteredKey<P = super::Mbuf> {
    pub(crate) key: MemoryKey,
    pub(crate) pieces: u32,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) rights: KeyRights,
    pub(crate) memory: Option<P>,
}

impl<P> RegisteredKey<P> {
    /// Returns the key, which is both lkey and rkey.
    #[must_use]
    pub const fn key(&self) -> MemoryKey {
        self.key
    }

    /// Address of the first byte for users of the key.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True if the key covers no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Operations that the key permits.
    #[must_use]
    pub const fn rights(&self) -> KeyRights {
        self.rights
    }

    /// Handles a peer's SEND that invalidated `key` (see
    /// [`Source::RcInvalidated`](crate::hca::Source::RcInvalidated)). Returns the free key and its memory. If
    /// `key` is a different key, returns `self` unchanged.
    pub fn invalidated_by_peer(self, key: MemoryKey) -> Result<(FreeKey, Option<P>), Self> {
        if key == self.key { Ok(self.freed()) } else { Err(self) }
    }

    /// Converts an invalidated key to a free key and its memory.
    pub(crate) fn freed(mut self) -> (FreeKey, Option<P>) {
        (FreeKey { key: self.key, pieces: self.pieces }, self.memory.take())
    }

    /// Converts it to a key in an unknown state, because the connection ended and only that connection could
    /// invalidate it.
    #[must_use]
    pub fn abandon(mut self) -> DoubtfulKey<P> {
        DoubtfulKey { key: self.key, pieces: self.pieces, memory: self.memory.take() }
    }
}

// A peer may still write through the key, so memory that was not reclaimed must not be reused. The exception
// is a key that only local work requests could read: these have ended by now.
impl<P> Drop for RegisteredKey<P> {
    fn drop(&mut self) {
        let memory = self.memory.take();
        if self.rights != KeyRights::SEND {
            std::mem::forget(memory);
        }
    }
}

/// A key in an unknown state, because its queue pair failed during an operation on it.
///
/// The device recreates it ([`Backend::renew_key`](crate::hca::Backend::renew_key)), which also frees its
/// memory.
#[derive(Debug)]
pub struct DoubtfulKey<P = super::Mbuf> {
    pub(crate) key: MemoryKey,
    pub(crate) pieces: u32,
    pub(crate) memory: Option<P>,
}

impl<P> DoubtfulKey<P> {
    /// Returns the key with the tag of its last post.
    #[must_use]
    pub const fn key(&self) -> MemoryKey {
        self.key
    }

    /// Maximum number of memory pieces.
    #[must_use]
    pub const fn pieces(&self) -> u32 {
        self.pieces
    }

    /// Returns its memory, after the device has destroyed the key.
    pub(crate) fn forgotten(mut self) -> Option<P> {
        self.memory.take()
    }
}

impl<P> Drop for DoubtfulKey<P> {
    fn drop(&mut self) {
        std::mem::forget(self.memory.take());
    }
}
