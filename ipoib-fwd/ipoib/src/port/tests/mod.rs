//! Several links on one port: no state of one affects another, and each is added and removed separately.

mod fairness;
mod world;

use std::time::Duration;

use ib_wire::{PKey, Qpn};

use super::*;
use crate::link::{Asker, Waiting};
use world::{PKEYS, World, ip, sl_of};

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn links_of_one_port_have_their_own_groups_paths_and_connections() {
    let mut w = World::new(2, 2);
    w.run(secs(1));
    for link in 0..2 {
        assert!(w.is_up(0, link) && w.is_up(1, link));
        w.connect(link, 0, 1);
    }
    for (link, pkey) in [(0u16, PKEYS[0]), (1, PKEYS[1])] {
        for (n, other) in [(0, 1), (1, 0)] {
            assert_eq!(w.live(n, link).len(), 2, "one each way");
            let table = &w.nodes[n].faces[&LinkIndex(link)].table;
            assert_eq!(table.len(), 1);
            let neighbour = table.get(ip(other, link)).expect("the other node");
            assert_eq!(neighbour.hardware.qpn, world::ud_qpn(other, link));
            assert_eq!(neighbour.ud.expect("path").av.sl.get(), sl_of(pkey));
            assert!(neighbour.rc(0).is_some());
        }
    }
    assert_eq!(w.nodes[0].slots.len(), 4, "the worker's slots are shared");
}

#[test]
fn answers_that_come_late_and_in_another_order_reach_their_links() {
    let mut w = World::new(2, 3);
    w.hold = true;
    w.settle();
    for link in 0..3 {
        assert!(!w.is_up(0, link));
    }
    w.release();
    for link in 0..3 {
        assert!(w.is_up(0, link) && w.is_up(1, link), "{link}");
    }
    // Paths to one GID in three partitions, answered the last first.
    w.hold = true;
    for link in 0..3 {
        let now = w.now;
        let to = Asker { hardware: HardwareOf::of(&w, 1, link), lid: w.nodes[1].facts.lid };
        let machine = w.nodes[0].port.link_mut(LinkIndex(link)).expect("link");
        machine.reply(now, WorkerIndex(0), ip(0, link), to, ip(1, link));
    }
    w.settle();
    w.release();
    for (link, pkey) in (0u16..3).zip(PKEYS) {
        let table = &w.nodes[0].faces[&LinkIndex(link)].table;
        let path = table.get(ip(1, link)).and_then(|n| n.ud).expect("path");
        assert_eq!(path.av.sl.get(), sl_of(pkey));
    }
}

struct HardwareOf;

impl HardwareOf {
    fn of(w: &World, n: usize, link: u16) -> crate::link::HardwareAddress {
        w.nodes[n].port.link(LinkIndex(link)).and_then(|l| l.address(WorkerIndex(0))).expect("address")
    }
}

#[test]
fn removed_link_leaves_nothing_and_affects_no_other() {
    let mut w = World::new(2, 2);
    w.run(secs(1));
    w.connect(0, 0, 1);
    w.connect(1, 0, 1);
    let kept = w.live(0, 0);
    let events = w.nodes[0].faces[&LinkIndex(0)].events.len();
    let requests = w.requests.clone();

    let now = w.now;
    assert!(w.nodes[0].port.remove(now, LinkIndex(1)).is_none(), "still running");
    w.nodes[0].port.link_mut(LinkIndex(1)).expect("link").shutdown(now);
    w.run(secs(20));
    assert!(w.nodes[0].faces[&LinkIndex(1)].events.contains(&Event::Stopped));
    let now = w.now;
    assert!(w.nodes[0].port.remove(now, LinkIndex(1)).is_some());

    let node = &w.nodes[0];
    assert!(node.faces[&LinkIndex(1)].attached.is_empty() && node.faces[&LinkIndex(1)].table.is_empty());
    assert!(w.members.iter().filter(|(_, port)| *port == node.facts.gid).count() == 1, "{:?}", w.members);
    assert_eq!(node.qps.len(), 2);
    assert_eq!(node.port.slots.in_use(), 2);
    assert_eq!((node.port.by_id.len(), node.port.by_key.len(), node.port.by_qpn.len()), (2, 2, 2));
    assert_eq!(node.port.by_service.len(), 1);
    assert_eq!(node.port.services.sa.outstanding(), 0);
    assert_eq!(node.port.services.sa.paths(), 1);
    assert_eq!(w.live(0, 0), kept, "the other link's connections live on");
    assert_eq!(w.nodes[0].faces[&LinkIndex(0)].events.len(), events, "and it has no new event");
    let left = w.requests.get(&(0x38, 0x15)).copied().unwrap_or(0);
    assert_eq!(left, requests.get(&(0x38, 0x15)).copied().unwrap_or(0) + 1, "one group left");

    // The index is free again, also for another partition.
    assert_eq!(w.add(0, PKEYS[2]), LinkIndex(1));
    w.add(1, PKEYS[2]);
    w.run(secs(1));
    assert!(w.is_up(0, 1) && w.is_up(1, 2));
    assert_eq!(w.live(0, 0), kept);
}

