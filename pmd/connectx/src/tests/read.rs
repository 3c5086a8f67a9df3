//! RDMA READ, over all kinds of cables.

use std::time::Duration;

use ib_wire::{Lid, Mtu};

use super::rig::*;
use crate::cable::{CableEnd, Faults};
use crate::{Access, DeviceEvent, QpKind, RemoteOperations};
use hca::{AsyncEvent, QpState, QpTransition, WcStatus};

const SEND: u8 = 0x0a;
const WRITE: u8 = 0x08;
const READ: u8 = 0x10;
const SIGNAL: u8 = 0x08;
const FENCE: u8 = 0x80;

const READABLE: Access = Access { remote_write: true, remote_read: true, ..Access::LOCAL };

/// `a` reads from `b`: bytes at `b`, and an empty buffer at `a`.
pub(super) struct Reading {
    pub(super) rig: Rig,
    pub(super) a: Pair,
    pub(super) b: Pair,
    pub(super) there: Memory,
    pub(super) rkey: u32,
    pub(super) here: Memory,
    pub(super) lkey: u32,
}

impl Reading {
    pub(super) fn new(mut rig: Rig, how: Rc, len: usize) -> Self {
        let (a, b) = (rig.a.qp(QpKind::Rc, 256, None, 5), rig.b.qp(QpKind::Rc, 256, None, 6));
        // Across the wrap of the PSNs.
        rig.a.connect(&a, (Lid(2), b.qpn), Rc { sq_psn: 0xff_fff0, rq_psn: 3, ..how });
        rig.b.connect(&b, (Lid(1), a.qpn), Rc { sq_psn: 3, rq_psn: 0xff_fff0, ..how });
        let both = RemoteOperations { write: true, read: true, atomic: true, reads_in: 4, reads_out: 4 };
        rig.a.engine.set_remote_operations(a.qpn, both).unwrap();
        rig.b.engine.set_remote_operations(b.qpn, both).unwrap();
        let (there, here) = (Memory::new(len), Memory::new(len));
        there.put(0, &pattern(len, 3));
        let rkey = rig.b.engine.register(there.address(), there.host(), READABLE).unwrap();
        let lkey = rig.a.engine.register(here.address(), here.host(), Access::LOCAL).unwrap();
        Self { rig, a, b, there, rkey, here, lkey }
    }

