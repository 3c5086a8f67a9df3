//! Reports to subscribers: until they are confirmed, and to subscribers that confirm slowly or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{InformInfo, Notice, SaMad, trap};
use ib_wire::smp::NodeType;
use ib_wire::{Gid, Lid, Tid};

use super::administration::{all_hosts, creation, up};
use super::shares::group;
use super::world::World;
use super::{SECOND, config};
use crate::subnet::SmConfig;

impl World {
    /// Returns the reports in the inbox; confirms each if `confirm`.
    pub(super) fn reports(&mut self, confirm: bool) -> Vec<(Lid, u16, Gid)> {
        let mut out = Vec::new();
        for mad in std::mem::take(&mut self.inbox) {
            let report = SaMad::parse(&mad.bytes);
            assert_eq!(report.header.method, Method::Report);
            let notice: Notice = report.record().unwrap();
            out.push((mad.peer.lid, notice.trap_number, notice.gid().unwrap()));
            if confirm {
                let mut answer = report;
                answer.header.method = Method::ReportResp;
                let mad = Mad { peer: mad.peer, bytes: answer.to_bytes() };
                self.sm.handle_mad(self.now, &mad);
            }
        }
        out
    }

    /// Confirms a report.
    fn confirm(&mut self, report: &Mad) {
        let mut answer = SaMad::parse(&report.bytes);
        answer.header.method = Method::ReportResp;
        self.sm.handle_mad(self.now, &Mad { peer: report.peer, bytes: answer.to_bytes() });
        self.pump();
    }
}

#[test]
fn events_are_reported_until_confirmed() {
    let mut world = up(2, config());
    for trap in [trap::GID_OUT_OF_SERVICE, trap::GID_IN_SERVICE, trap::GROUP_CREATED, trap::GROUP_DELETED] {
        assert!(world.subscribe(1, trap, true).is_ok());
    }
    let me = world.lid(1);
    let (mask, record) = creation(&world, 2, all_hosts());
    let request = SaMad::request(Method::Set, Tid(4), mask.bits(), &record);
    let mad = Mad { peer: world.address(2), bytes: request.to_bytes() };
    world.sm.handle_mad(world.now, &mad);
    world.pump();
    world.inbox.pop_front();
    assert_eq!(world.reports(false), [(me, trap::GROUP_CREATED, all_hosts())]);
    world.pass(Duration::from_millis(600));
    assert_eq!(world.reports(true), [(me, trap::GROUP_CREATED, all_hosts())], "sent again");
    world.pass(Duration::from_secs(5));
    assert_eq!(world.reports(true), []);
    let (gone, lid) = (world.gid(2), world.lid(2));
    world.disconnect((0, 2));
    world.sm.handle_port_change(world.now);
    world.pass(Duration::from_millis(100));
    let reports = world.reports(true);
    assert_eq!(reports, [(me, trap::GROUP_DELETED, all_hosts()), (me, trap::GID_OUT_OF_SERVICE, gone)]);
    world.connect((0, 2), (2, 1));
    world.sm.handle_port_change(world.now);
    world.pass(Duration::from_millis(100));
    assert_eq!(world.reports(false), [(me, trap::GID_IN_SERVICE, gone)]);
    assert_eq!(world.lid(2), lid);
    // No subscriber confirms: given up.
    world.pass(9 * SECOND);
    assert_eq!(world.reports(false).len(), 3);
    assert_eq!(world.sm.counters().reports_lost, 1);
    assert!(world.subscribe(1, trap::GID_OUT_OF_SERVICE, false).is_ok());
    assert_eq!(world.subscribe(1, trap::GID_OUT_OF_SERVICE, false), MadStatus(0x0200));
}

