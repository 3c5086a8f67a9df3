//! How often the gateway speaks for itself.

use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::time::Instant;

use foldhash::fast::FixedState;

use ipoib::net::icmp::TokenBucket;

/// Tokens a second and at once.
type Rate = (u32, u32);

/// Ping replies.
const ECHO: Rate = (1000, 50);
/// ICMP errors, to all hosts.
const ERRORS: Rate = (1000, 100);
/// ICMP errors to one host: a connection asks once or twice for its path's MTU, a host has many connections.
const ERRORS_EACH: Rate = (50, 20);
/// Requests by broadcast that a side's hosts bring about on the other.
const REQUESTS: Rate = (1000, 256);
/// Announcements that go from one side to the other, answers to lies among them.
const ANNOUNCEMENTS: Rate = (200, 64);

/// Hosts that limits are kept for; two may share one.
const SHARES: usize = 256;

fn bucket(now: Instant, (per_second, burst): Rate) -> TokenBucket {
    TokenBucket::new(now, per_second, burst)
}

/// All limits of a segment.
#[derive(Debug)]
pub(super) struct Limits {
    /// Ping replies have their own: a flood of pings silences no errors.
    pub(super) echo: TokenBucket,
    errors: TokenBucket,
    errors_each: Vec<TokenBucket>,
    hash: FixedState,
    /// Requests on the InfiniBand side, and on the Ethernet side.
    pub(super) infiniband_requests: TokenBucket,
    pub(super) ethernet_requests: TokenBucket,
    /// Announcements on the InfiniBand side, and on the Ethernet side.
    pub(super) infiniband_announcements: TokenBucket,
    pub(super) ethernet_announcements: TokenBucket,
}

impl Limits {
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        Self {
            echo: bucket(now, ECHO),
            errors: bucket(now, ERRORS),
            errors_each: vec![bucket(now, ERRORS_EACH); SHARES],
            hash: FixedState::with_seed(seed),
            infiniband_requests: bucket(now, REQUESTS),
            ethernet_requests: bucket(now, REQUESTS),
            infiniband_announcements: bucket(now, ANNOUNCEMENTS),
            ethernet_announcements: bucket(now, ANNOUNCEMENTS),
        }
    }

    /// True if an ICMP error may go to a host (RFC 1812 4.3.2.8).
    pub(super) fn take_error(&mut self, now: Instant, to: IpAddr) -> bool {
        let share = self.hash.hash_one(to) as usize % SHARES;
        // The host's own first: one that may not is no burden to the others.
        self.errors_each.get_mut(share).is_some_and(|b| b.take(now)) && self.errors.take(now)
    }
}
