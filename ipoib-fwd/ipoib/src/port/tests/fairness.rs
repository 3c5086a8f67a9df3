//! Hosts that take all that they can get, and the shares that remain for the others.

use std::time::Duration;

use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::cm::{
    DisconnectRequest, MaxCmRetries, Message, ReadyToUse, RejectReason, Reply, Request, SidrRequest,
};
use ib_wire::{CommId, Gid, Guid, Lid, Mtu, PKey, Qpn, ServiceLevel, Tid, TimeoutCode};

use super::world::{FAR, PASSIVE, PKEYS, ROUTER, SHARE, SLOTS, World, ip, sl_of, ud_qpn_at};
use super::*;
use crate::link::{CloseReason, Event};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A host that is not one of the nodes, and sends its own messages.
struct Host {
    lid: Lid,
    gid: Gid,
    /// The worker that it dials.
    worker: u8,
    /// Requests sent so far.
    sent: u32,
}

impl Host {
    fn new(lid: u16) -> Self {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x9000 + u64::from(lid)));
        Self { lid: Lid(lid), gid, worker: 0, sent: 0 }
    }

    /// Requests a connection on a link from node 0, with the longest times that are possible.
    fn request(&mut self, w: &mut World, link: u16) {
        let pkey_index = w.pkey_index(0, PKEYS[usize::from(link)]);
        self.request_by(w, link, pkey_index);
    }

    fn request_by(&mut self, w: &mut World, link: u16, pkey_index: u16) {
        self.sent += 1;
        let n = u32::from(self.lid.0) << 16 | self.sent;
        let mut request = Request {
            local_comm_id: CommId(n),
            service_id: ServiceIdForm::Linux.service_id(ud_qpn_at(0, link, self.worker)),
            ca_guid: Guid(0x9000 + u64::from(self.lid.0)),
            local_qpn: Qpn::new(0x1000 + n),
            path_mtu: Mtu::B2048.into(),
            pkey: PKEYS[usize::from(link)],
            local_response_timeout: TimeoutCode::new(31),
            remote_response_timeout: TimeoutCode::new(31),
            max_cm_retries: MaxCmRetries::new(15),
            ..Request::default()
        };
        request.primary.local_gid = self.gid;
        request.primary.local_lid = self.lid;
        request.primary.remote_gid = w.nodes[0].facts.gid;
        request.primary.remote_lid = w.nodes[0].facts.lid;
        request.primary.subnet_local = self.gid.prefix() == Gid::DEFAULT_PREFIX;
        request.primary.sl = ServiceLevel::new(sl_of(PKEYS[usize::from(link)]));
        request.primary.ack_timeout = TimeoutCode::new(31);
        let private = PrivateData { ud_qpn: Qpn::new(0x1000 + n), receive_mtu: 65_524 }.to_bytes();
        request.private_data[..private.len()].copy_from_slice(&private);
        let bytes = Message::from(request).to_bytes(Tid(u64::from(n)));
        if self.gid.prefix() == Gid::DEFAULT_PREFIX {
            w.inject(0, self.lid, pkey_index, bytes);
        } else {
            w.inject_by(0, (self.lid, self.gid), pkey_index, bytes);
        }
    }

    /// The messages that node 0 has sent to it.
    fn received(&self, w: &mut World) -> Vec<Message> {
        let (mine, others) =
            std::mem::take(&mut w.strays).into_iter().partition(|mad| mad.peer.lid == self.lid);
        w.strays = others;
        let mine: Vec<Mad> = mine;
        mine.iter().filter_map(|mad| Message::parse(&mad.bytes).ok()).map(|(_, message)| message).collect()
    }

    /// Answers the messages to it: it establishes some of its connections, closes some immediately, and does
    /// not answer others.
    fn answer(&self, w: &mut World) {
        let replies = self.received(w).into_iter().filter_map(|message| match message {
            Message::Reply(reply) => Some(reply),
            _ => None,
        });
        for Reply { local_comm_id: theirs, remote_comm_id: ours, local_qpn, .. } in
            replies.collect::<Vec<_>>()
        {
            let up = ReadyToUse { local_comm_id: ours, remote_comm_id: theirs, private_data: [0; 224] };
            let end = DisconnectRequest {
                local_comm_id: ours,
                remote_comm_id: theirs,
                remote_qpn: local_qpn,
                private_data: [0; 220],
            };
            if ours.0 % 3 > 0 {
                w.inject(0, self.lid, 0, Message::from(up).to_bytes(Tid(1)));
            }
            if ours.0 % 3 > 1 {
                w.inject(0, self.lid, 0, Message::from(end).to_bytes(Tid(1)));
            }
        }
    }

    fn has(&self, w: &World) -> usize {
        w.nodes[0].port.holders.of(cm::Origin::Lid(self.lid))
    }
}

