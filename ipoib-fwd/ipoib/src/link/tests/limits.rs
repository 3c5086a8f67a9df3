//! Many connections, many neighbours, tight bounds.

use std::net::Ipv4Addr;

use hca::QpState;
use ib_wire::Qpn;

use super::fabric::{Fabric, ms, secs};
use crate::link::{LinkError, LinkSettings, Mode, WorkerIndex};

const DIALLERS: usize = 5;
const WORKERS: u8 = 220;

/// 1,100 workers of five nodes have dialled node 0.
fn crowd(change: impl FnOnce(&mut super::fabric::Setup)) -> Fabric {
    let mut f = Fabric::new(1);
    f.add(1, change);
    for _ in 0..DIALLERS {
        f.add(WORKERS, |s| s.neighbour_idle = secs(100_000));
    }
    f.run(ms(100));
    for n in 1..=DIALLERS {
        f.resolve(n, 0);
        f.run(ms(20));
        for w in 1..WORKERS {
            f.resolve_by(n, w, 0);
        }
        f.run(secs(2));
    }
    f
}

fn passive(f: &Fabric) -> Vec<Qpn> {
    f.nodes[0].qps.iter().filter(|(_, q)| q.passive && q.state == QpState::Rts).map(|(n, _)| *n).collect()
}

#[test]
fn idle_passive_connections_expire_and_used_ones_stay() {
    let mut f = crowd(|_| {});
    let all = passive(&f);
    assert_eq!(all.len(), DIALLERS * usize::from(WORKERS));
    let used: Vec<_> = all.iter().copied().step_by(2).collect();
    for _ in 0..8 {
        f.run(secs(100));
        let now = f.now;
        f.nodes[0].link.handle_used(now, WorkerIndex(0), &used, &[]);
    }
    assert_eq!(passive(&f), used);
    assert_eq!(f.nodes[0].link.counters().passive_expired as usize, all.len() - used.len());
    let active: usize = (1..=DIALLERS).map(|n| f.nodes[n].live(false)).sum();
    assert_eq!(active, used.len(), "the peers were notified");
    let now = f.now;
    f.nodes[0].link.shutdown(now);
    f.run(secs(12));
    f.assert_clean(0);
}

#[test]
fn changed_settings_apply_to_existing_connections() {
    let mut f = crowd(|s| s.passive_idle = secs(100_000));
    f.run(secs(1000));
    let all = passive(&f);
    assert_eq!(all.len(), DIALLERS * usize::from(WORKERS));
    let now = f.now;
    let link = &mut f.nodes[0].link;
    let settings = LinkSettings { passive_idle: secs(50), receive_mtu: 2048, ..link.settings().clone() };
    let bad = LinkSettings { rnr_retry: 8, ..settings.clone() };
    assert_eq!(link.follow(now, &bad), Err(LinkError::Retry(8)));
    assert_eq!(link.settings().passive_idle, secs(100_000), "all or nothing");
    link.handle_used(now, WorkerIndex(0), &all[..10], &[]);
    link.follow(now, &settings).unwrap();
    assert_eq!(link.settings().receive_mtu, 2048);
    f.run(secs(20));
    assert_eq!(passive(&f), all[..10], "the others had been idle for long enough");
}

#[test]
fn more_peers_than_the_cap() {
    let f = crowd(|s| s.max_passive = 1000);
    assert!((900..=1000).contains(&passive(&f).len()), "{}", passive(&f).len());
    assert!(f.nodes[0].link.counters().passive_evicted >= 100);
}

#[test]
fn the_cap_evicts_the_longest_idle() {
    let mut f = Fabric::new(1);
    f.add(1, |s| s.max_passive = 3);
    f.add(4, |_| {});
    f.run(ms(100));
    f.resolve(1, 0);
    f.run(secs(2));
    for w in 1..3 {
        f.resolve_by(1, w, 0);
        f.run(secs(2));
    }
    let [first, second, third] = passive(&f)[..] else { panic!("three connections") };
    let now = f.now;
    f.nodes[0].link.handle_used(now, WorkerIndex(0), &[first], &[]);
    f.resolve_by(1, 3, 0);
    f.run(ms(50));
    let left = passive(&f);
    assert!(left.contains(&first) && left.contains(&third) && !left.contains(&second));
    assert_eq!(left.len(), 3);
    assert_eq!(f.nodes[0].link.counters().passive_evicted, 1);
}

