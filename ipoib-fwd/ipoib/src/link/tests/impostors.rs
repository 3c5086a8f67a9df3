//! Hosts that claim to be other hosts, or many hosts: the state of the others stays.

use hca::UdSource;
use ib_wire::cm::{AttributeId, MaxCmRetries, Message, Request};
use ib_wire::ipoib::{AddressFlags, Arp, ArpOperation, HardwareAddress};
use ib_wire::{CommId, Gid, Guid, Lid, Qpn, ServiceLevel, Tid, TimeoutCode};

use super::fabric::{Fabric, Setup, ms, secs};
use crate::link::{
    Action, Asker, CloseReason, Event, LEFT_GRACE, LINK_LOCAL_GROUPS, Mode, PortEvent, WorkerIndex,
};

/// Node 0 with a connection that node 1 opened; node 2 is the attacker.
fn world(change: impl FnOnce(&mut Setup)) -> Fabric {
    let mut f = Fabric::new(5);
    f.add(1, change);
    f.add(1, |s| s.neighbour_idle = secs(100_000));
    f.add(1, |_| {});
    f.run(ms(100));
    f.resolve(1, 0);
    f.run(secs(1));
    f.assert_connected(1, 0, 0);
    f
}

/// Node 0 with a connection that it opened to node 1; node 2 is the attacker.
fn dialled() -> Fabric {
    let mut f = Fabric::new(9);
    for _ in 0..3 {
        f.add(1, |_| {});
    }
    f.run(ms(100));
    f.resolve(0, 1);
    f.run(secs(1));
    f.assert_connected(0, 0, 1);
    f
}

/// A request as node `of` would send it to node 0.
fn request(f: &Fabric, of: usize, ud_qpn: Qpn, n: u32) -> Request {
    let mut request = Request {
        local_comm_id: CommId(0x5_0000 + n),
        service_id: ib_wire::cm::ipoib::ServiceIdForm::Linux.service_id(f.address(0, 0).qpn),
        ca_guid: Guid(0x2000),
        local_qpn: Qpn::new(0x7_0000 + n),
        path_mtu: ib_wire::Mtu::B2048.into(),
        pkey: ib_wire::PKey::DEFAULT,
        local_response_timeout: TimeoutCode::new(20),
        remote_response_timeout: TimeoutCode::new(20),
        max_cm_retries: MaxCmRetries::new(15),
        ..Request::default()
    };
    request.primary.local_gid = f.nodes[of].facts.gid;
    request.primary.local_lid = f.nodes[of].facts.lid;
    request.primary.remote_gid = f.nodes[0].facts.gid;
    request.primary.remote_lid = f.nodes[0].facts.lid;
    request.primary.subnet_local = true;
    request.private_data[..4].copy_from_slice(&ud_qpn.get().to_be_bytes());
    request.private_data[4..8].copy_from_slice(&65_524u32.to_be_bytes());
    request
}

fn send(f: &mut Fabric, from: usize, request: Request) {
    let lid = f.nodes[from].facts.lid;
    f.inject(0, lid, Message::from(request).to_bytes(Tid(u64::from(request.local_comm_id.0))));
    f.run(ms(20));
}

fn replies(f: &Fabric) -> usize {
    f.cm_mads.iter().filter(|m| m.header().attribute == AttributeId::Reply.code()).count()
}

fn passive(f: &Fabric) -> usize {
    f.nodes[0].link.conns.passive.len()
}

#[test]
fn a_request_with_another_hosts_gid_and_queue_pair_ends_nothing() {
    let mut f = world(|_| {});
    let victim = f.nodes[1].link.address(WorkerIndex(0)).expect("address").qpn;
    f.cm_mads.clear();
    // Its GID and its LID as the request has them, its own LID as the datagram has it.
    let as_told = request(&f, 1, victim, 1);
    send(&mut f, 2, as_told);
    let mut honest_lid = request(&f, 1, victim, 2);
    honest_lid.primary.local_lid = f.nodes[2].facts.lid;
    send(&mut f, 2, honest_lid);
    // As from another subnet: the datagram's LID would be a router's.
    let mut routed = request(&f, 1, victim, 3);
    routed.primary.subnet_local = false;
    send(&mut f, 2, routed);
    f.run(secs(3));
    assert_eq!(replies(&f), 0);
    assert_eq!(f.nodes[0].link.counters().requests_suspect, 3);
    f.assert_connected(1, 0, 0);
    assert_eq!(passive(&f), 1);
}