#[test]
fn a_link_that_is_held_comes_up_when_it_is_released_and_can_be_removed_before() {
    let mut w = World::new(2, 1);
    w.run(secs(1));
    let held = w.add_held(0, PKEYS[1]);
    w.add(1, PKEYS[1]);
    // No event of the port concerns it.
    w.change_port(0, |_| {});
    let (now, facts) = (w.now, w.nodes[0].facts.clone());
    w.nodes[0].port.handle_port_event(now, PortEvent::Heavy, facts);
    w.run(secs(5));
    let face = &w.nodes[0].faces[&held];
    assert!(!w.is_up(0, held.0) && face.events.is_empty() && face.opened.is_none());
    let now = w.now;
    w.nodes[0].port.release(now, held);
    w.run(secs(1));
    assert!(w.is_up(0, held.0) && w.is_up(0, 0));
    let other = w.add_held(0, PKEYS[2]);
    let now = w.now;
    w.nodes[0].port.link_mut(other).expect("link").shutdown(now);
    w.run(secs(1));
    let now = w.now;
    assert!(w.nodes[0].port.remove(now, other).is_some());
    assert_eq!(w.add(0, PKEYS[2]), other);
    w.run(secs(1));
    assert!(w.is_up(0, other.0));
}

#[test]
fn a_changed_table_of_keys_touches_only_whom_it_concerns() {
    let mut w = World::new(2, 2);
    w.run(secs(1));
    w.connect(0, 0, 1);
    w.connect(1, 0, 1);
    let kept = w.live(0, 1);
    w.requests.clear();
    // The first partition's P_Key moves; the second's stays at its index.
    let mut facts = w.nodes[0].facts.clone();
    facts.pkeys = vec![PKEYS[2], PKEYS[1], PKEYS[0]];
    w.nodes[0].facts = facts.clone();
    let now = w.now;
    w.nodes[0].port.handle_port_event(now, PortEvent::Heavy, facts);
    w.run(secs(1));
    assert_eq!(w.nodes[0].faces[&LinkIndex(0)].opened.map(|(index, _)| index), Some(2));
    assert!(w.is_up(0, 0));
    assert_eq!(w.live(0, 1), kept);
    assert_eq!(w.requests.get(&(0x38, 2)), Some(&1), "one join: {:?}", w.requests);
}

#[test]
fn link_waits_for_its_partition_and_for_full_membership() {
    let mut w = World::new(1, 2);
    w.change_port(0, |facts| facts.pkeys = vec![PKEYS[0], PKey(0x0002)]);
    w.run(secs(1));
    let second = |w: &World| w.nodes[0].port.link(LinkIndex(1)).and_then(Link::waits_for);
    assert!(w.is_up(0, 0) && !w.is_up(0, 1));
    assert_eq!(second(&w), Some(Waiting::FullMembership));
    w.change_port(0, |facts| facts.pkeys = vec![PKEYS[0]]);
    assert_eq!(second(&w), Some(Waiting::PKey));
    // As limited and as full member at once: the full one counts.
    w.change_port(0, |facts| facts.pkeys = vec![PKEYS[0], PKey(0x0002), PKEYS[1]]);
    w.run(secs(1));
    assert!(w.is_up(0, 1));
    assert_eq!(w.nodes[0].faces[&LinkIndex(1)].opened.map(|(index, _)| index), Some(2));
    assert!(w.nodes[0].faces[&LinkIndex(0)].events.iter().all(|e| *e != Event::Down), "never touched");
}

