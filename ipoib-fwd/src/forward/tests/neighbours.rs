//! The table of Ethernet hosts under a fake clock.

use std::time::{Duration, Instant};

use super::*;
use crate::forward::ethernet_neighbours::{
    Ageing, EthernetNeighbours, NeighbourEvent, PARKED, ParkError, Probe, worker_of,
};

type Table = EthernetNeighbours<u32>;

fn pass(table: &mut Table, now: Instant) {
    table.handle_timeout(now);
    assert!(table.poll_timeout().is_none_or(|due| due > now), "nothing is left due");
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn packets_wait_for_the_answer_in_order_and_bounded() {
    let (mut t, now) = (Table::new(1, Ageing::default()), Instant::now());
    for packet in 0..PARKED as u32 {
        t.park(now, ETH, packet).unwrap();
    }
    assert_eq!(t.park(now, ETH, 9), Err((9, ParkError::QueueFull)));
    assert_eq!(t.poll_transmit(), Some(Probe { ip: ETH, to: MacAddress::BROADCAST }));
    assert_eq!(t.poll_transmit(), None);
    assert!(t.learn(now, ETH, ETH_MAC));
    let parked = (0..PARKED as u32).collect();
    assert_eq!(t.poll_event(), Some(NeighbourEvent::Set { ip: ETH, mac: ETH_MAC, parked }));
    assert_eq!(t.poll_event(), None);
}

#[test]
fn who_does_not_answer_three_probes_is_gone() {
    let (mut t, mut now) = (Table::new(1, Ageing::default()), Instant::now());
    t.park(now, ETH, 7).unwrap();
    let mut probes = 0;
    for _ in 0..5 {
        probes += std::iter::from_fn(|| t.poll_transmit()).count();
        now += SECOND;
        pass(&mut t, now);
    }
    assert_eq!(probes, 3);
    assert_eq!(t.poll_event(), Some(NeighbourEvent::Gone { ip: ETH, parked: [7].into_iter().collect() }));
    assert!(t.is_empty());
    assert_eq!(t.poll_timeout(), None);
}

#[test]
fn a_used_neighbour_is_probed_and_an_unused_one_forgotten() {
    let (mut t, start) = (Table::new(1, Ageing::default()), Instant::now());
    t.learn(start, ETH, ETH_MAC);
    t.learn(start, NOBODY, ETH_MAC);
    while t.poll_event().is_some() {}
    t.note_used(start, ETH);
    pass(&mut t, start + 30 * SECOND);
    assert_eq!(t.poll_transmit(), Some(Probe { ip: ETH, to: ETH_MAC }));
    assert_eq!(t.poll_transmit(), None);
    t.learn(start + 30 * SECOND, ETH, ETH_MAC);
    assert_eq!(t.poll_event(), None, "a refresh is no change");
    pass(&mut t, start + 59 * SECOND);
    assert_eq!(t.poll_transmit(), None);
    pass(&mut t, start + 90 * SECOND);
    assert_eq!(t.poll_event(), Some(NeighbourEvent::Gone { ip: NOBODY, parked: Default::default() }));
    // Stale by now; traffic brings the question back.
    t.note_used(start + 91 * SECOND, ETH);
    assert_eq!(t.poll_transmit(), Some(Probe { ip: ETH, to: ETH_MAC }));
}

#[test]
fn a_new_address_is_told_and_a_move_forgets() {
    let (mut t, now) = (Table::new(1, Ageing::default()), Instant::now());
    t.learn(now, ETH, ETH_MAC);
    let other = MacAddress([2, 0, 0, 0, 0, 9]);
    t.learn(now, ETH, other);
    t.forget(ETH);
    let events: Vec<_> = std::iter::from_fn(|| t.poll_event()).collect();
    assert!(matches!(
        events[..],
        [NeighbourEvent::Set { .. }, NeighbourEvent::Set { mac, .. }, NeighbourEvent::Gone { .. }] if mac == other
    ));
    assert_eq!(t.get(ETH), None);
}

#[test]
fn a_scan_does_not_push_out_known_hosts() {
    let (mut t, now) = (Table::new(1, Ageing::default()), Instant::now());
    t.learn(now, ETH, ETH_MAC);
    let asked = (0..10_000u32).filter(|i| t.resolve(now, (*i).into())).count();
    assert_eq!(asked, 512);
    assert_eq!(t.get(ETH), Some(ETH_MAC));
    assert_eq!(t.park(now, NOBODY, 1), Err((1, ParkError::TableFull)));
    let learnt = (0..10_000u32).filter(|i| t.learn(now, (0x0b00_0000 + *i).into(), ETH_MAC)).count();
    assert_eq!(t.len(), MAX_NEIGHBOURS);
    assert_eq!(learnt, MAX_NEIGHBOURS - 513);
}

#[test]
fn hosts_are_spread_over_all_workers() {
    let mut hosts = [0; 4];
    for i in 0..1000u32 {
        hosts[usize::from(worker_of((0x0a4d_0000 + i).into(), 4))] += 1;
    }
    assert!(hosts.iter().all(|n| (150..350).contains(n)), "{hosts:?}");
    assert_eq!(worker_of(ETH, 1), 0);
}
