//! GRHs of packets: by the path's hop limit, and at a port that requires one.

use hca::{GlobalRoute, PortState};
use ib_wire::mad::Mad;
use ib_wire::sa::{PathRecord, SaMad, attribute};
use ib_wire::{Gid, Lid};

use super::fabric::{Fabric, SM_LID, ms};

/// Two nodes with a connection in each direction, and every management datagram that node 0 sent for it. Node
/// 0 gets paths with `hop_limit`.
fn connected(hop_limit: u8, grh_required: bool) -> (Fabric, Vec<Mad>) {
    let mut f = Fabric::new(1);
    f.add(1, |_| {});
    f.add(1, |_| {});
    // Discards their requests from before their ports required a GRH.
    for n in [0, 1] {
        f.change_port(n, |facts| facts.state = PortState::Down);
    }
    f.run(ms(100));
    f.sent_by_first = Some(Vec::new());
    for n in [0, 1] {
        f.change_port(n, |facts| (facts.grh_required, facts.state) = (grh_required, PortState::Active));
    }
    f.forge = Some(Box::new(move |bytes| {
        let answer = SaMad::parse(bytes);
        if answer.header.attribute == attribute::PATH_RECORD
            && let Some(path) = answer.record::<PathRecord>()
        {
            *bytes = *SaMad::answer(&answer, &PathRecord { hop_limit, ..path }).to_bytes();
        }
    }));
    f.run(ms(200));
    f.connect();
    let sent = f.sent_by_first.take().unwrap_or_default();
    (f, sent)
}

/// The GIDs that a node's datagrams and its connection to the other node are sent to, if they have a GRH.
fn routes(f: &Fabric, from: usize, to: usize) -> [Option<(Gid, u8)>; 2] {
    let ip = f.nodes[to].ip;
    let datagram = f.nodes[from].table.get(ip).and_then(|n| n.ud).expect("a destination").av.grh;
    let connection = f.nodes[from].rc_to(ip, 0).and_then(|qp| qp.receive).expect("a connection").av.grh;
    [datagram, connection].map(|route: Option<GlobalRoute>| route.map(|r| (r.dgid, r.hop_limit)))
}

#[test]
fn a_hop_limit_above_0_puts_a_grh_into_everything_that_goes_to_a_peer() {
    for (hop_limit, grh) in [(0, false), (1, true)] {
        let (f, sent) = connected(hop_limit, false);
        let gid = f.nodes[1].facts.gid;
        let there = grh.then_some((gid, hop_limit));
        assert_eq!(routes(&f, 0, 1), [there, there], "hop limit {hop_limit}");
        let (administration, peer): (Vec<_>, Vec<_>) = sent.iter().partition(|mad| mad.peer.lid == SM_LID);
        assert!(!administration.is_empty() && administration.iter().all(|mad| mad.peer.route.is_none()));
        let to_peer: Vec<_> = peer.iter().map(|mad| mad.peer.route.map(|r| (r.gid, r.hop_limit))).collect();
        assert!(to_peer.contains(&there), "its REQ: {to_peer:?}");
    }
}

#[test]
fn port_that_requires_a_grh_sends_no_packet_without_one() {
    let (f, sent) = connected(0, true);
    let gid = f.nodes[1].facts.gid;
    assert_eq!(routes(&f, 0, 1), [Some((gid, 0)); 2]);
    let administration = Gid::new(Gid::DEFAULT_PREFIX, Gid::SUBNET_ADMINISTRATION);
    let mut asked = 0;
    for mad in &sent {
        let route = mad.peer.route.map(|r| (r.gid, r.sgid_index));
        if mad.peer.lid == SM_LID {
            asked += 1;
            assert_eq!(route, Some((administration, 0)), "{:?}", mad.header());
        } else {
            assert_ne!(mad.peer.lid, Lid(0));
            assert_eq!(route, Some((gid, 0)), "{:?}", mad.header());
        }
    }
    assert!(asked >= 2, "the broadcast group and a path");
}
