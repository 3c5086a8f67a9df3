//! Prefetch of the memory that a burst will look up.
//!
//! With thousands of hosts, the entry of each packet's host is in no near cache, and the packets would wait
//! for one cache line after the other. A short loop over the burst prefetches all of them together. With many
//! connections, each packet also has its own queue pair. Two more loops prefetch the parts of it that a
//! message touches, then the ring's entry into which it is written, which was last touched one lap of the
//! ring ago. Prefetching decides nothing. With small tables it only costs instructions, and is skipped.

use arrayvec::ArrayVec;
use pmd::eth::Burst;
use pmd::hca::{BURST, MemoryWork, RcSlot, RxBurst};

use super::faces::InfiniBandFace;
use crate::forward::{EndpointIndex, EthernetIndex, SegmentTable, ShortWay};
use crate::gateway::frames::head;
use ipoib::link::WorkerIndex;

/// Prefetches what the frames of a port look up.
#[inline(never)]
pub(super) fn of_frames<Q: MemoryWork>(
    short: &mut ShortWay<'_, Q::Destination>,
    (port, worker): (EthernetIndex, WorkerIndex),
    frames: &Burst,
    infinibands: &mut [InfiniBandFace<Q>],
) {
    let many = have_many(infinibands);
    // Capacity of a whole burst.
    let mut hosts: ArrayVec<(&SegmentTable<Q::Destination>, u32), BURST> = ArrayVec::new();
    let mut far = false;
    for frame in frames {
        if let Some((table, addresses)) = short.addresses(port, head(frame), frame.frame_facts()) {
            let near = table.fetch_ib(addresses);
            let [_, destination] = addresses;
            if many || !near {
                let _ = hosts.try_push((table, destination));
            }
            far |= !near;
        }
    }
    if far {
        hosts.iter().for_each(|(table, destination)| table.fetch_far_ib(*destination));
    }
    if many {
        of_connections(&hosts, worker, infinibands);
    }
}

/// True if queue pairs should be prefetched.
#[inline]
pub(super) fn have_many<Q: MemoryWork>(infinibands: &mut [InfiniBandFace<Q>]) -> bool {
    infinibands.iter_mut().any(|face| face.link.queues().are_many())
}

/// Prefetches what messages to these hosts touch of their connections.
fn of_connections<Q: MemoryWork>(
    hosts: &[(&SegmentTable<Q::Destination>, u32)],
    worker: WorkerIndex,
    infinibands: &mut [InfiniBandFace<Q>],
) {
    let mut slots: ArrayVec<(usize, RcSlot), BURST> = ArrayVec::new();
    for (table, destination) in hosts {
        let port = table.settings.endpoint.at();
        if let Some((_, host)) = table.ib((*destination).into())
            && let Some(rc) = host.rc.of(worker)
            && let Some(face) = infinibands.get_mut(port)
        {
            face.link.queues().fetch(rc.slot);
            let _ = slots.try_push((port, rc.slot));
        }
    }
    for (port, slot) in slots {
        if let Some(face) = infinibands.get_mut(port) {
            face.link.queues().fetch_entry(slot);
        }
    }
}

/// Prefetches what the messages of a port look up.
#[inline(never)]
pub(super) fn of_messages<D: Clone>(short: &mut ShortWay<'_, D>, port: EndpointIndex, messages: &RxBurst) {
    let mut hosts: ArrayVec<(&SegmentTable<D>, u32), BURST> = ArrayVec::new();
    for message in messages {
        if let Some(link) = message.ud
            && let Some((table, addresses)) = short.message_addresses((port, link.0), head(&message.buf))
            && !table.fetch_eth(addresses)
        {
            let [_, destination] = addresses;
            let _ = hosts.try_push((table, destination));
        }
    }
    for (table, destination) in hosts {
        table.fetch_far_eth(destination);
    }
}