#[test]
fn one_port_takes_neither_all_subscriptions_nor_all_reports() {
    let mut world = up(3, config());
    let mut granted = 0;
    for n in 0..1500 {
        // Each subscription differs, and all of them match the same event.
        let inform = InformInfo { lid_end: Lid(n), ..InformInfo::trap(trap::GID_OUT_OF_SERVICE, true) };
        granted += u32::from(world.ask(1, Method::Set, 0, &inform).header.status.is_ok());
    }
    assert_eq!(granted, 64);
    assert!(world.subscribe(2, trap::GID_OUT_OF_SERVICE, true).is_ok());
    // The first one confirms nothing.
    world.disconnect((0, 3));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND / 4);
    let to =
        |world: &World, host: usize| world.inbox.iter().filter(|mad| mad.peer.lid == world.lid(host)).count();
    assert_eq!((to(&world, 1), to(&world, 2)), (64, 1));
    let second = world.lid(2);
    world.inbox.retain(|mad| mad.peer.lid == second);
    world.reports(true);
    world.connect((0, 3), (3, 1));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND / 16);
    world.inbox.clear();
    world.disconnect((0, 3));
    world.sm.handle_port_change(world.now);
    world.pass(SECOND / 16);
    assert_eq!((to(&world, 1), to(&world, 2), world.sm.counters().reports_lost), (0, 1, 0));
    // When its first reports are given up, it gets those that wait.
    world.reports(true);
    world.pass(2 * SECOND);
    let lost = world.sm.counters().reports_lost;
    assert!(lost == 64 && to(&world, 1) >= 64, "{lost}");
}

#[test]
fn a_port_that_confirms_nothing_holds_up_its_own_reports_only() {
    let mut world = up(2, SmConfig { max_subscriptions_of_a_port: 2, ..config() });
    for port in [1, 2] {
        assert!(world.subscribe(port, trap::GROUP_CREATED, true).is_ok());
    }
    let (silent, good) = (world.lid(1), world.lid(2));
    for n in 1..=6 {
        let (mask, record) = creation(&world, 1, group(n));
        let request = SaMad::request(Method::Set, Tid(4), mask.bits(), &record);
        let mad = Mad { peer: world.address(1), bytes: request.to_bytes() };
        world.sm.handle_mad(world.now, &mad);
        world.pump();
        world.inbox.pop_front();
        let reports = std::mem::take(&mut world.inbox);
        let to: Vec<_> = reports.iter().map(|mad| mad.peer.lid).collect();
        assert_eq!(to, if n <= 2 { vec![silent, good] } else { vec![good] }, "{n}");
        for report in reports {
            // The silent one confirms a report of another port, which has no effect.
            let mut answer = SaMad::parse(&report.bytes);
            answer.header.method = Method::ReportResp;
            let unasked = world.sm.counters().unasked;
            let from = if report.peer.lid == good { [1, 2] } else { [2, 2] };
            for (n, port) in from.into_iter().enumerate() {
                let mad = Mad { peer: world.address(port), bytes: answer.to_bytes() };
                world.sm.handle_mad(world.now, &mad);
                let wrong = if report.peer.lid == good { 1 } else { n as u64 + 1 };
                assert_eq!(world.sm.counters().unasked, unasked + wrong);
            }
        }
    }
    // Its first two are given up, and the next two follow.
    assert_eq!(world.sm.counters().reports_lost, 0);
    world.pass(2 * SECOND);
    assert_eq!(world.sm.counters().reports_lost, 2);
    let last = world.reports(false).split_off(6);
    assert_eq!(last, [(silent, trap::GROUP_CREATED, group(3)), (silent, trap::GROUP_CREATED, group(4))]);
}

/// Returns trap and GID of a report.
fn about(report: &Mad) -> (u16, Gid) {
    let notice: Notice = SaMad::parse(&report.bytes).record().unwrap();
    (notice.trap_number, notice.gid().unwrap())
}

/// A fabric with a second switch that has 200 hosts, behind port 20 of the first one, and two subscribers at
/// ports 1 and 2: one confirms each report at once, the other does not.
struct Crowd {
    world: World,
    far: usize,
    /// Reports that the prompt subscriber got.
    prompt: Vec<(u16, Gid)>,
    /// Reports that the slow subscriber got and has not confirmed yet.
    slow: Vec<Mad>,
}

/// Number of the hosts and their switch.
const CHANGES: usize = 201;

impl Crowd {
    fn new(config: SmConfig) -> Self {
        let mut world = World::new(2, config);
        let far = world.add(NodeType::Switch, 0x200, 210);
        for port in 1..CHANGES as u8 {
            let host = world.add(NodeType::ChannelAdapter, 0x10_0000 + 0x1000 * u64::from(port), 1);
            world.connect((far, port), (host, 1));
        }
        world.connect((0, 20), (far, 210));
        world.pump();
        world.inbox.clear();
        for port in [1, 2] {
            for trap in [trap::GID_IN_SERVICE, trap::GID_OUT_OF_SERVICE] {
                assert!(world.subscribe(port, trap, true).is_ok());
            }
        }
        Self { world, far, prompt: Vec::new(), slow: Vec::new() }
    }

