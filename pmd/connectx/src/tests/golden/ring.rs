//! A device with a receive ring recorded from the library, and a host that sends to it.

use ib_wire::packet::GRH_LEN;
use ib_wire::{Lid, Mtu};
use serde_json::Value;

use super::{family, hex, number};
use crate::object::qp::Receives;
use crate::object::receive::Taken;
use crate::tests::rig::*;
use crate::{Access, Activity, DropReason, QpKind};
use hca::{GlobalRoute, WcStatus};

const QKEY: u32 = 0x0b1b;
const QPN: u32 = 0x123;
const USER_INDEX: u32 = 6;
/// Content of unwritten ring bytes: no valid length, key or address.
const STALE: u8 = 0xee;
/// Content of memory where nothing arrived.
const BLANK: u8 = 0xcd;

/// Rings as created, with all their bytes.
pub(super) const CREATED: [&str; 3] = ["initial_4_wr_1_sge", "initial_3_wr_1_sge", "initial_no_wait_queue"];

pub(super) fn named(file: &str, name: &str) -> Value {
    family(file).into_iter().find(|v| v["name"] == name).unwrap_or_else(|| panic!("{file} has no {name}"))
}

pub(super) fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

/// A segment as named by the work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sge {
    pub(super) address: u64,
    pub(super) length: usize,
    pub(super) key: u32,
}

/// In a device the index of a key identifies it. The vectors' keys differ only in the tag and so cannot exist
/// together. Here each gets its own index; the first key is unchanged.
pub(super) const fn apart(key: u32) -> u32 {
    (key & !0xff) + ((key & 0xff) << 8)
}

/// The segments of a work request, with their keys translated by `key`.
pub(super) fn sges(request: &Value, key: fn(u32) -> u32) -> Vec<Sge> {
    let sge = |s: &Value| Sge {
        address: number(&s["addr"]),
        length: number(&s["length"]) as usize,
        key: key(number(&s["lkey"]) as u32),
    };
    array(&request["sg_list"]).iter().map(sge).collect()
}

/// A slot's bytes: stale where the library does not write, with the keys translated in the segments behind
/// `data_at`.
pub(super) fn slot_bytes(wqe: &Value, data_at: usize, key: fn(u32) -> u32) -> Vec<u8> {
    let mut bytes = hex(&wqe["bytes"]);
    for hole in array(&wqe["untouched"]) {
        let (at, len) = (number(&hole[0]) as usize, number(&hole[1]) as usize);
        bytes[at..at + len].fill(STALE);
    }
    for segment in bytes[data_at..].chunks_exact_mut(16) {
        let was = u32::from_be_bytes(segment[4..8].try_into().unwrap());
        if was == 0x100 {
            break;
        }
        segment[4..8].copy_from_slice(&key(was).to_be_bytes());
    }
    bytes
}

/// Lengths of messages around the ends of all segments, up to `total`.
pub(super) fn lengths(sges: &[Sge]) -> Vec<usize> {
    let total: usize = sges.iter().map(|s| s.length).sum();
    let mut all = vec![0, 1];
    let mut end = 0;
    for sge in sges {
        end += sge.length;
        all.extend([end.saturating_sub(1), end, end + 1]);
    }
    all.retain(|&n| n <= total);
    all.sort_unstable();
    all.dedup();
    all
}

/// The memory that a key names, and its expected content.
struct Region {
    key: u32,
    start: u64,
    memory: Memory,
    expected: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) kind: QpKind,
    pub(super) mtu: Mtu,
    /// Datagrams with a GRH.
    pub(super) routed: bool,
}

pub(super) const CONNECTED: Service = Service { kind: QpKind::Rc, mtu: Mtu::B2048, routed: false };
pub(super) const IN_PACKETS: Service = Service { mtu: Mtu::B256, ..CONNECTED };
pub(super) const DATAGRAM: Service = Service { kind: QpKind::Ud, ..CONNECTED };
pub(super) const ROUTED: Service = Service { routed: true, ..DATAGRAM };

/// A queue pair with the vector's receive ring, and a host that sends to it.
pub(super) struct Bench {
    pub(super) rig: Rig,
    service: Service,
    tx: Pair,
    rx: Pair,
    shared: Option<(u32, Memory, Memory)>,
    stride: usize,
    out: Memory,
    out_key: u32,
    regions: Vec<Region>,
    sent: u64,
}

