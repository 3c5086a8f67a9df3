//! Invalidation of keys: by the peer, and while they are in use.

use super::rig::*;
use crate::{DeviceEvent, ProtectionDomain};
use hca::{QpState, WcStatus};

/// `a` sends `len` bytes with an invalidation.
fn send(k: &mut Keyed, key: u32, len: u32) -> WcStatus {
    let (sink, lkey) = k.rig.b.memory(2000);
    k.rig.b.receive(&mut k.b, &[data(2000, lkey, sink.address())]);
    let body = data(len, k.here_lkey, k.here.address());
    k.rig.a.post(&mut k.a, SEND_INVALIDATE, SIGNAL, key, &body);
    k.rig.settle();
    k.rig.a.scq.all()[0].status
}

#[test]
fn the_other_end_invalidates_a_key_and_is_reported() {
    const RESP_INVALIDATE: u8 = 4;
    for len in [0, 20, 1500] {
        let mut k = Keyed::new();
        for tag in [1, 2] {
            k.register(tag, &[k.piece(0, 64)]);
            assert_eq!(k.read(0, 64), k.there.get(0, 64));
            let key = k.key;
            assert_eq!(send(&mut k, key, len), WcStatus::Success);
            let wc = k.rig.b.rcq.all();
            assert_eq!(
                wc.iter().map(|wc| (wc.opcode, wc.status, wc.imm, wc.bytes)).collect::<Vec<_>>(),
                [(RESP_INVALIDATE, WcStatus::Success, k.key, len)]
            );
        }
        assert_eq!(k.access(READ, k.key, 0, 1), WcStatus::RemoteAccess, "{len} bytes");
    }
}

#[test]
fn keys_that_the_other_end_may_not_invalidate() {
    type Make = fn(&mut Keyed) -> u32;
    let cases: [(&str, Make); 7] = [
        ("a region", |k| k.lkey),
        ("an old tag", |k| k.key ^ 1),
        ("no key", |k| k.key + 0x4000),
        ("free", |k| {
            k.done(k.key, &Umr::free());
            k.key
        }),
        ("without the right", |k| {
            k.done(k.key, &Umr { mask: REMOTE_INVALIDATE, ..Umr::default() });
            k.key
        }),
        ("another's", |k| {
            let bound = Umr { mask: QPN, qpn: k.b2.qpn.get(), ..Umr::default() };
            k.rig.b.post(&mut k.b2, UMR, SIGNAL, k.key, &bound.body());
            k.rig.settle();
            assert_eq!(k.rig.b.scq.all()[0].status, WcStatus::Success);
            k.key
        }),
        ("another domain's", |k| {
            k.rig.b.engine.set_key_domain(k.tagged(0), ProtectionDomain(4)).unwrap();
            k.key
        }),
    ];
    for (what, make) in cases {
        let mut k = Keyed::new();
        k.register(6, &[k.piece(0, 64)]);
        let key = make(&mut k);
        assert_eq!(send(&mut k, key, 300), WcStatus::RemoteAccess, "{what}");
        let wc = k.rig.b.rcq.all();
        assert_eq!(wc[0].status, WcStatus::RemoteInvalidRequest, "{what}");
        assert_eq!(k.states(), (QpState::Err, QpState::Err), "{what}");
        let valid = match what {
            "free" | "another domain's" => WcStatus::RemoteAccess,
            _ => WcStatus::Success,
        };
        let key = k.key;
        assert_eq!(k.access_2(READ, key, 0, 1), valid, "{what}");
    }
}

#[test]
fn a_key_that_ends_in_the_middle_of_a_write_or_an_answer() {
    for opcode in [WRITE, READ] {
        let mut k = Keyed::new();
        k.register(1, &[k.piece(0, SIZE / 2), k.piece(SIZE / 2, SIZE / 2)]);
        k.here.put(0, &pattern_of(1));
        let body = k.remote(k.key, 0, SIZE);
        k.rig.a.post(&mut k.a, opcode, SIGNAL, 0, &body);
        // 256 packets, some of which were sent.
        for _ in 0..3 {
            k.rig.a.engine.step(k.rig.now);
            k.rig.b.engine.step(k.rig.now);
        }
        assert_eq!(k.rig.a.scq.all(), []);
        k.rig.b.post(&mut k.b2, UMR, SIGNAL, k.key, &Umr::free().body());
        while k.rig.b.scq.poll().is_none() {
            assert!(k.rig.b.engine.step(k.rig.now));
        }
        let before = k.there.get(0, SIZE);
        assert!(opcode == READ || before[..100] == pattern_of(1)[..100], "nothing had gone");
        k.rig.settle();
        let done = k.rig.a.scq.all();
        assert_eq!((done.len(), done[0].status), (1, WcStatus::RemoteAccess), "{opcode:#x}");
        assert_eq!(k.states(), (QpState::Err, QpState::Err));
        assert!(k.there.get(0, SIZE) == before, "it was written to afterwards");
        let events: Vec<_> = std::iter::from_fn(|| k.rig.b.engine.next_event()).collect();
        assert!(events.contains(&DeviceEvent::QpAccessError(k.b.qpn)), "{events:?}");
    }
}

#[test]
fn a_key_that_ends_in_the_middle_of_a_send() {
    let mut k = Keyed::new();
    k.register(1, &[k.piece(0, SIZE)]);
    let (sink, key) = k.rig.a.memory(SIZE);
    k.rig.a.receive(&mut k.a, &[data(SIZE as u32, key, sink.address())]);
    k.rig.b.post(&mut k.b, SEND, SIGNAL, 0, &data(SIZE as u32, k.key, 0));
    for _ in 0..2 {
        k.rig.b.engine.step(k.rig.now);
        k.rig.a.engine.step(k.rig.now);
    }
    k.rig.b.post(&mut k.b2, UMR, 0, k.key, &Umr::free().body());
    k.rig.settle();
    assert_eq!(k.rig.b.scq.all()[0].status, WcStatus::LocalProtection);
    assert_eq!(k.states().1, QpState::Err);
}
