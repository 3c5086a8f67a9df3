//! Key operations written byte by byte, and two connected hosts that use keys.

use ib_wire::{Lid, Mtu};

use super::{Memory, Pair, Rc, Rig, data};
use crate::{Access, FastKey, ListKind, ProtectionDomain, QpKind, RemoteOperations};
use hca::{QpState, WcStatus};

pub(in crate::tests) const UMR: u8 = 0x25;
pub(in crate::tests) const SEND: u8 = 0x0a;
pub(in crate::tests) const SEND_INVALIDATE: u8 = 0x01;
pub(in crate::tests) const WRITE: u8 = 0x08;
pub(in crate::tests) const READ: u8 = 0x10;
pub(in crate::tests) const SIGNAL: u8 = 0x08;
pub(in crate::tests) const STRONG_FENCE: u8 = 0x60;

/// Local and remote read and write.
pub(in crate::tests) const ALL: u8 = 0x3c;
/// Remote read and write.
pub(in crate::tests) const REMOTE: u8 = 0x30;

pub(in crate::tests) const LEN: u64 = 1;
pub(in crate::tests) const PAGE_SIZE: u64 = 1 << 1;
pub(in crate::tests) const START: u64 = 1 << 6;
pub(in crate::tests) const REMOTE_INVALIDATE: u64 = 1 << 8;
pub(in crate::tests) const TAG: u64 = 1 << 13;
pub(in crate::tests) const QPN: u64 = 1 << 14;
pub(in crate::tests) const RIGHTS: u64 = 7 << 18;
pub(in crate::tests) const FREE: u64 = 1 << 29;

pub(in crate::tests) const CHECK_QPN: u8 = 0x08;
pub(in crate::tests) const CHECK_FREE: u8 = 0x20;
pub(in crate::tests) const CHECK_VALID: u8 = 0x40;

/// A key operation.
#[derive(Clone, Default)]
pub(in crate::tests) struct Umr {
    pub(in crate::tests) flags: u8,
    pub(in crate::tests) offset: u16,
    pub(in crate::tests) mask: u64,
    pub(in crate::tests) free: bool,
    pub(in crate::tests) access: u8,
    pub(in crate::tests) qpn: u32,
    pub(in crate::tests) tag: u8,
    pub(in crate::tests) remote_invalidate: bool,
    pub(in crate::tests) start: u64,
    pub(in crate::tests) len: u64,
    pub(in crate::tests) shift: u8,
    pub(in crate::tests) list: Vec<u8>,
    /// Address and key of the list, if it is not in the entry; its length is that of `list`.
    pub(in crate::tests) at: Option<(u64, u32)>,
}

impl Umr {
    /// Sets the memory of a free key: all rights, first byte at `start`.
    pub(in crate::tests) fn register(tag: u8, start: u64, pieces: &[[u8; 16]]) -> Self {
        let len = |piece: &[u8; 16]| u64::from(u32::from_be_bytes(piece[..4].try_into().unwrap()));
        Self {
            flags: CHECK_FREE,
            mask: LEN | START | REMOTE_INVALIDATE | TAG | RIGHTS | FREE,
            access: ALL,
            tag,
            remote_invalidate: true,
            start,
            len: pieces.iter().map(len).sum(),
            list: pieces.concat(),
            ..Self::default()
        }
    }

    /// Sets the memory of a free key to `len` bytes of pages, from byte `start % page` of the first one on.
    pub(in crate::tests) fn pages(tag: u8, start: u64, len: u64, shift: u8, pages: &[u64]) -> Self {
        let list = pages.iter().flat_map(|page| page.to_be_bytes()).collect();
        let rest = Self::register(tag, start, &[]);
        Self { mask: rest.mask | PAGE_SIZE, len, shift, list, ..rest }
    }

