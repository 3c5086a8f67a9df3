//! Compares ring sizes of the library with our geometry, and entries of the driver with the library's.

use pmd::hca::{Backend, Control, QpTransition, Queues, RcConfig, RcSlot, UdConfig};
use pmd::mlx5::rings::{CqGeometry, QpRequest, SharedSizes, SrqGeometry};
use pmd::verbs::{Adapter, Calls, DataPath, Rings};

use crate::fakekernel::{self, Doorbell};
use crate::rig::{
    MESSAGE, Mlx5, PORT, ROOM, UD, World, config, connect, open, pattern, plain_world, to_lid, with_ud, world,
};

const SLOT: RcSlot = RcSlot(0);
/// Set if a completion may contain the payload, which the driver does not support.
const SCATTER_TO_CQE: u32 = 1 << 1;

#[test]
fn the_library_makes_rings_of_our_geometry() {
    let world = world();
    let mut hca: Mlx5 = open(0);
    for (send, recv, srq, max_rc) in
        [(64, 64, 63, 16), (1, 1, 1, 1), (100, 300, 500, 3), (4096, 4096, 8191, 2000)]
    {
        let request = pmd::hca::QueuesConfig {
            ud_recv_depth: recv,
            ud_recv_most: u32::MAX,
            srq_depth: srq,
            max_rc,
            max_sends: 10 * send,
            ..config(0)
        };
        let mut queues = hca.create_queues(&request, &world.pool).unwrap();
        let ud = UdConfig { queues: request.id, port: PORT, send_depth: send };
        let datagrams = QpRequest::datagrams(&ud).geometry().unwrap();
        let made = hca.create_ud(&ud).unwrap();
        queues.insert_ud(UD, made).unwrap();
        let shared = SharedSizes::new(&request, ROOM.into(), 32_767, (1 << 22) - 1, 1 << 18).unwrap();
        let (depth, segments) = shared.srq.unwrap();
        assert_eq!((depth, segments), (srq, MESSAGE.div_ceil(ROOM.into()) as u32));
        let ring = SrqGeometry::new(depth, segments, 32_767).unwrap();
        fakekernel::with(0, |d| {
            let qp = d.qps().next().unwrap();
            assert_eq!((qp.sq_wqebbs, qp.rq.0), (datagrams.sq_wqebbs, 0), "receives are shared");
            assert_eq!(qp.flags & SCATTER_TO_CQE, 0);
            let srqs: Vec<_> = d.srqs().map(|srq| (srq.entries, srq.stride)).collect();
            let single = SrqGeometry::new(recv, 1, 32_767).unwrap();
            assert_eq!(srqs, [single, ring].map(|g| (g.ring_slots, g.stride)));
            let mut cqs: Vec<_> = d.cqs().map(|cq| (cq.entries, cq.stride)).collect();
            cqs.sort_unstable();
            let mut ours = [shared.sends, shared.receives].map(|n| (CqGeometry::new(n).unwrap().slots, 64));
            ours.sort_unstable();
            assert_eq!(cqs, ours);
        });
        for passive in [false, true] {
            let request = RcConfig {
                queues: pmd::hca::QueuesId(0),
                port: PORT,
                beside: UD,
                send_depth: if passive { 1 } else { 100 },
                passive,
            };
            let rc = hca.create_rc(&request).unwrap();
            let qpn = Mlx5::rc_qpn(&rc);
            let geometry = QpRequest::connection(&request).geometry().unwrap();
            let made = fakekernel::with(0, |d| *d.qps().find(|qp| qp.qpn == qpn).unwrap());
            assert_eq!((made.sq_wqebbs, made.rq), (geometry.sq_wqebbs, (0, 0)));
            assert_eq!(made.flags & SCATTER_TO_CQE, 0);
            hca.destroy_rc(rc).unwrap();
        }
        hca.destroy_queues(queues).unwrap();
    }
    drop(hca);
    world.end();
}

