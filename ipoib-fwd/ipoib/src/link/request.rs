//! What a link asks of the services that it shares with the other links of its port, and the answers to that.
//!
//! A link does not call them: it leaves its requests in a queue, in order, and [`crate::port::Port`] carries them out.

use std::net::Ipv4Addr;

use cm::connection::{AcceptParams, ConnectRequest};
use cm::port::{Ask, PathKey, PathQuery};
use hca::RcSlot;
use ib_wire::Gid;
use ib_wire::mad::MadAddress;
use ib_wire::sa::{McMask, McMemberRecord};

use super::action::ConnKey;
use super::settings::WorkerIndex;

/// A request to the port's services.
#[derive(Debug)]
pub(crate) enum Request {
    /// Join a group. Answer: [`super::Link::join_answered`].
    Join { group: Ipv4Addr, sm: MadAddress, record: McMemberRecord, mask: McMask },
    /// Leave one, joined or asked for. Answer: [`super::Link::leave_answered`].
    Leave { group: Ipv4Addr, sm: MadAddress, record: McMemberRecord, mask: McMask },
    /// Query what a group is like that we may not join. Answer: [`super::Link::group_answered`].
    QueryGroup { group: Ipv4Addr, sm: MadAddress, mgid: Gid },
    /// No answer to a join is wanted any more.
    CancelJoin(Ipv4Addr),
    /// Look a path up. Answer: [`super::Link::path_answered`].
    Path { query: PathQuery, ask: Ask },
    /// The link needs a path no more.
    ForgetPath(PathKey),
    /// Send a REQ. Its handshake's events follow, the last of them [`super::Link::handshake_over`].
    Connect { conn: ConnKey, request: Box<ConnectRequest> },
    /// Send the REP.
    Accept { conn: ConnKey, with: Box<AcceptParams> },
    /// Send the RTU.
    Ready(ConnKey),
    /// Data came before the RTU.
    Data(ConnKey),
    /// End the handshake in the way that fits how far it has come. [`super::Link::handshake_over`] follows.
    Close {
        conn: ConnKey,
        /// If the peer has no answer yet: there is nothing to serve it with.
        no_resources: bool,
    },
    /// A connection that a peer opened has no place any more, and needs none: it counts no longer in its port's share.
    Departed(ConnKey),
    /// A connection's place is free again.
    FreeSlot { worker: WorkerIndex, slot: RcSlot },
}
