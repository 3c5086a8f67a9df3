//! The record of a traced packet (`ctl trace`) from a worker: its origin, the lookup result, its outcome.

use std::sync::Arc;

use arrayvec::ArrayVec;
use dataplane::filter::{Filter, Look};
use dataplane::ring::Sender;
use pmd::hca::{RcSlot, Source};
use tap::TapDirection;

use crate::forward::{
    EndpointIndex, EthVerdict, EthernetIndex, IbVerdict, NeighbourIndex, Punt, SegmentIndex, Side, Via,
};
use ipoib::drop_reason::DropReason;
use ipoib::net::be16;
use ipoib::net::ethernet::MacAddress;

/// Most clients that trace packets at a time.
pub(in crate::gateway) const MAX_WATCHERS: usize = 4;
/// Bytes of a packet that are kept: link header, IPv4 header with options, ports.
const HEAD: usize = 96;

/// The TX path of a packet into the fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::gateway) enum Way {
    Connection(RcSlot),
    Datagram,
    Group,
}

/// Verdict of the forwarding step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::gateway) enum Lookup {
    /// To a host or group of the fabric; if it is fragmented, in fragments of at most this many bytes.
    ToInfiniBand {
        way: Way,
        neighbour: Option<NeighbourIndex>,
        pieces: Option<u16>,
    },
    /// To hosts on Ethernet.
    ToEthernet {
        to: MacAddress,
        neighbour: Option<NeighbourIndex>,
        pieces: Option<u16>,
    },
    /// It exceeds this MTU, and may not be fragmented.
    TooBig(u16),
    /// It goes to the control lcore.
    Punt(Punt),
    Drop(DropReason),
}

impl<D> From<&EthVerdict<'_, D>> for Lookup {
    fn from(verdict: &EthVerdict<'_, D>) -> Self {
        let way = |via: &Via<'_, D>| match via {
            Via::Rc(slot) => Way::Connection(*slot),
            Via::Ud(_) => Way::Datagram,
            Via::Group(_) => Way::Group,
        };
        match verdict {
            EthVerdict::Forward { via, neighbour, .. } => {
                Self::ToInfiniBand { way: way(via), neighbour: *neighbour, pieces: None }
            }
            EthVerdict::Fragment { via, neighbour, mtu, .. } => {
                Self::ToInfiniBand { way: way(via), neighbour: *neighbour, pieces: Some(*mtu) }
            }
            EthVerdict::TooBig { mtu, .. } => Self::TooBig(*mtu),
            EthVerdict::Punt(punt) => Self::Punt(*punt),
            EthVerdict::Drop(reason) => Self::Drop(*reason),
        }
    }
}

impl From<&IbVerdict> for Lookup {
    fn from(verdict: &IbVerdict) -> Self {
        match verdict {
            IbVerdict::Forward { to, neighbour, .. } => {
                Self::ToEthernet { to: *to, neighbour: *neighbour, pieces: None }
            }
            IbVerdict::Fragment { to, neighbour, mtu, .. } => {
                Self::ToEthernet { to: *to, neighbour: *neighbour, pieces: Some(*mtu) }
            }
            IbVerdict::TooBig { mtu } => Self::TooBig(*mtu),
            IbVerdict::Punt(punt) => Self::Punt(*punt),
            IbVerdict::Drop(reason) => Self::Drop(*reason),
        }
    }
}

/// Outcome of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::gateway) enum Outcome {
    /// Posted to a queue.
    Sent,
    /// Waits for a full queue, or for a port that accepts nothing.
    Waits,
    /// Handed over to the control lcore.
    HandedOver,
    /// Fragments: the number sent, and the reason why others were not.
    Pieces {
        sent: u16,
        dropped: Option<DropReason>,
    },
    Dropped(DropReason),
}

impl Outcome {
    /// A fragmented packet before its first fragment.
    pub(in crate::gateway) const NO_PIECES: Self = Self::Pieces { sent: 0, dropped: None };

