//! Outputs of a segment, and its view of packets.

use std::net::IpAddr;

use ib_wire::Qpn;
use pmd::hca::{UdDestination, UdSource};

use super::pair::Place;
use crate::forward::Side;
use ipoib::drop_reason::DropReason;
use ipoib::link::WorkerIndex;
use ipoib::net::ethernet::MacAddress;

/// A packet that a segment keeps or inspects: the whole frame or message, as it came in.
pub trait Packet {
    /// Bytes in all.
    fn length(&self) -> usize;
    /// Copies bytes from `skip` on; returns how many there were.
    fn read(&self, skip: usize, to: &mut [u8]) -> usize;
}

/// How a message came in from the fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// As a datagram.
    Datagram(UdSource),
    /// By the connection with this queue pair of ours.
    Connection(Qpn),
}

/// Where a packet came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The side.
    pub side: Side,
    /// The worker.
    pub worker: WorkerIndex,
    /// For a message, how it came in; `None` if that is not known any more.
    pub origin: Option<Origin>,
}

/// An action for the segment's owner. Actions are carried out in order.
#[derive(Debug, PartialEq)]
pub enum Output<P> {
    /// Send a frame on Ethernet.
    Frame {
        /// By this worker.
        worker: WorkerIndex,
        /// The frame, untagged.
        bytes: Vec<u8>,
    },
    /// Send an IPv4 packet of the gateway's own to an InfiniBand host: on the connection if there is one that
    /// takes it, otherwise as a datagram, fragmented if necessary.
    Message {
        /// By this worker.
        worker: WorkerIndex,
        /// The destination neighbor.
        to: IpAddr,
        /// The packet.
        bytes: Vec<u8>,
    },
    /// Send an IPv4 packet of the gateway's own back to the origin of a datagram.
    Datagram {
        /// By this worker.
        worker: WorkerIndex,
        /// The destination.
        to: UdDestination,
        /// The packet.
        bytes: Vec<u8>,
    },
    /// An Ethernet host is known, or has another address.
    SetHost {
        /// Its IP address.
        ip: IpAddr,
        /// Its Ethernet address.
        mac: MacAddress,
    },
    /// An Ethernet host is gone.
    RemoveHost {
        /// Its IP address.
        ip: IpAddr,
    },
    /// Forward a packet as if it had come in now, once the worker has applied all earlier changes.
    Release {
        /// The side that it came from.
        side: Side,
        /// The worker that had it.
        worker: WorkerIndex,
        /// The packet.
        packet: P,
    },
    /// Count dropped packets.
    Drop(DropReason, u64),
    /// Drop a packet that has waited for a path, and count it.
    Discard {
        /// The side that it came from.
        side: Side,
        /// The packet.
        packet: P,
        /// Why.
        reason: DropReason,
    },
    /// Report an event to the operator.
    Happening(Happening),
}

/// An event that may concern the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    /// An address has moved to the other side: its old owner did not answer.
    AddressMoved {
        /// The address.
        ip: IpAddr,
        /// Where it is now.
        to: Place,
    },
    /// A host claims an address that another host has and answers for. The claim was refused.
    Conflict {
        /// The address.
        ip: IpAddr,
        /// Where the owner is.
        owner: Place,
        /// Where it was claimed from last.
        claimant: Place,
    },
    /// A host claims the gateway's own address.
    OwnAddressClaimed {
        /// The address.
        ip: IpAddr,
        /// Where it is claimed.
        claimant: Place,
    },
    /// Another gateway of the segment has the gateway's own address.
    OwnAddressOfPeer {
        /// The address.
        ip: IpAddr,
        /// Where the other gateway is.
        peer: Place,
    },
    /// The gateway has started to forward, and has queried the hosts that were known before.
    KnownHosts {
        /// Hosts that it has queried.
        queried: u64,
        /// Those of them that answered.
        answered: u64,
    },
    /// An address has moved too often: it stays where it is for a while, whichever host claims it.
    HeldDown {
        /// The address.
        ip: IpAddr,
        /// Where it stays.
        owner: Place,
    },
}
