//! Any input: no panic, bounded answers, and the subnet stays up.

use ib_wire::mad::{Mad, MadStatus};
use ib_wire::smp::{DirectedPath, NodeInfo, NodeType, Smp, attribute};
use ib_wire::{Guid, Lid, PKey, Qpn};
use proptest::prelude::*;

use super::world::World;
use super::{SECOND, all_active, config, partition};
use crate::subnet::{Partition, SmConfig};

/// Generates a datagram with a valid class and version, and any other content.
fn datagram() -> impl Strategy<Value = Vec<u8>> {
    let class = prop_oneof![Just((0x01u8, 1u8)), Just((0x81, 1)), Just((0x03, 2))];
    let method = prop_oneof![any::<u8>(), Just(1), Just(2), Just(5), Just(0x12), Just(0x15), Just(0x81)];
    let attribute = prop_oneof![any::<u8>(), Just(0x02), Just(0x03), Just(0x15), Just(0x35), Just(0x38)];
    (class, method, attribute, proptest::collection::vec(any::<u8>(), 256), any::<u64>()).prop_map(
        |((class, version), method, attribute, mut bytes, mask)| {
            bytes[..4].copy_from_slice(&[1, class, version, method]);
            bytes[16..18].copy_from_slice(&[0, attribute]);
            // Not multi-packet, and a mask that often has the components of a request.
            bytes[26] = 0;
            bytes[48..56].copy_from_slice(&(mask & 0x3_ffff | mask >> 46).to_be_bytes());
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_datagrams_do_no_harm(
        datagrams in proptest::collection::vec((datagram(), 0u16..6), 1..40),
        groups in any::<bool>(),
    ) {
        let mut world = World::new(3, config());
        world.pump();
        for (bytes, lid) in datagrams {
            let mut bytes: [u8; 256] = bytes.try_into().unwrap();
            if groups && bytes[1] == 3 {
                // An existing port, and a group that may exist.
                bytes[56] = 0xff;
                bytes[57] = 0x12;
                bytes[72..88].copy_from_slice(&world.gid(usize::from(lid % 3) + 1).0);
            }
            let mut peer = world.address(1);
            peer.lid = Lid(lid);
            world.sm.handle_mad(world.now, &Mad { peer, bytes: Box::new(bytes) });
            world.pump();
            prop_assert!(world.inbox.len() <= 8, "one answer, and reports to a few");
            world.inbox.clear();
        }
        world.pass(30 * SECOND);
        prop_assert!(world.sm.is_up() && all_active(&world));
        prop_assert_eq!(world.sm.ports().count(), 4);
    }
}

#[test]
fn a_second_port_of_a_node_says_nothing_about_the_first_one() {
    let partitions = vec![Partition::default_ipoib(), partition(0x8002, &[(0x2001, true)])];
    for (cap, at) in [(1, 1), (1, 9), (2000, 1)] {
        let mut world = World::new(0, SmConfig { partitions: partitions.clone(), ..config() });
        let victim = world.add(NodeType::ChannelAdapter, 0x2000, 1);
        world.connect((0, 5), (victim, 1));
        let liar = world.add(NodeType::ChannelAdapter, 0x9000, 1);
        world.nodes[liar].claims = Some((0x2000, NodeType::ChannelAdapter));
        world.nodes[liar].claimed_local_port = Some(2);
        world.nodes[liar].partition_cap = cap;
        world.connect((0, at), (liar, 1));
        world.pump();
        assert!(world.sm.is_up(), "{:?}", world.sm.counters());
        assert_eq!(world.nodes[victim].pkeys[1][&0][..2], [PKey::DEFAULT, PKey(0x8002)], "{cap} {at}");
        assert_eq!(world.sm.counters().pkeys_left_out, 0);
        assert!(world.nodes[victim].pkeys[1].keys().all(|&block| block < 2), "{cap} {at}");
    }
}

#[test]
fn an_answer_by_another_path_is_not_taken() {
    // Two hosts. A query of the first one's port is answered by a path to the second one's, by a longer path,
    // and by the right path in the wrong direction.
    let mut world = World::new(2, config());
    world.pump();
    let paths = [2, 1].map(|port| DirectedPath::LOCAL.then(port).unwrap());
    let longer = paths[1].then(1).unwrap();
    world.nodes[1].mute = true;
    world.sm.handle_port_change(world.now);
    world.now += SECOND / 10;
    world.sm.handle_timeout(world.now);
    // The query to port 1, among those that are sent.
    let mut query = None;
    while query.is_none() {
        let mad = world.sm.poll_transmit().expect("a query to port 1");
        let smp = Smp::from_mad(&mad.bytes).unwrap();
        let is_it =
            smp.header.attribute == attribute::NODE_INFO && smp.hop_count() == 1 && smp.initial_path[1] == 1;
        query = is_it.then_some(smp);
        world.carry_out(smp);
    }
    let query = query.unwrap();
    let claim = NodeInfo {
        base_version: 1,
        class_version: 1,
        node_type: NodeType::ChannelAdapter,
        num_ports: 1,
        system_image_guid: Guid(0x6660),
        node_guid: Guid(0x6660),
        port_guid: Guid(0x6661),
        partition_cap: 64,
        device_id: 1,
        revision: 1,
        local_port: 1,
        vendor_id: Qpn::new(0),
    };
    let unasked = world.sm.counters().unasked;
    for (path, returns) in [(paths[0], true), (longer, true), (paths[1], false)] {
        let mut answer = Smp::directed(query.header.method, query.header.tid, attribute::NODE_INFO, 0, &path);
        answer = answer.answer(MadStatus::OK);
        if !returns {
            answer.header.status = MadStatus::OK;
        }
        answer.set_attribute(&claim);
        world.sm.handle_mad(world.now, &answer.to_mad(Lid::PERMISSIVE));
    }
    assert_eq!(world.sm.counters().unasked, unasked + 3);
    world.pass(2 * SECOND);
    assert!(world.sm.ports().all(|(_, gid)| gid.id() != Guid(0x6661)));
}
