//! Packets between queue pairs created by the real library: both ends with our driver, both with library
//! calls, and one of each.

use ib_wire::{Gid, Guid, Lid, Qpn};
use pmd::hca::{AddressVector, Backend, Control, GlobalRoute, RcSlot, Source, UdDestination};
use pmd::verbs::{Adapter, Calls, DataPath, Rings};

use crate::fakekernel;
use crate::rig::{PORT, Poll, World, connect, other_world, pattern, to_lid, world};

const SLOT: RcSlot = RcSlot(3);

fn datagrams<P: DataPath, Q: DataPath>(mut world: World)
where
    Adapter<P>: Backend,
    Adapter<Q>: Backend,
{
    let (mut a, mut b) = (world.host::<P>(0), world.host::<Q>(1));
    let pool = world.pool.clone();
    // More than any ring has entries, so that indices wrap around.
    for i in 0..400 {
        let bytes = pattern(i, 1 + i % 1900);
        a.send_ud(&pool, to_lid(b.lid), b.ud, &bytes);
        b.send_ud(&pool, to_lid(a.lid), a.ud, &bytes);
        if i % 16 == 15 {
            world.settle(&mut [&mut a, &mut b]);
        }
    }
    for (host, from) in [(&a.received, (b.ud, b.lid)), (&b.received, (a.ud, a.lid))] {
        assert_eq!(host.len(), 400);
        for (i, message) in host.iter().enumerate() {
            assert_eq!(message.bytes, pattern(i, 1 + i % 1900), "datagram {i}");
            let Source::Ud(source) = message.source else { panic!("{message:?}") };
            assert_eq!((source.qpn, source.slid, source.has_grh), (from.0, from.1, false));
        }
    }

    // To a group, with a GRH.
    let group = Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    b.hca.attach_multicast(b.ud, group, Lid(0xc000)).unwrap();
    let av = AddressVector {
        dlid: Lid(0xc000),
        grh: Some(GlobalRoute { dgid: group, sgid_index: 0, flow_label: 0, hop_limit: 0, traffic_class: 0 }),
        ..to_lid(b.lid)
    };
    a.send_ud(&pool, av, Qpn::MULTICAST, b"to all");
    world.settle(&mut [&mut a, &mut b]);
    let last = b.received.last().unwrap();
    assert_eq!(last.bytes, b"to all");
    assert!(matches!(last.source, Source::Ud(s) if s.has_grh && s.multicast), "{last:?}");
    b.hca.detach_multicast(b.ud, group, Lid(0xc000)).unwrap();
    assert!(a.events.is_empty() && b.events.is_empty());
    world.end_with(a, b);
}

fn messages<P: DataPath, Q: DataPath>(mut world: World)
where
    Adapter<P>: Backend,
    Adapter<Q>: Backend,
{
    let (mut a, mut b) = (world.host::<P>(0), world.host::<Q>(1));
    let pool = world.pool.clone();
    let (one, other) = connect(&mut a, &mut b, SLOT, false);
    let sizes = [1, 0, 2047, 2048, 2049, 4096, 10_000, 20_000, 64];
    let mut sent = 0;
    for _ in 0..60 {
        for size in sizes {
            let bytes = pattern(sent, size);
            assert!(a.send_rc(&pool, SLOT, &bytes) && b.send_rc(&pool, SLOT, &bytes), "message {sent}");
            sent += 1;
            if sent % 3 == 0 {
                world.settle(&mut [&mut a, &mut b]);
            }
        }
    }
    world.settle(&mut [&mut a, &mut b]);
    for (host, qpn) in [(&a.received, one), (&b.received, other)] {
        assert_eq!(host.len(), sent);
        for (i, message) in host.iter().enumerate() {
            assert_eq!((message.qpn, message.source), (qpn, Source::Rc));
            assert_eq!(message.bytes, pattern(i, sizes[i % sizes.len()]), "message {i}");
        }
    }
    assert!(a.events.is_empty() && b.events.is_empty(), "{:?} {:?}", a.events, b.events);
    a.destroy_rc(SLOT);
    b.destroy_rc(SLOT);
    world.end_with(a, b);
}