    /// Disconnects or connects all hosts.
    fn change(&mut self, connect: bool) {
        if connect {
            self.world.connect((0, 20), (self.far, 210));
        } else {
            self.world.disconnect((0, 20));
        }
        self.world.sm.handle_port_change(self.world.now);
        self.pass(Duration::from_millis(100));
    }

    fn pass(&mut self, span: Duration) {
        self.world.pass(span);
        let slow = self.world.lid(2);
        while let Some(report) = self.world.inbox.pop_front() {
            if report.peer.lid == slow {
                self.slow.push(report);
            } else {
                self.prompt.push(about(&report));
                self.world.confirm(&report);
            }
        }
    }

    /// Confirms the slow subscriber's oldest report; returns its trap and GID.
    fn confirm_one(&mut self) -> Option<(u16, Gid)> {
        let report = (!self.slow.is_empty()).then(|| self.slow.remove(0))?;
        self.world.confirm(&report);
        self.pass(Duration::ZERO);
        Some(about(&report))
    }

    fn lost(&self) -> u64 {
        self.world.sm.counters().reports_lost
    }
}

#[test]
fn a_slow_subscriber_gets_the_reports_of_200_changes_at_once() {
    let mut crowd = Crowd::new(config());
    crowd.change(false);
    assert_eq!((crowd.prompt.len(), crowd.slow.len()), (CHANGES, 64));
    let mut got = BTreeSet::new();
    while let Some(about) = crowd.confirm_one() {
        got.insert(about);
        crowd.pass(Duration::from_millis(10));
    }
    assert_eq!(got, crowd.prompt.iter().copied().collect::<BTreeSet<_>>());
    assert_eq!((got.len(), crowd.lost()), (CHANGES, 0));
}

#[test]
fn only_the_newest_state_of_a_gid_waits_for_a_slow_subscriber() {
    let mut crowd = Crowd::new(config());
    for connect in [false, true, false, true] {
        crowd.change(connect);
    }
    assert_eq!((crowd.prompt.len(), crowd.slow.len()), (4 * CHANGES, 64));
    let mut newest = BTreeMap::new();
    let mut count = 0;
    while let Some((trap, gid)) = crowd.confirm_one() {
        newest.insert(gid, trap);
        count += 1;
    }
    assert_eq!((count, newest.len(), crowd.lost()), (64 + CHANGES, CHANGES, 0));
    assert!(newest.values().all(|&trap| trap == trap::GID_IN_SERVICE));
}

#[test]
fn an_older_report_of_a_gid_is_not_repeated_after_a_newer_one() {
    let mut world = up(2, config());
    for trap in [trap::GID_OUT_OF_SERVICE, trap::GID_IN_SERVICE] {
        assert!(world.subscribe(1, trap, true).is_ok());
    }
    let (me, other) = (world.lid(1), world.gid(2));
    for connect in [false, true] {
        if connect {
            world.connect((0, 2), (2, 1));
        } else {
            world.disconnect((0, 2));
        }
        world.sm.handle_port_change(world.now);
        world.pass(SECOND / 10);
    }
    let [out, into] = [trap::GID_OUT_OF_SERVICE, trap::GID_IN_SERVICE].map(|trap| (me, trap, other));
    assert_eq!(world.reports(false), [out, into]);
    world.pass(SECOND / 2);
    assert_eq!(world.reports(true), [into]);
    world.pass(5 * SECOND);
    assert_eq!((world.reports(false), world.sm.counters().reports_lost), (Vec::new(), 0));
}

#[test]
fn events_that_wait_for_slow_subscribers_are_bounded() {
    let mut crowd = Crowd::new(SmConfig { max_events: 150, ..config() });
    crowd.change(false);
    assert_eq!((crowd.prompt.len(), crowd.slow.len(), crowd.lost()), (CHANGES, 64, 0));
    crowd.change(true);
    let lost = (2 * CHANGES - 64 - 150) as u64;
    assert_eq!((crowd.prompt.len(), crowd.slow.len(), crowd.lost()), (2 * CHANGES, 64, lost));
    let got = std::iter::from_fn(|| crowd.confirm_one()).count();
    assert_eq!((got, crowd.lost()), (64 + 150, lost));
}
