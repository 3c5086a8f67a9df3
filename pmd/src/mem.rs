//! Packet buffers in hugepage pools.
use std::ptr::NonNull;

/// placeholder
#[derive(Debug)]
pub struct Mbuf;
/// placeholder
#[derive(Debug)]
pub struct Pool;

impl Pool {
    /// The memory zones that its buffers lie in, address and bytes.
    pub fn zones(&self) -> Vec<(NonNull<u8>, usize)> {
        Vec::new()
    }
}