fn passive(w: &World, link: u16) -> usize {
    let link = w.nodes[0].port.link(LinkIndex(link)).expect("link");
    link.connections(w.now).iter().filter(|c| c.passive && c.state == "live").count()
}

/// Five seconds of requests on all segments, as fast as the port accepts them; then another host comes, and
/// the requests go on.
#[test]
fn while_one_host_takes_what_it_can_others_connect_within_a_second() {
    for segments in [1, 8] {
        let mut w = World::new(2, segments);
        w.run(ms(1000));
        let mut attacker = Host::new(50);
        let mut attack = |w: &mut World, time: u64| {
            for _ in 0..time {
                for link in 0..segments {
                    attacker.request(w, link);
                }
                w.run(ms(1));
                attacker.answer(w);
                assert!(w.nodes[0].qps.len() <= SHARE + 2 * usize::from(segments), "{segments} segments");
                assert!(attacker.has(w) <= SHARE, "{segments} segments: {}", attacker.has(w));
                // A quarter of the handshakes that hosts may start, which are three quarters of two for each
                // slot; and the other host's.
                let most = (usize::from(SLOTS) * 2 / 4 * 3 / 4).min(CM_ENTRIES * SHARE);
                assert!(w.nodes[0].port.connections() <= most + 2 * usize::from(segments), "{segments}");
            }
        };
        attack(&mut w, 5000);
        for link in 0..segments {
            let now = w.now;
            for (from, to) in [(1, 0), (0, 1)] {
                let machine = w.nodes[from].port.link_mut(LinkIndex(link)).expect("link");
                machine.resolve(now, WorkerIndex(0), ip(from, link), ip(to, link));
                machine.handle_used(now, WorkerIndex(0), &[], &[ip(to, link).into()]);
            }
        }
        attack(&mut w, 1000);
        for link in 0..segments {
            // One in each direction, and none of the host's established ones was closed.
            let node = w.nodes[1].port.link(LinkIndex(link)).expect("link").connections(w.now);
            assert_eq!(node.iter().filter(|c| c.state == "live").count(), 2, "{segments} segments: {node:?}");
        }
        assert_eq!(attacker.sent, 6000 * u32::from(segments));
    }
}

/// A subnet manager gives all ports of a subnet the same LMC: the requests that come by any LID of a port
/// belong to one host.
#[test]
fn the_lids_of_a_port_have_one_share() {
    for (lmc, shares) in [(0, 4), (2, 1)] {
        let mut w = World::new(1, 2);
        w.change_port(0, |facts| facts.lmc = lmc);
        w.run(ms(1000));
        let mut hosts: Vec<Host> = (48..52).map(Host::new).collect();
        for n in 0..400 {
            hosts[n % 4].request(&mut w, n as u16 / 4 % 2);
            w.run(ms(10));
        }
        assert_eq!(w.nodes[0].port.holders.sizes(), (shares * SHARE, shares), "LMC {lmc}");
    }
}

