//! Requests of a link to the services that it shares with the other links of its port.
//!
//! A link does not call the services: it queues its requests in order, and [`crate::port::Port`] executes
//! them.

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
    /// Leave a group that is joined or whose join is pending. Answer: [`super::Link::leave_answered`].
    Leave { group: Ipv4Addr, sm: MadAddress, record: McMemberRecord, mask: McMask },
    /// Query the parameters of a group that we may not join. Answer: [`super::Link::group_answered`].
    QueryGroup { group: Ipv4Addr, sm: MadAddress, mgid: Gid },
    /// The answer to a join is no longer needed.
    CancelJoin(Ipv4Addr),
    /// Look a path up. Answer: [`super::Link::path_answered`].
    Path { query: PathQuery, ask: Ask },
    /// The link no longer needs a path.
    ForgetPath(PathKey),
    /// Send a REQ. Its handshake's events follow, the last of them [`super::Link::handshake_over`].
    Connect { conn: ConnKey, request: Box<ConnectRequest> },
    /// Send the REP.
    Accept { conn: ConnKey, with: Box<AcceptParams> },
    /// Send the RTU.
    Ready(ConnKey),
    /// Data came before the RTU.
    Data(ConnKey),
    /// End the handshake in the way that fits its state. [`super::Link::handshake_over`] follows.
    Close {
        conn: ConnKey,
        /// The reason if the peer has no answer yet: no resources to serve it.
        no_resources: bool,
    },
    /// A connection that a peer opened has no slot any more and needs none: it no longer counts in its port's
    /// share.
    Departed(ConnKey),
    /// A connection's slot is free again.
    FreeSlot { worker: WorkerIndex, slot: RcSlot },
}
