//! Shares of one port in common resources.

use ib_wire::sa::{McMask, McMemberRecord, PathMask, PathRecord, SaMad, Selector, trap};

use super::administration::{JOIN, all_hosts, creation, member, up};
use super::*;

/// Refused for want of room.
const FULL: u16 = 0x0100;

pub(super) fn group(n: u8) -> ib_wire::Gid {
    let mut mgid = all_hosts();
    mgid.0[15] = n;
    mgid
}

fn make(world: &mut World, port: usize, n: u8) -> Result<(), u16> {
    let (mask, record) = creation(world, port, group(n));
    world.member(port, Method::Set, mask, &record).map(|_| ())
}

#[test]
fn one_port_does_not_take_all_groups() {
    let mut world = up(2, SmConfig { max_groups_of_a_port: 2, ..config() });
    assert_eq!([1, 2, 3].map(|n| make(&mut world, 1, n)), [Ok(()), Ok(()), Err(FULL)]);
    // Another port has its own share, and may join all existing groups.
    assert_eq!([4, 1, 5, 6].map(|n| make(&mut world, 2, n)), [Ok(()), Ok(()), Ok(()), Err(FULL)]);
    // A group that is gone makes room.
    let gone = member(&world, 1, group(2));
    world.member(1, Method::Delete, JOIN, &gone).unwrap();
    assert_eq!([3, 7].map(|n| make(&mut world, 1, n)), [Ok(()), Err(FULL)]);
}

#[test]
fn groups_that_a_port_has_others_join_count_in_its_own_share() {
    let mut world = up(2, SmConfig { max_groups_of_a_port: 2, ..config() });
    for n in [1, 2] {
        make(&mut world, 1, n).unwrap();
        let other = McMemberRecord { proxy_join: true, ..member(&world, 2, group(n)) };
        world.member(1, Method::Set, JOIN | McMask::PROXY_JOIN, &other).unwrap();
    }
    assert_eq!(make(&mut world, 1, 3), Err(FULL));
    // It cannot create one in the other's name either.
    let (mask, record) = creation(&world, 2, group(4));
    let record = McMemberRecord { proxy_join: true, ..record };
    assert_eq!(world.member(1, Method::Set, mask | McMask::PROXY_JOIN, &record).map(|_| ()), Err(FULL));
    assert_eq!([5, 6].map(|n| make(&mut world, 2, n)), [Ok(()); 2], "whose share is untouched");
}

#[test]
fn memberships_that_a_port_asks_for_others_count_in_its_share() {
    let mut world = up(3, SmConfig { max_groups_of_a_port: 2, ..config() });
    for (port, n) in [(1, 1), (1, 2), (2, 3)] {
        make(&mut world, port, n).unwrap();
    }
    let proxy = |world: &mut World, port, n, on| {
        let method = if on { Method::Set } else { Method::Delete };
        let record = McMemberRecord { proxy_join: true, ..member(world, 3, group(n)) };
        world.member(port, method, JOIN | McMask::PROXY_JOIN, &record).map(|_| ())
    };
    assert_eq!([1, 2, 3].map(|n| proxy(&mut world, 1, n, true)), [Ok(()), Ok(()), Err(FULL)]);
    assert_eq!(proxy(&mut world, 1, 2, true), Ok(()), "that is no new one");
    assert_eq!(proxy(&mut world, 2, 3, true), Ok(()), "another one has its own share");
    // A membership that has ended, or is the member's own by now, makes room.
    assert_eq!(proxy(&mut world, 1, 1, false), Ok(()));
    let own = member(&world, 3, group(2));
    world.member(3, Method::Set, JOIN, &own).unwrap();
    make(&mut world, 2, 4).unwrap();
    assert_eq!([1, 4].map(|n| proxy(&mut world, 1, n, true)), [Ok(()); 2]);
}

#[test]
fn groups_in_the_name_of_others_end_with_their_maker() {
    let mut world = up(2, SmConfig { max_groups_of_a_port: 2, ..config() });
    for n in [1, 2] {
        let (mask, record) = creation(&world, 1, group(n));
        // The port of the subnet manager never leaves.
        let manager = ib_wire::Gid::new(ib_wire::Gid::DEFAULT_PREFIX, SWITCH);
        let record = McMemberRecord { proxy_join: true, port_gid: manager, ..record };
        world.member(1, Method::Set, mask | McMask::PROXY_JOIN, &record).unwrap();
    }
    // One of them has a member that joined by its own request.
    let own = member(&world, 2, group(2));
    world.member(2, Method::Set, JOIN, &own).unwrap();
    assert_eq!(world.sm.groups().count(), 3);
    world.disconnect((0, 1));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    let left: Vec<_> = world.sm.groups().map(|(mgid, _, members)| (mgid, members)).collect();
    assert!(left.len() == 2 && left.contains(&(group(2), 1)), "{left:?}");
}

