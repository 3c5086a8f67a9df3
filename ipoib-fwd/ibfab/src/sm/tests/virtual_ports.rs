//! Requirements of virtual ports for subnet administration: paths whose packets have a GRH, and answers and
//! reports to their GIDs.

use ib_wire::mad::{Mad, Method};
use ib_wire::sa::{InformInfo, PathMask, PathRecord, SaMad, trap};
use ib_wire::{Gid, Tid};

use super::administration::up;
use super::{SECOND, config};
use crate::subnet::SmConfig;

#[test]
fn paths_have_the_configured_hop_limit() {
    for hop_limit in [0, 1] {
        let mut world = up(2, SmConfig { hop_limit, ..config() });
        let wanted = PathRecord { dgid: world.gid(2), sgid: world.gid(1), ..PathRecord::default() };
        let path = |world: &mut super::world::World| {
            world.path(1, PathMask::DGID | PathMask::SGID, &wanted).unwrap().hop_limit
        };
        assert_eq!(path(&mut world), hop_limit);
        world.sm.set_hop_limit(1);
        assert_eq!(path(&mut world), 1);
    }
}

#[test]
fn a_subscriber_that_asked_with_a_grh_gets_reports_with_one() {
    for grh in [false, true] {
        let mut world = up(2, config());
        let gid = world.gid(1);
        let plain = world.address(1);
        let peer = if grh { plain.with_gid(gid) } else { plain };
        let inform = InformInfo::trap(trap::GID_OUT_OF_SERVICE, true);
        let bytes = SaMad::request(Method::Set, Tid(7), 0, &inform).to_bytes();
        world.sm.handle_mad(world.now, &Mad { peer, bytes });
        world.pump();
        let answer = world.inbox.pop_front().expect("an answer");
        let expected = grh.then_some(gid);
        assert_eq!(answer.peer.route.map(|route| route.gid), expected, "the answer");
        world.disconnect((0, 2));
        world.sm.handle_port_change(world.now);
        world.pass(SECOND / 4);
        let report = world.inbox.pop_front().expect("a report");
        assert_eq!(report.peer.route.map(|route| route.gid), expected, "the report");
        assert_eq!(world.reports(true).iter().filter(|r| r.2 == Gid::ZERO).count(), 0);
    }
}