#[test]
fn use_is_recorded_once_a_second() {
    let mut f = Fabric::new(1);
    f.add(1, |s| s.passive_idle = secs(10));
    f.add(1, |s| s.neighbour_idle = secs(100_000));
    f.run(ms(100));
    f.resolve(1, 0);
    f.run(ms(500));
    let qpn = passive(&f);
    let touch = |f: &mut Fabric| {
        let now = f.now;
        f.nodes[0].link.handle_used(now, WorkerIndex(0), &qpn, &[]);
    };
    touch(&mut f);
    assert!(f.nodes[0].link.connections(f.now)[0].idle_ms >= 400, "too soon to count");
    f.run(ms(600));
    touch(&mut f);
    assert_eq!(f.nodes[0].link.connections(f.now)[0].idle_ms, 0);
    f.run(ms(9_900));
    assert_eq!(passive(&f), qpn);
    f.run(ms(200));
    assert_eq!(f.nodes[0].link.counters().passive_expired, 1);
    assert!(!passive(&f).contains(&qpn[0]));
}

#[test]
fn no_slot_no_connection() {
    let mut f = Fabric::new(1);
    f.add(1, |s| s.slots = 3);
    f.add(8, |_| {});
    f.run(ms(100));
    f.resolve(1, 0);
    f.run(ms(20));
    for w in 1..8 {
        f.resolve_by(1, w, 0);
    }
    f.run(secs(5));
    assert!(f.nodes[0].qps.len() <= 3);
    assert!(f.nodes[0].link.counters().requests_rejected > 0);
    assert_eq!(f.nodes[0].live(true), 3);
}

#[test]
fn slot_is_reused_only_when_no_table_contains_it() {
    let mut f = Fabric::new(1);
    f.add(1, |s| s.slots = 1);
    f.add(1, |_| {});
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(ms(200));
    f.assert_connected(0, 0, 1);
    f.nodes[0].stuck = true;
    let qpn = *f.nodes[0].qps.keys().next().expect("active");
    let now = f.now;
    f.nodes[0].link.handle_note(now, qpn, crate::link::WorkerNote::Fault);
    f.run(secs(2));
    f.use_by(1, 0, 0);
    f.run(secs(5));
    assert!(f.nodes[0].qps.is_empty(), "its worker may still send by the old table");
    assert!(f.nodes[0].link.counters().requests_rejected > 0);
    f.nodes[0].stuck = false;
    // Any publication is sufficient.
    let now = f.now;
    f.nodes[0].link.join(now, Ipv4Addr::new(224, 0, 0, 1));
    f.use_by(1, 0, 0);
    f.run(secs(20));
    assert_eq!(f.nodes[0].qps.len(), 1);
}

#[test]
fn slot_does_not_wait_for_a_publication_that_never_comes() {
    let mut f = Fabric::new(7);
    for _ in 0..2 {
        f.add(1, |_| {});
    }
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    // Entries are rebuilt and turn out to be unchanged; meanwhile a connection is gone.
    let link = &mut f.nodes[0].link;
    link.republish_all();
    let needed = link.out.unpublished_since();
    assert_eq!(needed, link.out.generation + 1);
    f.run(ms(100));
    assert_eq!(f.nodes[0].link.out.quiescent, needed);
    // If no entry must be rebuilt, the present table is sufficient.
    assert_eq!(f.nodes[0].link.out.unpublished_since(), needed);
}

#[test]
fn scan_does_not_evict_neighbours_in_use() {
    let mut f = Fabric::new(1);
    f.add(1, |s| {
        s.mode = Mode::Datagram;
        s.max_neighbours = 64;
    });
    f.add(1, |s| s.mode = Mode::Datagram);
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(ms(100));
    for i in 0..5000u32 {
        let ip = Ipv4Addr::from(0x0a50_0000 + i);
        let now = f.now;
        f.nodes[0].link.resolve(now, WorkerIndex(0), Ipv4Addr::new(10, 0, 0, 1), ip);
        assert!(f.nodes[0].link.neighbours(f.now).len() <= 64);
    }
    assert!(f.nodes[0].link.counters().resolve_limited > 4000, "a rate limit holds scans back");
    f.run(secs(1));
    assert!(f.nodes[0].table.get(f.nodes[1].ip).is_some());
    f.run(secs(100));
    assert!(f.nodes[0].link.neighbours(f.now).is_empty());
}

