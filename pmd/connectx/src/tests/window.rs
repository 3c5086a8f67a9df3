//! Memory windows (IBA 10.6.7): type 1, bound to a domain and rebound at will; types 2A and 2B, bound while
//! free, to a domain and to a queue pair.

use super::rig::*;
use crate::{Access, ListKind};
use hca::{QpState, WcStatus};

#[test]
fn type_1_is_rebound_and_the_old_key_is_refused() {
    let mut k = Keyed::new();
    let bind = |k: &Keyed, tag, at| Umr { flags: 0x10, ..Umr::bind(tag, None, k.piece(at, 64), REMOTE) };
    for (tag, at) in [(1, 0), (2, 640), (3, 100)] {
        let umr = bind(&k, tag, at);
        k.done(k.key, &umr);
        k.key = k.tagged(tag);
        let address = k.there.address() + at as u64;
        assert_eq!(k.read(address, 64), k.there.get(at, 64));
        let key = k.key;
        assert_eq!(k.access_2(WRITE, key, address, 64), WcStatus::Success, "any queue pair of the domain");
    }
    let address = k.there.address() + 100;
    assert_eq!(k.access(READ, k.tagged(2), address, 1), WcStatus::RemoteAccess);
    // Unbound: the key grants no access.
    let unbind = Umr { mask: FREE | TAG, tag: 4, free: true, flags: 0x10, ..Umr::default() };
    k.rig.b.post(&mut k.b2, UMR, SIGNAL, k.key, &unbind.body());
    k.rig.settle();
    assert_eq!(k.rig.b.scq.all()[0].status, WcStatus::Success);
    let key = k.tagged(4);
    assert_eq!(k.access_2(READ, key, address, 1), WcStatus::RemoteAccess);
}

#[test]
fn type_2_is_bound_once_to_a_domain_or_to_a_queue_pair() {
    for own in [false, true] {
        let mut k = Keyed::new();
        let qpn = own.then(|| k.b.qpn.get());
        k.done(k.key, &Umr::bind(1, qpn, k.piece(64, 128), REMOTE));
        k.key = k.tagged(1);
        let address = k.there.address() + 64;
        assert_eq!(k.read(address + 1, 127), k.there.get(65, 127));
        let (key, other) = (k.key, if own { WcStatus::RemoteAccess } else { WcStatus::Success });
        assert_eq!(k.access_2(READ, key, address, 1), other);
        // It is bound already.
        assert_eq!(k.post(k.key, &Umr::bind(2, qpn, k.piece(0, 8), REMOTE)), WcStatus::MemoryWindowBind);
        assert_eq!(k.states().1, QpState::Err);
    }
    // Only its own queue pair can free it.
    for (own, ends) in [(false, WcStatus::Success), (true, WcStatus::MemoryWindowBind)] {
        let mut k = Keyed::new();
        let qpn = own.then(|| k.b.qpn.get());
        k.done(k.key, &Umr::bind(1, qpn, k.piece(64, 128), REMOTE));
        k.key = k.tagged(1);
        k.rig.b.post(&mut k.b2, UMR, SIGNAL, k.key, &Umr::free_own().body());
        k.rig.settle();
        assert_eq!(k.rig.b.scq.all()[0].status, ends);
        if own {
            k.done(k.key, &Umr::free_own());
        }
        // Once free, it may be bound to another queue pair.
        let qpn = k.b.qpn.get();
        k.done(k.key, &Umr::bind(2, Some(qpn), k.piece(0, 8), REMOTE));
        k.key = k.tagged(2);
        let address = k.there.address();
        assert_eq!(k.read(address, 8), k.there.get(0, 8));
        assert_eq!(k.access(READ, k.tagged(1), address, 8), WcStatus::RemoteAccess);
    }
}

#[test]
fn the_rights_that_a_window_grants_and_needs() {
    let address = |k: &Keyed| k.there.address();
    // Zero based.
    let mut k = Keyed::new();
    k.done(k.key, &Umr { start: 0, ..Umr::bind(1, None, k.piece(64, 128), REMOTE) });
    k.key = k.tagged(1);
    assert_eq!(k.read(0, 128), k.there.get(64, 128));
    // It cannot be used as a local key.
    let (key, qp) = (k.key, &mut k.b);
    k.rig.b.receive(qp, &[data(64, key, 0)]);
    k.rig.a.post(&mut k.a, SEND, SIGNAL, 0, &data(64, k.here_lkey, k.here.address()));
    k.rig.settle();
    assert_eq!(k.rig.b.rcq.all()[0].status, WcStatus::LocalProtection);
    // Bounds and rights.
    for (access, opcode, at, len) in
        [(0x10, WRITE, 64, 1), (0x20, READ, 64, 1), (REMOTE, READ, 63, 1), (REMOTE, WRITE, 191, 2)]
    {
        let mut k = Keyed::new();
        k.done(k.key, &Umr::bind(1, None, k.piece(64, 128), access));
        let key = k.tagged(1);
        assert_eq!(k.access(opcode, key, address(&k) + at, len), WcStatus::RemoteAccess, "{access:#x}");
    }
    // Over a region that the device may not write to: read only.
    for (access, status) in [(REMOTE, WcStatus::MemoryWindowBind), (0x10, WcStatus::Success)] {
        let mut k = Keyed::new();
        let region = k.rig.b.engine.register(address(&k), k.there.host(), Access::default()).unwrap();
        assert_eq!(k.post(k.key, &Umr::bind(1, None, data(64, region, address(&k)), access)), status);
    }
    // Over another window.
    let mut k = Keyed::new();
    k.done(k.key, &Umr::bind(1, None, k.piece(0, 64), REMOTE));
    let other = k.rig.b.engine.create_fast_key(&free_key(ListKind::Keys, 4)).unwrap();
    let piece = data(8, k.tagged(1), address(&k));
    assert_eq!(k.post(other, &Umr::bind(1, None, piece, 0x10)), WcStatus::MemoryWindowBind);
    // Its region is deregistered.
    let mut k = Keyed::new();
    k.done(k.key, &Umr::bind(1, None, k.piece(0, 64), REMOTE));
    k.rig.b.engine.deregister(k.lkey).unwrap();
    let key = k.tagged(1);
    assert_eq!(k.access(READ, key, address(&k), 1), WcStatus::RemoteAccess);
}
