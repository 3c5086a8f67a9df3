//! Punts: reasons, and bounds of what may wait for the control lcore. The bounds keep the ring of notes
//! usable for other packets, and buffers in the receive queues.

use std::net::Ipv4Addr;

use dataplane::ring::Sender;
use endpoint::{Note, RESERVE, RING, note};
use ipoib::drop_reason::DropReason;
use pmd::hca::Queues;
use pmd::mem::Pool;

use crate::forward::{EthernetIndex, MAX_SEGMENTS, Punt, SegmentIndex, Side};

/// Why a packet is punted to the control lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Verdict of the forwarding step.
    Punt(Punt),
    /// The packet exceeds the MTU and may not be fragmented: its source is sent an ICMP error.
    TooBig {
        /// Largest packet that would fit.
        mtu: u16,
        /// The neighbor to which a connection that could take the packet should be set up.
        dial: Option<Ipv4Addr>,
    },
    /// A frame of the control lcore's own that could not be sent. If it was a query, a missing reply does not
    /// mean that the host is down.
    Unsent,
    /// A copy of a frame of this port whose TCP or UDP checksum looks incomplete.
    PartialChecksum(EthernetIndex),
}

/// Room that must stay free in the ring of notes for a packet of this kind to be put there, and the drop
/// reason otherwise. So packets to unknown destinations, and packets that are too big, cannot block ARP and
/// hellos. None of them can block the worker's commands.
const fn share(cause: &Cause) -> (usize, DropReason) {
    match cause {
        Cause::Punt(Punt::Neighbour(_)) => (RING / 2, DropReason::PuntUnresolved),
        Cause::Punt(Punt::Local) | Cause::TooBig { .. } => (RING / 4, DropReason::PuntLocal),
        Cause::Unsent => (RESERVE, DropReason::PuntQueueFull),
        // A copy: if there is no room, no packet is dropped.
        Cause::PartialChecksum(_) => (RING / 2, DropReason::PuntLocal),
        // A flood of ARP in one segment cannot block the hellos of other gateways in any segment.
        Cause::Punt(Punt::Arp) => (RESERVE + RING / 8, DropReason::PuntQueueFull),
        // Hellos, which a guard bounds, cannot block commands.
        Cause::Punt(Punt::Hello) => (RESERVE + RING / 32, DropReason::PuntQueueFull),
    }
}

/// The drop reason of a packet of this kind for which there is no room.
pub(super) const fn full(cause: &Cause) -> DropReason {
    share(cause).1
}

/// Puts a note about a packet of this kind into the ring, or returns the reason for dropping the packet.
pub(super) fn hand_over<Q: Queues, N>(
    notes: &mut Sender<Note<Q, N>>,
    cause: &Cause,
    what: N,
) -> Result<(), DropReason> {
    let (room, full) = share(cause);
    if notes.room() <= room {
        return Err(full);
    }
    note(notes, what).map_err(|_| full)
}

/// Most hellos and probes that a worker hands over in a period of [`crate::segment::pair::storm`], by segment
/// and side: twice what a gateway sends while it reports all its hosts. Any host can send packets that look
/// like them.
const HELLOS: u8 = 64;

/// Counts hellos, so that a flood on one side of a segment cannot block ARP, or hellos of the other side or
/// of other segments. Periods are the control lcore's: while it is busy, it gets no more.
#[derive(Debug)]
pub(super) struct HelloGuard {
    period: u32,
    counts: Box<[[u8; 2]; MAX_SEGMENTS]>,
}

impl HelloGuard {
    pub(super) fn new() -> Self {
        Self { period: 0, counts: Box::new([[0; 2]; MAX_SEGMENTS]) }
    }

    /// True if one more hello may be handed over in this period.
    pub(super) fn admits(&mut self, period: u32, segment: SegmentIndex, side: Side) -> bool {
        if self.period != period {
            self.period = period;
            self.counts.fill([0; 2]);
        }
        let counts = self.counts.get_mut(usize::from(segment.0));
        let Some(count) = counts.and_then(|counts| counts.get_mut(side as usize)) else { return false };
        let admits = *count < HELLOS;
        *count += u8::from(admits);
        admits
    }
}

/// The share of all buffers that punts may not use: peers lose their connections when receive queues run dry.
const LEFT: u32 = 16;