    /// Adds the outcome of one more fragment.
    pub(in crate::gateway) const fn and(self, piece: Self) -> Self {
        let Self::Pieces { sent, dropped } = self else { return self };
        match piece {
            Self::Dropped(reason) => Self::Pieces { sent, dropped: Some(reason) },
            _ => Self::Pieces { sent: sent.saturating_add(1), dropped },
        }
    }

    /// Subtracts frames that the port dropped after a queue had accepted them.
    pub(in crate::gateway) fn less(self, dropped: u64, reason: DropReason) -> Self {
        match self {
            Self::Sent if dropped > 0 => Self::Dropped(reason),
            Self::Pieces { sent, dropped: None } if dropped > 0 => {
                let left = u64::from(sent).saturating_sub(dropped);
                Self::Pieces { sent: u16::try_from(left).unwrap_or(sent), dropped: Some(reason) }
            }
            other => other,
        }
    }
}

/// When a worker had the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::gateway) enum Step {
    /// On arrival.
    Arrived,
    /// After it waited for its path.
    Again,
}

/// The headers of a packet, and its origin.
#[derive(Clone, Debug)]
pub(in crate::gateway) struct Front {
    pub(in crate::gateway) side: Side,
    /// The ingress port on its side; `None` if it has waited.
    pub(in crate::gateway) port: Option<u8>,
    pub(in crate::gateway) segment: Option<SegmentIndex>,
    pub(in crate::gateway) vlan: u16,
    /// The source of a message.
    pub(in crate::gateway) source: Option<Source>,
    pub(in crate::gateway) length: u32,
    /// Its first bytes, starting with the link header.
    pub(in crate::gateway) head: ArrayVec<u8, HEAD>,
    /// Length of the link header among them.
    pub(in crate::gateway) skip: u8,
}

impl Front {
    /// The headers of a packet with these first bytes.
    pub(in crate::gateway) fn new(side: Side, head: &[u8], length: usize) -> Self {
        let kept = head.get(..HEAD).unwrap_or(head);
        Self {
            side,
            port: None,
            segment: None,
            vlan: 0,
            source: None,
            length: length as u32,
            head: kept.iter().copied().collect(),
            skip: side.header_len() as u8,
        }
    }

    /// The EtherType, and the packet behind the link header.
    pub(in crate::gateway) fn packet(&self) -> (u16, &[u8]) {
        let skip = usize::from(self.skip);
        let at = if self.side == Side::Ethernet { skip.saturating_sub(2) } else { 0 };
        (be16(&self.head, at).unwrap_or_default(), self.head.get(skip..).unwrap_or_default())
    }

    /// View of the packet for a filter.
    pub(in crate::gateway) fn look(&self) -> Look<'_> {
        let (ethertype, packet) = self.packet();
        Look {
            direction: match self.side {
                Side::Ethernet => TapDirection::Received,
                Side::InfiniBand => TapDirection::Sent,
            },
            macs: self.macs().map(|mac| mac.map(|mac| mac.0)),
            vlan: self.vlan,
            ethertype,
            packet,
        }
    }

    /// Source and destination MAC addresses of a frame.
    pub(in crate::gateway) fn macs(&self) -> [Option<MacAddress>; 2] {
        let mac = |at: usize| Some(MacAddress(self.head.get(at..at + 6)?.try_into().ok()?));
        if self.side == Side::Ethernet { [mac(6), mac(0)] } else { [None; 2] }
    }
}

/// The record of a traced packet.
#[derive(Clone, Debug)]
pub(in crate::gateway) struct Sighting {
    /// Nanoseconds since 1970.
    pub(in crate::gateway) time: u64,
    /// The clients that trace it, as a bit mask.
    pub(in crate::gateway) watchers: u8,
    pub(in crate::gateway) step: Step,
    pub(in crate::gateway) front: Front,
    pub(in crate::gateway) lookup: Lookup,
    pub(in crate::gateway) outcome: Outcome,
    /// Records before it that did not fit into the ring.
    pub(in crate::gateway) missed: u64,
}