    /// Binds a window as the library does: type 2B to `qpn`, otherwise to the domain.
    pub(in crate::tests) fn bind(tag: u8, qpn: Option<u32>, piece: [u8; 16], access: u8) -> Self {
        let address = u64::from_be_bytes(piece[8..].try_into().unwrap());
        let rest = Self::register(tag, address, &[piece]);
        Self {
            flags: 0x10 | CHECK_FREE,
            mask: FREE | TAG | QPN | LEN | START | RIGHTS,
            access,
            qpn: qpn.unwrap_or(0xff_ffff),
            remote_invalidate: false,
            ..rest
        }
    }

    /// LOCAL_INV as the kernel posts it.
    pub(in crate::tests) fn free() -> Self {
        Self { mask: FREE, free: true, ..Self::default() }
    }

    /// LOCAL_INV as the library posts it.
    pub(in crate::tests) fn free_own() -> Self {
        let flags = 0x10 | CHECK_QPN;
        Self { flags, mask: FREE | TAG | QPN, qpn: 0xff_ffff, free: true, ..Self::default() }
    }

    pub(in crate::tests) fn body(&self) -> Vec<u8> {
        let mut list = self.list.clone();
        list.resize(list.len().next_multiple_of(64), 0);
        let inline = if self.at.is_none() { 0x80 } else { 0 };
        let mut b = vec![self.flags | inline, 0, 0, 0];
        b.extend_from_slice(&((list.len() / 16) as u16).to_be_bytes());
        b.extend_from_slice(&self.offset.to_be_bytes());
        b.extend_from_slice(&self.mask.to_be_bytes());
        b.resize(48, 0);
        b.extend_from_slice(&[if self.free { 0x40 } else { 0 }, 0, self.access, 0]);
        b.extend_from_slice(&(self.qpn << 8 | u32::from(self.tag)).to_be_bytes());
        b.extend_from_slice(&[0; 4]);
        b.extend_from_slice(&(u32::from(self.remote_invalidate) << 24).to_be_bytes());
        b.extend_from_slice(&self.start.to_be_bytes());
        b.extend_from_slice(&self.len.to_be_bytes());
        b.resize(48 + 59, 0);
        b.push(self.shift);
        b.resize(48 + 64, 0);
        match self.at {
            None => b.extend_from_slice(&list),
            Some((address, lkey)) => b.extend_from_slice(&data(list.len() as u32, lkey, address)),
        }
        b
    }
}

/// `a` and `b` have two connections with all remote operations permitted; `b` has memory and a free key.
pub(in crate::tests) struct Keyed {
    pub(in crate::tests) rig: Rig,
    pub(in crate::tests) a: Pair,
    pub(in crate::tests) b: Pair,
    /// The second connection.
    pub(in crate::tests) a2: Pair,
    pub(in crate::tests) b2: Pair,
    pub(in crate::tests) there: Memory,
    pub(in crate::tests) lkey: u32,
    /// The key with the tag that [`Keyed::register`] sets.
    pub(in crate::tests) key: u32,
    pub(in crate::tests) here: Memory,
    pub(in crate::tests) here_lkey: u32,
}

pub(in crate::tests) const SIZE: usize = 1 << 16;

impl Keyed {
    pub(in crate::tests) fn new() -> Self {
        Self::with(ListKind::Keys, 64)
    }

    pub(in crate::tests) fn with(list: ListKind, octowords: usize) -> Self {
        let mut rig = Rig::new();
        let [a, a2] = [5, 6].map(|n| rig.a.qp(QpKind::Rc, 256, None, n));
        let [b, b2] = [7, 8].map(|n| rig.b.qp(QpKind::Rc, 256, None, n));
        for (a, b) in [(&a, &b), (&a2, &b2)] {
            let how = Rc { mtu: Mtu::B256, ..Rc::default() };
            rig.a.connect(a, (Lid(2), b.qpn), how);
            rig.b.connect(b, (Lid(1), a.qpn), how);
            let both = RemoteOperations { write: true, read: true, atomic: true, reads_in: 4, reads_out: 4 };
            rig.a.engine.set_remote_operations(a.qpn, both).unwrap();
            rig.b.engine.set_remote_operations(b.qpn, both).unwrap();
        }
        let there = Memory::new(SIZE);
        there.put(0, &pattern_of(0));
        let access = Access { remote_write: false, remote_read: false, ..Access::LOCAL };
        let lkey = rig.b.engine.register(there.address(), there.host(), access).unwrap();
        let (here, here_lkey) = rig.a.memory(SIZE);
        let key = rig.b.engine.create_fast_key(&free_key(list, octowords)).unwrap();
        Self { rig, a, b, a2, b2, there, lkey, key, here, here_lkey }
    }

