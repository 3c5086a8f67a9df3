//! Inputs of a gateway: messages and probes, the state of its sides, its settings.

use std::time::Instant;

use ib_wire::Guid;
use ipoib::net::probe::Nonce;

use super::super::api::{Disbelief, Event, Station, Why};
use super::super::echo::Echo;
use super::super::loops::Sign;
use super::super::message::{
    Body, Hello, Identity, Message, MessageError, Neighbour, Role, SegmentId, Side, SideSet,
};
use super::super::peers::Reception;
use super::Pair;

impl Pair {
    /// Handles a message that arrived on a side, without that side's header.
    pub fn handle_message(&mut self, now: Instant, side: Side, bytes: &[u8]) -> Result<(), MessageError> {
        if let Some(echo) = Echo::parse(bytes) {
            self.handle_echo(now, side, echo);
            return Ok(());
        }
        let message = match Message::parse(bytes, self.settings.key) {
            Ok(message) => message,
            Err(error) => {
                self.statistics.rejected += 1;
                let were_here = self.strangers.are_on(now, side);
                let report = self.strangers.unreadable(now, side, error);
                self.report_stranger(now, side, report, were_here);
                return Err(error);
            }
        };
        let is_of_gateway = message.from.is_same_gateway(self.own);
        let is_ours = is_of_gateway && message.side == side;
        let who = (message.from.guid, message.segment);
        let is_sibling = is_ours && who != (self.own.guid, self.settings.segment);
        if is_sibling {
            self.meet(now, side, who);
        }
        if !self.is_same_segment(now, side, &message, is_sibling) {
            self.statistics.other_segment += 1;
            return Ok(());
        }
        // This includes messages of an earlier run.
        if is_of_gateway && message.from.guid == self.own.guid {
            if message.side != side {
                self.suspect_loop(now, side);
            } else if self.loops.is_multiplied(message.sequence) {
                self.statistics.multiplied += 1;
                self.events.push_back(Event::Multiplied { side });
            }
            return Ok(());
        }
        // A message of the other side was carried across, but not by a gateway, which forwards none. Its
        // sender will hear it as well.
        if message.side != side {
            self.statistics.old += 1;
            return Ok(());
        }
        match message.body {
            Body::Hello(hello) => self.handle_hello(now, side, message.from, message.sequence, hello),
            Body::Neighbours(list) => self.handle_neighbours(now, side, message.from, message.sequence, list),
        }
        Ok(())
    }

    /// True if a message is from a gateway of this segment. Equal configurations show that, and so does being
    /// heard on both sides, unless the partitions differ: then it is a stranger.
    fn is_same_segment(&mut self, now: Instant, side: Side, message: &Message, is_sibling: bool) -> bool {
        let own = self.settings.segment;
        if is_sibling || message.segment == own {
            return message.segment == own;
        }
        // A bridge that carries hellos across would make us a stranger to ourselves.
        if message.side != side || !self.strangers.is_on_both_sides(now, side, message.from) {
            return false;
        }
        let is_same = message.segment.is_same_partition(own);
        if !is_same {
            let were_here = self.strangers.are_on(now, side);
            let report = self.strangers.elsewhere(now, side);
            self.report_stranger(now, side, report, were_here);
        }
        is_same
    }

    /// Handles a hello of ours that arrived on the other side. If signed, it was sent there. Without a key
    /// any host that hears hellos can forge it. Probes prove a loop: no station on the other side knows their
    /// nonces.
    fn suspect_loop(&mut self, now: Instant, side: Side) {
        if self.settings.key.is_some() {
            self.block(now, Sign::Hello, side);
        } else {
            self.statistics.suspected += 1;
            self.probe_soon(now);
        }
    }

    fn probe_soon(&mut self, now: Instant) {
        self.loops.probe_soon(now);
        self.wake = self.wake.min(self.loops.next_probe());
    }

    /// Reports a gateway that is not believed. The first message of one on a side triggers probes: it may
    /// join the same two networks.
    fn report_stranger(&mut self, now: Instant, side: Side, report: bool, were_here: bool) {
        if let Some((why, ..)) = self.strangers.reported().filter(|_| report) {
            self.events.push_back(Event::Stranger { why: Some(why) });
        }
        self.wake = self.wake.min(self.strangers.poll_timeout().unwrap_or(self.wake));
        if !were_here && self.strangers.are_on(now, side) {
            self.probe_soon(now);
        }
    }

