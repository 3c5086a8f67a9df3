//! A host's ARP responder: answers for its own addresses and no others.

use std::net::Ipv4Addr;
use std::time::Instant;

use super::action::{Asker, Event, ReceivedArp};
use super::machine::Link;
use super::settings::WorkerIndex;
use ib_wire::ipoib::ArpOperation;

/// Answers ARP requests for a host's own IPv4 addresses.
#[derive(Clone, Debug, Default)]
pub struct ArpResponder {
    own: Vec<(Ipv4Addr, WorkerIndex)>,
}

impl ArpResponder {
    /// Answers for each address with the link-layer address of its worker.
    #[must_use]
    pub fn new(own: impl IntoIterator<Item = (Ipv4Addr, WorkerIndex)>) -> Self {
        Self { own: own.into_iter().collect() }
    }

    /// The worker that owns `ip`, if it is ours.
    #[must_use]
    pub fn owner(&self, ip: Ipv4Addr) -> Option<WorkerIndex> {
        self.own.iter().find(|(own, _)| *own == ip).map(|(_, worker)| *worker)
    }

    /// Answers a request for one of our addresses; true if `event` was one.
    pub fn handle_event(&self, now: Instant, link: &mut Link, event: &Event) -> bool {
        let Event::Arp(ReceivedArp { packet, lid, .. }) = event else { return false };
        if packet.operation != ArpOperation::Request || packet.sender_ip == packet.target_ip {
            return false;
        }
        let Some(worker) = self.owner(packet.target_ip) else { return false };
        let to = Asker { hardware: packet.sender, lid: *lid };
        link.reply(now, worker, packet.target_ip, to, packet.sender_ip);
        true
    }
}
