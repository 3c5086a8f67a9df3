//! Rules and counters of a neighbour table.

use std::time::Duration;

use serde::Serialize;

/// How long an unused entry is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// This long after its last use.
    SinceUse(Duration),
    /// This long after it became stale.
    SinceStale(Duration),
}

/// The rules of a link's neighbour table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// How long a neighbour counts as reachable after it was heard.
    pub reachable: Duration,
    /// How long an unused entry is kept after that.
    pub idle: Idle,
    /// How long a query without an answer is remembered; zero: not at all.
    pub failed: Duration,
    /// The last probe before a neighbour is given up goes to all hosts: the neighbour may have another
    /// adapter.
    pub last_to_all: bool,
    /// Most neighbours.
    pub most: usize,
    /// Most neighbours that are being resolved at a time: a scan of the subnet must not evict neighbours that
    /// exist.
    pub most_asked: usize,
    /// Most neighbours without traffic of one link-layer holder that were not queried; 0 counts as 1.
    pub most_unused_each: u32,
    /// Neighbours with traffic that one holder of link-layer addresses keeps when others find no room.
    pub share: u32,
}

crate::counters! {
    /// Events of a neighbour table.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    HostCounters {
        /// Hosts that had not answered yet and were evicted.
        evicted_unanswered =
            "A host queries many addresses that do not exist, as a scan does: `ipoib-fwd ctl trace proto=arp` names it.",
        /// Hosts without traffic that were evicted.
        evicted_unused =
            "There are more hosts than a segment holds: ordinary in large networks, as those with traffic stay; otherwise divide the segment.",
        /// Hosts with traffic that were evicted because their link-layer address has too many.
        evicted_share =
            "One MAC address has very many IP addresses: a router with proxy ARP, or a dishonest host. Give the segment a route instead of those addresses.",
        /// Hosts for which there was no room.
        table_full =
            "More hosts with traffic than a segment holds: divide it into several.",
        /// Hosts without traffic that were evicted for others of their link-layer address: it has too many.
        sender_limited =
            "As for `evicted_share`.",
    }
}