impl Bench {
    pub(super) fn new(service: Service, (slots, stride): (usize, usize), is_shared: bool) -> Self {
        let mut rig = Rig::new();
        let shared = is_shared.then(|| {
            let (ring, dbrec) = (Memory::new(slots * stride), Memory::new(8));
            ring.put(0, &vec![STALE; slots * stride]);
            let srq = rig.b.engine.create_srq(ring.part(0, slots * stride), stride, dbrec.part(0, 8));
            (srq.unwrap(), ring, dbrec)
        });
        let srq = shared.as_ref().map(|s| s.0);
        let (rq_slots, rq_stride) = if is_shared { (1, 16) } else { (slots, stride) };
        let rx = rig.b.sized(service.kind, (16, rq_slots, rq_stride), srq, USER_INDEX, Some(QPN));
        rx.ring.put(rx.rq_at, &vec![STALE; rq_slots * rq_stride]);
        let tx = rig.a.qp(service.kind, 64, None, 5);
        if service.kind == QpKind::Rc {
            let how = Rc { mtu: service.mtu, ..Rc::default() };
            rig.a.connect(&tx, (Lid(2), rx.qpn), how);
            rig.b.connect(&rx, (Lid(1), tx.qpn), how);
        } else {
            rig.a.open_ud(&tx, QKEY);
            rig.b.open_ud(&rx, QKEY);
        }
        let (out, out_key) = rig.a.memory(8192);
        Self { rig, service, tx, rx, shared, stride, out, out_key, regions: Vec::new(), sent: 0 }
    }

    /// The ring and sizes of a shared-queue vector, with its links as created.
    pub(super) fn of_shared(service: Service, file: &str, srq: &Value) -> Self {
        let (slots, stride) = (number(&srq["ring_slots"]) as usize, number(&srq["stride"]) as usize);
        let bench = Self::new(service, (slots, stride), true);
        let created = CREATED.map(|name| named(file, name));
        // The links do not depend on the stride.
        let created = created.iter().find(|v| {
            let is = |field: &str| v["srq"][field] == srq[field];
            is("ring_slots") && is("granted_max_wr")
        });
        for slot in array(&created.unwrap()["ring"]) {
            bench.put(number(&slot["slot"]) as usize, &hex(&slot["bytes"])[..16]);
        }
        bench
    }

