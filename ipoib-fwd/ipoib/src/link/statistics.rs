//! Statistics of a link: lists for the control socket, counters.

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

/// The reason for which a connection was closed, or was not established.
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
    /// There is no free slot for another connection: at the worker, or among the port's handshakes.
    Full,
    /// The peer's private data is missing or contains an impossible MTU.
    PrivateData,
    /// The neighbour was forgotten.
    NeighbourGone,
    /// The neighbour has another address.
    AddressChanged,
    /// Our own address has changed.
    OwnAddressChanged,
    /// It received nothing for a long time.
    Idle,
    /// Room was needed for a newer one.
    Evicted,
    /// The peer replaced it with another one.
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
    /// Name of its state.
    pub state: &'static str,
    /// The peer's receive MTU, encapsulation header included; 0 while unknown.
    pub mtu: u32,
    /// Milliseconds since it was last seen in use.
    pub idle_ms: u64,
}

/// The path to a neighbour, as `ctl trace` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathInfo {
    /// Its link-layer address.
    pub hardware: HardwareAddress,
    /// LID of its path; 0 while unknown.
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
    /// Name of its state.
    pub state: &'static str,
    /// LID of its path; 0 while unknown.
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
    /// Name of its state.
    pub state: &'static str,
}

crate::counters! {
    /// Events of a link, each since its start.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    LinkCounters {
        /// Active connections that came up.
        connections_opened =
            "Ordinary. Many without more hosts: connections are closed again, see `connections_faulted` and `connections_disconnected`.",
        /// Passive connections that came up.
        connections_accepted =
            "Ordinary, as for `connections_opened`.",
        /// Dials started.
        dials =
            "Ordinary. If there are many more than `connections_opened`, one of the counters of ended dials shows why.",
        /// Dials repeated with the other form of service ID.
        service_id_fallbacks =
            "Ordinary if there are hosts that use the other form. Each counts once, and again when it comes back.",
        /// Dials that a REJ ended.
        dial_rejected =
            "`ipoib-fwd ctl events connection` shows the host and the reason of each REJ. A host rejects in datagram mode, or if it has no room. Its packets then travel as datagrams, and those that do not fit are answered as too big.",
        /// Dials that a REJ ended and that are not repeated for long, as the peer would reject them again.
        dial_rejected_for_good =
            "The gateway does not fit the host, which `ipoib-fwd ctl events connection` names: check the host's version of ib_ipoib. Datagrams continue. The gateway dials again after five minutes, or sooner if the host's link-layer address or its flags change.",
        /// Dials that ended because no answer came.
        dial_timeouts =
            "The host, which `ipoib-fwd ctl events connection` names, is gone, or its connection management is: `modprobe ib_cm` on the host, `ibping` and `perfquery` on the path.",
        /// Dials that ended for other reasons.
        dial_failed =
            "`ipoib-fwd ctl events connection` shows the reason: for `Full` use a greater `infiniband.max-connections`, for `Device` read the log.",
        /// Connection requests that we rejected.
        requests_rejected =
            "Ordinary in datagram mode. In connected mode a host requests another P_Key or MTU, or an address that the gateway no longer has. It may also have more than an eighth of the port's connections: a greater `infiniband.max-connections` helps. The host's log has the reason of the REJ.",
        /// Connection requests that we rejected because they came from another port than the one whose GID
        /// they named, or by another partition than the one that they named.
        requests_suspect =
            "A host has moved and the subnet manager does not know yet, or an attacker forges requests. If it persists, find the port that has that GID (`saquery`), and check the partitions of the requesting host. One for each host with an old adapter (Connect-IB), which sends requests by its first P_Key, is ordinary: the next one is accepted.",
        /// Connections that failed after they were up.
        connections_faulted =
            "Packets are lost in the fabric or a host has no receives posted: `perfquery` and `ibqueryerrors` on the path, `infiniband.retry-count` and `infiniband.rnr-retry`.",
        /// Connections that the peer disconnected.
        connections_disconnected =
            "Ordinary: hosts close connections that they do not use, and all of them on a restart.",
        /// Passive connections closed because they were idle.
        passive_expired =
            "Ordinary: no packet for `infiniband.connection-idle-seconds`.",
        /// Passive connections closed to make room.
        passive_evicted =
            "There are more hosts than connections: a greater `infiniband.max-connections`, or a smaller `infiniband.connection-idle-seconds`.",
        /// Waits for a last-WQE event or a drain that ran out of time.
        teardown_timeouts =
            "The device is slow to return queue pairs: check the kernel's log and the device's firmware. Nothing but time is lost.",
        /// Answers and notes about connections that did not fit their state, and changed nothing.
        connection_strays =
            "A few are ordinary, when both ends act at the same time. Many: a host repeats itself, or forges messages; `ipoib-fwd ctl trace` does not show these, a capture of the fabric does.",
        /// ARP requests sent.
        arp_requests_sent =
            "Ordinary.",
        /// ARP replies sent.
        arp_replies_sent =
            "Ordinary.",
        /// ARP packets received.
        arp_received =
            "Ordinary. Many without a pause: a host scans the subnet.",
        /// ARP packets received whose sender's link-layer address cannot be a host's, or that are neither
        /// request nor reply.
        arp_invalid =
            "A host sends broken ARP: find it with a capture.",
        /// ARP packets not sent because a path's queue was full or the path does not exist.
        arp_dropped =
            "Subnet administration does not answer or does not know the host: see `path_failures` and `sa_timeouts`.",
        /// Queries for and answers about IPv6 addresses: neighbour discovery is not supported.
        unspoken =
            "Ordinary where hosts have IPv6 addresses, which are not forwarded.",
        /// Requests and announcements by broadcast that a rate limit held back.
        requests_limited =
            "Many hosts were queried at once, or a host scans. Ordinary after a restart; otherwise find the sender of the queries with `ipoib-fwd ctl trace proto=arp`.",
        /// Requests to resolve that a rate limit held back.
        resolve_limited =
            "Packets to many unknown hosts, as from a scan: find their source with `ipoib-fwd ctl trace`.",
        /// Requests to resolve that found the neighbour table full of neighbours in use.
        neighbours_full =
            "More hosts are in use than a segment holds: divide it into several, or shorten `infiniband.neighbour-idle-seconds`.",
        /// Neighbours that were evicted from a full table.
        neighbours_evicted =
            "Ordinary in a subnet with more hosts than a segment holds. Otherwise a host scans, or claims many addresses: see `ipoib-fwd ctl neighbours`.",
        /// Neighbours found unreachable.
        neighbours_failed =
            "Ordinary when hosts are switched off. If the hosts are running, check the broadcast group (`ipoib-fwd ctl groups`) and the fabric between.",
        /// Requests to subnet administration that ended without an answer; each counts once, repetitions
        /// included.
        sa_timeouts =
            "The subnet manager is overloaded or gone, or management packets are lost: `sminfo`, its log, `perfquery` on the path to it.",
        /// Path lookups sent.
        path_queries =
            "Ordinary. If it does not stop, hosts come and go: see `flushes` and `path_failures`.",
        /// Path lookups not started, because one LID had named too many ports that were not found yet.
        paths_limited =
            "A host is broken or dishonest: its ARP or its connection requests name many GIDs that do not exist. `ipoib-fwd ctl trace proto=arp` shows the LIDs that ARP comes from.",
        /// Path lookups that failed.
        path_failures =
            "The subnet manager has no path to a host: the host is not in the partition, or gone. Check `saquery` for its GID and the partitions' configuration.",
        /// Joins sent.
        joins =
            "Ordinary.",
        /// Joins that failed.
        join_failures =
            "The subnet manager refuses: the port is not a member of the partition, or the group has another rate, MTU or Q_Key. See its log and `ipoib-fwd ctl links`.",
        /// Groups that the device did not attach the datagram queue pair to.
        attach_failures =
            "The device has no room for more groups: use fewer segments or groups on the port. Each is retried every 16 seconds; until then its packets are not received.",
        /// Flushes by port events: light, normal and heavy.
        flushes =
            "Ordinary when cables, subnet managers or partitions change. If it does not stop, a port or cable comes and goes: `ibqueryerrors`.",
        /// Changes of our own port's GID.
        gid_changes =
            "Ordinary when the subnet's prefix is changed or an alias GUID is assigned. Hosts learn the new address from the gateway's announcements.",
    }
}
