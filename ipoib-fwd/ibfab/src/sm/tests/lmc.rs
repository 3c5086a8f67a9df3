//! Ports with several LIDs.

use std::collections::BTreeSet;

use ib_wire::mad::{Mad, MadAddress, Method};
use ib_wire::sa::{JoinState, McMask, McMemberRecord, PathMask, PathRecord, SaMad};
use ib_wire::smp::{Lmc, NodeType};
use ib_wire::{Lid, ServiceLevel, Tid};

use super::administration::{broadcast, up};
use super::switches::{build_with, walk};
use super::{SECOND, all_active, config};
use crate::subnet::SmConfig;

fn with_lmc(lmc: u8) -> SmConfig {
    SmConfig { lmc: Lmc::new(lmc), ..config() }
}

#[test]
fn each_port_has_a_block_of_lids_and_no_two_have_the_same() {
    for lmc in 0..=7 {
        let world = up(6, with_lmc(lmc));
        let mut taken = BTreeSet::from([world.nodes[0].ports[0].lid]);
        assert_eq!((world.nodes[0].ports[0].lid, world.nodes[0].ports[0].lmc.get()), (Lid(1), 0));
        for i in 1..=6 {
            let port = &world.nodes[i].ports[1];
            assert_eq!(port.lmc.get(), lmc);
            assert_eq!(port.lid.0 % (1 << lmc), 0, "{} is no first LID of 2^{lmc}", port.lid);
            for lid in (0..1 << lmc).map(|offset| Lid(port.lid.0 + offset)) {
                assert!(taken.insert(lid), "{lid} is given twice");
                assert_eq!(world.route(0, lid), i as u8, "{lid}");
            }
        }
        assert!(usize::from(world.nodes[0].switch.linear_top) >= taken.len() - 1);
    }
}

#[test]
fn lids_that_a_port_brings_are_kept_only_where_they_are_a_block() {
    let mut world = super::World::new(3, with_lmc(2));
    for (i, lid) in [(1, 6), (2, 8), (3, 8)] {
        world.nodes[i].ports[1].lid = Lid(lid);
    }
    world.pass(SECOND);
    assert!(all_active(&world));
    let lids: Vec<u16> = (1..=3).map(|i| world.lid(i).0).collect();
    assert!(lids.iter().all(|lid| lid % 4 == 0) && lids[1] != lids[2], "{lids:?}");
    // A port alone keeps the block that it reports.
    let mut world = super::World::new(1, with_lmc(2));
    world.nodes[1].ports[1].lid = Lid(64);
    world.pass(SECOND);
    assert_eq!(world.lid(1), Lid(64));
}

#[test]
fn a_table_that_is_full_leaves_the_last_port_without_lids() {
    let mut world = super::World::new(0, with_lmc(7));
    world.nodes[0].switch.linear_cap = 3 * 128;
    for i in 1..=3 {
        let adapter = world.add(NodeType::ChannelAdapter, 0x1000 * u64::from(i), 1);
        world.connect((0, i), (adapter, 1));
    }
    world.pass(SECOND);
    let lids: Vec<Lid> = (1..=3).map(|i| world.lid(i)).collect();
    assert_eq!(lids, [Lid(128), Lid(256), Lid(0)]);
}

#[test]
fn the_lids_of_one_port_are_spread_over_trunks() {
    let (world, adapters) = build_with(with_lmc(2), 3, &[(0, 1), (0, 1), (1, 2), (1, 2)]);
    for (&home, &adapter) in &adapters {
        for &from in adapters.keys().filter(|&&from| from != home) {
            let base = world.lid(adapter).0;
            let routes: BTreeSet<_> = (base..base + 4).map(|lid| walk(&world, from, Lid(lid))).collect();
            assert!(routes.len() > 1, "all four LIDs of {adapter} take one path from {from}");
        }
    }
}

#[test]
fn paths_and_memberships_go_by_each_lid_of_a_port() {
    let mut world = up(2, with_lmc(2));
    let (own, other) = (world.lid(1), world.lid(2));
    let lids = PathMask::SLID | PathMask::DLID;
    for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
        let wanted = PathRecord { slid: Lid(own.0 + i), dlid: Lid(other.0 + j), ..PathRecord::default() };
        let path = world.path(1, lids, &wanted).unwrap();
        assert_eq!((path.slid, path.dlid, path.dgid), (wanted.slid, wanted.dlid, world.gid(2)));
    }
    let outside = PathRecord { slid: own, dlid: Lid(other.0 + 4), ..PathRecord::default() };
    assert_eq!(world.path(1, lids, &outside), Err(0x0300));
    // Without LIDs the path is that between the first ones.
    let wanted = PathRecord { sgid: world.gid(1), dgid: world.gid(2), ..PathRecord::default() };
    let path = world.path(1, PathMask::SGID | PathMask::DGID, &wanted).unwrap();
    assert_eq!((path.slid, path.dlid), (own, other));
    // A request from another LID of the port belongs to the port.
    let record = McMemberRecord {
        mgid: broadcast(),
        port_gid: world.gid(1),
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let mask = McMask::MGID | McMask::PORT_GID | McMask::JOIN_STATE;
    let bytes = SaMad::request(Method::Set, Tid(9), mask.bits(), &record).to_bytes();
    let peer = MadAddress::gsi(Lid(own.0 + 3), ServiceLevel::new(0));
    world.sm.handle_mad(world.now, &Mad { peer, bytes });
    world.pump();
    let answer = SaMad::parse(&world.inbox.pop_front().unwrap().bytes);
    assert!(answer.header.status.is_ok(), "{:?}", answer.header);
    assert_eq!(world.multicast(0, Lid(0xc000)), 1 << 1);
}

#[test]
fn ports_keep_their_lids_when_they_come_back() {
    let mut world = up(3, with_lmc(1));
    let lids: Vec<Lid> = (1..=3).map(|i| world.lid(i)).collect();
    let end = world.peer((0, 2)).unwrap();
    world.disconnect((0, 2));
    world.sm.handle_port_change(world.now);
    world.pass(11 * SECOND);
    world.nodes[2].ports[1].lid = Lid(0);
    world.connect((0, 2), end);
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    assert_eq!((1..=3).map(|i| world.lid(i)).collect::<Vec<_>>(), lids);
}
