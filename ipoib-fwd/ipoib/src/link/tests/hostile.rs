//! Arbitrary inputs in any order: no panic, bounded tables, every queue pair destroyed exactly once.

use std::net::Ipv4Addr;

use hca::{PortState, UdSource};
use ib_wire::cm::{AttributeId, Message, Request};
use ib_wire::ipoib::{AddressFlags, Arp, ArpOperation, HardwareAddress};
use ib_wire::mad::MAD_LEN;
use ib_wire::{Gid, Guid, Lid, Qpn, ServiceLevel, Tid};
use proptest::prelude::*;

use super::fabric::{Fabric, ms, secs};
use crate::link::{ConnKey, Mode, PortEvent, WorkerIndex, WorkerNote};

#[derive(Clone, Debug)]
enum Step {
    Run(u64),
    Resolve(u8, u8),
    Use(u8, u8),
    Received,
    Note(u8, u8),
    Arp { sender: u32, ip: u8, slid: u16, reply: bool, rc: bool },
    Mad(Vec<u8>),
    Replay { which: u16, to: u8, at: u8, value: u8 },
    Request(u64, u32),
    Port(u8, u8),
    Event(u8),
    Mode(bool),
    Group(u8, bool),
    Stale(u64, bool),
    Quiescent(u64),
    Weather { loss: u8, sa: bool, mute: bool, lazy: bool, refuse: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..8000).prop_map(Step::Run),
        4 => (0u64..20).prop_map(Step::Run),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Step::Resolve(a, b)),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Step::Use(a, b)),
        1 => Just(Step::Received),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Step::Note(a, b)),
        3 => (0u32..6, 0u8..20, 0u16..6, any::<bool>(), any::<bool>())
            .prop_map(|(sender, ip, slid, reply, rc)| Step::Arp { sender, ip, slid, reply, rc }),
        1 => prop::collection::vec(any::<u8>(), 64).prop_map(Step::Mad),
        3 => (any::<u16>(), any::<u8>(), any::<u8>(), any::<u8>())
            .prop_map(|(which, to, at, value)| Step::Replay { which, to, at, value }),
        2 => (any::<u64>(), any::<u32>()).prop_map(|(a, b)| Step::Request(a, b)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(a, b)| Step::Port(a, b)),
        1 => any::<u8>().prop_map(Step::Event),
        1 => any::<bool>().prop_map(Step::Mode),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(a, b)| Step::Group(a, b)),
        1 => (any::<u64>(), any::<bool>()).prop_map(|(a, b)| Step::Stale(a, b)),
        1 => any::<u64>().prop_map(Step::Quiescent),
        2 => (0u8..200, prop::bool::weighted(0.8), any::<bool>(), any::<bool>(), 0u8..8)
            .prop_map(|(loss, sa, mute, lazy, refuse)| Step::Weather { loss, sa, mute, lazy, refuse }),
    ]
}

