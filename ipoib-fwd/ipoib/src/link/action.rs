//! Actions that a link requests from its owner, and events that it reports.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use hca::{AsyncEvent, QpFault, QpTransition, RcSlot, UdDestination};
use ib_wire::{Gid, Lid, QKey, Qpn};
use serde::Serialize;

use super::ARP_FRAME_LEN;
use super::settings::{LinkIndex, Mode, WorkerIndex};
use super::table::NeighbourChange;
use ib_wire::ipoib::Arp;
use ib_wire::ipoib::HardwareAddress;

/// Identifies a connection for the life of its link; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnKey {
    /// The link.
    pub link: LinkIndex,
    /// Counts the link's connections, from 1.
    pub number: u64,
}

impl ConnKey {
    /// No connection's key is lower.
    pub(super) const FIRST: Self = Self { link: LinkIndex(0), number: 0 };
}

impl Serialize for ConnKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.number)
    }
}

/// An action for the link's owner to perform, in order. If an answering call is named, the link waits for it;
/// the answer may come immediately or later.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Bring a worker's datagram queue pair to RTS with this P_Key index and Q_Key, from any state (through
    /// RESET if it was past it). Requested with the first broadcast join, and when the P_Key moves in the
    /// port's table.
    OpenUd {
        /// The worker.
        worker: WorkerIndex,
        /// Index into the port's P_Key table.
        pkey_index: u16,
        /// The broadcast group's Q_Key.
        qkey: QKey,
    },
    /// Give a worker's open datagram queue pair another Q_Key.
    SetQKey {
        /// The worker.
        worker: WorkerIndex,
        /// The broadcast group's Q_Key.
        qkey: QKey,
    },
    /// Attach a worker's datagram queue pair to a group. A failure is answered by
    /// [`crate::port::Port::handle_attached`] and retried.
    AttachMulticast {
        /// The worker: always 0.
        worker: WorkerIndex,
        /// The group.
        mgid: Gid,
        /// Its LID.
        mlid: Lid,
    },
    /// Detach it again.
    DetachMulticast {
        /// The worker: always 0.
        worker: WorkerIndex,
        /// The group.
        mgid: Gid,
        /// Its LID.
        mlid: Lid,
    },
    /// Send a message as a datagram from a worker's datagram queue pair.
    SendUd {
        /// The worker.
        worker: WorkerIndex,
        /// Destination.
        to: UdDestination,
        /// Encapsulation header and ARP packet.
        bytes: Box<[u8; ARP_FRAME_LEN]>,
    },
    /// Create a connected queue pair on a worker's queues. Answer: [`crate::port::Port::handle_created`].
    CreateRc {
        /// Its key.
        conn: ConnKey,
        /// The worker.
        worker: WorkerIndex,
        /// True if it only receives (`RcConfig::passive`).
        passive: bool,
    },
    /// Change a connected queue pair's state. Answer: [`super::Link::handle_done`].
    ModifyRc {
        /// Its key.
        conn: ConnKey,
        /// Its number.
        qpn: Qpn,
        /// The change.
        to: QpTransition,
    },
    /// Hand the data-path half of a connected queue pair to its worker. Answer: [`super::Link::handle_done`].
    InsertRc {
        /// Its key.
        conn: ConnKey,
        /// The worker.
        worker: WorkerIndex,
        /// The slot in the worker's table.
        slot: RcSlot,
    },
    /// Request the worker to post the drain request. The answer is the worker's note [`WorkerNote::Drained`];
    /// a failure is reported by [`super::Link::handle_done`] with `false`.
    PostDrain {
        /// Its key.
        conn: ConnKey,
        /// The worker.
        worker: WorkerIndex,
        /// Its slot.
        slot: RcSlot,
    },
    /// Take the data-path half back from the worker. Answer: [`super::Link::handle_done`].
    RemoveRc {
        /// Its key.
        conn: ConnKey,
        /// The worker.
        worker: WorkerIndex,
        /// Its slot.
        slot: RcSlot,
    },
    /// Destroy a connected queue pair. This key is not used again; no answer.
    DestroyRc {
        /// Its key.
        conn: ConnKey,
        /// Its number.
        qpn: Qpn,
    },
    /// Publish to the workers. Answer: [`super::Link::handle_quiescent`] once every worker has released the
    /// older tables.
    Publish(Publication),
}

/// A new version of the tables that workers look up.
#[derive(Clone, PartialEq, Debug)]
pub struct Publication {
    /// Counts up by one.
    pub generation: u64,
    /// The link as a whole.
    pub state: Arc<LinkState>,
    /// Neighbours that were added, changed or removed since the last publication; each address at most once.
    pub changes: Vec<NeighbourChange>,
}

