use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{
    CapabilityMask2, ClassPortInfo, InformInfo, JoinState, McMask, McMemberRecord, Notice, PathRecord,
    Record, SaMad, attribute, trap,
};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, QKey, Rate, ServiceLevel};

use super::*;

const PORT: SaPort = SaPort {
    gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0xa)),
    lid: Lid(5),
    sm_lid: Lid(1),
    sm_sl: ServiceLevel::new(2),
};

fn group(n: u64) -> Gid {
    Gid::new(0xff12_401b_ffff_0000, Guid(n))
}

fn broadcast() -> Gid {
    group(0xffff_ffff)
}

fn peer(n: u64) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(n))
}

struct Bench {
    now: Instant,
    client: SaClient,
}

impl Bench {
    fn new() -> Self {
        let mut client =
            SaClient::new(Config { max_paths: 4, max_groups: 8, ..Config::new(1, PKey::DEFAULT) });
        let now = Instant::now();
        client.set_port(now, Some(PORT));
        Self { now, client }
    }

    fn sent(&mut self) -> Vec<(Mad, SaMad)> {
        std::iter::from_fn(|| self.client.poll_transmit())
            .map(|m| {
                let sa = SaMad::parse(&m.bytes);
                (m, sa)
            })
            .collect()
    }

    fn one(&mut self) -> (Mad, SaMad) {
        let mut all = self.sent();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }

    fn answer<R: Record>(&mut self, to: &(Mad, SaMad), record: &R) {
        let bytes = SaMad::answer(&to.1, record).to_bytes();
        self.client.handle_mad(self.now, &Mad { peer: to.0.peer, bytes });
    }

    fn refuse(&mut self, to: &(Mad, SaMad)) {
        let bytes = SaMad::refusal(&to.1, MadStatus::class_specific(3)).to_bytes();
        self.client.handle_mad(self.now, &Mad { peer: to.0.peer, bytes });
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.client.handle_timeout(self.now);
    }

    fn join_broadcast(&mut self) -> McMemberRecord {
        self.client.join(self.now, broadcast(), JoinKind::Broadcast).unwrap();
        let join = self.sent().remove(0);
        let record = group_record(&join.1, 0xc001);
        self.answer(&join, &record);
        assert!(matches!(self.client.group(broadcast()), Some(GroupState::Joined(_))));
        record
    }

    fn path_answer(&mut self, dgid: Gid, dlid: u16) {
        assert_eq!(self.client.path(self.now, dgid), Ok(Lookup::Pending));
        let query = self.one();
        let record = path_record(&query.1, dlid);
        self.answer(&query, &record);
    }
}

/// What an SA makes of a join.
fn group_record(request: &SaMad, mlid: u16) -> McMemberRecord {
    let asked: McMemberRecord = request.record().unwrap();
    McMemberRecord {
        qkey: QKey(0xb1b),
        mlid: Lid(mlid),
        mtu: Mtu::B2048.into(),
        rate: Rate::new(3),
        sl: ServiceLevel::new(1),
        hop_limit: 0,
        ..asked
    }
}

fn path_record(request: &SaMad, dlid: u16) -> PathRecord {
    let asked: PathRecord = request.record().unwrap();
    PathRecord { slid: PORT.lid, dlid: Lid(dlid), mtu: Mtu::B4096.into(), ..asked }
}

#[test]
fn path_query_is_linux_s_and_its_answer_is_cached() {
    let mut b = Bench::new();
    let dgid = peer(7);
    assert_eq!(b.client.path(b.now, dgid), Ok(Lookup::Pending));
    let query = b.one();
    assert_eq!((query.0.peer.lid, query.0.peer.sl), (PORT.sm_lid, PORT.sm_sl));
    assert_eq!((query.1.header.method, query.1.component_mask), (Method::Get, 0x340c));
    assert_eq!(b.client.path(b.now, dgid), Ok(Lookup::Pending), "asked only once");
    assert!(b.sent().is_empty());
    // The SA may answer for another GID of that port: the key stays what was asked for.
    let record = PathRecord { dgid: peer(8), ..path_record(&query.1, 9) };
    b.answer(&query, &record);
    assert!(matches!(b.events()[..], [Event::Path { dgid: d, path }] if d == dgid && path.dlid == Lid(9)));
    assert!(matches!(b.client.path(b.now, dgid), Ok(Lookup::Known(p)) if p.mtu == Mtu::B4096));
    b.answer(&query, &record);
    assert_eq!((b.client.dropped(), b.events().len()), (1, 0), "a duplicate answer");
}