/// True if a packet of this kind, in that number of buffers, may be held. ARP and hellos in one buffer always
/// may; others only while there are buffers to refill the receive queues.
pub(super) fn may_hold(cause: &Cause, buffers: usize, pool: &Pool) -> bool {
    match cause {
        Cause::Punt(Punt::Arp | Punt::Hello) | Cause::Unsent if buffers == 1 => true,
        Cause::Punt(_) | Cause::TooBig { .. } | Cause::Unsent | Cause::PartialChecksum(_) => {
            pool.available() > pool.size() / LEFT
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::ring::channel;
    use pmd::eal::Eal;
    use pmd::hca::Backend;
    use pmd::mem::PoolConfig;
    use pmd::soft::SoftHca;

    type Notes = Sender<Note<<SoftHca as Backend>::Queues, ()>>;

    /// The number of punts of a kind that the ring takes before one is refused.
    fn fill(notes: &mut Notes, cause: &Cause) -> usize {
        std::iter::repeat_with(|| hand_over(notes, cause, ())).take_while(Result::is_ok).count()
    }

    #[test]
    fn no_kind_of_punt_keeps_arp_out() {
        let (mut notes, _control) = channel(RING);
        let unresolved = Cause::Punt(Punt::Neighbour(Ipv4Addr::LOCALHOST));
        assert_eq!(fill(&mut notes, &unresolved), RING / 2);
        assert_eq!(fill(&mut notes, &Cause::TooBig { mtu: 1500, dial: None }), RING / 4);
        assert_eq!(fill(&mut notes, &Cause::Punt(Punt::Local)), 0, "one share for both");
        assert_eq!(fill(&mut notes, &unresolved), 0);
        assert!(fill(&mut notes, &Cause::Punt(Punt::Arp)) >= RING / 16);
    }

    #[test]
    fn a_flood_of_arp_keeps_no_hello_out_and_neither_keeps_commands_out() {
        let (mut notes, _control): (Notes, _) = channel(RING);
        assert!(fill(&mut notes, &Cause::Punt(Punt::Arp)) > RING / 2);
        assert!(fill(&mut notes, &Cause::Punt(Punt::Hello)) >= usize::from(HELLOS));
        assert!(notes.room() > RESERVE, "a worker takes commands");
    }

    #[test]
    fn a_flood_of_hellos_keeps_out_no_arp_and_no_hello_of_another_side_or_segment() {
        let ((mut notes, _control), mut guard): ((Notes, _), _) = (channel(RING), HelloGuard::new());
        let mut hello = |guard: &mut HelloGuard, period, segment, side| {
            guard.admits(period, SegmentIndex(segment), side)
                && hand_over(&mut notes, &Cause::Punt(Punt::Hello), ()).is_ok()
        };
        let taken = (0..100_000).filter(|_| hello(&mut guard, 7, 3, Side::Ethernet)).count();
        assert_eq!(taken, usize::from(HELLOS));
        assert!(hello(&mut guard, 7, 3, Side::InfiniBand) && hello(&mut guard, 7, 4, Side::Ethernet));
        assert!(hello(&mut guard, 8, 3, Side::Ethernet), "a new period");
        assert!(fill(&mut notes, &Cause::Punt(Punt::Arp)) > RING / 2);
    }

    #[test]
    fn the_last_buffers_are_for_receive_queues() {
        let words = "test --no-huge --no-shconf --no-pci -m 64 --no-telemetry --log-level=error --lcores 0@0";
        let _eal = Eal::init(words.split_whitespace().map(str::to_owned)).expect("EAL");
        let config = PoolConfig { count: 64, data_room: 2048, cache: 0, socket: -1 };
        let pool = Pool::create("punts", &config).expect("a pool");
        let big = Cause::TooBig { mtu: 1500, dial: None };
        let mut held: Vec<_> = std::iter::repeat_with(|| pool.alloc()).take(59).collect();
        assert!(may_hold(&big, 1, &pool));
        held.push(pool.alloc());
        assert!(!may_hold(&big, 1, &pool), "four buffers are left");
        assert!(!may_hold(&Cause::Punt(Punt::Neighbour(Ipv4Addr::LOCALHOST)), 1, &pool));
        for small in [Cause::Punt(Punt::Arp), Cause::Punt(Punt::Hello)] {
            assert!(may_hold(&small, 1, &pool));
            assert!(!may_hold(&small, 2, &pool), "gateways and hosts send no chains");
        }
        held.pop();
        assert!(may_hold(&big, 1, &pool));
        drop(held);
    }
}