/// Datagrams and four connections at once, in random order.
fn mixture<P: DataPath, Q: DataPath>(mut world: World)
where
    Adapter<P>: Backend,
    Adapter<Q>: Backend,
{
    let (mut a, mut b) = (world.host::<P>(0), world.host::<Q>(1));
    let pool = world.pool.clone();
    let slots = [0, 1, 2, 3].map(RcSlot);
    let pairs = slots.map(|slot| connect(&mut a, &mut b, slot, false));
    let mut dice = 7_u64;
    let mut roll = |n: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % n
    };
    // By path: four connections, then datagrams.
    let mut sent = [0_usize; 5];
    let size = |way: usize, i: usize| if way == 4 { 1 + i % 1000 } else { (i * 37) % 6000 };
    for _ in 0..3000 {
        let way = roll(5) as usize;
        let bytes = pattern(sent[way] + way * 1000, size(way, sent[way]));
        let taken = match slots.get(way) {
            Some(slot) => a.send_rc(&pool, *slot, &bytes),
            None => {
                a.send_ud(&pool, to_lid(b.lid), b.ud, &bytes);
                true
            }
        };
        sent[way] += usize::from(taken);
        if roll(20) == 0 {
            world.settle(&mut [&mut a, &mut b]);
        } else if roll(4) == 0 {
            a.poll();
        }
    }
    world.settle(&mut [&mut a, &mut b]);
    let mut seen = [0_usize; 5];
    for message in &b.received {
        let way = pairs.iter().position(|(_, to)| *to == message.qpn).unwrap_or(4);
        assert_eq!(message.bytes, pattern(seen[way] + way * 1000, size(way, seen[way])), "way {way}");
        seen[way] += 1;
    }
    assert_eq!(seen, sent);
    assert!(sent.iter().all(|n| *n > 300), "{sent:?}");
    for slot in slots {
        a.destroy_rc(slot);
        b.destroy_rc(slot);
    }
    world.end_with(a, b);
}

/// The kernel rejects an address without a GRH at a virtual function's port. The driver writes addresses
/// itself and does the same.
#[test]
fn addresses_without_a_required_grh_are_rejected() {
    let mut world = world();
    fakekernel::with(0, |d| d.engine.require_grh(PORT)).unwrap();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    assert!(a.hca.port(PORT).unwrap().grh_required && !b.hca.port(PORT).unwrap().grh_required);
    let to = |av| UdDestination { av, qpn: Qpn::new(7), qkey: None };
    let plain = to_lid(b.lid);
    let dgid = Gid::new(Gid::DEFAULT_PREFIX, Guid(1));
    let route = GlobalRoute { dgid, sgid_index: 0, flow_label: 0, hop_limit: 1, traffic_class: 0 };
    let refused = a.hca.destination(PORT, &to(plain)).unwrap_err().to_string();
    assert!(refused.contains("requires a GRH") && refused.contains("hop limit"), "{refused}");
    assert!(a.hca.destination(PORT, &to(AddressVector { grh: Some(route), ..plain })).is_ok());
    assert!(b.hca.destination(PORT, &to(plain)).is_ok());
    world.settle(&mut [&mut a, &mut b]);
    world.end_with(a, b);
}

#[test]
fn datagrams_by_the_driver() {
    datagrams::<Rings, Rings>(world());
}

#[test]
fn datagrams_between_driver_and_library() {
    datagrams::<Rings, Calls>(world());
}

#[test]
fn datagrams_by_the_library() {
    datagrams::<Calls, Calls>(world());
}

#[test]
fn messages_by_the_driver() {
    messages::<Rings, Rings>(world());
}

#[test]
fn messages_between_driver_and_library() {
    messages::<Calls, Rings>(world());
}

#[test]
fn messages_by_the_library() {
    messages::<Calls, Calls>(world());
}

#[test]
fn everything_at_once_by_the_driver() {
    mixture::<Rings, Rings>(world());
}

#[test]
fn everything_at_once_between_library_and_driver() {
    mixture::<Rings, Calls>(world());
}

#[test]
fn completions_of_version_0_do_as_well() {
    datagrams::<Rings, Rings>(other_world(0, 16));
    messages::<Rings, Rings>(other_world(0, 16));
}
