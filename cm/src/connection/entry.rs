//! One connection as the table keeps it.

use std::time::{Duration, Instant};

use ib_wire::cm::{Failover, Message, RetryCount};
use ib_wire::mad::MadAddress;
use ib_wire::{CommId, Guid, Lid, Psn, Qpn, Tid, TimeoutCode};

use super::DisconnectCause;
use super::state::State;
use crate::{Origin, Path, Subnet};

/// A message that is sent again until its answer comes.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) message: Message,
    pub(super) tid: Tid,
    /// Repetitions left.
    pub(super) retries: u8,
}

/// What an active connection remembers of its request until the REP comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub(super) path: Path,
    pub(super) starting_psn: Psn,
    pub(super) retry_count: RetryCount,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// `Some` if we asked for it.
    pub(super) active: Option<Active>,
    /// What our REP says about the alternate path.
    pub(super) failover: Failover,
    /// The owner wants to hear nothing but the release.
    pub(super) abandoned: bool,
    /// What the owner will hear when the connection has ended.
    pub(super) cause: DisconnectCause,
    pub(super) peer: MadAddress,
    /// The port at the other end. It does not change: no alternate path is ever taken, so there is no path to migrate to.
    pub(super) origin: Origin,
    /// The port that it counts for, if the peer has begun it.
    pub(super) payer: Origin,
    pub(super) remote_comm_id: CommId,
    pub(super) remote_ca_guid: Option<Guid>,
    pub(super) remote_qpn: Option<Qpn>,
    pub(super) local_qpn: Option<Qpn>,
    /// Transaction id of the REQ (passive) or REP (active) that came: answers carry it.
    pub(super) peer_tid: Tid,
    pub(super) pending: Option<Box<Pending>>,
    /// Service time of our last MRA, to say it again.
    pub(super) service_timeout: TimeoutCode,
    pub(super) deadline: Option<Instant>,
    /// Time between repetitions.
    pub(super) timeout: Duration,
    pub(super) max_retries: u8,
    /// Time in TIMEWAIT, and what an MRA adds for the way.
    pub(super) way: Duration,
}

impl Entry {
    /// The index key that the peer's communication id gives.
    pub(super) fn remote_id_key(&self) -> Option<(Origin, Guid, CommId)> {
        self.remote_ca_guid.map(|guid| (self.origin, guid, self.remote_comm_id))
    }

    /// The index key that the peer's queue pair gives.
    pub(super) fn remote_qp_key(&self) -> Option<(Origin, Guid, Qpn)> {
        Some((self.origin, self.remote_ca_guid?, self.remote_qpn?))
    }

    /// True if a datagram comes from the port that the connection is with, as far as the device reports where from. Communication ids
    /// are no proof: others may have seen them. Where both have a GRH, the GUIDs count too: virtual ports share a LID. Behind a router
    /// the GID alone counts, since any router may forward a datagram. A peer that has begun the connection goes on as it began: with a
    /// LID, and with a GRH if there was one. Of the others only the path is known, and not what they send by.
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
