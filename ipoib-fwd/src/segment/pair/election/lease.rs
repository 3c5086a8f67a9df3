//! The lease: how long the role holds without the control lcore. A gateway that others no longer hear is
//! replaced by one of them.
//!
//! ```text
//!   control lcore                          workers                                other gateways
//!     hello at t, lease end t + lease ──>   forward until t + lease                 heard at t + delay
//!     (hangs)                               at t + lease: drop as a standby does    at t + delay + lease: one takes over
//!     (goes on) resigns, listens            forward again when the role says so     resign if they rank worse
//! ```
//!
//! While all other gateways are out of service the lease is longer. A gateway that comes back and does not
//! hear the forwarder waits for the end of the longer lease: the forwarder may not have heard that it is
//! back.

use std::time::{Duration, Instant};

use super::super::api::{DELAY, Why, lease};
use super::super::loops;
use super::super::message::{Identity, Role};
use super::super::peers::Peer;
use super::super::rivals::PROOF;
use super::{HANDOVER, Pair};

/// Shortest stall of the control lcore that can end the lease: the last hello, or the last probe, may be
/// almost a period old when the stall starts.
#[must_use]
pub fn shortest_stall(hello: Duration) -> Duration {
    (lease(hello) - hello).min(PROOF - loops::PERIOD)
}

/// The lease of a gateway whose peers are all out of service. A shorter one would stop it unnecessarily when
/// its control lcore hangs.
fn long_lease(lease: Duration) -> Duration {
    lease.saturating_mul(3).saturating_add(HANDOVER)
}

/// When this gateway was last out of service, by its hellos: a side was down, or it was drained or about to
/// exit.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutOfService {
    since: Instant,
    until: Option<Instant>,
}

impl OutOfService {
    /// A gateway that starts has no sides.
    pub(super) const fn new(now: Instant) -> Self {
        Self { since: now, until: None }
    }

    fn note(&mut self, now: Instant, is_able: bool) {
        match (is_able, self.until) {
            (true, None) => self.until = Some(now),
            // Hellos that were sent before others heard of the return are still in flight.
            (false, Some(until)) if now < until + DELAY => self.until = None,
            (false, Some(_)) => *self = Self::new(now),
            _ => {}
        }
    }

    /// True if a hello that was heard then may be of a gateway that has its longer lease: it has not heard
    /// yet that this one is back.
    fn lengthens(&self, heard: Instant) -> bool {
        heard >= self.since + HANDOVER && self.until.is_none_or(|until| heard < until + DELAY)
    }
}

/// True if a gateway may start to forward when it does not hear this one any more. A block expires. A gateway
/// that is drained goes back into service if no other one forwards at the end of its handover.
fn may_take_over(at: Instant, peer: &Peer) -> bool {
    peer.unable_since.is_none_or(|since| at < since + HANDOVER)
}

impl Pair {
    /// When workers stop forwarding unless the control lcore has renewed the lease by then. `None` while no
    /// other gateway is heard.
    #[must_use]
    pub const fn lease_end(&self) -> Option<Instant> {
        self.lease_end
    }

    /// Renews the lease. A believed gateway takes over one lease after the last hello. A gateway that is not
    /// believed takes over when the proof that this one forwards is too old, however long the hello interval
    /// is: the last probe counts as the last hello does.
    pub(super) fn renew_lease(&mut self, now: Instant) {
        let lease = self.settings.lease();
        // Other gateways judge by when they hear a hello, so the last hello decides and not the present time.
        let last_hello = self.last_hello.unwrap_or(now);
        self.lease_end = if self.peers.alive(now).any(|peer| may_take_over(last_hello, peer)) {
            self.last_hello.map(|last| last + lease)
        } else if self.strangers.are_on_both_sides(now) || self.rivals.is_near(now) {
            self.last_hello.max(self.loops.last_probe()).map(|last| last + lease.min(PROOF))
        } else if self.peers.alive(now).next().is_some() {
            self.last_hello.map(|last| last + long_lease(lease))
        } else {
            None
        };
    }

    /// Records whether this gateway is in service.
    pub(super) fn note_own_service(&mut self, now: Instant) {
        self.out_of_service.note(now, self.is_able());
    }

    /// A gateway that was not heard for a lease and may still forward, since it has its longer lease.
    pub(super) fn bound_forwarder(&self, now: Instant) -> Option<&Peer> {
        let is_bound = |peer: &&Peer| {
            let heard = peer.last_heard().filter(|_| peer.may_have_long_lease);
            heard.is_some_and(|heard| now < heard + long_lease(peer.hello.lease))
        };
        self.peers.known().filter(|peer| peer.hello.role == Role::Forwarding).find(is_bound)
    }

    /// The role of a forwarder whose lease ended before it was renewed: its workers have stopped, and another
    /// gateway may forward. It listens for a lease before it forwards again.
    pub(super) fn resigned_by_silence(&self, now: Instant) -> Option<(Role, Why)> {
        let is_over = self.lease_end.is_some_and(|end| now >= end);
        (is_over && self.role == Role::Forwarding).then_some((Role::Standby, Why::Silent))
    }

    /// Records whether the sender of a hello that arrives now may have the longer lease. Later absences do not
    /// change that.
    pub(super) fn note_lease_of(&mut self, now: Instant, who: Identity) {
        self.peers.set_long_lease(who, self.out_of_service.lengthens(now));
    }
}
