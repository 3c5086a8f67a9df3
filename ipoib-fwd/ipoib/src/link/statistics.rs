//! What a link shows of itself: lists for the control socket, counters.

use std::net::{IpAddr, Ipv4Addr};

use ib_wire::{Gid, Lid, Qpn};
use serde::{Serialize, Serializer};

use super::action::ConnKey;
use super::settings::WorkerIndex;
use ib_wire::ipoib::HardwareAddress;

fn display<T: std::fmt::Display, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(value)
}

fn display_qpn<S: Serializer>(value: &Option<Qpn>, s: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(qpn) => s.serialize_some(&qpn.get()),
        None => s.serialize_none(),
    }
}

/// Why a connection was closed, or did not come into being.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// The peer rejected it, with this reason (IBA 12.6.7.2).
    Rejected(u16),
    /// The peer's CM did not answer.
    Timeout,
    /// The peer disconnected it.
    PeerDisconnected,
    /// A send on it failed, or the device reported it broken.
    Fault,
    /// The device refused to create or change the queue pair.
    Device,
    /// There is no place for another connection: on the worker, or among the port's handshakes.
    Full,
    /// The peer's private data is missing or says an impossible MTU.
    PrivateData,
    /// The neighbour was forgotten.
    NeighbourGone,
    /// The neighbour has another address.
    AddressChanged,
    /// Our own address is another one.
    OwnAddressChanged,
    /// It received nothing for long.
    Idle,
    /// Room was needed for a newer one.
    Evicted,
    /// The peer opened another one in its place.
    Replaced,
    /// The link's mode changed to datagram.
    ModeChanged,
    /// The link went down.
    LinkDown,
    /// The link is being shut down.
    Shutdown,
}

/// One connection, as `ctl connections` shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ConnectionInfo {
    /// Its key.
    pub key: ConnKey,
    /// True if the peer opened it.
    pub passive: bool,
    /// The worker that has it.
    pub worker: WorkerIndex,
    /// Our queue pair.
    #[serde(serialize_with = "display_qpn")]
    pub qpn: Option<Qpn>,
    /// The neighbour that it leads to; passive ones are known by the link-layer address only.
    pub ip: Option<IpAddr>,
    /// The peer's link-layer address.
    #[serde(serialize_with = "display")]
    pub peer: HardwareAddress,
    /// Name of the state that it is in.
    pub state: &'static str,
    /// The peer's receive MTU, encapsulation header included; 0 while not known.
    pub mtu: u32,
    /// Milliseconds since it was last seen in use.
    pub idle_ms: u64,
}

/// The way to a neighbour, as `ctl trace` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathInfo {
    /// Its link-layer address.
    pub hardware: HardwareAddress,
    /// LID of its path; 0 while not known.
    pub dlid: Lid,
    /// Our queue pair of the live connection that we opened.
    pub connection: Option<Qpn>,
}

/// One neighbour, as `ctl neighbours` shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NeighbourInfo {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its link-layer address, if known.
    #[serde(serialize_with = "display_address")]
    pub hardware: Option<HardwareAddress>,
    /// Name of the state that it is in.
    pub state: &'static str,
    /// LID of its path; 0 while not known.
    pub dlid: u16,
    /// Connections up, over all workers.
    pub connections: usize,
    /// Milliseconds since it was last seen in use.
    pub idle_ms: u64,
}

fn display_address<S: Serializer>(value: &Option<HardwareAddress>, s: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(a) => s.collect_str(a),
        None => s.serialize_none(),
    }
}

/// One multicast group, as `ctl groups` shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GroupInfo {
    /// The IPv4 group; 255.255.255.255 for the broadcast group.
    pub ip: Ipv4Addr,
    /// Its MGID.
    #[serde(serialize_with = "display")]
    pub mgid: Gid,
    /// Its LID; 0 while not joined.
    pub mlid: u16,
    /// Name of the state that it is in.
    pub state: &'static str,
}

hca::counters! {
    /// What has happened on a link, each since its start.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    LinkCounters {
        /// Active connections that came up.
        connections_opened,
        /// Passive connections that came up.
        connections_accepted,
        /// Dials that began.
        dials,
        /// Dials repeated with the other form of service id.
        service_id_fallbacks,
        /// Dials that a REJ ended.
        dial_rejected,
        /// Those of them that will not be repeated for long, as the peer would reject them again.
        dial_rejected_for_good,
        /// Dials that no answer ended.
        dial_timeouts,
        /// Dials that ended for other reasons.
        dial_failed,
        /// Connection requests that we rejected.
        requests_rejected,
        /// Those of them that came from another port than the one whose GID they named.
        requests_suspect,
        /// Connections that failed after they were up.
        connections_faulted,
        /// Connections that the peer disconnected.
        connections_disconnected,
        /// Passive connections closed for being idle.
        passive_expired,
        /// Passive connections closed to make room.
        passive_evicted,
        /// Waits for a last-WQE event or a drain that ran out of time.
        teardown_timeouts,
        /// Answers and notes about connections that did not fit the state of these, and changed nothing.
        connection_strays,
        /// ARP requests sent.
        arp_requests_sent,
        /// ARP replies sent.
        arp_replies_sent,
        /// ARP packets received.
        arp_received,
        /// ARP packets received whose sender's link-layer address is no host's, or that are neither request nor reply.
        arp_invalid,
        /// ARP packets not sent because a path's queue was full or the path does not exist.
        arp_dropped,
        /// Questions and answers about IPv6 addresses: neighbour discovery is not spoken.
        unspoken,
        /// Requests and announcements by broadcast that a rate limit held back.
        requests_limited,
        /// Requests to resolve that a rate limit held back.
        resolve_limited,
        /// Requests to resolve that found the neighbour table full of neighbours in use.
        neighbours_full,
        /// Neighbours that made room for others in a full table.
        neighbours_evicted,
        /// Neighbours that turned out unreachable.
        neighbours_failed,
        /// Requests to subnet administration that no answer ended, repetitions included in each.
        sa_timeouts,
        /// Path lookups sent.
        path_queries,
        /// Path lookups not begun, because one LID had named too many ports that were not found yet.
        paths_limited,
        /// Path lookups that failed.
        path_failures,
        /// Joins sent.
        joins,
        /// Joins that failed.
        join_failures,
        /// Flushes by port events: light, normal and heavy.
        flushes,
        /// Changes of our own port's GID.
        gid_changes,
    }
}
