//! State of open queries: claims to addresses, and lookups for which one side is queried first.

use std::time::{Duration, Instant};

use ib_wire::ipoib::{Arp as InfiniBandArp, ArpOperation as InfiniBandOperation};
use ipoib::link::WorkerIndex;
use ipoib::net::arp::{ArpOperation, EthernetArp};
use pmd::hca::UdSource;

use super::limits::By;
use super::pair::Place;
use crate::forward::Side;

/// How long an answer of the requester's own side is awaited after each of two queries. A router that answers
/// for every address is quicker than the owner.
pub(super) const OWN_SIDE_ANSWER: Duration = Duration::from_millis(125);

/// The packet that claims an address, to be answered if the address moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    Ethernet(EthernetArp),
    InfiniBand { worker: WorkerIndex, from: UdSource, arp: InfiniBandArp },
}

impl Claim {
    /// The side that it came from.
    pub(super) const fn side(&self) -> Side {
        match self {
            Self::Ethernet(_) => Side::Ethernet,
            Self::InfiniBand { .. } => Side::InfiniBand,
        }
    }

    /// The host on whose behalf the claim is verified.
    pub(super) const fn by(&self) -> By {
        match self {
            Self::Ethernet(arp) => By::Ethernet(arp.sender_mac),
            Self::InfiniBand { from, .. } => By::Lid(from.slid),
        }
    }

    /// True for an announcement, which is forwarded once the claim is proven.
    pub(super) fn announces(&self) -> bool {
        match self {
            Self::Ethernet(arp) => arp.sender_ip == arp.target_ip,
            Self::InfiniBand { arp, .. } => arp.sender_ip == arp.target_ip,
        }
    }

    /// The same claim of a packet that has been served: it requests nothing any more.
    pub(super) const fn served(mut self) -> Self {
        match &mut self {
            Self::Ethernet(arp) => arp.operation = ArpOperation::Reply,
            Self::InfiniBand { arp, .. } => arp.operation = InfiniBandOperation::Reply,
        }
        self
    }

    /// The same claim as an announcement: its host is announced on the other side once it is proven.
    pub(super) const fn announced(mut self) -> Self {
        match &mut self {
            Self::Ethernet(arp) => arp.target_ip = arp.sender_ip,
            Self::InfiniBand { arp, .. } => arp.target_ip = arp.sender_ip,
        }
        self
    }

    /// The location of the address, if the claim is right.
    pub(super) const fn place(&self) -> Place {
        match self {
            Self::Ethernet(arp) => Place::Ethernet(arp.sender_mac),
            Self::InfiniBand { arp, .. } => Place::InfiniBand(arp.sender),
        }
    }
}

/// An address that a host requests, while a host of the requester's own side may answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    /// The requester's side: a host of the other one is proven if this one stays silent.
    pub(super) own: Side,
    pub(super) until: Instant,
    /// When that side is queried for the second time; `None` afterwards.
    pub(super) again: Option<Instant>,
    /// The host has announced itself. The announcement is forwarded to the requester's side once the host is
    /// proven.
    pub(super) announces: bool,
    /// The answer of an Ethernet host in the meantime.
    pub(super) answer: Option<EthernetArp>,
    /// Time of that answer.
    pub(super) answered: Option<Instant>,
}

impl Lookup {
    /// Records that the first query was sent.
    pub(super) fn new(now: Instant, own: Side) -> Self {
        let again = now + OWN_SIDE_ANSWER;
        let until = again + OWN_SIDE_ANSWER;
        Self { own, until, again: Some(again), announces: false, answer: None, answered: None }
    }

    /// Records that the second query was sent, perhaps late: the full time for the answer starts now.
    pub(super) fn query_repeated(&mut self, now: Instant) {
        (self.again, self.until) = (None, now + OWN_SIDE_ANSWER);
    }

    /// Time of the next action.
    pub(super) fn due(&self) -> Instant {
        self.again.unwrap_or(self.until)
    }

    /// An Ethernet host answers for the address. The request that it sent itself is answered later, whatever
    /// it has sent since.
    pub(super) fn take(&mut self, now: Instant, arp: EthernetArp) {
        self.answered = Some(now);
        let is_request =
            |arp: &EthernetArp| arp.operation == ArpOperation::Request && arp.sender_ip != arp.target_ip;
        let requested =
            self.answer.is_some_and(|before| before.sender_mac == arp.sender_mac && is_request(&before));
        if !requested || is_request(&arp) {
            self.answer = Some(arp);
        }
    }
}
