//! Host memory, and the host's ends of completion and shared receive queues.

use std::ptr::NonNull;

use crate::engine::{Engine, ResizeError};
use crate::{Access, HostMemory, XrcQueue};
use hca::WcStatus;
use prm::Syndrome;

/// Alignment of allocated memory, as required for lists of keys.
#[repr(align(2048))]
#[derive(Clone)]
struct Block(#[expect(dead_code, reason = "for its size")] [u64; 256]);

/// Host memory, never accessed through references.
pub(in crate::tests) struct Memory {
    base: NonNull<u8>,
    words: usize,
}

impl Memory {
    pub(in crate::tests) fn new(len: usize) -> Self {
        let words = len.div_ceil(64) * 8;
        let blocks: Box<[Block]> = vec![Block([0; 256]); words.div_ceil(256)].into_boxed_slice();
        let base = NonNull::new(Box::into_raw(blocks).cast::<u8>()).unwrap();
        Self { base, words }
    }

    pub(in crate::tests) fn host(&self) -> HostMemory {
        // SAFETY: freed only on drop, which the rig does after the engine's.
        unsafe { HostMemory::new(self.base, self.words * 8) }
    }

    pub(in crate::tests) fn part(&self, at: usize, len: usize) -> HostMemory {
        self.host().part(at, len).unwrap()
    }

    pub(in crate::tests) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(self.part(at, bytes.len()).write(bytes));
    }

    pub(in crate::tests) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        assert!(self.part(at, len).read(&mut out));
        out
    }

    pub(in crate::tests) fn address(&self) -> u64 {
        self.host().address()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let slice =
            std::ptr::slice_from_raw_parts_mut(self.base.as_ptr().cast::<Block>(), self.words.div_ceil(256));
        // SAFETY: created by `Box::into_raw` with this length.
        drop(unsafe { Box::from_raw(slice) });
    }
}

/// A completion, decoded from its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tests) struct Wc {
    pub(in crate::tests) opcode: u8,
    pub(in crate::tests) status: WcStatus,
    pub(in crate::tests) user_index: u32,
    pub(in crate::tests) qpn: u32,
    pub(in crate::tests) send_opcode: u8,
    pub(in crate::tests) counter: u16,
    pub(in crate::tests) bytes: u32,
    pub(in crate::tests) imm: u32,
    pub(in crate::tests) source: u32,
    pub(in crate::tests) slid: u16,
    pub(in crate::tests) grh: bool,
    /// The bits above the source queue pair.
    pub(in crate::tests) flags: u8,
    pub(in crate::tests) solicited: bool,
}

pub(in crate::tests) const REQ: u8 = 0;
pub(in crate::tests) const RESP_SEND: u8 = 2;
pub(in crate::tests) const RESP_IMM: u8 = 3;
pub(in crate::tests) const REQ_ERR: u8 = 13;
pub(in crate::tests) const RESP_ERR: u8 = 14;

pub(in crate::tests) struct Queue {
    pub(in crate::tests) ring: Memory,
    pub(in crate::tests) dbrec: Memory,
    pub(in crate::tests) entries: usize,
    pub(in crate::tests) number: u32,
    consumer: u32,
}

impl Queue {
    fn blank(entries: usize) -> Memory {
        let ring = Memory::new(entries * 64);
        for i in 0..entries {
            ring.put(i * 64 + 63, &[0xf0]);
        }
        ring
    }

    pub(in crate::tests) fn cq(engine: &mut Engine, entries: usize) -> Self {
        let ring = Self::blank(entries);
        let dbrec = Memory::new(8);
        let number = engine.create_cq(ring.part(0, entries * 64), dbrec.part(0, 8)).unwrap();
        Self { ring, dbrec, entries, number, consumer: 0 }
    }

    /// Moves to a ring of another size, as a driver does: unread entries move along, each one slot further.
    pub(in crate::tests) fn resize(
        &mut self,
        engine: &mut Engine,
        entries: usize,
    ) -> Result<(), ResizeError> {
        let ring = Self::blank(entries);
        let mut moved = 0;
        engine.resize_cq(self.number, ring.part(0, entries * 64))?;
        loop {
            let mut entry = self.ring.get(self.consumer as usize % self.entries * 64, 64);
            let owner = u8::from(self.consumer as usize & self.entries != 0);
            assert_eq!(entry[63] & 1, owner, "the last entry is missing");
            self.consumer += 1;
            if entry[63] >> 4 == 5 {
                break;
            }
            entry[63] = entry[63] & !1 | u8::from(self.consumer as usize & entries != 0);
            ring.put(self.consumer as usize % entries * 64, &entry);
            moved += 1;
        }
        // The host continues to read where it was, one slot further.
        self.consumer -= moved;
        self.ring = ring;
        self.entries = entries;
        Ok(())
    }

