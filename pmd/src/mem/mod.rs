//! Packet buffers: DPDK mbufs in hugepage pools, owned like any other value.
//!
//! An [`Mbuf`] is a chain of segments with one owner; dropping it gives it back to its [`Pool`]. Pools lie in whole memory
//! zones ([`Pool::zones`]), which are registered with host channel adapters once at start.

mod chain;
pub mod key;
mod mbuf;
mod offload;
pub mod packet;
mod pool;

pub use chain::Segment;
pub use mbuf::{Mbuf, Single};
pub use offload::{FrameFacts, FrameTag};
pub(crate) use pool::free_late;
pub use pool::{Pool, PoolConfig, PoolError, Zone, pools_left};

/// Bytes in front of the data of a fresh buffer.
pub const HEADROOM: usize = 128;

#[cfg(test)]
mod tests;
