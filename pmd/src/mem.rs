//! Packet buffers in hugepage pools.
/// placeholder
#[derive(Debug)]
pub struct Mbuf;
/// placeholder
#[derive(Debug)]
pub struct Pool;