/// Traces of one datagram and one message: the doorbells, the records, and the entries up to their addresses.
#[derive(PartialEq, Eq, Debug)]
struct Traces {
    doorbells: Vec<(usize, [u8; 8])>,
    datagram: Vec<u8>,
    message: Vec<u8>,
    records: Vec<[u32; 2]>,
    shared_record: u32,
}

impl Traces {
    /// Removes the queue pair numbers, which depend on the number of earlier queue pairs.
    fn without_numbers(mut self) -> Self {
        for entry in [&mut self.datagram, &mut self.message] {
            entry[4..7].fill(0);
        }
        for (_, bytes) in &mut self.doorbells {
            bytes[4..7].fill(0);
        }
        self
    }
}

fn bytes(address: u64, len: usize) -> Vec<u8> {
    // SAFETY: rings and records of queues that live.
    (0..len).map(|i| unsafe { ((address + i as u64) as *const u8).read_volatile() }).collect()
}

fn word(address: u64) -> u32 {
    u32::from_be_bytes(bytes(address, 4).try_into().unwrap())
}

fn traces<P: DataPath>() -> Traces
where
    Adapter<P>: Backend,
{
    let mut world: World = world();
    let (mut a, mut b) = (world.host::<P>(0), world.host::<Calls>(1));
    let pool = world.pool.clone();
    let (qpn, _) = connect(&mut a, &mut b, SLOT, false);
    let qp = |qpn| fakekernel::with(0, |d| *d.qps().find(|qp| qp.qpn == qpn).unwrap());
    let (ud, rc) = (qp(a.ud), qp(qpn));
    let srq = fakekernel::with(0, |d| *d.srqs().nth(1).unwrap());
    let mut rung: Vec<Doorbell> = Vec::new();
    a.send_ud(&pool, to_lid(b.lid), b.ud, &pattern(1, 100));
    a.queues().ring();
    rung.extend(fakekernel::turn(|| world.now).0);
    assert!(a.send_rc(&pool, SLOT, &pattern(2, 200)));
    a.queues().ring();
    rung.extend(fakekernel::turn(|| world.now).0);
    let traces = Traces {
        // The first half used depends on earlier use of the register.
        doorbells: rung.iter().map(|d| (d.offset & 0x0ff, d.bytes)).collect(),
        // Control segment without its flags, address, byte count and key.
        datagram: [bytes(ud.sq_buf(), 11), bytes(ud.sq_buf() + 12, 4 + 48 + 8)].concat(),
        message: [bytes(rc.sq_buf(), 11), bytes(rc.sq_buf() + 12, 4 + 8)].concat(),
        records: [ud, rc].iter().map(|qp| [word(qp.dbrec), word(qp.dbrec + 4)]).collect(),
        shared_record: word(srq.dbrec),
    };
    assert_eq!(traces.doorbells.len(), 2);
    assert_eq!(traces.doorbells[0].1, traces.datagram[..8]);
    assert_eq!(traces.doorbells[1].1, traces.message[..8]);
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(b.received.len(), 2);
    a.destroy_rc(SLOT);
    b.destroy_rc(SLOT);
    world.end_with(a, b);
    traces.without_numbers()
}

#[test]
fn the_driver_writes_what_the_library_writes() {
    let (ours, theirs) = (traces::<Rings>(), traces::<Calls>());
    assert_eq!(ours, theirs);
    // The formats require the same: two WQEBBs and one. Receives are posted only to the shared queues.
    assert_eq!(ours.records, [[0, 2], [0, 1]]);
    assert_eq!(ours.shared_record, 63);
    assert_eq!(ours.datagram[..4], [0, 0, 0, 0x0a]);
}