/// Several hosts within their shares fill all slots for connections that hosts open, on two segments.
#[test]
fn connections_that_hosts_open_leave_half_of_the_places_for_ours() {
    let mut w = World::new(2, 2);
    w.run(ms(1000));
    let mut hosts: Vec<Host> = (50..70).map(Host::new).collect();
    for n in 0..usize::from(SLOTS) * 2 {
        let at = n % hosts.len();
        hosts[at].request(&mut w, n as u16 % 2);
        w.run(ms(1));
        hosts[at].answer(&mut w);
        w.run(ms(1));
    }
    assert!(passive(&w, 0) + passive(&w, 1) <= PASSIVE);
    assert!(w.nodes[0].port.slots.in_use() <= PASSIVE, "{}", w.nodes[0].port.slots.in_use());
    for link in 0..2 {
        let now = w.now;
        let machine = w.nodes[0].port.link_mut(LinkIndex(link)).expect("link");
        machine.resolve(now, WorkerIndex(0), ip(0, link), ip(1, link));
        w.run(ms(100));
        let node = &w.nodes[0];
        let dials = node.port.link(LinkIndex(link)).expect("link").connections(w.now);
        assert!(dials.iter().any(|c| !c.passive && c.state == "live"), "{dials:?}");
    }
}

/// Many hosts within their shares, each of which causes another one's connection to be closed: a queue pair
/// lives through TIMEWAIT.
#[test]
fn queue_pairs_that_hosts_have_opened_are_bounded_with_those_that_close() {
    let mut w = World::new(1, 2);
    w.run(ms(1000));
    let mut opened = 0;
    for n in 0..2000 {
        let mut host = Host::new(100 + n % 400);
        host.sent = u32::from(n);
        let before = host.has(&w);
        host.request(&mut w, n % 2);
        w.run(ms(10));
        opened += usize::from(host.has(&w) > before);
        let alive = w.nodes[0].qps.len();
        assert!(alive <= PASSIVE + PASSIVE / 4, "{alive}");
    }
    // In 20 s, with a TIMEWAIT of 4.1 s: connections are replaced all the time.
    assert!(opened >= PASSIVE + 4 * PASSIVE / 4, "{opened}");
}

/// The longest idle connection is chosen over all segments.
#[test]
fn longest_idle_connection_of_all_segments_is_evicted() {
    let mut w = World::new(1, 2);
    w.run(ms(1000));
    let mut hosts: Vec<Host> = (50..70).map(Host::new).collect();
    for n in 0..PASSIVE {
        // The first half on the second segment.
        hosts[n % 16].request(&mut w, u16::from(n < PASSIVE / 2));
        w.run(ms(500));
    }
    for link in 0..2 {
        w.nodes[0].faces.get_mut(&LinkIndex(link)).expect("face").events.clear();
    }
    hosts[16].request(&mut w, 0);
    w.run(ms(1));
    let evicted = |w: &World, link| {
        let events = &w.nodes[0].faces[&LinkIndex(link)].events;
        let is = |e: &&Event| matches!(e, Event::ConnectionDown { reason: CloseReason::Evicted, .. });
        events.iter().filter(is).count()
    };
    assert_eq!((evicted(&w, 0), evicted(&w, 1)), (0, 1));
}

#[test]
fn a_request_that_came_by_another_partition_is_refused() {
    let mut w = World::new(1, 2);
    w.run(ms(1000));
    let mut host = Host::new(50);
    let suspect = |w: &World| w.nodes[0].port.link(LinkIndex(1)).expect("link").counters().requests_suspect;
    // By the first segment's P_Key, by none of the table, by another one of the table, and by its own.
    for (index, refusals) in [(0, 1), (77, 2), (2, 3), (1, 3)] {
        host.request_by(&mut w, 1, index);
        w.run(ms(1));
        let reason = host.received(&mut w).into_iter().find_map(|m| match m {
            Message::Reject(reject) => Some(reject.reason),
            _ => None,
        });
        assert_eq!(reason, (index != 1).then_some(RejectReason::Consumer), "index {index}");
        assert_eq!(suspect(&w), refusals);
    }
    // A limited member's packets come by the full P_Key of the table, or by a limited one as well.
    w.change_port(0, |facts| facts.pkeys.push(PKey(PKEYS[1].base())));
    let limited = w.nodes[0].facts.pkeys.len() as u16 - 1;
    host.request_by(&mut w, 1, limited);
    w.run(ms(1));
    assert!(host.received(&mut w).iter().any(|m| matches!(m, Message::Reply(_))));
    assert_eq!((suspect(&w), host.has(&w)), (3, 2));
}