#[test]
fn path_failures_are_told_apart() {
    let mut b = Bench::new();
    b.client.path(b.now, peer(1)).unwrap();
    let query = b.one();
    b.refuse(&query);
    assert!(
        matches!(b.events()[..], [Event::PathFailed { failure: Failure::Refused(s), .. }] if s.class_code() == 3)
    );

    b.client.path(b.now, peer(1)).unwrap();
    let query = b.one();
    let bad = PathRecord { dlid: Lid(0xc000), ..path_record(&query.1, 1) };
    b.answer(&query, &bad);
    assert!(matches!(b.events()[..], [Event::PathFailed { failure: Failure::BadRecord, .. }]));

    b.client.path(b.now, peer(1)).unwrap();
    for _ in 0..4 {
        b.wait(Duration::from_secs(1));
    }
    assert_eq!(b.sent().len(), 4);
    assert!(matches!(b.events()[..], [Event::PathFailed { failure: Failure::TimedOut, .. }]));

    b.client.set_port(b.now, None);
    assert_eq!(b.client.path(b.now, peer(1)), Err(SaError::PortDown));
}

#[test]
fn path_cache_is_bounded_and_forgets_on_events() {
    let mut b = Bench::new();
    for n in 1..=6 {
        b.path_answer(peer(n), n as u16);
    }
    assert_eq!(b.client.cached_paths(), 4);
    assert!(matches!(b.client.path(b.now, peer(6)), Ok(Lookup::Known(_))));
    assert_eq!(b.client.path(b.now, peer(1)), Ok(Lookup::Pending), "the oldest went first");
    b.events();
    b.client.reregister(b.now);
    assert_eq!(b.client.cached_paths(), 0);
    let all = b.events();
    assert!(
        matches!(
            all[..],
            [Event::PathFailed { failure: Failure::PortDown, .. }, Event::PathInvalid { dgid: None }]
        ),
        "{all:?}"
    );
}

#[test]
fn other_groups_wait_for_the_broadcast_group_and_copy_it() {
    let mut b = Bench::new();
    b.client.join(b.now, group(1), JoinKind::Full).unwrap();
    assert!(b.sent().is_empty());
    b.client.join(b.now, broadcast(), JoinKind::Broadcast).unwrap();
    let join = b.one();
    assert_eq!((join.1.header.method, join.1.component_mask), (Method::Set, 0x1_0083));
    let record = group_record(&join.1, 0xc001);
    assert_eq!(record.join_state, JoinState::FULL_MEMBER);
    b.answer(&join, &record);
    let other = b.one();
    let asked: McMemberRecord = other.1.record().unwrap();
    assert_eq!(
        (asked.qkey, asked.mtu, asked.sl, asked.rate),
        (record.qkey, record.mtu, record.sl, record.rate)
    );
    let mask = McMask::from_bits_truncate(other.1.component_mask);
    assert!(mask.contains(McMask::QKEY | McMask::MTU | McMask::SL | McMask::RATE_SELECTOR));
    assert!(!mask.intersects(McMask::MLID | McMask::SCOPE | McMask::LIFE_TIME));
    let answer = group_record(&other.1, 0xc002);
    b.answer(&other, &answer);
    assert!(matches!(b.client.group(group(1)), Some(GroupState::Joined(r)) if r.mlid == Lid(0xc002)));
}

#[test]
fn joins_back_off_from_one_to_sixteen_seconds() {
    let mut b = Bench::new();
    b.client.join(b.now, broadcast(), JoinKind::Broadcast).unwrap();
    for seconds in [1, 2, 4, 8, 16, 16] {
        let join = b.one();
        b.refuse(&join);
        let all = b.events();
        let [Event::JoinFailed { retry_in, .. }] = all[..] else { panic!("{all:?}") };
        assert_eq!(retry_in, Duration::from_secs(seconds));
        b.wait(retry_in - Duration::from_millis(1));
        assert!(b.sent().is_empty());
        b.wait(Duration::from_millis(1));
    }
    let join = b.one();
    let record = McMemberRecord { mgid: group(9), ..group_record(&join.1, 0xc001) };
    b.answer(&join, &record);
    assert!(
        matches!(b.events()[..], [Event::JoinFailed { failure: Failure::BadRecord, failures: 7, .. }]),
        "an answer for another group"
    );
}

#[test]
fn send_only_depends_on_what_the_sa_can() {
    for (bits, expected) in [
        (CapabilityMask2::SEND_ONLY_FULL_MEMBER, JoinState::SEND_ONLY_FULL_MEMBER),
        (CapabilityMask2::empty(), JoinState::FULL_MEMBER),
    ] {
        let mut b = Bench::new();
        b.join_broadcast();
        b.client.join(b.now, group(2), JoinKind::SendOnly).unwrap();
        let query = b.one();
        assert_eq!(query.1.header.attribute, attribute::CLASS_PORT_INFO);
        let info = ClassPortInfo { capability_mask2: bits, ..ClassPortInfo::parse(&[0; 72]) };
        b.answer(&query, &info);
        let join = b.one();
        assert_eq!(join.1.record::<McMemberRecord>().unwrap().join_state, expected);
    }
    // No answer at all: a full join.
    let mut b = Bench::new();
    b.join_broadcast();
    b.client.join(b.now, group(2), JoinKind::SendOnly).unwrap();
    for _ in 0..4 {
        b.wait(Duration::from_secs(1));
    }
    let join = b.sent().pop().unwrap();
    assert_eq!(join.1.record::<McMemberRecord>().unwrap().join_state, JoinState::FULL_MEMBER);
}

