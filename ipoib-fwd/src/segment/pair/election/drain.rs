//! Drain: the operator takes a gateway out of service and puts it back.

use std::time::Instant;

use super::super::api::{Drain, NoSuccessor, Why};
use super::super::message::{Identity, Role};
use super::super::peers::Peer;
use super::{Pair, WARM};

impl Pair {
    /// The gateway that would forward if this one did not: it is able, hears us, and has been there for long
    /// enough to know the hosts.
    pub fn successor(&self, now: Instant) -> Result<Identity, NoSuccessor> {
        let mut able = self.peers.alive(now).filter(|p| {
            let stands_by = matches!(p.hello.role, Role::Standby | Role::Forwarding);
            p.hello.is_able() && stands_by && !p.hello.hears(self.own).is_none()
        });
        let warm = |p: &Peer| {
            p.hello.role == Role::Forwarding || now >= p.since + self.settings.hello.saturating_mul(WARM)
        };
        let first = able.next().ok_or(NoSuccessor::Alone)?;
        let mut all = std::iter::once(first).chain(able);
        all.find(|p| warm(p)).map(|p| p.who).ok_or(NoSuccessor::Cold)
    }

    /// True if there is, or may be in a moment, forwarding to hand over. A gateway that is blocked, drained,
    /// or without one of its sides forwards nothing in any case.
    #[must_use]
    pub const fn could_forward(&self) -> bool {
        self.up.is_both() && !matches!(self.role, Role::Blocked | Role::Drained)
    }

    /// Takes the gateway out of service by `requested`. If there is nothing to hand over, it waits for no
    /// successor and does not start to forward later. A gateway that already hands over continues with that,
    /// unless `requested` is [`Drain::Alone`]. Returns the kind of drain in effect.
    pub fn drain(&mut self, now: Instant, requested: Drain) -> Drain {
        let how = match (self.drained, requested) {
            (Some(begun), Drain::HandOver) => begun,
            (None, Drain::HandOver) if !self.could_forward() => Drain::Alone,
            (_, requested) => requested,
        };
        self.set_drained(now, Some(how));
        how
    }

    /// Takes the gateway out of service, or puts it back. A drained gateway hands over in order. If no other
    /// gateway takes over meanwhile, it forwards again.
    pub fn set_drained(&mut self, now: Instant, drained: Option<Drain>) {
        if self.drained != drained {
            self.drained = drained;
            self.next_hello = now;
            // Back in service, and from there to its present role.
            self.evaluate_for(now, None);
            self.handle_timeout(now);
        }
    }

    /// True if the operator has taken it out of service.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.drained.is_some()
    }

    /// Puts a drained gateway without a successor back into service: the other one may have gone at that
    /// moment.
    pub(super) fn look_for_successor(&mut self, now: Instant) {
        let waits = self.drained == Some(Drain::HandOver) && !self.leaves;
        if waits && !self.peers.alive(now).any(|p| p.hello.role == Role::Forwarding) {
            self.drained = None;
            self.not_before = None;
            // Back in service, and from there to its present role.
            self.evaluate_for(now, Some(Why::NoSuccessor));
            self.evaluate_for(now, None);
        }
    }
}
