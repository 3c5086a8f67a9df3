//! A connection in the table.

use std::time::{Duration, Instant};

use ib_wire::cm::{Failover, Message, RetryCount};
use ib_wire::mad::MadAddress;
use ib_wire::{CommId, Guid, Lid, Psn, Qpn, Tid, TimeoutCode};

use super::DisconnectCause;
use super::state::State;
use crate::{Origin, Path, Subnet};

/// A message that is retransmitted until its response arrives.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) message: Message,
    pub(super) tid: Tid,
    /// Number of remaining retransmissions.
    pub(super) retries: u8,
}

/// State of an active connection until the REP arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub(super) path: Path,
    pub(super) starting_psn: Psn,
    pub(super) retry_count: RetryCount,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// `Some` for a connection that the local end initiated.
    pub(super) active: Option<Active>,
    /// Statement of the REP about the alternate path.
    pub(super) failover: Failover,
    /// True if the owner only wants the release event.
    pub(super) abandoned: bool,
    /// Cause to report when the connection has ended.
    pub(super) cause: DisconnectCause,
    pub(super) peer: MadAddress,
    /// The remote port. It never changes: alternate paths are not accepted, so there is no migration.
    pub(super) origin: Origin,
    /// The port whose share it counts against, if the peer initiated it.
    pub(super) payer: Origin,
    pub(super) remote_comm_id: CommId,
    pub(super) remote_ca_guid: Option<Guid>,
    pub(super) remote_qpn: Option<Qpn>,
    pub(super) local_qpn: Option<Qpn>,
    /// Transaction ID of the received REQ (passive) or REP (active), for responses.
    pub(super) peer_tid: Tid,
    pub(super) pending: Option<Box<Pending>>,
    /// Service time of the last MRA sent, for retransmissions.
    pub(super) service_timeout: TimeoutCode,
    pub(super) deadline: Option<Instant>,
    /// Retransmission interval.
    pub(super) timeout: Duration,
    pub(super) max_retries: u8,
    /// Time in TIMEWAIT, and the transit time that an MRA adds.
    pub(super) way: Duration,
}

impl Entry {
    /// Returns the index key of the peer's communication ID.
    pub(super) fn remote_id_key(&self) -> Option<(Origin, Guid, CommId)> {
        self.remote_ca_guid.map(|guid| (self.origin, guid, self.remote_comm_id))
    }

    /// Returns the index key of the peer's queue pair.
    pub(super) fn remote_qp_key(&self) -> Option<(Origin, Guid, Qpn)> {
        Some((self.origin, self.remote_ca_guid?, self.remote_qpn?))
    }

    /// True if a datagram comes from the connection's port, as far as the device reports the source.
    ///
    /// - Communication IDs prove nothing, because others may have seen them.
    /// - If both sides have a GRH, the GUIDs must match too: virtual ports share a LID.
    /// - Behind a router only the GID counts, since any router may forward a datagram.
    /// - A peer that initiated the connection keeps its form of address: with a LID, and with a GRH if there
    ///   was one.
    /// - For other peers only the path is known, and not the addresses they send from.
    pub(super) fn is_from(&self, subnet: Subnet, from: &MadAddress) -> bool {
        let is_same_lid = if from.lid == Lid(0) {
            self.peer.lid == Lid(0) || self.active.is_some()
        } else {
            subnet.is_same_port(from.lid, self.peer.lid)
        };
        match (self.peer.route, from.route) {
            (Some(ours), Some(theirs)) => {
                let is_same_guid = ours.gid.id() == theirs.gid.id();
                let is_routed = ours.gid == theirs.gid && theirs.gid.prefix() != subnet.prefix;
                is_same_guid && (is_same_lid || is_routed)
            }
            (Some(_), None) => is_same_lid && self.active.is_some(),
            (None, _) => is_same_lid,
        }
    }
}