#[test]
fn gid_counts_if_the_lid_is_not_reported() {
    let mut f = world(|_| {});
    f.cm_mads.clear();
    let victim = request(&f, 1, f.address(1, 0).qpn, 1);
    let (liar, honest) = (f.nodes[2].facts.gid, request(&f, 2, f.address(2, 0).qpn, 2));
    for r in [victim, honest] {
        f.inject_routed(0, liar, Message::from(r).to_bytes(Tid(u64::from(r.local_comm_id.0))));
        f.run(ms(20));
    }
    assert_eq!(f.nodes[0].link.counters().requests_suspect, 1);
    assert!(replies(&f) > 0);
    assert_eq!(passive(&f), 2);
    f.assert_connected(1, 0, 0);
}

#[test]
fn a_request_with_another_hosts_adapter_and_connection_ends_nothing() {
    let mut f = world(|_| {});
    let (qpn, _) = f.nodes[1].qps.iter().find(|(_, q)| !q.passive).expect("active");
    let mut stale = request(&f, 2, f.address(2, 0).qpn, 1);
    (stale.ca_guid, stale.local_qpn) = (Guid(0x1001), *qpn);
    f.cm_mads.clear();
    send(&mut f, 2, stale);
    f.run(secs(3));
    let ends = f.cm_mads.iter().filter(|m| m.header().attribute == AttributeId::DisconnectRequest.code());
    assert_eq!(ends.count(), 0);
    f.assert_connected(1, 0, 0);
    // From its own LID it is the host itself, which starts again.
    let mut again = request(&f, 1, f.address(1, 0).qpn, 2);
    (again.ca_guid, again.local_qpn) = (Guid(0x1001), *f.nodes[1].qps.keys().next().expect("active"));
    send(&mut f, 1, again);
    f.run(secs(3));
    let ends = f.cm_mads.iter().filter(|m| m.header().attribute == AttributeId::DisconnectRequest.code());
    assert!(ends.count() > 0);
}

#[test]
fn connection_from_another_port_is_closed_when_the_path_is_known() {
    let mut f = Fabric::new(5);
    f.add(1, |_| {});
    f.add(1, |_| {});
    f.add(1, |_| {});
    f.run(ms(100));
    // Node 1 is not known yet.
    let mut forged = request(&f, 1, f.address(1, 0).qpn, 1);
    forged.primary.local_lid = f.nodes[2].facts.lid;
    send(&mut f, 2, forged);
    f.run(secs(8));
    assert_eq!(passive(&f), 0);
    f.assert_clean(0);
    let honest = request(&f, 1, f.address(1, 0).qpn, 2);
    send(&mut f, 1, honest);
    assert_eq!(passive(&f), 1);
}

#[test]
fn one_host_cannot_push_the_others_out() {
    let mut f = world(|s| {
        s.max_passive = 64;
        s.max_passive_from_lid = 16;
    });
    for n in 0..200 {
        let made_up = request(&f, 2, Qpn::new(0x4000 + n), n);
        send(&mut f, 2, made_up);
    }
    assert!(passive(&f) <= 17);
    // Beyond its share, each request closes one of its own connections, or comes during that teardown.
    let counters = f.nodes[0].link.counters();
    assert_eq!(counters.passive_evicted + counters.requests_rejected, 184);
    assert!(counters.passive_evicted > 60, "{}", counters.passive_evicted);
    f.assert_connected(1, 0, 0);
    let honest = cm::Origin::Lid(f.nodes[1].facts.lid);
    assert_eq!(f.nodes[0].link.conns.passive.of_origin(honest), 1);
}

#[test]
fn requests_that_never_become_connections_expire_whatever_they_request() {
    let mut f = world(|_| {});
    for n in 0..40 {
        let mut patient = request(&f, 2, Qpn::new(0x4000 + n), n);
        patient.local_response_timeout = TimeoutCode::new(31);
        patient.remote_response_timeout = TimeoutCode::new(31);
        send(&mut f, 2, patient);
    }
    assert_eq!(passive(&f), 41);
    f.receive_all();
    f.run(secs(28));
    f.receive_all();
    f.run(secs(10));
    assert_eq!(passive(&f), 1, "their half a minute is over");
    f.assert_connected(1, 0, 0);
    // The port's table is empty again, too, once TIMEWAIT is over.
    f.run(secs(30));
    assert!(f.nodes[0].link.0.connections() <= 1);
}

