//! Permission to change a membership of a group: the table of `Groups::may_change`, row by row.

use ib_wire::mad::Method;
use ib_wire::sa::{JoinState, McMask, McMemberRecord, SaMad};
use ib_wire::{Gid, PKey, Tid};

use super::administration::{JOIN, broadcast, member, up};
use super::world::World;
use super::{config, partition};
use crate::subnet::{Partition, SmConfig};

const REFUSED: Result<(), u16> = Err(0x0200);

/// The broadcast group of partition 0x8002.
fn group() -> Gid {
    let mut mgid = broadcast();
    mgid.0[4..6].copy_from_slice(&0x8002u16.to_be_bytes());
    mgid
}

/// Ports 1 to 3 are in partition 0x8002, and port 4 is not.
fn world() -> World {
    let members = [(0x1001, true), (0x2001, true), (0x3001, false)];
    let partitions = vec![Partition::default_ipoib(), partition(0x8002, &members)];
    up(4, SmConfig { partitions, ..config() })
}

/// Sends a request of port `from` for port `about`, with or without ProxyJoin.
fn change(world: &mut World, from: usize, method: Method, about: usize, proxy: bool) -> Result<(), u16> {
    let record = McMemberRecord { proxy_join: proxy, ..member(world, about, group()) };
    let mask = if proxy { JOIN | McMask::PROXY_JOIN } else { JOIN };
    world.member(from, method, mask, &record).map(|_| ())
}

fn members(world: &World) -> usize {
    world.sm.groups().find(|(mgid, ..)| *mgid == group()).unwrap().2
}

#[test]
fn a_membership_that_a_port_asked_for_is_its_own() {
    let mut w = world();
    assert_eq!(change(&mut w, 2, Method::Set, 2, false), Ok(()));
    for (from, proxy) in [(1, false), (1, true), (3, true), (4, true)] {
        for method in [Method::Delete, Method::Set] {
            assert_eq!(change(&mut w, from, method, 2, proxy), REFUSED, "{from} {method:?} {proxy}");
        }
    }
    // Not even one more join state, and not with the SM_Key.
    let more = JoinState::FULL_MEMBER | JoinState::NON_MEMBER;
    let record = McMemberRecord { proxy_join: true, join_state: more, ..member(&w, 2, group()) };
    assert_eq!(w.member(1, Method::Set, JOIN | McMask::PROXY_JOIN, &record).map(|_| ()), REFUSED);
    let mut trusted = SaMad::request(Method::Delete, Tid(3), JOIN.bits(), &member(&w, 2, group()));
    trusted.sm_key = 1;
    assert!(!w.send(1, &trusted).header.status.is_ok());
    assert_eq!(members(&w), 1);
    assert_eq!(change(&mut w, 2, Method::Delete, 2, false), Ok(()));
    assert_eq!(members(&w), 0);
}

#[test]
fn a_membership_by_proxy_is_the_partitions() {
    let mut w = world();
    assert_eq!(change(&mut w, 1, Method::Set, 2, false), REFUSED, "without ProxyJoin");
    assert_eq!(change(&mut w, 4, Method::Set, 2, true), REFUSED, "from another partition");
    assert_eq!(change(&mut w, 1, Method::Set, 4, true), REFUSED, "for another partition");
    assert_eq!(change(&mut w, 1, Method::Set, 2, true), Ok(()));
    // The stored ProxyJoin decides: a leave need not repeat it.
    for proxy in [false, true] {
        assert_eq!(change(&mut w, 4, Method::Delete, 2, proxy), REFUSED, "from another partition");
    }
    assert_eq!(change(&mut w, 3, Method::Delete, 2, false), Ok(()), "another one of the partition");
    assert_eq!(members(&w), 0);
    // The port itself makes the membership its own.
    assert_eq!(change(&mut w, 1, Method::Set, 2, true), Ok(()));
    let stored = |w: &mut World| {
        let mut request =
            SaMad::request(Method::GetTable, Tid(3), McMask::MGID.bits(), &member(w, 2, group()));
        request.sm_key = 1;
        w.send(1, &request).record::<McMemberRecord>().unwrap()
    };
    assert!(stored(&mut w).proxy_join);
    assert_eq!(change(&mut w, 2, Method::Set, 2, false), Ok(()));
    assert!(!stored(&mut w).proxy_join);
    assert_eq!(change(&mut w, 1, Method::Delete, 2, true), REFUSED);
    assert_eq!(change(&mut w, 2, Method::Delete, 2, false), Ok(()));
}

/// Only a port within the partition can create a group for another port by proxy.
#[test]
fn nobody_makes_a_group_in_the_name_of_another_partitions_port() {
    let mut w = world();
    let mut mgid = group();
    mgid.0[12..].copy_from_slice(&[0, 0, 0, 1]);
    let broadcast = w.member(2, Method::Get, McMask::MGID, &member(&w, 2, group())).unwrap();
    let record = McMemberRecord {
        port_gid: w.gid(2),
        mgid,
        join_state: JoinState::FULL_MEMBER,
        proxy_join: true,
        pkey: PKey(0x8002),
        ..broadcast
    };
    let mask = JOIN
        | McMask::PROXY_JOIN
        | McMask::QKEY
        | McMask::TRAFFIC_CLASS
        | McMask::PKEY
        | McMask::SL
        | McMask::FLOW_LABEL;
    assert_eq!(w.member(4, Method::Set, mask, &record).map(|_| ()), REFUSED);
    assert_eq!(w.member(1, Method::Set, mask, &record).map(|_| ()), Ok(()));
}
