//! Election against gateways that are not believed and forward between the same two networks: one continues,
//! the other is blocked.

use std::time::Instant;

use arrayvec::ArrayVec;

use super::super::api::{Event, Transmit, Why};
use super::super::echo::Echo;
use super::super::message::{Identity, MAX_PEERS, Role, Side};
use super::Pair;
use ipoib::net::probe::Nonce;

impl Pair {
    /// Handles another gateway's probe: if this one forwards, an echo proves to the other one that both join
    /// the same two networks.
    pub(super) fn answer_probe(&mut self, now: Instant, side: Side, nonce: Nonce) {
        let forwards = self.role == Role::Forwarding || self.hands_over();
        if forwards && self.up.has(side.other()) && self.echo_budget.take(now, side, nonce) {
            let echo = Echo { nonce, from: self.own, priority: self.settings.priority };
            self.transmits.push_back(Transmit::Message(side.other(), echo.to_bytes()));
        }
    }

    /// Handles an echo that arrived on a side.
    pub(super) fn handle_echo(&mut self, now: Instant, side: Side, echo: Echo) {
        // Other segments of this gateway are `siblings`; with peers that are believed the election decides.
        if echo.from.is_same_gateway(self.own) || self.believes(now, echo.from) {
            return;
        }
        if !self.loops.is_of_other_side(side, echo.nonce) {
            return;
        }
        self.rivals.hear(now, side, echo.from, echo.priority);
        self.handle_timeout(now);
    }

    /// The best rival that keeps this gateway from forwarding: any rival, or only one that ranks better if
    /// this gateway already forwards.
    fn rival(&self, now: Instant) -> Option<Identity> {
        let forwards = self.role == Role::Forwarding;
        let (rank, who) = *self.rivals.proven(now).first()?;
        (!forwards || rank < self.rank()).then_some(who)
    }

    /// Forgets rivals that are believed by now, including those that are gone.
    pub(super) fn forget_believed_rivals(&mut self, now: Instant) {
        let believed: ArrayVec<Identity, MAX_PEERS> = self.believed(now).collect();
        self.rivals.forget(|who| believed.contains(&who));
    }

    fn believes(&self, now: Instant, who: Identity) -> bool {
        self.believed(now).any(|peer| peer == who)
    }

    /// The gateways with which the election decides. Where networks that were split meet again, an echo may
    /// overtake the first hello. So with a key a gateway that was believed before stays believed. Without a
    /// key the hellos may have been forged: then only a live gateway is believed.
    fn believed(&self, now: Instant) -> impl Iterator<Item = Identity> {
        let is_keyed = self.is_keyed();
        self.peers.remembered(now).filter(move |peer| is_keyed || peer.is_alive(now)).map(|peer| peer.who)
    }

    /// Replaces a role by `Blocked` if a rival forwards.
    pub(super) fn unless_rival(&mut self, now: Instant, (to, why): (Role, Why)) -> (Role, Why) {
        let was_blocked = self.role == Role::Blocked;
        match self.rival(now) {
            Some(who) if to == Role::Forwarding || was_blocked => {
                self.listened = false;
                (Role::Blocked, Why::Rival(who))
            }
            _ => (to, why),
        }
    }

    /// Reports that a rival has blocked this gateway.
    pub(super) fn report_block(&mut self, why: Why) {
        if let Why::Rival(who) = why {
            self.statistics.loops += 1;
            self.events.push_back(Event::Blocked { by: who });
        }
    }

    /// Reports a rival that ranks worse: this gateway continues.
    pub(super) fn report_lesser_rival(&mut self, now: Instant) {
        let forwards = self.role == Role::Forwarding;
        let rivals = self.rivals.proven(now);
        let lesser = rivals.first().map(|(_, who)| *who).filter(|_| forwards);
        if lesser != self.lesser_rival {
            self.lesser_rival = lesser;
            self.announce_again(now);
            self.events.extend(lesser.map(|who| Event::Rival { who }));
        }
    }
}
