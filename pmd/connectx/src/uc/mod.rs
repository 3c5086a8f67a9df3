//! What is done for unreliable connections (IBA 9.8.2): messages are cut into packets and put together again, and nobody
//! acknowledges anything. Of a message that lacks a packet nothing is heard; only its place in memory may have been written to.

pub(super) mod requester;
pub(super) mod responder;
