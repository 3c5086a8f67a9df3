use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::sa::{JoinState, McMask, McMemberRecord, PathRecord, SaMad, attribute};
use ib_wire::{Gid, Guid, Lid, Mtu, PKey, ServiceLevel, Tid};

use super::*;

const SM: MadAddress = MadAddress::gsi(Lid(1), ServiceLevel::new(0));

fn port() -> (Port<u32>, Instant) {
    (Port::new(Config::new(7, Guid(1))), Instant::now())
}

fn gid(n: u64) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(n))
}

fn query(pkey: u16, n: u64) -> PathQuery {
    let key = PathKey { pkey: PKey(pkey), dgid: gid(n) };
    PathQuery { sm: SM, key, sgid: gid(1), traffic_class: 0 }
}

fn sent(port: &mut Port<u32>) -> Vec<Mad> {
    std::iter::from_fn(|| port.poll_transmit()).collect()
}

/// Returns subnet administration's answer. Each partition has its own LIDs.
fn answer(request: &Mad) -> Mad {
    let request = SaMad::parse(&request.bytes);
    let bytes = if request.header.attribute == attribute::PATH_RECORD {
        let record: PathRecord = request.record().unwrap();
        let dlid = Lid(record.pkey.0 & 0xff);
        SaMad::answer(&request, &PathRecord { dlid, mtu: Mtu::B2048.into(), ..record })
    } else {
        let record: McMemberRecord = request.record().unwrap();
        SaMad::answer(&request, &McMemberRecord { mlid: Lid(0xc001), ..record })
    };
    Mad { peer: SM, bytes: bytes.to_bytes() }
}

fn join(port: &mut Port<u32>, now: Instant, user: u32) {
    let record = McMemberRecord { join_state: JoinState::FULL_MEMBER, ..McMemberRecord::default() };
    port.sa.join(now, user, SM, &record, McMask::MGID);
}

