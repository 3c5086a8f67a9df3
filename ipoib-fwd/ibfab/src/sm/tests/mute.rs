//! Hosts that do not answer, or not everything: they are found again.

use ib_wire::smp::NodeType;

use super::world::World;
use super::{SECOND, config};

#[test]
fn a_mute_host_is_found_again_by_another_trunk() {
    // For a moment, and for so long that it counts as gone.
    for silence in [SECOND, 20 * SECOND] {
        let mut world = World::new(1, config());
        let far = world.add(NodeType::Switch, 0x200, 20);
        world.connect((0, 19), (far, 5));
        world.connect((0, 20), (far, 6));
        let host = world.add(NodeType::ChannelAdapter, 0x8000, 1);
        world.connect((far, 9), (host, 1));
        world.pump();
        assert_eq!(world.sm.ports().count(), 4);
        world.nodes[host].mute = true;
        world.sm.handle_port_change(world.now);
        world.pass(silence);
        world.disconnect((0, 19));
        world.nodes[host].mute = false;
        world.sm.handle_port_change(world.now);
        world.pass(SECOND);
        assert!(world.sm.is_up(), "{silence:?}: {:?}", world.sm.counters());
        assert_eq!(world.sm.ports().count(), 4);
        assert_eq!(world.route(0, world.lid(host)), 20);
        world.pass(20 * SECOND);
        assert_eq!(world.sm.ports().count(), 4, "it stays");
    }
}