fn apply(f: &mut Fabric, step: Step) {
    let now = f.now;
    match step {
        Step::Run(n) => f.run(ms(n)),
        Step::Resolve(w, to) => f.resolve_by(usize::from(to & 1), w % 3, usize::from(to >> 1) % 2),
        Step::Use(w, to) => f.use_by(usize::from(to & 1), w % 3, usize::from(to >> 1) % 2),
        Step::Received => f.receive_all(),
        Step::Note(which, note) => {
            let qpns: Vec<_> = f.nodes[0].qps.keys().copied().collect();
            let note = match note % 5 {
                0 => WorkerNote::Fault,
                1 => WorkerNote::Drained,
                2 => WorkerNote::Flushed,
                3 => WorkerNote::LastWqeReached,
                _ => WorkerNote::CommunicationEstablished,
            };
            let known = qpns.get(usize::from(which) % qpns.len().max(1)).copied();
            f.nodes[0].link.handle_note(now, known.unwrap_or(Qpn::new(u32::from(which))), note);
        }
        Step::Arp { sender, ip, slid, reply, rc } => {
            let sender = HardwareAddress {
                flags: if rc { AddressFlags::RC } else { AddressFlags::NONE },
                qpn: Qpn::new(sender * 0x100),
                gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x0fff + u64::from(sender))),
            };
            let ip = Ipv4Addr::new(10, 0, 0, ip);
            let from = UdSource {
                qpn: sender.qpn,
                slid: Lid(slid),
                sl: ServiceLevel::new(0),
                dlid_path_bits: 0,
                pkey_index: 0,
                has_grh: false,
                multicast: !reply,
            };
            let mut arp = Arp::request(sender, ip, f.nodes[0].ip);
            if reply {
                arp.operation = ArpOperation::Reply;
                let own = f.nodes[0].ip;
                f.nodes[0].link.reply(
                    now,
                    WorkerIndex(slid as u8),
                    own,
                    crate::link::Asker { hardware: sender, lid: Lid(slid) },
                    ip,
                );
            }
            f.nodes[0].link.handle_arp(now, WorkerIndex(slid as u8 % 3), &from, arp);
        }
        Step::Mad(head) => {
            let mut bytes = Box::new([0u8; MAD_LEN]);
            bytes[..64].copy_from_slice(&head);
            bytes[0] = 1;
            bytes[1] = [0x03, 0x07, 0x04, 0x81][usize::from(head[1]) % 4];
            f.inject(0, Lid(1 + u16::from(head[2] % 3)), bytes);
        }
        Step::Replay { which, to, at, value } => {
            if let Some(mad) = f.cm_mads.get(usize::from(which) % f.cm_mads.len().max(1)) {
                let mut bytes = mad.bytes.clone();
                bytes[usize::from(at)] ^= value & value.wrapping_shl(1);
                f.inject(usize::from(to % 2), Lid(2 + u16::from(to % 3)), bytes);
            }
        }
        Step::Request(a, b) => {
            let mut request = Request {
                local_comm_id: ib_wire::CommId(a as u32),
                service_id: ib_wire::cm::ipoib::ServiceIdForm::Linux.service_id(Qpn::new(0x100 + b % 3)),
                ca_guid: Guid(a >> 60),
                local_qpn: Qpn::new(b),
                path_mtu: ib_wire::Mtu::B2048.into(),
                pkey: ib_wire::PKey::DEFAULT,
                ..Request::default()
            };
            request.primary.local_gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(u64::from(b >> 28)));
            request.primary.local_lid = Lid(9);
            request.primary.subnet_local = true;
            request.private_data[..8].copy_from_slice(&[0, 0, 1, b as u8, 0, 0, (b >> 8) as u8 & 1, 9]);
            f.inject(0, Lid(9), Message::from(request).to_bytes(Tid(a)));
        }
        Step::Port(what, value) => f.change_port(0, |p| match what % 5 {
            0 => p.state = if value & 1 == 0 { PortState::Active } else { PortState::Down },
            1 => p.lid = Lid(2 + u16::from(value & 1) * 50),
            2 => p.pkey_index = [None, Some(0), Some(1), Some(1)][usize::from(value) % 4],
            3 => p.gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x1000 + u64::from(value & 1) * 0x100)),
            _ => p.sm_lid = Lid(u16::from(value & 1)),
        }),
        Step::Event(what) => {
            let facts = f.nodes[0].facts;
            let event = [PortEvent::Light, PortEvent::Normal, PortEvent::Heavy][usize::from(what) % 3];
            f.nodes[0].link.handle_port_event(now, event, facts);
        }
        Step::Mode(connected) => {
            f.nodes[0].link.set_mode(now, if connected { Mode::Connected } else { Mode::Datagram });
        }
        Step::Group(n, join) => {
            let group = Ipv4Addr::new(224, 0, 0, n % 6);
            if join {
                f.nodes[0].link.join(now, group);
            } else {
                f.nodes[0].link.leave(now, group);
            }
        }
        Step::Stale(key, ok) => {
            let key = ConnKey { link: crate::link::LinkIndex(0), number: key.saturating_add(1 << 40) };
            f.nodes[0].link.handle_done(now, key, ok);
            f.nodes[0].link.handle_created(now, key, ok.then_some(Qpn::new(5)));
        }
        Step::Quiescent(generation) => {
            // A generation that is not published yet; the fabric answers those that are.
            f.nodes[1].link.handle_quiescent(now, generation.min(1));
        }
        Step::Weather { loss, sa, mute, lazy, refuse } => {
            f.loss = u64::from(loss);
            f.sa_up = sa;
            f.nodes[0].mute = mute;
            f.nodes[0].lazy = lazy;
            f.nodes[0].refuse_create = refuse == 0;
            f.nodes[0].refuse_receive = refuse == 1;
        }
    }
    f.settle();
}