    pub(super) fn body(&self, at: usize, len: usize, to: usize) -> Vec<u8> {
        let address = self.there.address() + at as u64;
        let mut body = address.to_be_bytes().to_vec();
        body.extend_from_slice(&self.rkey.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        // In two segments.
        let (first, to) = (len / 3, self.here.address() + to as u64);
        body.extend_from_slice(&data(first as u32, self.lkey, to));
        body.extend_from_slice(&data((len - first) as u32, self.lkey, to + first as u64));
        body
    }

    /// Reads `len` bytes from `at` there to `to` here.
    pub(super) fn read(&mut self, at: usize, len: usize, to: usize, flags: u8) {
        let body = self.body(at, len, to);
        self.rig.a.post(&mut self.a, READ, flags, 0, &body);
    }

    pub(super) fn outcomes(&mut self) -> Vec<(u8, WcStatus)> {
        self.rig.a.scq.all().iter().map(|wc| (wc.send_opcode, wc.status)).collect()
    }

    pub(super) fn events(&mut self) -> Vec<DeviceEvent> {
        let about = |event: &DeviceEvent| !matches!(event, DeviceEvent::Async(AsyncEvent::PortActive(_)));
        std::iter::from_fn(|| self.rig.b.engine.next_event()).filter(about).collect()
    }

    pub(super) fn states(&self) -> (QpState, QpState) {
        let Rig { a, b, .. } = &self.rig;
        (a.engine.qp_state(self.a.qpn).unwrap(), b.engine.qp_state(self.b.qpn).unwrap())
    }
}

#[test]
fn reads_of_all_sizes_between_sends_and_writes() {
    for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
        let m = mtu.bytes();
        let mut r = Reading::new(Rig::new(), Rc { mtu, ..Rc::default() }, 1 << 20);
        let sizes =
            [0, 1, 2, 8, m - 1, m, m + 1, 2 * m, 2 * m + 7, 65_536, 600 * 256, 1, (1 << 20) - 300_000];
        let mut to = 0;
        for (n, &size) in sizes.iter().enumerate() {
            if to + size > 1 << 20 {
                break;
            }
            let b = &mut r.rig.b;
            let (sink, key) = b.memory(64);
            b.receive(&mut r.b, &[data(64, key, sink.address())]);
            r.rig.a.post(&mut r.a, SEND, 0, 0, &data(9, r.lkey, r.here.address()));
            r.read(n * 13, size, to, SIGNAL);
            let mut write = r.body(0, 0, 0);
            write.truncate(16);
            write.extend_from_slice(&data(0, r.lkey, r.here.address()));
            r.rig.a.post(&mut r.a, WRITE, SIGNAL, 0, &write);
            r.rig.settle();
            let done: Vec<_> = r.rig.a.scq.all().iter().map(|w| (w.send_opcode, w.status, w.bytes)).collect();
            let ok = WcStatus::Success;
            assert_eq!(done, [(READ, ok, size as u32), (WRITE, ok, 0)], "{size} bytes");
            assert_eq!(r.rig.b.rcq.all().len(), 1);
            assert!(r.here.get(to, size) == r.there.get(n * 13, size), "{size} bytes");
            to += size;
        }
        assert_eq!(r.states(), (QpState::Rts, QpState::Rts));
    }
}

