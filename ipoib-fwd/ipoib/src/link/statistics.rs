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

crate::counters! {
    /// What has happened on a link, each since its start.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    LinkCounters {
        /// Active connections that came up.
        connections_opened =
            "Ordinary. Many without more hosts: connections end again, see `connections_faulted` and `connections_disconnected`.",
        /// Passive connections that came up.
        connections_accepted =
            "Ordinary, as for `connections_opened`.",
        /// Dials that began.
        dials =
            "Ordinary. Many more than `connections_opened`: one of the counters of dials that ended says why.",
        /// Dials repeated with the other form of service id.
        service_id_fallbacks =
            "Ordinary: hosts of that form are there. Once for each, and again when they come back.",
        /// Dials that a REJ ended.
        dial_rejected =
            "`ipoib-fwd ctl events connection` has the host and the reason of each REJ. A host in datagram mode, or one that has no room, rejects; its packets go as datagrams, and what does not fit these is answered as too big.",
        /// Those of them that will not be repeated for long, as the peer would reject them again.
        dial_rejected_for_good =
            "The host, which `ipoib-fwd ctl events connection` names, and the gateway do not fit: look at its version of ib_ipoib; datagrams go on. It is dialled again after five minutes, or sooner if its link-layer address or the flags in that change.",
        /// Dials that no answer ended.
        dial_timeouts =
            "The host, which `ipoib-fwd ctl events connection` names, is gone, or its connection management is: `modprobe ib_cm` there, `ibping` and `perfquery` on the way.",
        /// Dials that ended for other reasons.
        dial_failed =
            "`ipoib-fwd ctl events connection` has the reason: for `Full` a greater `infiniband.max-connections`, for `Device` the log.",
        /// Connection requests that we rejected.
        requests_rejected =
            "In datagram mode ordinary. In connected mode a host asks for what is not here: another P_Key or MTU, or an address that the gateway no longer has, or more than an eighth of the port's connections, for which a greater `infiniband.max-connections` helps; the host's log has the reason of the REJ.",
        /// Those of them that came from another port than the one whose GID they named, or by another partition than the one that they named.
        requests_suspect =
            "A host has moved and the subnet manager does not know yet, or somebody forges requests: if it goes on, look at what has that GID (`saquery`), and at the partitions of the host that asks. One for each host with an old adapter (Connect-IB), which sends requests by its first P_Key, is ordinary: the next one is taken.",
        /// Connections that failed after they were up.
        connections_faulted =
            "Packets are lost in the fabric or a host has no receives posted: `perfquery` and `ibqueryerrors` on the way, `infiniband.retry-count` and `infiniband.rnr-retry`.",
        /// Connections that the peer disconnected.
        connections_disconnected =
            "Ordinary: hosts close what they do not use, and those that restart.",
        /// Passive connections closed for being idle.
        passive_expired =
            "Ordinary: `infiniband.connection-idle-seconds` without a packet.",
        /// Passive connections closed to make room.
        passive_evicted =
            "There are more hosts than connections: a greater `infiniband.max-connections`, or a smaller `infiniband.connection-idle-seconds`.",
        /// Waits for a last-WQE event or a drain that ran out of time.
        teardown_timeouts =
            "The device is slow to give queue pairs back: the kernel's log, and its firmware; nothing is lost by it but time.",
        /// Answers and notes about connections that did not fit the state of these, and changed nothing.
        connection_strays =
            "Few are ordinary, when both ends do something at once. Many: a host repeats itself, or forges; `ipoib-fwd ctl trace` does not have these, a capture of the fabric has.",
        /// ARP requests sent.
        arp_requests_sent =
            "Ordinary.",
        /// ARP replies sent.
        arp_replies_sent =
            "Ordinary.",
        /// ARP packets received.
        arp_received =
            "Ordinary. Without end and fast: a host scans the subnet.",
        /// ARP packets received whose sender's link-layer address is no host's, or that are neither request nor reply.
        arp_invalid =
            "A host sends broken ARP: find it by a capture.",
        /// ARP packets not sent because a path's queue was full or the path does not exist.
        arp_dropped =
            "Subnet administration does not answer or does not know the host: see `path_failures` and `sa_timeouts`.",
        /// Questions and answers about IPv6 addresses: neighbour discovery is not spoken.
        unspoken =
            "Ordinary where hosts have IPv6 addresses, which are not forwarded.",
        /// Requests and announcements by broadcast that a rate limit held back.
        requests_limited =
            "Many hosts were asked for at once, or somebody scans: ordinary after a restart, else look for who asks with `ipoib-fwd ctl trace proto=arp`.",
        /// Requests to resolve that a rate limit held back.
        resolve_limited =
            "Packets to many hosts that are not known, as of a scan: find their source with `ipoib-fwd ctl trace`.",
        /// Requests to resolve that found the neighbour table full of neighbours in use.
        neighbours_full =
            "More hosts are in use than a segment holds: divide it into several, or shorten `infiniband.neighbour-idle-seconds`.",
        /// Neighbours that made room for others in a full table.
        neighbours_evicted =
            "Ordinary in a subnet with more hosts than a segment holds. Otherwise somebody scans, or claims many addresses: see `ipoib-fwd ctl neighbours`.",
        /// Neighbours that turned out unreachable.
        neighbours_failed =
            "Ordinary when hosts are switched off. Of hosts that are there: the broadcast group (`ipoib-fwd ctl groups`) and the fabric between.",
        /// Requests to subnet administration that no answer ended, repetitions included in each.
        sa_timeouts =
            "The subnet manager is overloaded or gone, or management packets are lost: `sminfo`, its log, `perfquery` on the way to it.",
        /// Path lookups sent.
        path_queries =
            "Ordinary. Without end: hosts come and go, see `flushes` and `path_failures`.",
        /// Path lookups not begun, because one LID had named too many ports that were not found yet.
        paths_limited =
            "A host is broken or dishonest: its ARP or its requests for connections name many GIDs that are not there. `ipoib-fwd ctl trace proto=arp` has the LIDs that ARP comes from.",
        /// Path lookups that failed.
        path_failures =
            "The subnet manager has no path to a host: it is not of the partition, or gone. `saquery` for its GID, the partitions' configuration.",
        /// Joins sent.
        joins =
            "Ordinary.",
        /// Joins that failed.
        join_failures =
            "The subnet manager refuses: the port is no member of the partition, or the group has another rate, MTU or Q_Key. Its log, and `ipoib-fwd ctl links`.",
        /// Groups that the device did not attach the datagram queue pair to.
        attach_failures =
            "The device has no room for more groups: fewer segments or groups on the port. Each is tried again every 16 seconds; until then its packets are not heard.",
        /// Flushes by port events: light, normal and heavy.
        flushes =
            "Ordinary when cables, subnet managers or partitions change. Without end: a port or cable that comes and goes, `ibqueryerrors`.",
        /// Changes of our own port's GID.
        gid_changes =
            "Ordinary when the subnet's prefix is changed or an alias GUID is given. Hosts learn the new address by the gateway's announcements.",
    }
}