    pub(in crate::tests) fn poll(&mut self) -> Option<Wc> {
        let at = self.consumer as usize % self.entries * 64;
        let b = self.ring.get(at, 64);
        let owner = u8::from(self.consumer as usize & self.entries != 0);
        let there = b[63] >> 4 != 15 && b[63] & 1 == owner;
        self.consumer += u32::from(there);
        self.dbrec.put(0, &(self.consumer & 0xff_ffff).to_be_bytes());
        if !there {
            return None;
        }
        let word = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let opcode = b[63] >> 4;
        let status = if opcode == REQ_ERR || opcode == RESP_ERR {
            Syndrome::outcome(b[55])
        } else {
            WcStatus::Success
        };
        Some(Wc {
            opcode,
            status,
            user_index: word(32) & 0xff_ffff,
            qpn: word(56) & 0xff_ffff,
            send_opcode: b[56],
            counter: u16::from_be_bytes([b[60], b[61]]),
            bytes: word(44),
            imm: word(36),
            source: word(24) & 0xff_ffff,
            slid: u16::from_be_bytes([b[22], b[23]]),
            grh: b[24] & 0x30 != 0,
            flags: b[24],
            solicited: b[63] & 2 != 0,
        })
    }

    pub(in crate::tests) fn all(&mut self) -> Vec<Wc> {
        std::iter::from_fn(|| self.poll()).collect()
    }
}

/// A shared receive queue with one buffer of `size` bytes per slot, divided into segments of `piece` bytes.
pub(in crate::tests) struct SharedQueue {
    ring: Memory,
    dbrec: Memory,
    pub(in crate::tests) buffers: Memory,
    pub(in crate::tests) size: usize,
    stride: usize,
    piece: usize,
    head: u16,
    tail: u16,
    posted: u16,
    pub(in crate::tests) number: u32,
    pub(in crate::tests) key: u32,
}

impl SharedQueue {
    pub(in crate::tests) fn new(engine: &mut Engine, slots: usize, size: usize, piece: usize) -> Self {
        Self::of_kind(engine, slots, size, piece, None)
    }

    /// An XRC queue with one segment per buffer.
    pub(in crate::tests) fn xrc(engine: &mut Engine, slots: usize, size: usize, how: XrcQueue) -> Self {
        Self::of_kind(engine, slots, size, size, Some(how))
    }

    fn of_kind(engine: &mut Engine, slots: usize, size: usize, piece: usize, xrc: Option<XrcQueue>) -> Self {
        let segments = size.div_ceil(piece).max(1);
        let stride = (16 + 16 * segments).next_power_of_two();
        let ring = Memory::new(slots * stride);
        for slot in 0..slots {
            ring.put(slot * stride + 2, &(((slot + 1) % slots) as u16).to_be_bytes());
        }
        let dbrec = Memory::new(8);
        let buffers = Memory::new(slots * size.max(64));
        let key = engine.register(buffers.address(), buffers.host(), Access::LOCAL).unwrap();
        let (place, record) = (ring.part(0, slots * stride), dbrec.part(0, 8));
        let number = match xrc {
            Some(how) => engine.create_xrc_srq(place, stride, record, how).unwrap(),
            None => engine.create_srq(place, stride, record).unwrap(),
        };
        let tail = slots as u16 - 1;
        Self { ring, dbrec, buffers, size, stride, piece, head: 0, tail, posted: 0, number, key }
    }

    /// Posts one more; the list must not be empty.
    pub(in crate::tests) fn post(&mut self) {
        assert_ne!(self.head, self.tail, "the list is empty");
        let slot = usize::from(self.head);
        let next = self.ring.get(slot * self.stride + 2, 2);
        let mut at = slot * self.stride + 16;
        let end = (slot + 1) * self.stride;
        let mut done = 0;
        while done < self.size {
            let n = self.piece.min(self.size - done);
            let address = self.buffers.address() + (slot * self.size + done) as u64;
            self.ring.put(at, &data(n as u32, self.key, address));
            at += 16;
            done += n;
        }
        if at < end {
            self.ring.put(at, &data(0, 0x100, 0));
        }
        self.head = u16::from_be_bytes([next[0], next[1]]);
        self.posted = self.posted.wrapping_add(1);
        self.dbrec.put(0, &u32::from(self.posted).to_be_bytes());
    }

    /// Returns a completed slot to the list and reads its content.
    pub(in crate::tests) fn free(&mut self, slot: u16, len: usize) -> Vec<u8> {
        let bytes = self.buffers.get(usize::from(slot) * self.size, len.min(self.size));
        self.ring.put(usize::from(self.tail) * self.stride + 2, &slot.to_be_bytes());
        self.tail = slot;
        bytes
    }

    /// Writes the doorbell record.
    pub(in crate::tests) fn forge(&mut self, value: u32) {
        self.dbrec.put(0, &value.to_be_bytes());
    }

    pub(in crate::tests) fn break_link(&mut self) {
        let slots = 0xffffu16;
        self.ring.put(usize::from(self.head) * self.stride + 2, &slots.to_be_bytes());
    }
}

pub(in crate::tests) fn data(count: u32, key: u32, address: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&count.to_be_bytes());
    out[4..8].copy_from_slice(&key.to_be_bytes());
    out[8..].copy_from_slice(&address.to_be_bytes());
    out
}
