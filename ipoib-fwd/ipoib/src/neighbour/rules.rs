//! What a table of neighbours is like, and what is counted of it.

use std::time::Duration;

use serde::Serialize;

/// How long an entry that nobody uses is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Idle {
    /// For so long after its last use.
    SinceUse(Duration),
    /// For so long after what was heard of it is no longer taken for true.
    SinceStale(Duration),
}

/// What a link's table is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// How long what was heard is taken for true.
    pub reachable: Duration,
    /// How long an entry that nobody uses is kept after that.
    pub idle: Idle,
    /// How long an address that has not answered is remembered as such; zero = not at all.
    pub failed: Duration,
    /// The last question before a neighbour is given up goes to all: it may have another card.
    pub last_to_all: bool,
    /// Most neighbours.
    pub most: usize,
    /// Most neighbours that are being asked for at once: a scan of the subnet must not push out those that are there.
    pub most_asked: usize,
    /// Most neighbours without traffic that are known by one link-layer address and were not asked for; 0 counts as 1.
    pub most_unused_each: u32,
    /// Neighbours with traffic that one holder of link-layer addresses keeps although others find no room.
    pub share: u32,
}

crate::counters! {
    /// What befell a table.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    HostCounters {
        /// Hosts that had not answered yet and made room for others.
        evicted_unanswered =
            "Somebody asks for many addresses that are not there, as a scan does: `ipoib-fwd ctl trace proto=arp` tells who.",
        /// Hosts without traffic that made room for others.
        evicted_unused =
            "More hosts speak than a segment holds: ordinary in large networks, as those with traffic stay; else divide the segment.",
        /// Hosts with traffic that made room for others, because who has their link-layer address has too many.
        evicted_share =
            "One MAC address has very many IP addresses: a router with proxy ARP, or a dishonest host. Give the segment a route instead of those addresses.",
        /// Hosts for which there was no room.
        table_full =
            "More hosts with traffic than a segment holds: divide it into several.",
        /// Hosts without traffic that made room for others of the same link-layer address, which names too many.
        sender_limited =
            "As for `evicted_share`.",
    }
}
