//! Why packets go to the control lcore, and what of them may wait for it, so that nothing keeps the rest from it, or buffers from the receive queues.

use std::net::Ipv4Addr;

use endpoint::RING;
use ipoib::drop_reason::DropReason;
use pmd::mem::Pool;

use crate::forward::{EthernetIndex, Punt};

/// Why a packet goes to the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The forwarding step says so.
    Punt(Punt),
    /// It does not fit and may not be cut: its source is to be told.
    TooBig {
        /// Largest packet that would fit.
        mtu: u16,
        /// The neighbour to which a connection is wanted that may take it.
        dial: Option<Ipv4Addr>,
    },
    /// A copy of a frame of this port, which looks as if nobody had completed its TCP or UDP checksum.
    PartialChecksum(EthernetIndex),
}

/// What must stay free in the ring of notes when a packet of this kind goes there, and why it is dropped if that is not so: who
/// sends to unknown destinations, or too big ones, keeps no ARP and no hello from the control lcore.
pub(super) const fn share(cause: &Cause) -> (usize, DropReason) {
    match cause {
        Cause::Punt(Punt::Neighbour(_)) => (RING / 2, DropReason::PuntUnresolved),
        Cause::Punt(Punt::Local) | Cause::TooBig { .. } => (RING / 4, DropReason::PuntLocal),
        // A copy: where it is not taken nothing is dropped.
        Cause::PartialChecksum(_) => (RING / 2, DropReason::PuntLocal),
        // A flood of ARP in one segment keeps no other gateway's hellos out, of any.
        Cause::Punt(Punt::Arp) => (RING / 16, DropReason::PuntQueueFull),
        Cause::Punt(Punt::Hello) => (0, DropReason::PuntQueueFull),
    }
}

/// The part of all buffers that no punt may take: peers lose their connections when receive queues run dry.
const RESERVE: u32 = 16;

/// True if a packet of this kind may be held: always what comes in small ones, else as long as there are buffers to fill the receive queues
/// from.
pub(super) fn may_hold(cause: &Cause, pool: &Pool) -> bool {
    match cause {
        Cause::Punt(Punt::Arp | Punt::Hello) => true,
        Cause::Punt(Punt::Neighbour(_) | Punt::Local) | Cause::TooBig { .. } | Cause::PartialChecksum(_) => {
            pool.available() > pool.size() / RESERVE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmd::eal::Eal;
    use pmd::mem::PoolConfig;

    /// A ring as the worker fills it with one kind, until that is refused.
    fn fill(room: &mut usize, cause: &Cause) -> usize {
        let before = *room;
        while *room > share(cause).0.max(1) {
            *room -= 1;
        }
        before - *room
    }

    #[test]
    fn no_kind_of_punt_keeps_arp_out() {
        let mut room = RING;
        let unresolved = Cause::Punt(Punt::Neighbour(Ipv4Addr::LOCALHOST));
        assert_eq!(fill(&mut room, &unresolved), RING / 2);
        assert_eq!(fill(&mut room, &Cause::TooBig { mtu: 1500, dial: None }), RING / 4);
        assert_eq!(fill(&mut room, &Cause::Punt(Punt::Local)), 0, "one part for both");
        assert_eq!(fill(&mut room, &unresolved), 0);
        assert!(fill(&mut room, &Cause::Punt(Punt::Arp)) > RING / 6);
        assert!(fill(&mut room, &Cause::Punt(Punt::Hello)) > 0, "nor does ARP keep hellos out");
    }

    #[test]
    fn the_last_buffers_are_for_receive_queues() {
        let words = "test --no-huge --no-shconf --no-pci -m 64 --no-telemetry --log-level=error --lcores 0@0";
        let _eal = Eal::init(words.split_whitespace().map(str::to_owned)).expect("EAL");
        let config = PoolConfig { count: 64, data_room: 2048, cache: 0, socket: -1 };
        let pool = Pool::create("punts", &config).expect("a pool");
        let big = Cause::TooBig { mtu: 1500, dial: None };
        let mut held: Vec<_> = std::iter::repeat_with(|| pool.alloc()).take(59).collect();
        assert!(may_hold(&big, &pool));
        held.push(pool.alloc());
        assert!(!may_hold(&big, &pool), "four are left");
        assert!(!may_hold(&Cause::Punt(Punt::Neighbour(Ipv4Addr::LOCALHOST)), &pool));
        assert!(may_hold(&Cause::Punt(Punt::Arp), &pool) && may_hold(&Cause::Punt(Punt::Hello), &pool));
        held.pop();
        assert!(may_hold(&big, &pool));
        drop(held);
    }
}
