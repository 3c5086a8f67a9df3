//! Extended reliable connections (IBA annex A14): attributes of their targets and shared receive queues.

use super::receive::Srq;
use ib_wire::packet::XrcEth;

/// An XRC domain. Requests that arrive at one of its targets reach its shared receive queues only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcDomain(pub u32);

/// Attributes that make a shared receive queue an XRC queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcQueue {
    /// XRC domain.
    pub domain: XrcDomain,
    /// Completion queue of its receives, whichever target they arrived at.
    pub cq: u32,
    /// Identifier in completions, 24 bits; `None` for the queue's number.
    pub user_index: Option<u32>,
}

/// The target of a connection. It has no receives: each request names a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) domain: XrcDomain,
    /// The queue named by the last request.
    pub(crate) named: Option<u32>,
}

/// The XRC shared receive queue that a request names, if it is in the target's domain.
pub(crate) fn find(srqs: &[Option<Srq>], domain: XrcDomain, xrc: XrcEth) -> Option<(u32, &Srq)> {
    let number = xrc.srqn.get();
    let srq = srqs.get(number as usize)?.as_ref()?;
    srq.xrc.is_some_and(|xrc| xrc.domain == domain).then_some((number, srq))
}
