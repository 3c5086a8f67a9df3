//! What is under way while others are asked: claims to addresses, and questions for which one side has the first word.

use std::time::Instant;

use ib_wire::ipoib::Arp as InfiniBandArp;
use ipoib::link::WorkerIndex;
use ipoib::net::arp::{ArpOperation, EthernetArp};
use pmd::hca::UdSource;

use super::pair::Place;

/// The packet that claims an address, to be answered if the address moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    Ethernet(EthernetArp),
    InfiniBand { worker: WorkerIndex, from: UdSource, arp: InfiniBandArp },
}

impl Claim {
    /// Where the address is, if the claim is right.
    pub(super) const fn place(&self) -> Place {
        match self {
            Self::Ethernet(arp) => Place::Ethernet(arp.sender_mac),
            Self::InfiniBand { arp, .. } => Place::InfiniBand(arp.sender),
        }
    }
}

/// What an InfiniBand host asks for, while its own side may answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    pub(super) until: Instant,
    /// What an Ethernet host has answered meanwhile.
    pub(super) answer: Option<EthernetArp>,
}

impl Lookup {
    /// An Ethernet host speaks for the address. What it asked for itself is answered later, whatever it has said since.
    pub(super) fn take(&mut self, arp: EthernetArp) {
        let asks =
            |arp: &EthernetArp| arp.operation == ArpOperation::Request && arp.sender_ip != arp.target_ip;
        let asked = self.answer.is_some_and(|before| before.sender_mac == arp.sender_mac && asks(&before));
        if !asked || asks(&arp) {
            self.answer = Some(arp);
        }
    }
}
