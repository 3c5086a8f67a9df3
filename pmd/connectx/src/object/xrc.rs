//! Extended reliable connections (IBA annex A14): what their receiving ends and their shared receive queues have beside others.

use super::receive::Srq;
use ib_wire::packet::XrcEth;

/// An XRC domain: requests that come by a target of it get to the shared receive queues of it, and to no others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcDomain(pub u32);

/// What makes a shared receive queue an XRC one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcQueue {
    /// Its domain.
    pub domain: XrcDomain,
    /// Completion queue of its receives, whatever target they came by.
    pub cq: u32,
    /// What completions call it, 24 bits; `None` for its number.
    pub user_index: Option<u32>,
}

/// The receiving end of a connection: it has no receives, but each request names the shared receive queue that it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) domain: XrcDomain,
    /// The queue that the last request was for.
    pub(crate) named: Option<u32>,
}

/// The XRC shared receive queue that a request to a target of this domain is for, if it may be.
pub(crate) fn find(srqs: &[Option<Srq>], domain: XrcDomain, xrc: XrcEth) -> Option<(u32, &Srq)> {
    let number = xrc.srqn.get();
    let srq = srqs.get(number as usize)?.as_ref()?;
    srq.xrc.is_some_and(|xrc| xrc.domain == domain).then_some((number, srq))
}
