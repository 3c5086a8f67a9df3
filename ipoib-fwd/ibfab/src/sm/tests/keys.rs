//! M_Keys, and what is read back of what was written.

use super::*;
use crate::subnet::MKeys;

fn guarded() -> World {
    let mut world = World::new(3, SmConfig { m_keys: Some(MKeys::new([7; 16])), ..config() });
    world.pump();
    assert!(world.sm.is_up(), "{:?}", world.sm.counters());
    world
}

#[test]
fn every_end_port_has_a_key_of_its_own() {
    let mut world = guarded();
    let ports = [(0, 0), (1, 1), (2, 1), (3, 1)].map(|(node, port)| world.nodes[node].ports[port]);
    let mut keys: Vec<u64> = ports.iter().map(|port| port.mkey).collect();
    for port in ports {
        assert_eq!((port.mkey_protect.get(), port.mkey_lease), (1, 0));
    }
    keys.sort_unstable();
    keys.dedup();
    assert!(keys.len() == 4 && keys[0] != 0);
    // It knows them itself: with the keys on guard a sweep still writes.
    world.disconnect((0, 2));
    world.connect((0, 2), (2, 1));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    assert!(all_active(&world) && world.sm.is_up());
    assert_eq!(world.nodes.iter().map(|node| node.refused).sum::<u32>(), 0);
}

#[test]
fn what_somebody_else_wrote_is_found_and_written_again() {
    for m_keys in [None, Some(MKeys::new([7; 16]))] {
        let mut world = World::new(3, SmConfig { m_keys, ..config() });
        world.pump();
        let sane = |world: &World| {
            let node = &world.nodes[2];
            let switch = &world.nodes[0];
            (
                node.pkeys.clone(),
                switch.pkeys.clone(),
                switch.linear.clone(),
                switch.multicast.clone(),
                switch.ports[2].pkey_enforce_in,
                node.ports[1].sm_lid,
            )
        };
        let before = sane(&world);
        let sets = world.sets();
        let mut found = 0;
        type Change = fn(&mut World);
        let changes: [Change; 6] = [
            |world| world.nodes[2].pkeys[1].get_mut(&0).unwrap()[5] = PKey(0x8005),
            |world| world.nodes[0].pkeys[2].get_mut(&0).unwrap()[5] = PKey(0x8005),
            |world| world.nodes[0].linear.get_mut(&0).unwrap()[3] = 1,
            |world| world.nodes[0].multicast.values_mut().for_each(|masks| masks[9] = 2),
            |world| world.nodes[0].ports[2].pkey_enforce_in = false,
            |world| world.nodes[2].ports[1].sm_lid = Lid(9),
        ];
        for (n, change) in changes.iter().enumerate() {
            // A table that holds nothing yet was not written.
            if n == 3 && before.3.is_empty() {
                continue;
            }
            change(&mut world);
            world.pass(11 * SECOND);
            found += 1;
            assert_eq!(sane(&world), before, "change {n}");
            assert_eq!(world.sm.counters().found_changed, found, "change {n}");
            assert_eq!(world.sets(), sets + found as u32, "change {n}: one value is written again");
            assert!(world.sm.is_up());
        }
    }
}

#[test]
fn a_port_that_does_not_take_its_keys_stays_down() {
    let mut world = World::new(2, SmConfig { m_keys: Some(MKeys::new([7; 16])), ..config() });
    world.nodes[2].key = 42;
    world.pass(5 * SECOND);
    assert_eq!(world.nodes[1].ports[1].state, PortState::Active);
    assert!(world.nodes[2].refused > 0);
    for (node, port) in [(2, 1), (0, 2)] {
        assert_eq!(world.nodes[node].ports[port].state, PortState::Init);
    }
}