    /// `len` bytes of the memory at `b`.
    pub(in crate::tests) fn piece(&self, at: usize, len: usize) -> [u8; 16] {
        data(len as u32, self.lkey, self.there.address() + at as u64)
    }

    /// The key with another tag.
    pub(in crate::tests) const fn tagged(&self, tag: u8) -> u32 {
        self.key & !0xff | tag as u32
    }

    /// Executes a key operation at `b`.
    pub(in crate::tests) fn post(&mut self, key: u32, umr: &Umr) -> WcStatus {
        self.rig.b.post(&mut self.b, UMR, SIGNAL, key, &umr.body());
        self.rig.settle();
        let done = self.rig.b.scq.all();
        assert_eq!(done.first().map(|wc| wc.send_opcode), Some(UMR));
        done[0].status
    }

    pub(in crate::tests) fn done(&mut self, key: u32, umr: &Umr) {
        assert_eq!(self.post(key, umr), WcStatus::Success);
    }

    /// Sets the key's memory to `pieces`, zero based, with all rights and this tag only.
    pub(in crate::tests) fn register(&mut self, tag: u8, pieces: &[[u8; 16]]) {
        self.key = self.tagged(tag);
        self.done(self.key, &Umr::register(tag, 0, pieces));
    }

    pub(in crate::tests) fn remote(&self, key: u32, address: u64, len: usize) -> Vec<u8> {
        let mut body = address.to_be_bytes().to_vec();
        body.extend_from_slice(&key.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(&data(len as u32, self.here_lkey, self.here.address()));
        body
    }

    /// `a` reads from `b`, or writes.
    pub(in crate::tests) fn access(&mut self, opcode: u8, key: u32, address: u64, len: usize) -> WcStatus {
        let body = self.remote(key, address, len);
        self.rig.a.post(&mut self.a, opcode, SIGNAL, 0, &body);
        self.rig.settle();
        self.rig.a.scq.all()[0].status
    }

    /// As `access`, over the second connection.
    pub(in crate::tests) fn access_2(&mut self, opcode: u8, key: u32, address: u64, len: usize) -> WcStatus {
        let body = self.remote(key, address, len);
        self.rig.a.post(&mut self.a2, opcode, SIGNAL, 0, &body);
        self.rig.settle();
        self.rig.a.scq.all()[0].status
    }

    /// The data that `a` reads by the key.
    pub(in crate::tests) fn read(&mut self, address: u64, len: usize) -> Vec<u8> {
        assert_eq!(self.access(READ, self.key, address, len), WcStatus::Success);
        self.here.get(0, len)
    }

    /// Queue pair states of both ends of the first connection.
    pub(in crate::tests) fn states(&self) -> (QpState, QpState) {
        let Rig { a, b, .. } = &self.rig;
        (a.engine.qp_state(self.a.qpn).unwrap(), b.engine.qp_state(self.b.qpn).unwrap())
    }
}

/// Initial content of the memory at `b`.
pub(in crate::tests) fn pattern_of(seed: u64) -> Vec<u8> {
    super::pattern(SIZE, seed + 77)
}

/// A key without rights, in domain 0.
pub(in crate::tests) fn free_key(list: ListKind, octowords: usize) -> FastKey {
    FastKey {
        tag: 0,
        domain: ProtectionDomain(0),
        list,
        octowords,
        access: Access::default(),
        remote_invalidate: false,
    }
}