/// At any index of the port's table.
#[test]
fn subnet_administration_is_queried_by_the_default_partition() {
    for (keys, index) in [
        (vec![PKEYS[0], PKey::DEFAULT], 1),
        (vec![PKEYS[0], PKEYS[1], PKey(0x7fff)], 2),
        (vec![PKey(0x7fff), PKEYS[0], PKey::DEFAULT], 2),
        (vec![PKEYS[0]], 0),
    ] {
        let mut w = World::new(1, 1);
        w.run(secs(1));
        let before = w.requests.values().sum::<usize>();
        w.change_port(0, |facts| facts.pkeys = keys.clone());
        w.run(secs(1));
        assert_eq!(w.requests.values().sum::<usize>() > before, index > 0, "a join by the other index");
        assert!(w.is_up(0, 0), "{keys:?}");
        let settings = LinkSettings::new(PKEYS[0], Qpn::new(0x777), 1);
        assert_eq!(w.nodes[0].facts.of(&settings).default_pkey_index, index);
    }
}

#[test]
fn limited_membership_is_sufficient_for_a_host() {
    let mut settings = LinkSettings::new(PKEYS[1], Qpn::new(0x777), 1);
    let facts = |pkeys: &[PKey]| Facts { pkeys: pkeys.to_vec(), ..Facts::default() };
    let limited = facts(&[PKEYS[0], PKey(PKEYS[1].base())]);
    assert_eq!((limited.of(&settings).pkey_index, limited.of(&settings).limited), (None, true));
    settings.limited_will_do = true;
    assert_eq!((limited.of(&settings).pkey_index, limited.of(&settings).limited), (Some(1), false));
    let both = facts(&[PKey(PKEYS[1].base()), PKEYS[1]]);
    assert_eq!(both.of(&settings).pkey_index, Some(1), "the full one is better");
    assert_eq!(facts(&[PKEYS[0], PKey(0)]).of(&settings).pkey_index, None);
}

#[test]
fn one_link_a_partition() {
    let mut w = World::new(1, 1);
    let now = w.now;
    let again = LinkSettings::new(PKey(PKEYS[0].base()), Qpn::new(0x777), 1);
    let refused = w.nodes[0].port.add(now, again).expect_err("taken");
    assert_eq!(refused, LinkError::PKeyTaken(PKey(PKEYS[0].base())));
    for n in 1..MAX_LINKS as u16 {
        let settings = LinkSettings::new(PKey(0x8100 + n), Qpn::new(0x1000 + u32::from(n)), 1);
        assert_eq!(w.nodes[0].port.add(now, settings), Ok(LinkIndex(n)));
    }
    let settings = LinkSettings::new(PKey(0x9000), Qpn::new(0x5000), 1);
    assert_eq!(w.nodes[0].port.add(now, settings), Err(LinkError::Full(MAX_LINKS)));
}

#[test]
fn dials_are_limited_and_repeated() {
    let mut w = World::new(2, 3);
    w.run(secs(1));
    let now = w.now;
    w.nodes[0].port.dials = Bucket::new(now, 1, 1);
    for link in 0..3 {
        let machine = w.nodes[0].port.link_mut(LinkIndex(link)).expect("link");
        machine.resolve(now, WorkerIndex(0), ip(0, link), ip(1, link));
    }
    w.settle();
    let up = |w: &World| (0..3).map(|link| w.live(0, link).len()).sum::<usize>();
    assert_eq!(up(&w), 1);
    w.run(secs(12));
    assert_eq!(up(&w), 3, "none is lost");
}