#[test]
fn a_connection_that_never_carries_anything_is_closed_early() {
    let mut f = Fabric::new(5);
    f.add(1, |s| s.passive_idle = secs(200));
    f.add(1, |s| s.neighbour_idle = secs(100_000));
    f.add(1, |s| s.neighbour_idle = secs(100_000));
    f.run(ms(100));
    f.resolve(1, 0);
    f.resolve(2, 0);
    f.run(secs(1));
    assert_eq!(passive(&f), 2);
    let (now, used) = (f.now, f.nodes[0].qps.iter().find(|(_, q)| q.passive).map(|(qpn, _)| *qpn));
    let used = used.expect("passive");
    f.nodes[0].link.handle_used(now, WorkerIndex(0), &[used], &[]);
    f.run(secs(60));
    assert_eq!(passive(&f), 1);
    assert!(f.nodes[0].qps.contains_key(&used));
    assert_eq!(f.nodes[0].link.counters().passive_expired, 1);
}

#[test]
fn a_flood_of_requests_is_held_back() {
    let mut f = world(|_| {});
    let lid = f.nodes[2].facts.lid;
    for n in 0..20_000 {
        let r = request(&f, 2, Qpn::new(0x4000), n);
        f.inject(0, lid, Message::from(r).to_bytes(Tid(1)));
    }
    f.settle();
    assert!(f.nodes[0].link.0.requests_limited() >= 17_000, "{}", f.nodes[0].link.0.requests_limited());
    let mut honest = request(&f, 1, Qpn::new(0x201), 50_000);
    honest.ca_guid = Guid(0x1001);
    f.cm_mads.clear();
    send(&mut f, 1, honest);
    assert!(replies(&f) > 0, "another host's requests are accepted");
}

#[test]
fn a_packet_from_another_lid_redirects_nothing() {
    let mut f = world(|_| {});
    let peer = f.address(1, 0);
    let (victim, liar, own, ip) = (f.nodes[1].facts.lid, f.nodes[2].facts.lid, f.nodes[0].ip, f.nodes[1].ip);
    f.sa_up = false;
    let now = f.now;
    let from = UdSource {
        qpn: peer.qpn,
        slid: liar,
        sl: ServiceLevel::new(0),
        dlid_path_bits: 0,
        pkey_index: 0,
        has_grh: true,
        multicast: true,
    };
    let lids = |f: &mut Fabric| -> Vec<Lid> {
        let now = f.now;
        f.nodes[0].link.reply(now, WorkerIndex(0), own, Asker { hardware: peer, lid: liar }, ip);
        std::iter::from_fn(|| f.nodes[0].link.0.poll_action(now))
            .filter_map(|(_, action)| match action {
                Action::SendUd { to, .. } => Some(to.av.dlid),
                _ => None,
            })
            .collect()
    };
    f.nodes[0].link.handle_arp(now, WorkerIndex(0), &from, Arp::request(peer, ip, own));
    assert_eq!(lids(&mut f), [victim], "subnet administration has not confirmed it");
    f.settle();
    let ud = f.nodes[0].table.get(ip).and_then(|n| n.ud).expect("path");
    assert_eq!(ud.av.dlid, victim);
    // It has really moved: packets that were sent to the old LID are sent again.
    f.sa_up = true;
    f.nodes[1].facts.lid = Lid(77);
    let from = UdSource { slid: Lid(77), ..from };
    f.run(secs(5));
    let now = f.now;
    let mut arp = Arp::request(peer, ip, own);
    arp.operation = ArpOperation::Reply;
    f.nodes[0].link.handle_arp(now, WorkerIndex(0), &from, arp);
    f.run(secs(2));
    assert_eq!(f.nodes[0].table.get(ip).and_then(|n| n.ud).expect("path").av.dlid, Lid(77));
}