#[test]
fn one_port_in_two_partitions_has_two_paths() {
    let (mut port, now) = port();
    port.sa.ask_path(now, query(0x8001, 9), Ask::Unknown);
    port.sa.ask_path(now, query(0x8002, 9), Ask::Unknown);
    port.sa.ask_path(now, query(0x8002, 9), Ask::Unknown);
    let requests = sent(&mut port);
    assert_eq!(requests.len(), 2);
    for request in requests.iter().rev() {
        assert_eq!(port.handle_mad(now, &answer(request)), Taken::Administration);
    }
    let got: Vec<_> = std::iter::from_fn(|| port.sa.poll_event())
        .map(|event| match event {
            SaEvent::Path { key, outcome: Outcome::Granted(path) } => (key.pkey.0, path.dlid.0, path.pkey.0),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(got, [(0x8002, 2, 0x8002), (0x8001, 1, 0x8001)]);
    port.sa.ask_path(now, query(0x8001, 9), Ask::Unknown);
    assert!(matches!(port.sa.poll_event(), Some(SaEvent::Path { outcome: Outcome::Granted(_), .. })));
    assert!(sent(&mut port).is_empty(), "from the cache");
}

#[test]
fn responses_reach_their_requester_and_outstanding_requests_are_bounded() {
    let (mut port, now) = port();
    for user in 0..200 {
        join(&mut port, now, user);
    }
    for n in 0..200 {
        port.sa.ask_path(now, query(0x8001, n + 10), Ask::Unknown);
    }
    let mut users = Vec::new();
    let mut paths = 0;
    let mut seen = 0;
    loop {
        let mut requests = sent(&mut port);
        if requests.is_empty() {
            break;
        }
        assert!(requests.len() <= 128);
        seen += requests.len();
        requests.reverse();
        for request in requests {
            port.handle_mad(now, &answer(&request));
            assert_eq!(port.handle_mad(now, &answer(&request)), Taken::Ignored, "answered once");
        }
        while let Some(event) = port.sa.poll_event() {
            match event {
                SaEvent::Joined { user, outcome: Outcome::Granted(Some(_)) } => users.push(user),
                SaEvent::Path { .. } => paths += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    users.sort_unstable();
    assert_eq!((users, paths, seen), ((0..200).collect(), 200, 400));
    assert_eq!(port.sa.outstanding(), 0);
}

/// Subnet administration does not answer queries. Joins and leaves still find room immediately and precede
/// queued queries.
#[test]
fn queries_of_groups_hold_up_no_join_or_leave() {
    let (mut port, now) = port();
    for user in 0..200 {
        port.sa.query_group(now, user, SM, gid(9));
    }
    let queries = sent(&mut port);
    assert!(queries.iter().all(|mad| mad.header().method == Method::Get) && queries.len() < 32);
    (200..240).for_each(|user| join(&mut port, now, user));
    assert_eq!(methods(&mut port), [Method::Set; 40]);
    // Joins use up the room. Another one is sent as soon as there is room again.
    let room = 64 - 40 - queries.len() as u32;
    (300..=300 + room).for_each(|user| leave(&mut port, now, user));
    assert_eq!(methods(&mut port).len(), room as usize);
    port.handle_mad(now, &answer(&queries[0]));
    assert_eq!(methods(&mut port), [Method::Delete]);
    // All are sent eventually, and cancelled ones make room.
    port.sa.cancel_groups(now, |user| user >= 100);
    let mut queried = queries.len();
    let mut pending = queries[1..].to_vec();
    while let Some(query) = pending.pop() {
        port.handle_mad(now, &answer(&query));
        let next = sent(&mut port);
        queried += next.len();
        pending.extend(next);
    }
    assert_eq!((queried, port.sa.outstanding()), (100, 0));
}

#[test]
fn a_group_is_queried_once_at_a_time() {
    let (mut port, now) = port();
    for user in 0..40 {
        (0..5).for_each(|_| port.sa.query_group(now, user, SM, gid(9)));
    }
    assert_eq!(port.sa.outstanding(), 40);
    let queries = sent(&mut port);
    port.handle_mad(now, &answer(&queries[0]));
    assert_eq!(port.sa.outstanding(), 39);
    // The first user may query again.
    port.sa.query_group(now, 0, SM, gid(9));
    assert_eq!(port.sa.outstanding(), 40);
}

fn leave(port: &mut Port<u32>, now: Instant, user: u32) {
    port.sa.leave(now, user, SM, &McMemberRecord::default(), McMask::MGID);
}

fn methods(port: &mut Port<u32>) -> Vec<Method> {
    sent(port).iter().map(|m| m.header().method).collect()
}

/// The kernel retransmits an outstanding join, so a leave sent before the join has ended might be undone.
#[test]
fn a_leave_waits_for_the_outstanding_join() {
    let (mut port, now) = port();
    join(&mut port, now, 1);
    let request = sent(&mut port);
    leave(&mut port, now, 1);
    assert!(sent(&mut port).is_empty());
    port.handle_mad(now, &answer(&request[0]));
    assert_eq!(methods(&mut port), [Method::Delete]);
    assert_eq!(port.sa.poll_event(), None, "the result of the join is not reported");
    // A missing answer ends a join too.
    join(&mut port, now, 2);
    sent(&mut port);
    leave(&mut port, now, 2);
    for s in 1..3 {
        port.handle_timeout(now + Duration::from_secs(s));
        assert!(!methods(&mut port)[1..].contains(&Method::Delete), "only the first user's");
    }
    port.handle_timeout(now + Duration::from_secs(3));
    assert_eq!(methods(&mut port), [Method::Delete]);
    for s in 4..9 {
        port.handle_timeout(now + Duration::from_secs(s));
    }
    let ends: Vec<_> = std::iter::from_fn(|| port.sa.poll_event()).collect();
    assert_eq!(ends, [1, 2].map(|user| SaEvent::Left { user, outcome: Outcome::Silence }));
    assert_eq!((port.poll_timeout(), port.sa.outstanding()), (None, 0));
}

/// Also after a light flush.
#[test]
fn a_leave_waits_for_a_cancelled_join() {
    let (mut port, now) = port();
    join(&mut port, now, 1);
    let request = sent(&mut port);
    port.sa.cancel_join(1);
    leave(&mut port, now, 1);
    assert!(sent(&mut port).is_empty());
    port.handle_mad(now, &answer(&request[0]));
    assert_eq!(methods(&mut port), [Method::Delete]);
    assert_eq!(port.sa.poll_event(), None);
}

#[test]
fn a_request_ends_when_patience_does() {
    let (mut port, now) = port();
    join(&mut port, now, 1);
    for millis in [1000, 2000, 2999] {
        port.handle_timeout(now + Duration::from_millis(millis));
        assert_eq!(port.sa.poll_event(), None);
    }
    port.handle_timeout(now + PATIENCE);
    assert_eq!(port.sa.poll_event(), Some(SaEvent::Joined { user: 1, outcome: Outcome::Silence }));
}

#[test]
fn a_join_that_was_not_sent_is_not_waited_for() {
    let (mut port, now) = port();
    // The maximum number of outstanding requests, and one more.
    for user in 0..65 {
        join(&mut port, now, user);
    }
    assert_eq!(sent(&mut port).len(), 64);
    leave(&mut port, now, 64);
    port.sa.cancel_groups(now, |user| user < 64);
    assert_eq!(methods(&mut port), [Method::Delete], "without a join before it");
}

#[test]
fn a_second_join_keeps_the_membership() {
    let (mut port, now) = port();
    join(&mut port, now, 1);
    let first = sent(&mut port);
    leave(&mut port, now, 1);
    join(&mut port, now, 1);
    assert_eq!(port.sa.poll_event(), Some(SaEvent::Left { user: 1, outcome: Outcome::Granted(()) }));
    let second = sent(&mut port);
    assert_eq!(second[0].header().method, Method::Set);
    for request in [&first[0], &second[0]] {
        port.handle_mad(now, &answer(request));
    }
    assert!(matches!(port.sa.poll_event(), Some(SaEvent::Joined { user: 1, outcome: Outcome::Granted(_) })));
    assert_eq!((port.sa.poll_event(), sent(&mut port).len()), (None, 0));
}

#[test]
fn a_failed_path_is_held_and_a_doubtful_one_queried_once_a_second() {
    let (mut port, now) = port();
    let ask = |port: &mut Port<u32>, at: u64, ask| {
        port.sa.ask_path(now + Duration::from_millis(at), query(0x8001, 5), ask);
        sent(port)
    };
    let first = ask(&mut port, 0, Ask::Unknown);
    let refusal = SaMad::refusal(&SaMad::parse(&first[0].bytes), MadStatus::class_specific(3)).to_bytes();
    port.handle_mad(now, &Mad { peer: SM, bytes: refusal });
    let outcome = Outcome::Refused(MadStatus::class_specific(3));
    assert!(matches!(port.sa.poll_event(), Some(SaEvent::Path { outcome: o, .. }) if o == outcome));
    assert!(ask(&mut port, 500, Ask::Unknown).is_empty(), "held");
    port.handle_timeout(now + Duration::from_millis(1000));
    let second = sent(&mut port);
    assert_eq!(second.len(), 1, "and then queried for the held request");
    port.handle_mad(now, &answer(&second[0]));
    assert!(ask(&mut port, 1100, Ask::Doubtful).is_empty());
    assert!(ask(&mut port, 1200, Ask::Doubtful).is_empty());
    port.handle_timeout(now + Duration::from_millis(2000));
    assert_eq!(sent(&mut port).len(), 1, "once");
    assert_eq!(ask(&mut port, 2100, Ask::Restart).len(), 1, "again, regardless of the outstanding request");
    port.sa.forget_path(now, query(0x8001, 5).key);
    assert_eq!((port.sa.paths(), port.sa.outstanding(), port.poll_timeout()), (0, 0, None));
}

#[test]
fn requests_for_unsupported_services_are_rejected() {
    let (mut port, now) = port();
    let ask = |class, version, method| {
        let mut bytes = Box::new([0; 256]);
        MadHeader::new(class, version, method, Tid(0x77), 0x12).put(&mut bytes);
        Mad { peer: MadAddress::gsi(Lid(9), ServiceLevel::new(2)), bytes }
    };
    for (class, method, status) in [
        (MgmtClass::DevMgt, Method::Get, MadStatus::BAD_VERSION),
        (MgmtClass::Snmp, Method::Set, MadStatus::BAD_VERSION),
        (MgmtClass::SubnAdm, Method::Get, MadStatus::UNSUPPORTED_METHOD),
    ] {
        assert_eq!(port.handle_mad(now, &ask(class, 2, method)), Taken::Refused);
        let answer = port.poll_transmit().unwrap();
        let header = answer.header();
        assert_eq!((header.class, header.method, header.status), (class, Method::GetResp, status));
        assert_eq!((header.tid, answer.peer.lid), (Tid(0x77), Lid(9)));
    }
    for (class, method) in [
        (MgmtClass::DevMgt, Method::GetResp),
        (MgmtClass::DevMgt, Method::Trap),
        (MgmtClass::Perf, Method::Send),
        (MgmtClass::SubnAdm, Method::Report),
        (MgmtClass::SubnLid, Method::Get),
    ] {
        assert_eq!(port.handle_mad(now, &ask(class, 1, method)), Taken::Ignored, "{class:?} {method:?}");
    }
    for _ in 0..1000 {
        port.handle_mad(now, &ask(MgmtClass::DevMgt, 1, Method::Get));
    }
    assert_eq!(sent(&mut port).len(), MAX_ANSWERS, "bounded");
}

#[test]
fn a_doubt_while_a_failed_lookup_is_held_is_not_forgotten() {
    let (mut port, mut now) = port();
    // There is no answer: the lookup fails and is held for a moment.
    port.sa.ask_path(now, query(0x8001, 9), Ask::Unknown);
    loop {
        sent(&mut port);
        if let Some(SaEvent::Path { outcome, .. }) = port.sa.poll_event() {
            assert!(!matches!(outcome, Outcome::Granted(_)));
            break;
        }
        now = port.poll_timeout().expect("something is outstanding");
        port.handle_timeout(now);
    }
    port.sa.ask_path(now, query(0x8001, 9), Ask::Doubtful);
    assert!(sent(&mut port).is_empty(), "not at once");
    for _ in 0..10 {
        now += Duration::from_secs(1);
        port.handle_timeout(now);
        for request in sent(&mut port) {
            port.handle_mad(now, &answer(&request));
        }
        if let Some(SaEvent::Path { outcome: Outcome::Granted(path), .. }) = port.sa.poll_event() {
            assert_eq!(path.dlid, Lid(1));
            return;
        }
    }
    panic!("it was never queried again");
}

#[test]
fn ports_that_somebody_only_speaks_of_hold_up_no_lookup_that_is_needed() {
    let (mut port, now) = port();
    for n in 0..1000 {
        port.sa.ask_path(now, query(0x8001, 100 + n), Ask::Rumoured);
    }
    assert_eq!(sent(&mut port).len(), 32, "the others wait");
    for n in 0..10 {
        port.sa.ask_path(now, query(0x8001, 10 + n), Ask::Unknown);
    }
    assert_eq!(sent(&mut port).len(), 10, "at once");
    // A mentioned port turns out to be needed.
    port.sa.ask_path(now, query(0x8001, 900), Ask::Unknown);
    port.sa.ask_path(now, query(0x8001, 900), Ask::Rumoured);
    let needed = sent(&mut port);
    assert_eq!(needed.len(), 1);
    port.handle_mad(now, &answer(&needed[0]));
    let Some(SaEvent::Path { key, outcome: Outcome::Granted(_) }) = port.sa.poll_event() else { panic!() };
    assert_eq!(key.dgid, gid(900));
    // The rest is forgotten and requested again many times, without leaving stale keys.
    for _ in 0..100 {
        for n in 200..400 {
            port.sa.forget_path(now, query(0x8001, n).key);
            port.sa.ask_path(now, query(0x8001, n), Ask::Rumoured);
        }
    }
    assert!(port.sa.queued() < 4000, "{}", port.sa.queued());
    for n in 0..1000 {
        port.sa.forget_path(now, query(0x8001, 100 + n).key);
    }
    for n in 0..10 {
        port.sa.forget_path(now, query(0x8001, 10 + n).key);
    }
    assert_eq!((port.sa.paths(), port.sa.outstanding()), (0, 0));
    for n in 0..64 {
        port.sa.ask_path(now, query(0x8001, 5000 + n), Ask::Unknown);
    }
    assert!(sent(&mut port).len() >= 64, "no room is lost");
}