#[test]
fn reads_in_flight_in_both_directions() {
    let mut r = Reading::new(Rig::new(), Rc { mtu: Mtu::B1024, ..Rc::default() }, 1 << 20);
    let theirs = r.rig.a.engine.register(r.here.address(), r.here.host(), READABLE).unwrap();
    let (back, key) = r.rig.b.memory(1 << 16);
    // More than may be in flight; neither end waits for the other.
    for n in 0..40 {
        r.read(n * 5000, 5000, n * 5000, SIGNAL);
        let mut body = r.here.address().to_be_bytes().to_vec();
        body.extend_from_slice(&theirs.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(&data(1500, key, back.address() + n as u64 * 1500));
        r.rig.b.post(&mut r.b, READ, SIGNAL, 0, &body);
    }
    r.rig.settle();
    let ok = |done: Vec<Wc>| done.len() == 40 && done.iter().all(|wc| wc.status == WcStatus::Success);
    assert!(ok(r.rig.a.scq.all()) && ok(r.rig.b.scq.all()));
    assert!(r.here.get(0, 200_000) == r.there.get(0, 200_000));
}

#[test]
fn nothing_is_missing_on_a_faulty_link() {
    let schedules = [
        Faults { loss: 0.05, ..Faults::default() },
        Faults { duplicate: 0.2, ..Faults::default() },
        Faults { reorder: 0.2, ..Faults::default() },
        Faults { loss: 0.06, duplicate: 0.1, reorder: 0.1, corrupt: 0.03, ..Faults::default() },
    ];
    for seed in 0..6u64 {
        for (i, faults) in schedules.iter().enumerate() {
            let (mut left, mut right) = CableEnd::pair().unwrap();
            // Of the requests, or of the responses.
            let end = if seed % 2 == 0 { &mut left } else { &mut right };
            end.inject(Faults { seed: seed * 100 + i as u64, ..*faults });
            let how = Rc { mtu: Mtu::B256, timeout: 8, retry: 7, ..Rc::default() };
            let mut r = Reading::new(Rig::over(left, right), how, 1 << 16);
            let mut posted = 0;
            let mut done = 0;
            let end = r.rig.now + Duration::from_secs(20);
            let sizes = [300usize, 0, 5000, 256, 1, 2560, 77];
            let mut at = 0;
            while done < 60 {
                while posted < 60 && posted - done < 20 {
                    let size = sizes[posted % sizes.len()];
                    let place = at % 50_000;
                    // Each into its own buffer, with a WRITE of zero bytes in between.
                    r.read(place, size, place, SIGNAL);
                    at += size;
                    posted += 1;
                }
                assert!(r.rig.now < end, "{done} of 60, schedule {i}, seed {seed}");
                r.rig.settle();
                for (opcode, status) in r.outcomes() {
                    assert_eq!(
                        (opcode, status),
                        (READ, WcStatus::Success),
                        "schedule {i}, seed {seed}: {:?}\n{:?}",
                        r.rig.a.engine.counters(),
                        r.rig.b.engine.counters()
                    );
                    done += 1;
                }
                if done < posted {
                    let next =
                        [&r.rig.a, &r.rig.b].into_iter().filter_map(|h| h.engine.next_deadline(r.rig.now));
                    let now = r.rig.now + Duration::from_micros(10);
                    r.rig.now = next.min().map_or(now, |at| at.max(now));
                }
            }
            let len = at.min(50_000);
            assert!(r.here.get(0, len) == r.there.get(0, len), "schedule {i}, seed {seed}");
        }
    }
}

#[test]
fn reads_in_flight_stay_within_the_limit_of_the_peer() {
    let mut r = Reading::new(Rig::new(), Rc::default(), 4096);
    let more = RemoteOperations { write: true, read: true, atomic: true, reads_in: 4, reads_out: 5 };
    // The requester's own limit keeps it within the responder's limit.
    for _ in 0..50 {
        r.read(0, 10, 0, SIGNAL);
    }
    r.rig.settle();
    assert_eq!(r.outcomes().len(), 50);
    // A requester with a larger limit loses the connection.
    r.rig.a.engine.set_remote_operations(r.a.qpn, more).unwrap();
    for _ in 0..50 {
        r.read(0, 4096, 0, SIGNAL);
    }
    r.rig.settle();
    let done = r.outcomes();
    let refused = done.iter().position(|(_, status)| *status != WcStatus::Success).unwrap();
    assert_eq!(done[refused].1, WcStatus::RemoteInvalidRequest);
    assert!(done[refused + 1..].iter().all(|(_, status)| *status == WcStatus::Flushed));
    assert_eq!(
        (r.states(), r.events()),
        ((QpState::Err, QpState::Err), vec![DeviceEvent::QpRequestError(r.b.qpn)])
    );
}

#[test]
fn invalid_reads_are_refused() {
    type Change = fn(&mut Reading) -> Vec<u8>;
    let access = (WcStatus::RemoteAccess, true);
    let cases: [(Change, WcStatus, Option<bool>); 7] = [
        (|r| r.body(1, 4096, 0), access.0, Some(true)),
        (
            |r| {
                r.rkey ^= 0x100;
                r.body(0, 10, 0)
            },
            access.0,
            Some(true),
        ),
        (
            |r| {
                r.rig.b.engine.deregister(r.rkey).unwrap();
                r.body(0, 10, 0)
            },
            access.0,
            Some(true),
        ),
        (
            |r| {
                r.rkey = r.rig.b.engine.register(r.there.address(), r.there.host(), Access::LOCAL).unwrap();
                r.body(0, 10, 0)
            },
            access.0,
            Some(true),
        ),
        (
            |r| {
                r.rig.b.engine.set_remote_operations(r.b.qpn, RemoteOperations::default()).unwrap();
                r.body(0, 10, 0)
            },
            WcStatus::RemoteInvalidRequest,
            Some(false),
        ),
        // Errors on this side: no reads permitted, and a target that is no memory.
        (
            |r| {
                r.rig.a.engine.set_remote_operations(r.a.qpn, RemoteOperations::default()).unwrap();
                r.body(0, 10, 0)
            },
            WcStatus::LocalQpOperation,
            None,
        ),
        (
            |r| {
                r.lkey ^= 0x100;
                r.body(0, 10, 0)
            },
            WcStatus::LocalProtection,
            None,
        ),
    ];
    for (n, (change, status, event)) in cases.into_iter().enumerate() {
        let mut r = Reading::new(Rig::new(), Rc::default(), 4096);
        r.read(0, 4096, 0, SIGNAL);
        r.rig.settle();
        assert_eq!(r.outcomes(), [(READ, WcStatus::Success)]);
        let body = change(&mut r);
        r.rig.a.post(&mut r.a, READ, SIGNAL, 0, &body);
        r.rig.a.post(&mut r.a, SEND, SIGNAL, 0, &data(9, r.lkey, r.here.address()));
        r.rig.settle();
        assert_eq!(r.outcomes(), [(READ, status), (SEND, WcStatus::Flushed)], "case {n}");
        let raised = event.map(|access| match access {
            true => DeviceEvent::QpAccessError(r.b.qpn),
            false => DeviceEvent::QpRequestError(r.b.qpn),
        });
        assert_eq!(r.events(), Vec::from_iter(raised), "case {n}");
        assert_eq!(r.states().0, QpState::Err, "case {n}");
    }
}

#[test]
fn a_fence_waits_for_the_reads_before_it() {
    let (left, mut right) = CableEnd::pair().unwrap();
    right.inject(Faults { delay: Duration::from_millis(1), ..Faults::default() });
    let mut r = Reading::new(Rig::over(left, right), Rc { timeout: 14, ..Rc::default() }, 4096);
    for fenced in [false, true] {
        let (sink, key) = r.rig.b.memory(4096);
        r.rig.b.receive(&mut r.b, &[data(4096, key, sink.address())]);
        r.here.put(0, &[0xee; 64]);
        r.read(0, 64, 0, SIGNAL);
        let flags = if fenced { SIGNAL | FENCE } else { SIGNAL };
        r.rig.a.post(&mut r.a, SEND, flags, 0, &data(64, r.lkey, r.here.address()));
        r.rig.run(Duration::from_millis(5));
        assert_eq!(r.outcomes(), [(READ, WcStatus::Success), (SEND, WcStatus::Success)]);
        // With a fence, the message contains the data read.
        let expected = if fenced { r.there.get(0, 64) } else { vec![0xee; 64] };
        assert!(sink.get(0, 64) == expected, "{fenced}");
        r.rig.b.rcq.all();
    }
}

#[test]
fn a_key_invalidated_during_a_read_ends_the_connection_and_reset_discards_it() {
    let mut r = Reading::new(Rig::new(), Rc { mtu: Mtu::B256, ..Rc::default() }, 1 << 20);
    r.read(0, 1 << 20, 0, SIGNAL);
    for _ in 0..10 {
        r.rig.a.engine.step(r.rig.now);
        r.rig.b.engine.step(r.rig.now);
    }
    assert_eq!(r.outcomes(), []);
    r.rig.b.engine.deregister(r.rkey).unwrap();
    r.rig.settle();
    assert_eq!(
        (r.outcomes(), r.states()),
        (vec![(READ, WcStatus::RemoteAccess)], (QpState::Err, QpState::Err))
    );
    assert_eq!(r.events(), [DeviceEvent::QpAccessError(r.b.qpn)]);
    // A reset in the middle of a response.
    let mut r = Reading::new(Rig::new(), Rc { mtu: Mtu::B256, retry: 1, ..Rc::default() }, 1 << 20);
    r.read(0, 1 << 20, 0, SIGNAL);
    for _ in 0..10 {
        r.rig.a.engine.step(r.rig.now);
        r.rig.b.engine.step(r.rig.now);
    }
    r.rig.b.engine.modify_qp(r.b.qpn, &QpTransition::ToReset).unwrap();
    r.rig.run(Duration::from_secs(2));
    assert_eq!(r.outcomes(), [(READ, WcStatus::RetryExceeded)]);
}
