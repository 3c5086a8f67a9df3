//! How long the role holds without the control lcore: a gateway that others do not hear any more is replaced by one of them.
//!
//! ```text
//!   control lcore                          workers                                other gateways
//!     hello at t, lease end t + lease ──>   forward until t + lease                 heard at t + delay
//!     (hangs)                               at t + lease: drop as a standby does    at t + delay + lease: one takes over
//!     (goes on) resigns, listens            forward again when the role says so     resign if they rank worse
//! ```

use std::time::{Duration, Instant};

use super::super::api::{Why, lease};
use super::super::loops;
use super::super::message::Role;
use super::super::peers::Peer;
use super::super::rivals::PROOF;
use super::{HANDOVER, Pair};

/// Shortest time for which the control lcore does not run that can end the lease: the last hello, or the last probe, may be almost a period old
/// when the stall begins.
#[must_use]
pub fn shortest_stall(hello: Duration) -> Duration {
    (lease(hello) - hello).min(PROOF - loops::PERIOD)
}

/// True if a gateway may start to forward when it does not hear this one any more. A block ends by itself. A gateway that is drained goes
/// back into service if no other one forwards at the end of its handover.
fn may_take_over(now: Instant, peer: &Peer) -> bool {
    peer.unable_since.is_none_or(|since| now < since + HANDOVER)
}

impl Pair {
    /// When workers stop forwarding unless the control lcore has renewed the lease by then. `None` while no other gateway that could take
    /// over is heard.
    #[must_use]
    pub const fn lease_end(&self) -> Option<Instant> {
        self.lease_end
    }

    /// Renews the lease. A believed gateway takes over one lease after the last hello. A gateway that is not believed takes over when the
    /// proof that this one forwards is too old, however long the time between two hellos is: the last probe counts as the last hello does.
    pub(super) fn renew_lease(&mut self, now: Instant) {
        let lease = self.settings.lease();
        self.lease_end = if self.peers.alive(now).any(|peer| may_take_over(now, peer)) {
            self.last_hello.map(|last| last + lease)
        } else if self.strangers.are_on_both_sides(now) || self.rivals.is_near(now) {
            self.last_hello.max(self.loops.last_probe()).map(|last| last + lease.min(PROOF))
        } else {
            None
        };
    }

    /// The role of a forwarder whose lease ended before it was renewed: its workers have stopped, and another gateway may forward. It listens
    /// for a lease before it forwards again.
    pub(super) fn resigned_by_silence(&self, now: Instant) -> Option<(Role, Why)> {
        let is_over = self.lease_end.is_some_and(|end| now >= end);
        (is_over && self.role == Role::Forwarding).then_some((Role::Standby, Why::Silent))
    }
}
