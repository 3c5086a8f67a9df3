//! Memory keys that are given memory from a send queue, as their owners hold them.
//!
//! A key is in one of four hands, and moves from one to the next with each call:
//!
//! ```text
//!               register                   completion
//!   FreeKey ───────────────> (the queues) ───────────> RegisteredKey
//!      ^                          │ flushed                  │ invalidate, or a peer's SEND did
//!      │ made anew                v                          v
//!      └──────────────────── DoubtfulKey <───────────── (the queues) ──> FreeKey
//! ```
//!
//! The tag turns over with each registration, inside of it: no caller can forget it.

mod list;
mod pool;

use ::hca::{KeyRights, MemoryKey};

pub(crate) use list::GROUP;
pub use list::{ListFull, Memory, PageList};
pub use pool::{KeyPool, KeyPoolConfig, KeyPoolStatistics};

/// A key without memory. It lives in its device until that is closed, or is given back to it.
#[derive(PartialEq, Eq, Debug)]
pub struct FreeKey {
    key: MemoryKey,
    pieces: u32,
}

impl FreeKey {
    /// A key that a device has made, with room for so many pieces. For backends: nobody else may name a device's keys.
    #[must_use]
    pub const fn new(key: MemoryKey, pieces: u32) -> Self {
        Self { key, pieces }
    }

    /// As it was when it last had memory.
    #[must_use]
    pub const fn key(&self) -> MemoryKey {
        self.key
    }

    /// Most pieces of memory that it can name.
    #[must_use]
    pub const fn pieces(&self) -> u32 {
        self.pieces
    }
}

/// A key with memory: peers and queues may use it under [`RegisteredKey::key`] until it is invalidated.
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
    /// Its lkey and rkey.
    #[must_use]
    pub const fn key(&self) -> MemoryKey {
        self.key
    }

    /// Address that its users name its first byte by.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True for a key without a byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What may be done with it.
    #[must_use]
    pub const fn rights(&self) -> KeyRights {
        self.rights
    }

    /// What a peer's SEND made of it that invalidated `key` (see [`Source::RcInvalidated`](crate::hca::Source::RcInvalidated)): a free
    /// key and its memory. If that was another, the key comes back unchanged.
    pub fn invalidated_by_peer(self, key: MemoryKey) -> Result<(FreeKey, Option<P>), Self> {
        if key == self.key { Ok(self.freed()) } else { Err(self) }
    }

    /// It has no memory any more.
    pub(crate) fn freed(mut self) -> (FreeKey, Option<P>) {
        (FreeKey { key: self.key, pieces: self.pieces }, self.memory.take())
    }

    /// As a key of which nobody knows what it is: one whose connection has ended, on which alone it could be invalidated.
    #[must_use]
    pub fn abandon(mut self) -> DoubtfulKey<P> {
        DoubtfulKey { key: self.key, pieces: self.pieces, memory: self.memory.take() }
    }
}

// Whoever has the key can still write there: memory that nobody took back does not go home, but for what only work requests of the owner's
// may read, which have ended by then.
impl<P> Drop for RegisteredKey<P> {
    fn drop(&mut self) {
        let memory = self.memory.take();
        if self.rights != KeyRights::SEND {
            std::mem::forget(memory);
        }
    }
}

/// A key of which nobody knows what it is: its queue pair failed while an operation on it was on its way. The device makes it anew
/// ([`Backend::renew_key`](crate::hca::Backend::renew_key)), and then its memory is free.
#[derive(Debug)]
pub struct DoubtfulKey<P = super::Mbuf> {
    pub(crate) key: MemoryKey,
    pub(crate) pieces: u32,
    pub(crate) memory: Option<P>,
}

impl<P> DoubtfulKey<P> {
    /// As it was when it was posted last.
    #[must_use]
    pub const fn key(&self) -> MemoryKey {
        self.key
    }

    /// Most pieces of memory that it could name.
    #[must_use]
    pub const fn pieces(&self) -> u32 {
        self.pieces
    }

    /// Its memory, once the device has forgotten the key.
    pub(crate) fn forgotten(mut self) -> Option<P> {
        self.memory.take()
    }
}

impl<P> Drop for DoubtfulKey<P> {
    fn drop(&mut self) {
        std::mem::forget(self.memory.take());
    }
}
