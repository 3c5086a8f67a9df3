//! All operations in a random but repeatable order. Each buffer has one owner at any time, arrives intact and
//! is freed once.

use std::collections::VecDeque;

use ib_wire::{Lid, QKey, Qpn, Rate, ServiceLevel};

use super::device::{Depths, Device, PER_ENTRY, ROOM, Taken, TestQueues, UD};
use crate::hca::{AddressVector, PostError, RcSlot, UdDestination, UdSlot};
use crate::mlx5::av::Destination;
use crate::mlx5::queues::{Anomalies, Events};

const RC: u32 = 0x41;
const CONNECTIONS: u32 = 3;
const FLUSHED: u8 = 0x05;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn bytes(&mut self, max: usize) -> Vec<u8> {
        let len = self.below(max as u64 + 1) as usize;
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

struct Soak {
    random: Random,
    device: Device,
    queues: TestQueues,
    /// Messages posted and not yet consumed by the device, in order, per queue pair.
    posted: Vec<VecDeque<Vec<u8>>>,
    /// Messages that the device has consumed and not completed, per queue pair.
    working: Vec<VecDeque<Taken>>,
    /// Messages scattered and not yet reported: (queue pair, slot, bytes).
    scattered: Vec<(u32, u16, Vec<u8>)>,
    /// Messages reported, in order.
    reported: VecDeque<Vec<u8>>,
    checked: u64,
}

impl Soak {
    fn new(seed: u64) -> Self {
        let depths =
            Depths { send: 16, ud_receive: 8, shared: 16, signal_every: 3, sends: 1024, buffers: 160 };
        let (mut device, mut queues) = Device::new(&depths);
        for i in 0..CONNECTIONS {
            queues.insert(RcSlot(i as u16), device.rc(RC + i, 16, false, 3)).unwrap();
        }
        let qps = CONNECTIONS as usize + 1;
        Self {
            random: Random(seed),
            device,
            queues,
            posted: vec![VecDeque::new(); qps],
            working: vec![VecDeque::new(); qps],
            scattered: vec![],
            reported: VecDeque::new(),
            checked: 0,
        }
    }

    fn post(&mut self) {
        let av = AddressVector {
            dlid: Lid(2),
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::new(0),
            grh: None,
        };
        let to = Destination::new(&UdDestination { av, qpn: Qpn::new(9), qkey: Some(QKey(1)) });
        let bytes = self.random.bytes(5 * ROOM);
        let Some(buf) = self.device.buffers.chain(&bytes) else { return };
        let qp = self.random.below(self.posted.len() as u64) as usize;
        let result = if qp == 0 {
            self.queues.post_ud(UdSlot(0), &to, buf)
        } else {
            self.queues.post_rc(RcSlot(qp as u16 - 1), buf)
        };
        match result {
            Ok(()) => self.posted[qp].push_back(bytes),
            Err((buf, error)) => {
                assert_eq!(error, PostError::Full);
                assert_eq!(buf.bytes(), bytes);
            }
        }
    }

    /// Lets the device consume the posted entries and complete some of them, in order.
    fn work(&mut self) {
        let qp = self.random.below(self.posted.len() as u64) as usize;
        for taken in self.device.take_sends(qp) {
            if taken.opcode != 0 {
                assert_eq!(Some(&taken.bytes), self.posted[qp].front(), "posted and taken in one order");
                self.posted[qp].pop_front();
            }
            self.working[qp].push_back(taken);
        }
        let done = self.random.below(self.working[qp].len() as u64 + 1);
        for _ in 0..done {
            let Some(taken) = self.working[qp].pop_front() else { break };
            let now: Vec<u8> = taken
                .pieces
                .iter()
                .flat_map(|(address, len)| self.device.buffers.get(*address, *len))
                .collect();
            assert_eq!(now, taken.bytes, "a buffer changed before its send completed");
            self.checked += 1;
            if taken.signalled {
                self.device.sent(qp, taken.index);
            }
        }
    }

    /// Scatters messages in posting order and reports them in any order.
    fn deliver(&mut self) {
        match self.random.below(4) {
            0 => {
                let bytes = self.random.bytes(ROOM);
                if self.device.datagram(None, &bytes) {
                    self.reported.push_back(bytes);
                }
            }
            1 => {
                let bytes = self.random.bytes(PER_ENTRY * ROOM);
                if let Some(slot) = self.device.scatter(&bytes) {
                    let qpn = RC + self.random.below(CONNECTIONS.into()) as u32;
                    self.scattered.push((qpn, slot, bytes));
                }
            }
            _ if self.scattered.is_empty() => {}
            _ => {
                let which = self.random.below(self.scattered.len() as u64) as usize;
                let (qpn, slot, bytes) = self.scattered.swap_remove(which);
                if self.random.below(10) == 0 {
                    self.device.receive_failed(qpn, slot, FLUSHED);
                } else {
                    self.device.received(qpn, slot, bytes.len() as u32);
                    self.reported.push_back(bytes);
                }
            }
        }
    }

    fn receive(&mut self) {
        let limit = self.random.below(8) as usize + 1;
        let mut got = vec![];
        let mut events = Events::new();
        self.queues.receive(limit, |r| got.push((r.buf, r.qpn)), &mut events);
        assert!(got.len() <= limit && events.is_empty());
        for (buf, qpn) in got {
            assert_eq!(Some(buf.bytes()), self.reported.pop_front(), "reported and received in one order");
            assert!(qpn.get() == UD || (RC..RC + CONNECTIONS).contains(&qpn.get()));
            self.checked += 1;
        }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..=2 => self.post(),
            3 => self.queues.ring_all(),
            4 => self.work(),
            5..=6 => self.deliver(),
            7 => self.receive(),
            8 => {
                let mut events = Events::new();
                self.queues.reap(&mut events);
                assert!(events.is_empty());
            }
            _ => {
                self.queues.fill();
            }
        }
    }
}

#[test]
fn every_buffer_has_one_owner_whatever_happens() {
    for seed in 0..8 {
        let mut soak = Soak::new(seed);
        for _ in 0..8_000 {
            soak.step();
        }
        assert!(soak.checked > 1_000, "seed {seed}: {} messages", soak.checked);
        assert_eq!(soak.queues.anomalies(), Anomalies::default());
        // Nothing more is posted, and all sent buffers must be freed without further posts.
        for _ in 0..2_000 {
            soak.queues.ring_all();
            soak.work();
            soak.receive();
            soak.queues.reap(&mut Events::new());
        }
        let outstanding: usize = (0..CONNECTIONS).map(|i| soak.queues.outstanding(RcSlot(i as u16))).sum();
        assert_eq!(outstanding, 0, "seed {seed}");
        assert!(soak.reported.is_empty(), "seed {seed}: all reported messages have been received");
        let Soak { device, queues, .. } = soak;
        drop(queues);
        assert_eq!(device.buffers.out(), 0, "seed {seed}");
    }
}