/// State of the link as a whole, for workers.
#[derive(Clone, PartialEq, Debug)]
pub struct LinkState {
    /// True if the broadcast group is joined and the port active.
    pub up: bool,
    /// Mode in force.
    pub mode: Mode,
    /// Largest datagram, encapsulation header included: the broadcast group's MTU.
    pub ud_mtu: u32,
    /// The broadcast group, if joined.
    pub broadcast: Option<UdDestination>,
    /// Other joined groups.
    pub groups: Vec<(Ipv4Addr, UdDestination)>,
    /// The workers' own link-layer addresses, by worker index.
    pub addresses: Vec<HardwareAddress>,
    /// Base LID of the port; 0 while it has none.
    pub lid: Lid,
}

/// An event that a worker has seen on a connected queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerNote {
    /// A send failed other than by being flushed, or the queue pair failed for another reason.
    Fault,
    /// The drain request has completed.
    Drained,
    /// Nothing is outstanding on the send queue of a queue pair in error.
    Flushed,
    /// It has taken its last receive from the shared receive queue.
    LastWqeReached,
    /// It received data before the RTU.
    CommunicationEstablished,
}

/// A valid ARP packet that was received on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedArp {
    /// The worker that received it.
    pub worker: WorkerIndex,
    /// The packet.
    pub packet: Arp,
    /// The LID that it came from.
    pub lid: Lid,
    /// True if it was sent to the broadcast group.
    pub multicast: bool,
}

/// The sender of a query for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker {
    /// The link-layer address that it claims to have.
    pub hardware: HardwareAddress,
    /// The LID that the query came from.
    pub lid: Lid,
}

/// An event that a link reports.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// The link is up: the broadcast group is joined and the port active.
    Up,
    /// The link is no longer up.
    Down,
    /// The link is not up, for this reason.
    Waiting(super::Waiting),
    /// Our link-layer addresses have this GID now, though the link did not go down: announce them
    /// ([`super::Link::announce`]).
    Readdressed {
        /// The port's GID.
        gid: Gid,
    },
    /// An ARP packet came in; the owner decides whether to answer ([`super::Link::reply`]).
    Arp(ReceivedArp),
    /// A neighbour's address is known; its table entry is published.
    NeighbourResolved {
        /// Its IP address.
        ip: IpAddr,
        /// Its link-layer address.
        hardware: HardwareAddress,
    },
    /// A known neighbour has another link-layer address now.
    NeighbourChanged {
        /// Its IP address.
        ip: IpAddr,
        /// The previous address.
        old: HardwareAddress,
        /// The new address.
        new: HardwareAddress,
    },
    /// An ARP request for this address was not sent: the device or the path to it had no room. The lack of a
    /// reply therefore proves nothing.
    QueryUnsent {
        /// The address.
        ip: IpAddr,
    },
    /// A neighbour does not answer.
    NeighbourUnreachable {
        /// Its IP address.
        ip: IpAddr,
    },
    /// A connection was established.
    ConnectionUp {
        /// Its key.
        conn: ConnKey,
        /// True if the peer opened it.
        passive: bool,
        /// The peer.
        peer: HardwareAddress,
        /// Duration of the setup, from the first step to the last.
        setup: Duration,
    },
    /// A connection is being closed, or was not established.
    ConnectionDown {
        /// Its key.
        conn: ConnKey,
        /// True if the peer opened it.
        passive: bool,
        /// The peer.
        peer: HardwareAddress,
        /// The reason.
        reason: super::CloseReason,
    },
    /// Shutdown is complete.
    Stopped,
}

impl WorkerNote {
    /// The meaning of a worker's queue event for a link. A failed receive says nothing about the connection.
    #[must_use]
    pub const fn from_fault(fault: QpFault) -> Option<Self> {
        match fault {
            QpFault::Send(_) => Some(Self::Fault),
            QpFault::Receive(_) => None,
            QpFault::Drained => Some(Self::Drained),
            QpFault::Flushed => Some(Self::Flushed),
        }
    }

    /// The queue pair that a device's event concerns, and the event's meaning for a link.
    #[must_use]
    pub const fn from_async(event: &AsyncEvent) -> Option<(Qpn, Self)> {
        match *event {
            AsyncEvent::LastWqeReached(qpn) => Some((qpn, Self::LastWqeReached)),
            AsyncEvent::CommunicationEstablished(qpn) => Some((qpn, Self::CommunicationEstablished)),
            AsyncEvent::QpFatal(qpn) => Some((qpn, Self::Fault)),
            _ => None,
        }
    }
}