/// The trace of one client.
#[derive(Clone, Copy, Debug)]
pub(in crate::gateway) struct Wanted {
    /// Its bit number among the traces.
    pub(in crate::gateway) number: u8,
    pub(in crate::gateway) filter: Filter,
    pub(in crate::gateway) segment: Option<SegmentIndex>,
    /// The ingress or egress port.
    pub(in crate::gateway) port: Option<AnyPort>,
    /// Most records to report.
    pub(in crate::gateway) left: u32,
}

/// A port of either side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::gateway) enum AnyPort {
    Ethernet(EthernetIndex),
    InfiniBand(EndpointIndex),
}

impl Wanted {
    /// True for a packet with these headers and this lookup result between these ports.
    pub(in crate::gateway) fn wants(
        &self,
        front: &Front,
        ports: [Option<AnyPort>; 2],
        lookup: Option<&Lookup>,
    ) -> bool {
        let mut look = front.look();
        if let (Some(Lookup::ToEthernet { to, .. }), [_, destination]) = (lookup, &mut look.macs) {
            *destination = Some(to.0);
        }
        self.segment.is_none_or(|wanted| front.segment == Some(wanted))
            && self.port.is_none_or(|wanted| ports.contains(&Some(wanted)))
            && self.filter.wants(&look)
    }
}

/// The traces of all clients.
pub(in crate::gateway) type AllWanted = ArrayVec<Wanted, MAX_WATCHERS>;

/// A worker's state while packets are traced. The control lcore holds a reference to all of its memory until
/// the other end of the ring is gone, so that the worker frees nothing.
#[derive(Debug)]
pub struct Tracer {
    // Dropped before the ring, whose end shows that the worker has released it.
    wanted: Arc<AllWanted>,
    /// Records that may still be reported, by index in `wanted`.
    left: [u32; MAX_WATCHERS],
    sightings: Sender<Sighting>,
}

impl Tracer {
    pub(in crate::gateway) fn new(wanted: Arc<AllWanted>, sightings: Sender<Sighting>) -> Self {
        let mut left = [0; MAX_WATCHERS];
        left.iter_mut().zip(wanted.iter()).for_each(|(left, wanted)| *left = wanted.left);
        Self { wanted, left, sightings }
    }

    /// The clients that trace a packet, as a bit mask.
    pub(in crate::gateway) fn watchers(
        &self,
        front: &Front,
        ports: [Option<AnyPort>; 2],
        lookup: &Lookup,
    ) -> u8 {
        let mut bits = 0;
        for (wanted, left) in self.wanted.iter().zip(self.left) {
            if left > 0 && wanted.wants(front, ports, Some(lookup)) {
                bits |= 1 << wanted.number;
            }
        }
        bits
    }

    /// Reports a packet. Records that do not fit into the ring are counted, and the next record has their
    /// number.
    pub(in crate::gateway) fn report(&mut self, mut sighting: Sighting) {
        sighting.missed = self.sightings.refused();
        let watchers = sighting.watchers;
        if self.sightings.send(sighting).is_ok() {
            for (wanted, left) in self.wanted.iter().zip(&mut self.left) {
                if watchers & (1 << wanted.number) != 0 {
                    *left = left.saturating_sub(1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_port_cannot_send_was_not_forwarded() {
        let reason = DropReason::TooManySegments;
        let pieces = |sent, dropped| Outcome::Pieces { sent, dropped };
        assert_eq!(Outcome::Sent.less(0, reason), Outcome::Sent);
        assert_eq!(Outcome::Sent.less(1, reason), Outcome::Dropped(reason));
        assert_eq!(pieces(5, None).less(2, reason), pieces(3, Some(reason)));
        assert_eq!(pieces(5, None).less(0, reason), pieces(5, None));
        assert_eq!(Outcome::Waits.less(1, reason), Outcome::Waits);
    }
}
