//! Unreliable connections (IBA 9.8.2): messages are segmented and reassembled without acknowledges. A message
//! that lacks a packet is not reported, but its memory may have been partly written.

pub(super) mod requester;
pub(super) mod responder;
