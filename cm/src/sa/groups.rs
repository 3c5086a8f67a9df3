//! Multicast groups: what is asked of the SA for each kind of join, and how far each is.

use std::time::{Duration, Instant};

use ib_wire::sa::{JoinState, McMask, McMemberRecord, Selector};
use ib_wire::{Gid, PKey};

use super::{GroupState, JoinKind};
use crate::agent::RequestId;

/// First wait after a failure.
pub(super) const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest wait.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(16);

/// Where a wish stands: a membership or a subscription.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) request: Option<RequestId>,
    pub(super) failures: u32,
    /// Reached; a group's membership is its record instead.
    pub(super) done: bool,
    pub(super) deadline: Option<Instant>,
}

impl Progress {
    pub(super) const NEW: Self = Self { request: None, failures: 0, done: false, deadline: None };

    /// Wait before the next try.
    pub(super) fn backoff(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(4);
        (BACKOFF_MIN * (1 << doublings)).min(BACKOFF_MAX)
    }
}

/// One group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) kind: JoinKind,
    pub(super) progress: Progress,
    pub(super) joined: Option<McMemberRecord>,
}

impl Group {
    pub(super) const fn new(kind: JoinKind) -> Self {
        Self { kind, progress: Progress::NEW, joined: None }
    }

    pub(super) const fn state(&self) -> GroupState {
        match (&self.joined, self.progress.request) {
            (Some(record), _) => GroupState::Joined(*record),
            (None, Some(_)) => GroupState::Joining,
            (None, None) => GroupState::Waiting,
        }
    }
}

/// The part in a group that a kind of join asks for.
pub(super) const fn join_state(kind: JoinKind, send_only_full_member: bool) -> JoinState {
    match kind {
        JoinKind::SendOnly if send_only_full_member => JoinState::SEND_ONLY_FULL_MEMBER,
        _ => JoinState::FULL_MEMBER,
    }
}

/// The record and mask of a join.
pub(super) fn join_request(
    kind: JoinKind,
    mgid: Gid,
    port_gid: Gid,
    pkey: PKey,
    broadcast: Option<&McMemberRecord>,
    send_only_full_member: bool,
) -> (McMemberRecord, McMask) {
    let join_state = join_state(kind, send_only_full_member);
    let own = McMemberRecord { mgid, port_gid, pkey, join_state, ..McMemberRecord::default() };
    let own_mask = McMask::MGID | McMask::PORT_GID | McMask::PKEY | McMask::JOIN_STATE;
    let Some(b) = broadcast else { return (own, own_mask) };
    // Every group of a link has the attributes of its broadcast group (RFC 4391 section 5).
    let record = McMemberRecord {
        qkey: b.qkey,
        mtu_selector: Selector::Exactly,
        mtu: b.mtu,
        traffic_class: b.traffic_class,
        rate_selector: Selector::Exactly,
        rate: b.rate,
        sl: b.sl,
        flow_label: b.flow_label,
        hop_limit: b.hop_limit,
        ..own
    };
    let mask = own_mask
        | McMask::QKEY
        | McMask::MTU_SELECTOR
        | McMask::MTU
        | McMask::TRAFFIC_CLASS
        | McMask::RATE_SELECTOR
        | McMask::RATE
        | McMask::SL
        | McMask::FLOW_LABEL
        | McMask::HOP_LIMIT;
    (record, mask)
}