#[test]
fn a_group_counts_for_a_member_when_its_maker_has_left() {
    let mut world = up(3, SmConfig { max_groups_of_a_port: 2, ..config() });
    // Port 2 itself joins the groups of port 1, and port 3 joins by proxy.
    for n in [1, 2] {
        make(&mut world, 1, n).unwrap();
        let proxy = McMemberRecord { proxy_join: true, ..member(&world, 3, group(n)) };
        world.member(1, Method::Set, JOIN | McMask::PROXY_JOIN, &proxy).unwrap();
    }
    let joined = member(&world, 2, group(1));
    world.member(2, Method::Set, JOIN, &joined).unwrap();
    for n in [1, 2] {
        let left = member(&world, 1, group(n));
        world.member(1, Method::Delete, JOIN, &left).unwrap();
    }
    // Group 1 counts for port 2. Group 2, which port 3 did not request, counts for port 1 as before.
    assert_eq!([3, 4].map(|n| make(&mut world, 1, n)), [Ok(()), Err(FULL)]);
    assert_eq!([5, 6].map(|n| make(&mut world, 2, n)), [Ok(()), Err(FULL)]);
    assert_eq!([7, 8, 9].map(|n| make(&mut world, 3, n)), [Ok(()), Ok(()), Err(FULL)]);
}

#[test]
fn one_port_does_not_take_all_subscriptions() {
    let mut world = up(2, SmConfig { max_subscriptions_of_a_port: 2, ..config() });
    let traps = [trap::GROUP_CREATED, trap::GROUP_DELETED, trap::GID_IN_SERVICE];
    let taken = traps.map(|trap| world.subscribe(1, trap, true).is_ok());
    assert_eq!(taken, [true, true, false]);
    assert!(world.subscribe(1, traps[0], true).is_ok(), "one that it has is no new one");
    assert!(world.subscribe(2, traps[2], true).is_ok());
    assert!(world.subscribe(1, traps[0], false).is_ok() && world.subscribe(1, traps[2], true).is_ok());
}

/// Sixteen pairs of four ports, the switch's among them.
#[test]
fn one_request_does_not_have_all_pairs_of_ports_examined() {
    let mut world = up(3, SmConfig { max_path_pairs: 8, ..config() });
    let wanted = PathRecord { pkey: PKey(0x8123), sgid: world.gid(1), ..PathRecord::default() };
    assert_eq!(world.path(1, PathMask::PKEY, &wanted).map(|_| ()), Err(FULL));
    let none = 0x0300;
    assert_eq!(world.path(1, PathMask::PKEY | PathMask::SGID, &wanted).map(|_| ()), Err(none));
    let to = PathRecord { dgid: world.gid(2), ..wanted };
    assert!(world.path(1, PathMask::SGID | PathMask::DGID, &to).is_ok());
}

#[test]
fn what_a_request_has_examined_is_counted() {
    let mut world = up(3, config());
    world.sm.take_examined();
    let wanted = PathRecord { pkey: PKey(0x8123), ..PathRecord::default() };
    assert!(world.path(1, PathMask::PKEY, &wanted).is_err());
    assert_eq!(world.sm.take_examined(), 16, "pairs of four ports");
    // With a second switch, each of their ports once, whatever the number of pairs.
    let far = world.add(NodeType::Switch, 0x200, 20);
    world.connect((0, 20), (far, 5));
    let host = world.add(NodeType::ChannelAdapter, 0x8000, 1);
    world.connect((far, 7), (host, 1));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND);
    let wanted =
        PathRecord { mtu_selector: Selector::Greater, mtu: Mtu::B4096.into(), ..PathRecord::default() };
    assert!(world.path(1, PathMask::MTU_SELECTOR | PathMask::MTU, &wanted).is_err());
    assert_eq!(world.sm.take_examined(), 6 * 6 + 2 * 21);
    // A table that is refused is not searched further than its refusal needs.
    for n in 1..=40 {
        make(&mut world, 1, n).unwrap();
    }
    world.sm.take_examined();
    let wanted = McMemberRecord::default();
    let table = world.send(1, &SaMad::request(Method::GetTable, Tid(5), 0, &wanted));
    assert_eq!(table.header.status.0, FULL);
    assert_eq!((world.sm.take_examined(), world.sm.take_examined()), (16, 0));
}
