//! What a burst will look up, asked for before it is looked up.
//!
//! With thousands of hosts each packet finds its own in no near cache, and waits for one line after the other. Two short loops over the
//! burst ask for all of them together: first for what tells where a host is, then for the host. They decide nothing. Where tables are
//! small they would only cost instructions, and are left out.
//!
//! A processor with 1 MB of second-level cache forwards 4 times as many packets so to 100,000 hosts, and a quarter more to 4,096.

use arrayvec::ArrayVec;
use pmd::eth::Burst;
use pmd::hca::{BURST, RxBurst};

use crate::forward::{EndpointIndex, EthernetIndex, SegmentTable, ShortWay};
use crate::gateway::frames::head;

/// Asks for what the frames of a port look up.
#[inline(never)]
pub(super) fn of_frames<D: Clone>(short: &mut ShortWay<'_, D>, port: EthernetIndex, frames: &Burst) {
    let mut hosts: ArrayVec<(&SegmentTable<D>, u32), BURST> = ArrayVec::new();
    for frame in frames {
        if let Some((table, addresses)) = short.addresses(port, head(frame), frame.frame_facts()) {
            table.fetch_ib_rows(addresses);
            let [_, destination] = addresses;
            // There is room: a burst has no more.
            let _ = hosts.try_push((table, destination));
        }
    }
    for (table, destination) in hosts {
        table.fetch_ib(destination);
    }
}

/// The same for the messages of a port.
#[inline(never)]
pub(super) fn of_messages<D: Clone>(short: &mut ShortWay<'_, D>, port: EndpointIndex, messages: &RxBurst) {
    let mut hosts: ArrayVec<(&SegmentTable<D>, u32), BURST> = ArrayVec::new();
    for message in messages {
        if let Some(link) = message.ud
            && let Some((table, addresses)) = short.message_addresses((port, link.0), head(&message.buf))
        {
            table.fetch_eth_rows(addresses);
            let [_, destination] = addresses;
            let _ = hosts.try_push((table, destination));
        }
    }
    for (table, destination) in hosts {
        table.fetch_eth(destination);
    }
}
