//! A subnet administration that lies or is broken: its answers are bounded and checked against the requests.
//! Once it is honest everything works.

use hca::PortState;
use ib_wire::Lid;
use ib_wire::sa::attribute;
use proptest::prelude::*;

use super::fabric::{Fabric, ms, secs};
use super::hostile::check;
use crate::link::PortFacts;

/// Offset of the record in a datagram (IBA 15.2.1.1), and fields of an MCMemberRecord (15.2.5.17) and a
/// PathRecord (15.2.5.16).
const RECORD: usize = 56;
const MGID: usize = RECORD;
const MLID: usize = RECORD + 36;
const MC_MTU: usize = RECORD + 38;
const PATH_DLID: usize = RECORD + 40;
const PATH_MTU: usize = RECORD + 54;
/// The attribute of a datagram (13.4.3).
const ATTRIBUTE: usize = 16;

fn is_about(bytes: &[u8; 256], what: u16) -> bool {
    bytes[ATTRIBUTE..ATTRIBUTE + 2] == what.to_be_bytes()
}

fn forged(what: u16, at: usize, value: &'static [u8]) -> Fabric {
    let mut f = Fabric::new(1);
    f.forge = Some(Box::new(move |bytes| {
        if is_about(bytes, what) {
            bytes[at..at + value.len()].copy_from_slice(value);
        }
    }));
    f.add(1, |_| {});
    f.add(1, |_| {});
    f
}

fn is_up(f: &Fabric) -> bool {
    f.nodes[0].state.as_ref().is_some_and(|state| state.up)
}

#[test]
fn a_join_answered_with_nonsense_joins_nothing_and_is_asked_again_at_a_pace() {
    let cases: [(&str, usize, &[u8]); 5] = [
        ("a port's LID", MLID, &[0, 7]),
        ("no LID", MLID, &[0, 0]),
        ("every port's LID", MLID, &[0xff, 0xff]),
        ("another group", MGID, &[0xff, 0x15]),
        ("no MTU", MC_MTU, &[0x80]),
    ];
    for (what, at, value) in cases {
        let mut f = forged(attribute::MC_MEMBER_RECORD, at, value);
        f.run(secs(60));
        assert!(!is_up(&f) && f.nodes[0].attached.is_empty(), "{what}");
        assert!(f.nodes[0].link.counters().join_failures > 0, "{what}");
        // Both nodes have sent requests; the one with honest answers sent one for each group, and few after
        // that.
        let joins: usize =
            f.requests.iter().filter(|((a, _), _)| *a == attribute::MC_MEMBER_RECORD).map(|(_, n)| n).sum();
        assert!((2..60).contains(&joins), "{what}: {joins} requests in a minute");
        f.forge = None;
        f.run(secs(60));
        assert!(is_up(&f) && !f.nodes[0].attached.is_empty(), "{what}: honest in the end");
        f.connect();
    }
}

#[test]
fn a_path_to_what_is_no_port_is_no_path() {
    let cases: [(usize, &[u8]); 4] =
        [(PATH_DLID, &[0, 0]), (PATH_DLID, &[0xc0, 1]), (PATH_DLID, &[0xff, 0xff]), (PATH_MTU, &[0x80])];
    for (at, value) in cases {
        let mut f = forged(attribute::PATH_RECORD, at, value);
        f.run(ms(200));
        f.resolve(0, 1);
        f.run(secs(20));
        assert!(f.nodes[0].table.is_empty() && f.nodes[0].qps.is_empty());
        assert!(f.nodes[0].link.counters().path_failures > 0);
        f.forge = None;
        f.run(secs(60));
        f.connect();
    }
}

#[test]
fn a_path_to_another_port_makes_no_connection_to_it() {
    // Node 2's LID for node 1's GID: node 2 gets requests for a service and a GID that are not its own.
    let mut f = forged(attribute::PATH_RECORD, PATH_DLID, &[0, 4]);
    f.add(1, |_| {});
    f.run(ms(200));
    f.resolve(0, 1);
    f.run(secs(20));
    assert_eq!(f.nodes[0].live(false) + f.nodes[2].live(true), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes of an answer are changed. The tables stay within their bounds, and only groups' LIDs are
    /// attached. Honest answers are believed again.
    #[test]
    fn whatever_it_answers_nothing_grows_and_all_is_well_once_it_is_honest(
        seed in any::<u64>(),
        edits in prop::collection::vec((24usize..256, any::<u8>(), 0u8..4), 1..40),
    ) {
        let mut f = Fabric::new(seed);
        let (mut answers, forgeries) = (0usize, edits.clone());
        f.forge = Some(Box::new(move |bytes| {
            for (at, value, _) in forgeries.iter().filter(|(_, _, when)| usize::from(*when) == answers % 4) {
                bytes[*at] = *value;
            }
            answers += 1;
        }));
        f.add(3, |s| {
            s.max_neighbours = 8;
            s.max_passive = 4;
            s.max_groups = 3;
            s.slots = 4;
        });
        f.add(3, |_| {});
        for round in 0..6 {
            f.resolve(0, 1);
            f.use_by(1, 0, 0);
            f.run(secs(7));
            check(&f);
            prop_assert!(f.nodes[0].attached.iter().all(|(_, mlid)| mlid.is_multicast()));
            // The subnet manager requests all ports to register again.
            let sm_lid = Lid(1 + round % 2);
            f.change_port(0, |facts: &mut PortFacts| facts.sm_lid = sm_lid);
        }
        f.forge = None;
        f.change_port(0, |facts| (facts.sm_lid, facts.state) = (Lid(1), PortState::Down));
        f.run(secs(2));
        f.change_port(0, |facts| facts.state = PortState::Active);
        f.run(secs(90));
        f.connect();
        check(&f);
    }
}