#[test]
fn leaving_deletes_the_membership_even_if_the_join_is_under_way() {
    let mut b = Bench::new();
    b.join_broadcast();
    b.client.join(b.now, group(1), JoinKind::Full).unwrap();
    let join = b.one();
    b.client.leave(b.now, group(1));
    let delete = b.one();
    assert_eq!((delete.1.header.method, delete.1.component_mask), (Method::Delete, 0x1_0003));
    assert_eq!(delete.1.record::<McMemberRecord>().unwrap().join_state, JoinState::FULL_MEMBER);
    let record = group_record(&join.1, 0xc002);
    b.events();
    b.answer(&join, &record);
    assert_eq!((b.events().len(), b.client.group(group(1))), (0, None), "the late answer joins nothing");
    b.answer(&delete, &record);
    assert_eq!(b.client.outstanding(), 0);
}

#[test]
fn a_new_subnet_manager_hears_everything_anew() {
    let mut b = Bench::new();
    b.join_broadcast();
    b.client.join(b.now, group(1), JoinKind::Full).unwrap();
    let join = b.one();
    let record = group_record(&join.1, 0xc002);
    b.answer(&join, &record);
    b.client.subscribe(b.now, trap::GID_OUT_OF_SERVICE);
    let subscription = b.one();
    b.answer(&subscription, &subscription.1.record::<InformInfo>().unwrap());
    b.events();
    b.client.set_port(b.now, Some(SaPort { sm_lid: Lid(77), ..PORT }));
    let all = b.events();
    assert_eq!(all.iter().filter(|e| matches!(e, Event::Lost { .. })).count(), 2);
    let sent = b.sent();
    assert!(sent.iter().all(|(m, _)| m.peer.lid == Lid(77)));
    let attributes: Vec<u16> = sent.iter().map(|(_, s)| s.header.attribute).collect();
    assert_eq!(
        attributes,
        [attribute::MC_MEMBER_RECORD, attribute::INFORM_INFO],
        "broadcast first, then the rest"
    );
    b.client.set_port(b.now, Some(SaPort { sm_lid: Lid(77), ..PORT }));
    assert!(b.sent().is_empty(), "no change");
}

#[test]
fn reports_are_answered_and_age_the_path() {
    let mut b = Bench::new();
    b.client.subscribe(b.now, trap::GID_OUT_OF_SERVICE);
    let subscription = b.one();
    let info: InformInfo = subscription.1.record().unwrap();
    assert_eq!((info.subscribe, info.trap_number), (1, 65));
    b.refuse(&subscription);
    b.wait(Duration::from_secs(1));
    let again = b.one();
    b.answer(&again, &info);
    b.path_answer(peer(3), 3);
    b.events();

    let notice = Notice::about_gid(trap::GID_OUT_OF_SERVICE, Lid(1), peer(3));
    let mut report = SaMad::request(Method::Report, ib_wire::Tid(0x55), 0, &notice);
    report.header.attribute = attribute::NOTICE;
    let mut mad = Mad { peer: subscription.0.peer, bytes: report.to_bytes() };
    b.client.handle_mad(b.now, &mad);
    let answer = b.one();
    assert_eq!((answer.1.header.method, answer.1.header.tid.0), (Method::ReportResp, 0x55));
    let all = b.events();
    assert!(
        matches!(&all[..], [Event::PathInvalid { dgid: Some(g) }, Event::Notice { notice: n }] if *g == peer(3) && **n == notice),
        "{all:?}"
    );
    mad.peer.lid = Lid(66);
    b.client.handle_mad(b.now, &mad);
    assert!(b.sent().is_empty() && b.events().is_empty(), "not from the subnet manager");
    mad.peer.lid = PORT.sm_lid;
    for _ in 0..1000 {
        b.client.handle_mad(b.now, &mad);
    }
    assert!(b.events().len() <= 256 && b.sent().len() <= 256, "a flood is bounded");
}

#[test]
fn bounds_of_groups_and_requests() {
    let mut b = Bench::new();
    for n in 0..8 {
        b.client.join(b.now, group(n), JoinKind::Full).unwrap();
    }
    assert_eq!(b.client.join(b.now, group(9), JoinKind::Full), Err(SaError::GroupsFull(8)));
    assert_eq!(b.client.join(b.now, peer(1), JoinKind::Full), Err(SaError::NotMulticast(peer(1))));
    let mut b = Bench::new();
    for n in 0..128 {
        b.client.path(b.now, peer(n)).unwrap();
    }
    assert_eq!(b.client.path(b.now, peer(999)), Err(SaError::Busy));
}