#[test]
fn nobody_takes_a_hosts_connections_by_writing_arp_for_it() {
    let mut f = dialled();
    assert_eq!(f.nodes[0].live(false), 1);
    let silent = HardwareAddress { flags: AddressFlags::NONE, ..f.address(1, 0) };
    let (victim, liar) = (f.nodes[1].facts.lid, f.nodes[2].facts.lid);
    let (ip, own, now) = (f.nodes[1].ip, f.nodes[0].ip, f.now);
    let from = |qpn, slid| UdSource {
        qpn,
        slid,
        sl: ServiceLevel::new(0),
        dlid_path_bits: 0,
        pkey_index: 0,
        has_grh: true,
        multicast: true,
    };
    let arp = Arp::request(silent, ip, own);
    // By the attacker's own queue pair, which its adapter names; and by one with the victim's number on
    // another port.
    for (from, invalid) in [(from(f.address(2, 0).qpn, liar), 1), (from(silent.qpn, liar), 1)] {
        f.nodes[0].link.handle_arp(now, WorkerIndex(0), &from, arp);
        let asked = f.nodes[0].link.believed(&from, silent);
        f.nodes[0].link.reply(now, WorkerIndex(0), own, Asker { hardware: asked, lid: liar }, ip);
        f.run(secs(1));
        assert_eq!(f.nodes[0].link.counters().arp_invalid, invalid);
        assert_eq!(f.nodes[0].live(false), 1, "connected mode continues");
    }
    // The host itself may change them.
    f.nodes[0].link.handle_arp(f.now, WorkerIndex(0), &from(silent.qpn, victim), arp);
    f.run(secs(1));
    assert_eq!(f.nodes[0].live(false), 0);
}

/// Ports that do not exist, named by node 2.
fn rumours(f: &mut Fabric, n: std::ops::Range<u32>) {
    let (now, lid, own) = (f.now, f.nodes[2].facts.lid, f.nodes[0].ip);
    for n in n {
        let gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0xdead_0000 + u64::from(n)));
        let hardware = HardwareAddress { flags: AddressFlags::RC, qpn: Qpn::new(0x77), gid };
        let ip = std::net::Ipv4Addr::from(0x0a00_1000 + n);
        f.nodes[0].link.reply(now, WorkerIndex(0), own, Asker { hardware, lid }, ip);
    }
}

#[test]
fn invented_ports_of_one_host_do_not_delay_other_paths() {
    let mut f = Fabric::new(5);
    for _ in 0..3 {
        f.add(1, |s| s.max_neighbours = 32);
    }
    f.run(ms(100));
    let queries = |f: &Fabric| f.nodes[0].link.counters().path_queries;
    // Subnet administration does not answer for a while.
    f.sa_up = false;
    rumours(&mut f, 0..1000);
    assert_eq!(queries(&f), 16);
    assert_eq!(f.nodes[0].link.counters().paths_limited, 2 * 984, "neither for the host nor for its answer");
    let to = Asker { hardware: f.address(1, 0), lid: f.nodes[1].facts.lid };
    let (now, own, ip) = (f.now, f.nodes[0].ip, f.nodes[1].ip);
    f.nodes[0].link.reply(now, WorkerIndex(0), own, to, ip);
    assert_eq!(queries(&f), 17, "another host's is looked up");
    f.run(secs(20));
    f.sa_up = true;
    // More of them than there is room for, each refused: a host that exists has its path.
    for n in 1..100 {
        rumours(&mut f, n * 10..n * 10 + 10);
        f.run(ms(20));
    }
    assert!(f.nodes[0].link.paths.len() <= 32 + 64);
    f.resolve(0, 1);
    f.run(ms(100));
    assert!(f.nodes[0].table.get(ip).is_some_and(|n| n.ud.is_some()));
    f.run(secs(130));
    assert!(f.nodes[0].link.paths.len() <= 2, "{}", f.nodes[0].link.paths.len());
}