    pub(super) fn put(&self, slot: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.stride);
        match &self.shared {
            Some((_, ring, _)) => ring.put(slot * self.stride, bytes),
            None => self.rx.ring.put(self.rx.rq_at + slot * self.stride, bytes),
        }
    }

    pub(super) fn link(&self, slot: usize) -> Vec<u8> {
        self.shared.as_ref().unwrap().1.get(slot * self.stride, 16)
    }

    /// Writes the receive record: four bytes.
    pub(super) fn record(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), 4);
        self.shared.as_ref().map_or(&self.rx.dbrec, |s| &s.2).put(0, bytes);
    }

    /// Registers exactly the memory that these segments name, key by key.
    pub(super) fn register(&mut self, sges: &[Sge]) {
        let mut keys: Vec<_> = sges.iter().filter(|s| s.length > 0).map(|s| s.key).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let its = || sges.iter().filter(|s| s.key == key);
            let start = its().map(|s| s.address).min().unwrap();
            let end = its().map(|s| s.address + s.length as u64).max().unwrap();
            let len = (end - start) as usize;
            let memory = Memory::new(len);
            let expected = vec![BLANK; len];
            memory.put(0, &expected);
            let mrs = &mut self.rig.b.engine.dev.mrs;
            assert!(mrs.register_as(key, start, memory.part(0, len).into(), Access::LOCAL));
            self.regions.push(Region { key, start, memory, expected });
        }
    }

    /// Bytes of every receive that are not payload.
    pub(super) fn overhead(&self) -> usize {
        if self.service.kind == QpKind::Ud { GRH_LEN } else { 0 }
    }

    /// Sends a message of `len` bytes and returns its bytes.
    pub(super) fn send(&mut self, len: usize) -> Vec<u8> {
        self.sent += 1;
        let payload = pattern(len, self.sent);
        self.out.put(0, &payload);
        let piece = [data(len as u32, self.out_key, self.out.address())];
        if self.service.kind == QpKind::Ud {
            let dgid = self.rig.b.gid();
            let route = GlobalRoute { dgid, sgid_index: 0, flow_label: 1, hop_limit: 2, traffic_class: 3 };
            let grh = self.service.routed.then_some(route);
            let to = To { lid: Lid(2), qpn: self.rx.qpn, qkey: QKEY, grh };
            self.rig.a.send_ud(&mut self.tx, &to, &piece);
        } else {
            self.rig.a.send(&mut self.tx, &piece);
        }
        self.rig.settle();
        self.rig.a.scq.all();
        payload
    }

    /// Expects `bytes` in these segments from byte `offset` on, as far as they reach.
    pub(super) fn expect(&mut self, sges: &[Sge], offset: usize, bytes: &[u8]) {
        let places = sges.iter().flat_map(|s| (0..s.length as u64).map(|i| (s.key, s.address + i)));
        for ((key, address), &byte) in places.skip(offset).zip(bytes) {
            let region = self.regions.iter_mut().find(|r| r.key == key).unwrap();
            region.expected[(address - region.start) as usize] = byte;
        }
    }

    /// Checks that all registered memory has the expected content.
    pub(super) fn compare(&self, what: &str) {
        for region in &self.regions {
            let got = region.memory.get(0, region.expected.len());
            // Compared as a whole first: some regions have many megabytes.
            if got != region.expected {
                let differs = got.iter().zip(&region.expected).position(|(a, b)| a != b);
                panic!("{what}: key {:x} from byte {differs:?} on", region.key);
            }
        }
    }

    pub(super) fn note(&mut self, sges: &[Sge], payload: &[u8]) {
        if self.service.routed {
            let mut grh = vec![0x60, 0x30, 0, 1];
            grh.extend_from_slice(&((8 + 12 + payload.len().next_multiple_of(4) + 4) as u16).to_be_bytes());
            grh.extend_from_slice(&[0x1b, 2]);
            grh.extend_from_slice(&self.rig.a.gid().0);
            grh.extend_from_slice(&self.rig.b.gid().0);
            self.expect(sges, 0, &grh);
        }
        self.expect(sges, self.overhead(), payload);
    }

    /// Checks that a message of `len` bytes, including the receive's overhead, arrives in these segments with
    /// `counter` in its completion.
    pub(super) fn deliver(&mut self, sges: &[Sge], len: usize, counter: u16, what: &str) {
        let payload = self.send(len - self.overhead());
        self.note(sges, &payload);
        let got = self.rig.b.rcq.all();
        let source = self.tx.qpn.get();
        let expected = Wc {
            opcode: RESP_SEND,
            status: WcStatus::Success,
            user_index: USER_INDEX,
            qpn: QPN,
            send_opcode: 0,
            counter,
            bytes: len as u32,
            imm: 0,
            source,
            slid: 1,
            grh: self.service.routed,
            flags: u8::from(self.service.routed) << 4,
            solicited: false,
        };
        assert_eq!(got, [expected], "{what}, {:?}, {len} bytes", self.service);
        self.compare(what);
    }

    /// Checks that no receive is left: the next message is refused.
    pub(super) fn is_dry(&mut self, what: &str) {
        let before = self.refusals();
        self.send(0);
        assert_eq!(self.rig.b.rcq.all(), [], "{what}");
        assert_eq!(self.refusals(), before + 1, "{what}");
        self.compare(what);
    }

    pub(super) fn refusals(&self) -> u64 {
        self.rig.b.engine.counters().activity(Activity::RnrNaks) + self.rig.b.drops(DropReason::NoReceive)
    }

    /// Checks that a message that is one byte too long, or hits a missing key, fails the receive of
    /// `counter`.
    pub(super) fn fail(&mut self, sges: &[Sge], len: usize, counter: u16, status: WcStatus, what: &str) {
        let payload = self.send(len - self.overhead());
        let got = self.rig.b.rcq.all();
        if self.service.kind == QpKind::Ud && status == WcStatus::LocalLength {
            // A datagram that does not fit consumes no receive.
            assert_eq!(
                (got.len(), self.rig.b.drops(DropReason::ReceiveTooShort)),
                (0, 1),
                "{what}, {len} bytes"
            );
            return;
        }
        let first = got.first().map(|w| (w.opcode, w.status, w.counter));
        assert_eq!(first, Some((RESP_ERR, status, counter)), "{what}, {:?}, {len} bytes", self.service);
        if self.service.kind == QpKind::Rc {
            self.expect(sges, 0, &payload);
            self.compare(what);
        }
    }

    /// Consumes this number of receives as though messages had arrived.
    pub(super) fn pass(&mut self, receives: u64) {
        for i in 0..receives {
            self.record(&u32::from(i as u16 + 1).to_be_bytes());
            let dev = &mut self.rig.b.engine.dev;
            match &self.shared {
                Some((srq, ..)) => {
                    let taken = dev.srqs[*srq as usize].as_mut().unwrap().take();
                    assert!(matches!(taken, Taken::Slot(..)), "{taken:?}");
                }
                None => {
                    let qp = self.rig.b.engine.qps.real(self.rx.qpn).unwrap();
                    let Receives::Own(rq) = &mut qp.receives else { panic!("no queue of its own") };
                    assert_eq!(rq.take(), Some(i as u16));
                }
            }
        }
    }
}