    /// The reported stranger between these two networks, if there is one: why it is not believed, where it is
    /// heard, and since when.
    #[must_use]
    pub fn stranger(&self) -> Option<(Disbelief, SideSet, Instant)> {
        self.strangers.reported()
    }

    /// Handles another segment of this gateway on the same network.
    fn meet(&mut self, now: Instant, side: Side, who: (Guid, SegmentId)) {
        self.statistics.siblings += 1;
        self.events.push_back(Event::Sibling { guid: who.0, side });
        let sides = self.siblings.hear(now, side, who, self.settings.lease());
        let own = (self.own.guid, self.settings.segment);
        // Segments with the same id elect one of them.
        if sides.is_both() && who.1 != own.1 && (own.0, own.1.0) > (who.0, who.1.0) {
            self.block(now, Sign::Sibling, side);
        }
    }

    fn handle_hello(&mut self, now: Instant, side: Side, who: Identity, sequence: u64, hello: Hello) {
        match self.peers.hello(now, who, side, sequence, hello) {
            Reception::New => {
                self.statistics.received += 1;
                self.note_lease_of(now, who);
                // It should hear us soon.
                self.hurry(now);
            }
            Reception::Known { blocked } => {
                self.statistics.received += 1;
                self.note_lease_of(now, who);
                if blocked && matches!(self.role, Role::Standby) {
                    self.listened = false;
                    self.evaluate_for(now, Some(Why::PeerBlocked));
                }
            }
            Reception::Old => self.statistics.old += 1,
            Reception::Full => self.statistics.no_room += 1,
        }
        self.handle_timeout(now);
    }

    fn handle_neighbours(
        &mut self,
        now: Instant,
        side: Side,
        who: Identity,
        sequence: u64,
        list: Vec<Neighbour>,
    ) {
        // Only the forwarder's hosts are authoritative, and only a standby needs them.
        let forwards = self.peers.alive(now).any(|p| p.who == who && p.hello.role == Role::Forwarding);
        if forwards && self.peers.is_news(who, side, sequence) && self.role != Role::Forwarding {
            self.statistics.received += 1;
            self.events.push_back(Event::Neighbours(list));
        } else {
            self.statistics.old += 1;
        }
    }

    /// Handles a probe of any station that arrived on a side.
    pub fn handle_probe(&mut self, now: Instant, side: Side, nonce: Nonce) {
        if self.loops.is_of_other_side(side, nonce) {
            self.block(now, Sign::Probe, side);
        } else if !self.loops.is_own(nonce) {
            self.answer_probe(now, side, nonce);
        }
    }

    /// Records that a side is up or down.
    pub fn handle_side(&mut self, now: Instant, side: Side, up: bool) {
        if self.up.has(side) != up {
            let was_up = self.up.is_both();
            self.up = self.up.with(side, up);
            if was_up {
                self.side_lost = Some(now);
            }
            // Another gateway may report unheard that it starts.
            self.listened &= !self.up.is_none();
            let resumes = self.up.is_both() && self.end_absence(now);
            self.next_hello = now;
            self.evaluate_for(now, resumes.then_some(Why::SidesUp));
            self.handle_timeout(now);
        }
    }

    /// Sets our own addresses.
    pub fn set_station(&mut self, station: Station) {
        self.station = station;
    }

    /// Sets the priority.
    pub fn set_priority(&mut self, now: Instant, priority: u8) {
        self.settings.priority = priority;
        self.next_hello = now;
        self.handle_timeout(now);
    }

    /// Sets the segment id after a change of the gateways' subnet: from now on the gateways with the same id
    /// count.
    pub const fn set_segment(&mut self, segment: SegmentId) {
        self.settings.segment = segment;
    }

    /// The gateway is about to exit: another one may forward at once.
    pub fn leave(&mut self, now: Instant) {
        self.leaves = true;
        self.next_hello = now;
        self.handle_timeout(now);
    }
}