#[test]
fn connection_requests_with_invented_ports_do_not_delay_other_paths() {
    let mut f = Fabric::new(5);
    for _ in 0..3 {
        f.add(1, |s| s.max_neighbours = 32);
    }
    f.run(ms(100));
    let counters = |f: &Fabric| *f.nodes[0].link.counters();
    // Subnet administration does not answer for a while.
    f.sa_up = false;
    for n in 0..200 {
        let mut made_up = request(&f, 2, Qpn::new(0x4000 + n), n);
        made_up.primary.local_gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0xdead_0000 + u64::from(n)));
        let lid = f.nodes[2].facts.lid;
        f.inject(0, lid, Message::from(made_up).to_bytes(Tid(u64::from(n))));
    }
    f.run(ms(20));
    assert_eq!((counters(&f).path_queries, counters(&f).paths_limited), (16, 184));
    assert_eq!(
        (passive(&f), counters(&f).requests_rejected),
        (16, 184),
        "no connection whose sender cannot be looked up"
    );
    // The same holds for requests that are rejected anyway.
    let mut elsewhere = request(&f, 2, Qpn::new(0x5000), 1000);
    elsewhere.primary.local_gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0xdead_1000));
    elsewhere.primary.local_lid = f.nodes[1].facts.lid;
    send(&mut f, 2, elsewhere);
    assert_eq!((counters(&f).path_queries, counters(&f).requests_suspect), (16, 1));
    f.sa_up = true;
    f.resolve(0, 1);
    f.run(secs(1));
    assert!(f.nodes[0].table.get(f.nodes[1].ip).is_some_and(|n| n.ud.is_some()));
}

#[test]
fn needed_path_replaces_a_rumoured_one() {
    let mut f = Fabric::new(5);
    for _ in 0..3 {
        f.add(1, |s| s.max_neighbours = 32);
    }
    f.run(ms(100));
    f.sa_up = false;
    // Many hosts lie, or one with many LIDs: the table is full of ports that are being looked up.
    for n in 0..20 {
        f.nodes[2].facts.lid = Lid(0x100 + n);
        rumours(&mut f, u32::from(n) * 16..u32::from(n) * 16 + 16);
    }
    assert_eq!(f.nodes[0].link.paths.len(), 32 + 64);
    let before = f.nodes[0].link.counters().path_queries;
    let (now, ip, hardware) = (f.now, f.nodes[1].ip, f.address(1, 0));
    f.nodes[0].link.handle_told(now, ip, hardware);
    assert_eq!(f.nodes[0].link.counters().path_queries, before + 1);
    f.sa_up = true;
    f.run(secs(10));
    assert!(f.nodes[0].table.get(f.nodes[1].ip).is_some_and(|n| n.ud.is_some()));
    assert_eq!(f.nodes[0].link.paths.len(), 32 + 64);
    f.run(secs(200));
    assert!(f.nodes[0].link.paths.len() <= 2, "{}", f.nodes[0].link.paths.len());
}

#[test]
fn one_port_with_every_address_in_use_does_not_exclude_others() {
    let mut f = Fabric::new(5);
    for _ in 0..3 {
        f.add(1, |s| {
            s.max_neighbours = 100;
            s.mode = Mode::Datagram;
        });
    }
    f.run(ms(100));
    let (own, lid, at) = (f.nodes[0].ip, f.nodes[2].facts.lid, f.address(2, 0));
    // A queue pair for each, and packets are sent to all of them.
    for n in 0..100u32 {
        let (now, ip) = (f.now, std::net::Ipv4Addr::from(0x0a00_2000 + n));
        let hardware = HardwareAddress { qpn: Qpn::new(0x1000 + n), ..at };
        f.nodes[0].link.reply(now, WorkerIndex(0), own, Asker { hardware, lid }, ip);
        f.nodes[0].link.handle_used(now, WorkerIndex(0), &[], &[ip.into()]);
    }
    assert_eq!(f.nodes[0].link.neighbours(f.now).len(), 100);
    f.resolve(0, 1);
    f.run(ms(100));
    assert!(f.nodes[0].table.get(f.nodes[1].ip).is_some_and(|n| n.ud.is_some()));
    assert_eq!(f.nodes[0].link.counters().neighbours_full, 0);
}

#[test]
fn each_worker_has_its_own_bound() {
    let mut f = Fabric::new(3);
    f.add(2, |s| s.max_passive = 3);
    f.add(4, |_| {});
    f.run(ms(100));
    // Four peers at the first worker, which has room for three of them; two at the second.
    for (n, worker) in [(0u32, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1)] {
        let mut r = request(&f, 1, Qpn::new(0x200 + n), n);
        r.service_id = ib_wire::cm::ipoib::ServiceIdForm::Linux.service_id(f.address(0, worker).qpn);
        send(&mut f, 1, r);
    }
    assert_eq!(f.nodes[0].link.conns.passive.at_worker(WorkerIndex(0)), 3);
    assert_eq!(f.nodes[0].link.conns.passive.at_worker(WorkerIndex(1)), 2);
    assert_eq!(f.nodes[0].link.counters().passive_evicted, 1);
}