/// Slots belong to workers: with a quarter of all slots a host could fill one worker.
#[test]
fn one_host_has_a_quarter_of_each_workers_places() {
    let mut w = World::with_workers(1, 2, 4);
    w.run(ms(1000));
    let mut host = Host::new(50);
    let mut request_often = |w: &mut World, worker| {
        host.worker = worker;
        for n in 0..4 * PASSIVE {
            host.request(w, n as u16 % 2);
            w.run(ms(10));
        }
        host.has(w)
    };
    assert_eq!(request_often(&mut w, 0), PASSIVE / 4);
    assert_eq!(request_often(&mut w, 1), PASSIVE / 4 * 2);
    for lid in 60..60 + (PASSIVE - PASSIVE / 4) as u16 {
        let mut other = Host::new(lid);
        other.request(&mut w, 0);
        w.run(ms(10));
        assert_eq!(other.has(&w), 1);
    }
    assert_eq!(passive(&w, 0) + passive(&w, 1), 0, "none was established");
    assert_eq!(w.nodes[0].port.holders.of(cm::Origin::Lid(Lid(50))), PASSIVE / 4 * 2, "and none was evicted");
}

/// Some adapters send all datagrams of connection management by the first P_Key of their table.
#[test]
fn a_request_by_another_key_is_taken_once_subnet_administration_has_a_path() {
    let mut w = World::new(2, 2);
    w.run(ms(1000));
    let mut host = Host::new(w.nodes[1].facts.lid.0);
    host.gid = w.nodes[1].facts.gid;
    for taken in [0, 1] {
        host.request_by(&mut w, 1, 0);
        w.run(ms(10));
        assert_eq!(host.has(&w), taken);
    }
    // The path leads to that port only.
    let mut liar = Host::new(50);
    liar.gid = host.gid;
    for _ in 0..2 {
        liar.request_by(&mut w, 1, 0);
        w.run(ms(10));
        assert_eq!(liar.has(&w), 0);
    }
}

/// Messages that are answered for any sender, with IDs of no connection.
#[test]
fn answers_to_anybody_are_as_limited_as_requests() {
    let ids = |n| (CommId(n), CommId(0x5000_0000 + n));
    let end = |n| {
        let (local_comm_id, remote_comm_id) = ids(n);
        let remote_qpn = Qpn::new(0x1000 + n);
        DisconnectRequest { local_comm_id, remote_comm_id, remote_qpn, private_data: [0; 220] }.into()
    };
    let lookup = |n| SidrRequest { request_id: n, ..SidrRequest::parse(&[0; SidrRequest::LEN]) }.into();
    let messages: [&dyn Fn(u32) -> Message; 2] = [&end, &lookup];
    for message in messages {
        let mut w = World::new(1, 1);
        w.run(ms(1000));
        let host = Host::new(50);
        for n in 0..1000 {
            w.inject(0, host.lid, 0, message(n).to_bytes(Tid(1)));
        }
        w.settle();
        assert_eq!((host.received(&mut w).len(), w.nodes[0].port.requests_limited()), (256, 744));
    }
}

/// A datagram's GRH can name any GID of other subnets. With one share for each GID the sender would have all
/// shares.
#[test]
fn gids_of_other_subnets_have_a_share_only_behind_their_router() {
    let mut w = World::new(1, 1);
    w.run(ms(1000));
    let mut sent = 0;
    let mut request = |lid, guid| {
        sent += 1;
        let mut host = Host::new(lid);
        (host.gid, host.sent) = (Gid::new(FAR, Guid(guid)), sent);
        host.request(&mut w, 0);
        w.run(ms(10));
        let holders = &w.nodes[0].port.holders;
        let handshakes = w.nodes[0].port.connections();
        (holders.of(cm::Origin::Lid(host.lid)), holders.of(cm::Origin::Gid(host.gid)), handshakes)
    };
    for guid in 0..100 {
        let (by_lid, by_gid, handshakes) = request(50, guid);
        assert!(by_lid <= SHARE && by_gid == 0 && handshakes <= 2 * SHARE + SHARE, "{by_lid} {handshakes}");
    }
    // The first request triggers the lookup of the path; from then on it is the host's own.
    assert_eq!(request(ROUTER.0, 1000).1, 0);
    assert_eq!(request(ROUTER.0, 1000).1, 1);
}
