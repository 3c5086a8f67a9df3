//! Packet buffers: DPDK mbufs in hugepage pools, owned like any other value.
//!
//! An [`Mbuf`] is a chain of segments with one owner. Dropping it returns it to its [`Pool`]. Pools consist
//! of whole memory zones ([`Pool::zones`]), which are registered with host channel adapters once at startup.

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

/// Headroom of a fresh buffer in bytes.
pub const HEADROOM: usize = 128;

#[cfg(test)]
mod tests;