#[test]
fn groups_named_at_the_start_are_joined_and_joined_again() {
    let mut f = Fabric::new(3);
    f.add(1, |s| s.groups = LINK_LOCAL_GROUPS.to_vec());
    f.add(1, |_| {});
    f.run(secs(1));
    let joined = |f: &Fabric| f.nodes[0].link.groups().iter().filter(|g| g.state == "joined").count();
    assert_eq!(joined(&f), 13);
    assert_eq!(f.nodes[0].attached.len(), 13, "each by its own MGID");
    let state = f.nodes[0].state.clone().expect("published");
    assert_eq!(state.groups.len(), 12, "and workers have the destinations");
    f.change_port(0, |p| p.state = hca::PortState::Down);
    f.run(ms(10));
    assert!(f.nodes[0].attached.is_empty());
    f.members.clear();
    f.change_port(0, |p| p.state = hca::PortState::Active);
    f.run(secs(1));
    assert_eq!((joined(&f), f.nodes[0].attached.len(), f.members.len()), (13, 13, 13));
    let now = f.now;
    f.nodes[0].link.shutdown(now);
    f.run(secs(2));
    assert!(f.members.is_empty() && f.nodes[0].attached.is_empty());
}

#[test]
fn claim_of_another_hosts_address_does_not_close_its_connection() {
    let mut f = dialled();
    let [own, ip] = [f.nodes[0].ip, f.nodes[1].ip];
    let connection = |f: &Fabric| f.nodes[0].rc_to(ip, 0).map(|qp| qp.key);
    let first = connection(&f);
    let say = |f: &mut Fabric, n: usize| {
        let address = f.address(n, 0);
        let (qpn, slid) = (address.qpn, f.nodes[n].facts.lid);
        let sl = ServiceLevel::new(0);
        let from =
            UdSource { qpn, slid, sl, dlid_path_bits: 0, pkey_index: 0, has_grh: true, multicast: true };
        let arp = Arp { operation: ArpOperation::Reply, ..Arp::request(address, ip, own) };
        f.nodes[0].link.handle_arp(f.now, WorkerIndex(0), &from, arp);
        f.run(std::time::Duration::from_micros(300));
    };
    for _ in 0..5 {
        f.use_by(0, 0, 1);
        say(&mut f, 2);
        assert!(f.nodes[0].link.neighbour_hardware(ip).is_some_and(|at| at.is_same_as(f.address(2, 0))));
        // The host is queried, and answers.
        say(&mut f, 1);
        assert_eq!(connection(&f), first, "by the connection that was there");
        f.run(secs(2));
        assert_eq!(connection(&f), first);
    }
    // The same if it answers late.
    f.use_by(0, 0, 1);
    say(&mut f, 2);
    f.run(LEFT_GRACE - ms(100));
    say(&mut f, 1);
    f.run(secs(2));
    assert_eq!(connection(&f), first);
    // A host that has really left loses it.
    let old = f.address(1, 0);
    say(&mut f, 2);
    f.run(secs(3));
    let connections = f.nodes[0].link.connections(f.now);
    assert!(!connections.iter().any(|c| !c.passive && c.peer.is_same_as(old)), "{connections:#?}");
}