#[test]
fn each_worker_rings_a_register_of_its_own() {
    let mut world = world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Rings>(1));
    let pool = world.pool.clone();
    // Two more workers on the first device, each with a datagram queue pair.
    let mut more: Vec<_> =
        [1, 2].map(|worker| a.hca.create_queues(&config(worker), &world.pool).unwrap()).into_iter().collect();
    let slots = [0, 1, 2].map(RcSlot);
    for slot in slots {
        connect(&mut a, &mut b, slot, false);
    }
    for slot in slots {
        assert!(a.send_rc(&pool, slot, b"x"));
    }
    a.send_ud(&pool, to_lid(b.lid), b.ud, b"y");
    let rung = world.settle(&mut [&mut a, &mut b]);
    let sends = |qpn: u32| fakekernel::with(0, |d| d.qps().any(|qp| qp.qpn.get() == qpn));
    let mut registers: Vec<_> = rung.iter().filter(|d| sends(d.qpn())).map(Doorbell::register).collect();
    assert!(registers.len() >= 4);
    registers.dedup();
    assert_eq!(registers.len(), 1, "a worker's queue pairs use one register");

    // Those of the others are different.
    for queues in &mut more {
        let ud = with_ud(&mut a.hca, queues);
        to_send(&mut a.hca, ud);
        let to = pmd::hca::UdDestination { av: to_lid(b.lid), qpn: b.ud, qkey: Some(crate::rig::QKEY) };
        let to = a.hca.destination(PORT, &to).unwrap();
        queues.open_ud(UD);
        queues.send_ud(UD, &to, crate::rig::message(&pool, b"z")).unwrap();
        queues.ring();
        let rung = world.settle(&mut [&mut a, &mut b]);
        let of = rung.iter().find(|d| d.qpn() == ud.get()).unwrap();
        assert!(!registers.contains(&of.register()));
        registers.push(of.register());
    }
    for queues in more {
        a.hca.destroy_queues(queues).unwrap();
    }
    for slot in slots {
        a.destroy_rc(slot);
        b.destroy_rc(slot);
    }
    world.end_with(a, b);
}

#[test]
fn without_write_combining_workers_share_a_register() {
    let mut world = plain_world();
    let (mut a, mut b) = (world.host::<Rings>(0), world.host::<Calls>(1));
    let pool = world.pool.clone();
    let mut other = a.hca.create_queues(&config(1), &pool).unwrap();
    let ud = with_ud(&mut a.hca, &mut other);
    to_send(&mut a.hca, ud);
    let to = pmd::hca::UdDestination { av: to_lid(b.lid), qpn: b.ud, qkey: Some(crate::rig::QKEY) };
    let to = a.hca.destination(PORT, &to).unwrap();
    other.open_ud(UD);
    connect(&mut a, &mut b, SLOT, false);
    let mut rung = Vec::new();
    for text in [b"one", b"two"] {
        assert!(a.send_rc(&pool, SLOT, text));
        a.queues().ring();
        other.send_ud(UD, &to, crate::rig::message(&pool, text)).unwrap();
        other.ring();
        rung.extend(fakekernel::turn(|| world.now).0);
    }
    assert_eq!(rung.len(), 4);
    assert!(rung.iter().all(|d| d.offset == rung[0].offset), "one register, of one half");
    world.settle(&mut [&mut a, &mut b]);
    let mut received: Vec<_> = b.received.iter().map(|message| &message.bytes[..]).collect();
    received.sort_unstable();
    assert_eq!(received, [b"one", b"one", b"two", b"two"]);
    a.hca.destroy_queues(other).unwrap();
    a.destroy_rc(SLOT);
    b.destroy_rc(SLOT);
    world.end_with(a, b);
}

/// A datagram queue pair that can send.
fn to_send(hca: &mut Mlx5, qpn: ib_wire::Qpn) {
    for to in [
        QpTransition::UdToInit { pkey_index: 0, qkey: crate::rig::QKEY },
        QpTransition::UdToReceive,
        QpTransition::UdToSend { sq_psn: ib_wire::Psn::new(0) },
    ] {
        hca.modify_qp(qpn, &to).unwrap();
    }
}