#[test]
fn requests_on_others_behalf_are_limited() {
    let mut f = Fabric::new(1);
    f.add(1, |_| {});
    f.run(ms(100));
    let (now, own) = (f.now, f.nodes[0].ip);
    let link = &mut f.nodes[0].link;
    let mut request =
        |n| link.request(now, WorkerIndex(0), Ipv4Addr::UNSPECIFIED, Ipv4Addr::from(0x0a50_0000 + n));
    assert_eq!(
        (0..10_000u32).filter(|n| request(*n)).count(),
        4096,
        "the caller knows which requests were sent"
    );
    let counters = *f.nodes[0].link.counters();
    assert_eq!((counters.arp_requests_sent, counters.requests_limited), (4096, 10_000 - 4096));
    // Queries for an entry of the table have their own limit.
    f.nodes[0].link.resolve(now, WorkerIndex(0), own, Ipv4Addr::new(10, 0, 0, 99));
    assert_eq!(f.nodes[0].link.counters().arp_requests_sent, 4097);
}

#[test]
fn groups_are_bounded() {
    let mut f = Fabric::new(1);
    f.add(1, |s| s.max_groups = 2);
    f.run(ms(100));
    let now = f.now;
    let link = &mut f.nodes[0].link;
    assert!(!link.join(now, Ipv4Addr::new(10, 0, 0, 1)), "no group");
    assert!(link.join(now, Ipv4Addr::new(224, 0, 0, 1)));
    assert!(link.join(now, Ipv4Addr::new(224, 0, 0, 1)), "is in it");
    assert!(link.join(now, Ipv4Addr::new(224, 0, 0, 2)));
    assert!(!link.join(now, Ipv4Addr::new(224, 0, 0, 3)));
    link.leave(now, Ipv4Addr::BROADCAST);
    f.run(ms(100));
    assert_eq!(f.nodes[0].attached.len(), 3);
}

#[test]
fn impossible_settings_are_refused() {
    let now = std::time::Instant::now();
    let with = |change: &dyn Fn(&mut LinkSettings)| {
        let mut s = LinkSettings::new(ib_wire::PKey::DEFAULT, Qpn::new(2), 3);
        change(&mut s);
        crate::link::Link::new(crate::link::LinkIndex(0), s, now).err()
    };
    assert_eq!(with(&|_| {}), None);
    assert_eq!(with(&|s| s.workers.clear()), Some(LinkError::Workers(0)));
    assert_eq!(with(&|s| s.receive_mtu = 65_525), Some(LinkError::ReceiveMtu(65_525)));
    assert_eq!(with(&|s| s.receive_mtu = 4), Some(LinkError::ReceiveMtu(4)));
    assert_eq!(with(&|s| s.rnr_retry = 8), Some(LinkError::Retry(8)));
    assert_eq!(with(&|s| s.max_passive = 0), Some(LinkError::Zero("max_passive")));
    assert_eq!(with(&|s| s.pkey = ib_wire::PKey(0x8000)), Some(LinkError::PKey(ib_wire::PKey(0x8000))));
    assert_eq!(with(&|s| s.passive_idle = std::time::Duration::MAX), None, "the longest time is a year");
}

#[test]
fn closed_connection_frees_its_slot_before_its_number() {
    let mut f = Fabric::new(1);
    f.add(1, |s| s.slots = 2);
    f.add(8, |_| {});
    f.run(ms(100));
    f.resolve(1, 0);
    f.run(ms(20));
    f.resolve_by(1, 1, 0);
    f.run(secs(1));
    assert_eq!(f.nodes[0].live(true), 2);
    let before: Vec<Qpn> = passive(&f);
    let faulty: Vec<Qpn> = f.nodes[1].qps.iter().filter(|(_, q)| !q.passive).map(|(n, _)| *n).collect();
    for qpn in faulty {
        let now = f.now;
        f.nodes[1].link.handle_note(now, qpn, crate::link::WorkerNote::Fault);
    }
    // It dials again, as after a receive queue that ran dry.
    f.run(ms(150));
    assert!(before.iter().all(|qpn| f.nodes[0].qps.contains_key(qpn)), "their numbers are not free yet");
    assert_eq!((f.nodes[0].live(true), f.nodes[0].link.counters().requests_rejected), (2, 0));
    f.run(secs(20));
    assert!(before.iter().all(|qpn| !f.nodes[0].qps.contains_key(qpn)));
}