#[test]
fn equal_queue_pair_number_or_gid_of_another_host_closes_no_connection() {
    let mut f = Fabric::new(9);
    for _ in 0..3 {
        f.add(1, |s| s.neighbour_idle = secs(100_000));
    }
    f.run(ms(100));
    f.resolve(0, 1);
    f.resolve(1, 0);
    f.run(secs(1));
    f.assert_connected(0, 0, 1);
    f.assert_connected(1, 0, 0);
    let [own, ip] = [f.nodes[0].ip, f.nodes[1].ip];
    let all = |f: &Fabric| f.nodes[0].qps.values().map(|qp| qp.key).collect::<Vec<_>>();
    let before = all(&f);
    assert_eq!(before.len(), 2, "one in each direction");
    let say = |f: &mut Fabric, address: HardwareAddress, n: usize| {
        let (qpn, slid) = (address.qpn, f.nodes[n].facts.lid);
        let sl = ServiceLevel::new(0);
        let from =
            UdSource { qpn, slid, sl, dlid_path_bits: 0, pkey_index: 0, has_grh: true, multicast: true };
        let arp = Arp { operation: ArpOperation::Reply, ..Arp::request(address, ip, own) };
        f.nodes[0].link.handle_arp(f.now, WorkerIndex(0), &from, arp);
        assert!(f.nodes[0].link.neighbour_hardware(ip).is_some_and(|at| at.is_same_as(address)));
        f.run(std::time::Duration::from_micros(300));
    };
    let (owner, other) = (f.address(1, 0), f.address(2, 0));
    for twin in [HardwareAddress { qpn: owner.qpn, ..other }, HardwareAddress { gid: owner.gid, ..other }] {
        f.use_by(0, 0, 1);
        say(&mut f, twin, 2);
        // The host is queried, and answers.
        say(&mut f, owner, 1);
        f.run(secs(2));
        let after = all(&f);
        assert!(before.iter().all(|key| after.contains(key)), "{:#?}", f.nodes[0].link.connections(f.now));
    }
    // A port with a new GID loses the state that it had under the old one.
    f.nodes[1].alive = false;
    say(&mut f, HardwareAddress { qpn: owner.qpn, ..other }, 2);
    f.run(secs(5));
    let connections = f.nodes[0].link.connections(f.now);
    assert!(!connections.iter().any(|c| c.state == "live"), "{connections:#?}");
}

/// A port has 2^LMC LIDs: the host may send by any of them, and subnet administration may name any.
#[test]
fn all_lids_of_a_hosts_port_are_the_hosts() {
    for (lmc, same) in [(0, false), (2, true)] {
        let mut f = Fabric::new(9);
        for _ in 0..2 {
            f.add(1, |_| {});
        }
        f.change_port(0, |p| p.lmc = lmc);
        f.change_port(1, |p| p.lid = Lid(8));
        f.run(ms(100));
        f.resolve(0, 1);
        f.run(secs(1));
        f.assert_connected(0, 0, 1);
        let (peer, ip, own) = (f.address(1, 0), f.nodes[1].ip, f.nodes[0].ip);
        let queries = |f: &Fabric| f.nodes[0].link.counters().path_queries;
        let from = |slid| UdSource {
            qpn: peer.qpn,
            slid,
            sl: ServiceLevel::new(0),
            dlid_path_bits: 0,
            pkey_index: 0,
            has_grh: true,
            multicast: true,
        };
        // ARP by another LID: no doubt about the host's location.
        let (before, now) = (queries(&f), f.now);
        f.nodes[0].link.handle_arp(now, WorkerIndex(0), &from(Lid(9)), Arp::request(peer, ip, own));
        f.run(ms(100));
        assert_eq!(queries(&f) == before, same);
        let silent = HardwareAddress { flags: AddressFlags::NONE, ..peer };
        assert_eq!(f.nodes[0].link.believed(&from(Lid(9)), silent) == silent, same);
        // A request by another LID.
        let asked = request(&f, 1, peer.qpn, 1);
        f.inject(0, Lid(9), Message::from(asked).to_bytes(Tid(1)));
        f.run(ms(100));
        assert_eq!(passive(&f), usize::from(same));
        assert_eq!(f.nodes[0].link.counters().requests_suspect == 0, same);
        // Another path to the same port: neither kind of connection has lost its peer.
        f.run(secs(5));
        f.nodes[1].facts.lid = Lid(10);
        let (now, facts) = (f.now, f.nodes[0].facts);
        f.nodes[0].link.each(|link| link.handle_port_event(now, PortEvent::Light, facts));
        f.run(ms(100));
        let is_moved =
            |e: &Event| matches!(e, Event::ConnectionDown { reason: CloseReason::AddressChanged, .. });
        assert_eq!(!f.nodes[0].events.iter().any(is_moved), same, "LMC {lmc}");
        assert_eq!(passive(&f), usize::from(same));
    }
}
