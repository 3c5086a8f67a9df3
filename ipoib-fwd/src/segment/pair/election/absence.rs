//! A side that was down for a moment: whether another gateway may have started to forward in the meantime.
//!
//! ```text
//!   last hello at t   side down at d            back at b                      others that heard only the hello at t
//!   ──────┴──────────────────┴───────────────────┴──────────> forward at once   may start at t + lease
//!         │ <= hello interval │ < lease - hello    │
//! ```
//!
//! A subnet manager that moves may take a port down for some 50 ms. A gateway that listened after each such
//! moment would drop packets for about a second, although no other gateway can have taken over.

use std::time::{Duration, Instant};

use super::super::message::Role;
use super::super::peers::Peer;
use super::Pair;

impl Pair {
    /// Both sides are up again. Returns true if this gateway need not listen before it forwards.
    pub(super) fn end_absence(&mut self, now: Instant) -> bool {
        let lost = self.side_lost.take();
        let is_short = lost.is_some_and(|lost| now < lost + self.longest_absence());
        self.listened &= is_short && !self.may_be_replaced(now);
        if self.listened {
            // No gateway has heard that it resigned, so it need not wait for one.
            self.not_before = None;
        }
        self.listened
    }

    /// A gateway that hears nothing of this one starts to forward one lease after the last hello, which was
    /// sent at most one interval before the side went down.
    const fn longest_absence(&self) -> Duration {
        self.settings.lease().saturating_sub(self.settings.hello)
    }

    /// True if another gateway may have started to forward when this one reported the loss of a side. A peer
    /// that listens, is drained, about to exit, or without one of its sides has not: it would have reported
    /// that on the side that was up. If its side comes back at the same moment, the better one of the two
    /// continues. Gateways that are not believed hear no hellos, but they notice missing echoes.
    fn may_be_replaced(&self, now: Instant) -> bool {
        let may_start = |peer: &Peer| match peer.unable_since {
            Some(since) => peer.rank() < self.rank() && now < since + peer.hello.lease,
            None => peer.hello.role != Role::Listening,
        };
        self.peers.alive(now).any(may_start) || self.strangers.is_near() || self.rivals.is_near(now)
    }
}
