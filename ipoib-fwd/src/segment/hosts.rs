//! Hosts of the Ethernet side: a neighbor cache ([`ipoib::neighbour::Ageing`]) whose queries are ARP frames.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::forward::MAX_NEIGHBOURS;
use ipoib::neighbour::{self, Idle, Rules};
use ipoib::net::ethernet::MacAddress;

pub use neighbour::HostCounters;

/// Maximum number of neighbors that are queried at once.
const MAX_INCOMPLETE: usize = 512;
/// Maximum number of hosts without traffic that are known at one Ethernet address and were not queried.
const UNUSED_EACH: u32 = 256;
/// Number of hosts with traffic that one Ethernet address keeps although others find no room.
const SHARE: u32 = 64;

/// Times of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ageing {
    /// How long a heard address is taken as true.
    pub reachable: Duration,
    /// How long an unused entry is kept after that.
    pub idle: Duration,
    /// How long an address that moves too often stays with its owner.
    pub hold: Duration,
}

impl Default for Ageing {
    /// The first two are the values of Linux.
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { reachable: minute / 2, idle: minute, hold: minute }
    }
}

/// True if few neighbors are being queried.
pub(super) fn has_room(hosts: &Hosts) -> bool {
    hosts.unanswered() < MAX_INCOMPLETE / 2
}

/// The table.
pub(super) type Hosts = neighbour::Ageing<MacAddress, Requester>;

/// The host on whose behalf a host was queried last.
pub(super) type Requester = Option<IpAddr>;

/// A host, as `ctl neighbours` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostInfo {
    /// Its IP address.
    pub ip: IpAddr,
    /// Its Ethernet address, if it has answered.
    pub mac: Option<MacAddress>,
    /// Name of the state that it is in.
    pub state: &'static str,
    /// Packets that wait for it.
    pub waiting: usize,
}

/// An empty table; `seed` is drawn at start.
pub(super) fn table(seed: u64, ageing: Ageing) -> Hosts {
    Hosts::new(
        seed,
        Rules {
            reachable: ageing.reachable,
            idle: Idle::SinceStale(ageing.idle),
            failed: Duration::ZERO,
            last_to_all: true,
            most: MAX_NEIGHBOURS,
            most_asked: MAX_INCOMPLETE,
            most_unused_each: UNUSED_EACH,
            share: SHARE,
        },
    )
}

/// The worker, from 0 to `workers` - 1, that answers for an Ethernet host on the InfiniBand side. It stays
/// the same for the life of the gateway, so that a host's traffic stays on one worker.
#[must_use]
pub fn worker_of(ip: IpAddr, workers: u8) -> u8 {
    let hash = match ip {
        IpAddr::V4(ip) => FixedState::with_seed(0).hash_one(ip.to_bits()),
        IpAddr::V6(ip) => FixedState::with_seed(0).hash_one(ip.to_bits()),
    };
    // The upper half of a product with the hash's upper bits is even without a division.
    (((hash >> 32) * u64::from(workers)) >> 32) as u8
}
