//! How long the role holds without the control lcore: a gateway that others do not hear any more is replaced by one of them.
//!
//! ```text
//!   control lcore                          workers                                other gateways
//!     hello at t, lease end t + lease ──>   forward until t + lease                 heard at t + delay
//!     (hangs)                               at t + lease: drop as a standby does    at t + delay + lease: one takes over
//!     (goes on) resigns, listens            forward again when the role says so     resign if they rank worse
//! ```

use std::time::Instant;

use super::super::api::Why;
use super::super::message::Role;
use super::super::rivals::PROOF;
use super::Pair;

impl Pair {
    /// When workers stop forwarding unless the control lcore has renewed the lease by then: one lease after the last hello.
    /// `None` while no other gateway is heard: nobody would take over.
    #[must_use]
    pub const fn lease_end(&self) -> Option<Instant> {
        self.lease_end
    }

    /// Renews the lease. A gateway that is not believed takes over when the proof that this one forwards is too old for it.
    pub(super) fn renew_lease(&mut self, now: Instant) {
        let lease = self.settings.lease();
        let lease = if self.peers.alive(now).next().is_some() {
            Some(lease)
        } else {
            let has_strangers = self.strangers.is_near() || self.rivals.is_near(now);
            has_strangers.then_some(lease.min(PROOF))
        };
        self.lease_end = self.last_hello.zip(lease).map(|(last, lease)| last + lease);
    }

    /// The role of a forwarder whose lease ended before it was renewed: its workers have stopped, and another gateway may forward. It listens
    /// for a lease before it forwards again.
    pub(super) fn resigned_by_silence(&self, now: Instant) -> Option<(Role, Why)> {
        let is_over = self.lease_end.is_some_and(|end| now >= end);
        (is_over && self.role == Role::Forwarding).then_some((Role::Standby, Why::Silent))
    }
}