pub(super) fn check(f: &Fabric) {
    let link = &f.nodes[0].link;
    assert!(link.neighbours(f.now).len() <= 8);
    assert!(link.paths.len() <= 8 + 64);
    assert!(link.conns.map.len() <= 12);
    assert!(link.conns.passive.len() <= 12);
    assert!(link.conns.dials.len() <= 8 * 3);
    assert!(link.groups().len() <= 4);
    assert!(link.out.timers.len() <= 8 + 72 + 12 + 24 + 4 + 3);
    assert!(f.nodes[0].table.len() <= 8);
    let live = f.nodes[0].created.difference(&f.nodes[0].destroyed).count();
    assert_eq!(
        live,
        link.conns.map.len() - f.nodes[0].refused_pending(),
        "every existing queue pair is known"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_in_any_order(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..120)) {
        let mut f = Fabric::new(seed);
        f.add(3, |s| {
            s.max_neighbours = 8;
            s.max_passive = 4;
            s.max_groups = 3;
            s.passive_idle = secs(20);
            s.slots = 4;
        });
        f.add(3, |_| {});
        for step in steps {
            apply(&mut f, step);
            check(&f);
        }
        let now = f.now;
        for node in &mut f.nodes {
            node.link.shutdown(now);
        }
        f.run(secs(25));
        for n in 0..2 {
            prop_assert!(f.nodes[n].link.is_stopped());
            f.assert_clean(n);
            prop_assert!(f.nodes[n].attached.is_empty());
            prop_assert!(f.nodes[n].table.is_empty());
        }
        let link = &f.nodes[0].link;
        prop_assert!(link.conns.by_qpn.is_empty() && link.conns.retiring.is_empty());
        prop_assert!(link.conns.passive.len() == 0 && link.conns.dials.is_empty());
        prop_assert_eq!(link.out.timers.len(), 0);
    }
}

#[test]
fn requests_that_do_not_fit_are_refused_by_reason() {
    let mut f = Fabric::new(1);
    f.add(1, |_| {});
    f.add(1, |_| {});
    f.run(ms(100));
    let good = Request {
        local_comm_id: ib_wire::CommId(5),
        service_id: ib_wire::cm::ipoib::ServiceIdForm::Rfc4755.service_id(f.address(0, 0).qpn),
        ca_guid: Guid(0x1001),
        local_qpn: Qpn::new(0x55),
        path_mtu: ib_wire::Mtu::B2048.into(),
        pkey: ib_wire::PKey::DEFAULT,
        ..Request::default()
    };
    let mut good = good;
    good.primary.local_gid = f.nodes[1].facts.gid;
    good.primary.local_lid = f.nodes[1].facts.lid;
    good.primary.subnet_local = true;
    good.private_data[..8].copy_from_slice(&[0, 0, 2, 0, 0, 0, 0xff, 0xf4]);
    type Change<'a> = &'a dyn Fn(&mut Request);
    let cases: [(u16, Change<'_>); 6] = [
        (8, &|r| r.service_id = ib_wire::cm::ipoib::ServiceIdForm::Linux.service_id(Qpn::new(0x999))),
        (8, &|r| r.service_id = ib_wire::ServiceId(0x1234)),
        (28, &|r| r.private_data[4..8].copy_from_slice(&[0, 0, 0, 4])),
        (28, &|r| r.private_data[..4].fill(0)),
        (28, &|r| r.pkey = ib_wire::PKey(0x8123)),
        (26, &|r| r.path_mtu = ib_wire::cm::PathMtu::new(9)),
    ];
    for (n, (reason, change)) in (0u32..).zip(cases) {
        let mut bad = good;
        bad.local_comm_id = ib_wire::CommId(100 + n);
        bad.local_qpn = Qpn::new(0x200 + n);
        change(&mut bad);
        f.cm_mads.clear();
        f.inject(0, f.nodes[1].facts.lid, Message::from(bad).to_bytes(Tid(u64::from(n))));
        f.run(ms(50));
        let reasons: Vec<_> = f
            .cm_mads
            .iter()
            .filter(|m| m.header().attribute == AttributeId::Reject.code())
            .filter_map(|m| match Message::parse(&m.bytes) {
                Ok((_, Message::Reject(reject))) => Some(reject.reason.code()),
                _ => None,
            })
            .collect();
        assert_eq!(reasons.first(), Some(&reason), "case {n}");
        assert!(f.nodes[0].qps.is_empty(), "case {n}");
    }
    f.cm_mads.clear();
    f.inject(0, f.nodes[1].facts.lid, Message::from(good).to_bytes(Tid(77)));
    f.run(ms(50));
    assert!(f.cm_mads.iter().any(|m| m.header().attribute == AttributeId::Reply.code()));
}
