//! Tests of the driver against bytes that libmlx5 wrote (`tests/data/mlx5`), and of ring boundaries.

mod allowance;
mod completion;
mod device;
mod geometry;
mod memory;
mod queues;
mod receive;
mod send;
mod soak;
mod wrap;

use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::NonNull;

use serde_json::Value;

use super::rings::{CqRing, DoorbellRecord, QpRings, Register, RingMemory, SrqRing};

/// The vectors of a family, by name.
fn family(file: &str) -> BTreeMap<String, Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mlx5").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["vectors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| (v["name"].as_str().unwrap().to_owned(), v.clone()))
        .collect()
}

/// Bytes from hexadecimal digits in memory order.
fn bytes(value: &Value) -> Vec<u8> {
    let digits = value.as_str().unwrap();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

/// Parses a number: a JSON number or a string "0x…".
fn number(value: &Value) -> u64 {
    match value {
        Value::String(text) => u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap(),
        other => other.as_u64().unwrap(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Memory for rings and doorbell records, filled with bytes that are never valid.
pub(crate) struct Arena {
    words: Box<[u64]>,
    used: usize,
}

impl Arena {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { words: vec![0xa5a5_a5a5_a5a5_a5a5; bytes.div_ceil(8) + 64].into(), used: 0 }
    }

    /// Makes the next allocation start `before` bytes in front of a multiple of `align`.
    pub(crate) fn align(&mut self, align: usize, before: usize) {
        let next = self.words.as_ptr().addr() + self.used;
        self.used += (next + before).next_multiple_of(align) - (next + before);
    }

    pub(crate) fn ring(&mut self, len: usize) -> RingMemory {
        let at = self.used;
        self.used += len.next_multiple_of(64);
        assert!(self.used <= self.words.len() * 8);
        let base = NonNull::new(self.words.as_mut_ptr().cast::<u8>()).unwrap();
        // SAFETY: inside of the box, which the tests keep for as long as the queues.
        unsafe { RingMemory::new(base.add(at), len) }
    }

    pub(crate) fn record(&mut self) -> DoorbellRecord {
        let words = self.ring(64).base().cast();
        // SAFETY: inside of the box and aligned to eight bytes.
        let record = unsafe { DoorbellRecord::new(words, 2) };
        record.clear();
        record
    }

    pub(crate) fn qp(&mut self, qpn: u32, sq_wqebbs: u32, rq_slots: u32, rq_stride: u32) -> QpRings {
        QpRings {
            qpn,
            dbrec: self.record(),
            sq_buf: self.ring(sq_wqebbs as usize * 64),
            sq_wqebbs,
            rq_buf: self.ring(rq_slots as usize * rq_stride as usize),
            rq_slots,
            rq_stride,
            register: Register::new(0x800, 0x100),
        }
    }

    pub(crate) fn srq(&mut self, slots: u32, ring_slots: u32, stride: u32) -> SrqRing {
        let ring = SrqRing {
            buf: self.ring(ring_slots as usize * stride as usize),
            stride,
            slots,
            head: 0,
            tail: (slots - 1) as u16,
            dbrec: self.record(),
            srqn: 0x77,
        };
        ring.format();
        ring
    }

    pub(crate) fn cq(&mut self, slots: u32) -> CqRing {
        let ring =
            CqRing { buf: self.ring(slots as usize * 64), cqe_count: slots, dbrec: self.record(), cqn: 0x43 };
        ring.format();
        ring
    }
}

/// Returns the bytes of a doorbell record, in memory order.
fn record_bytes(record: &DoorbellRecord) -> Vec<u8> {
    [record.load(0).to_be_bytes(), record.load(1).to_be_bytes()].concat()
}

/// Returns `len` bytes from `at` of a ring of `size` bytes, wrapping at its end.
fn unwrapped(ring: &RingMemory, size: usize, at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| ring.read::<u8>(i % size)).collect()
}

/// Compares bytes, except those that libmlx5 leaves untouched.
fn assert_same(name: &str, ours: &[u8], theirs: &[u8], untouched: &Value) {
    let (mut ours, mut theirs) = (ours.to_vec(), theirs.to_vec());
    for hole in list(untouched) {
        let (at, len) = (number(&hole[0]) as usize, number(&hole[1]) as usize);
        ours[at..at + len].fill(0);
        theirs[at..at + len].fill(0);
    }
    assert_eq!(hex(&ours), hex(&theirs), "{name}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
