//! Posting on the allowance compared with fully checked posting: entries, doorbells, errors and returned
//! buffers are the same.

use proptest::prelude::*;

use super::device::{Buffer, Depths, Device, ROOM, Taken, TestQueues};
use super::memory::registration;
use super::queues::destination;
use crate::hca::{DoneBurst, PostError, RcSlot, UdSlot};
use crate::mlx5::av::Destination;
use crate::mlx5::queues::Events;
use prm::SendOpcode;

const CONNECTIONS: u16 = 3;
const FLUSHED: u8 = 0x05;
const RETRY: u8 = 0x15;

/// An operation on the queues.
#[derive(Clone, Debug)]
enum Step {
    /// A message of this length on the connection of this number, or as a datagram.
    Post(u16, usize),
    Ring,
    /// The device consumes the posted entries and completes some of the signaled ones.
    Complete(usize, usize),
    /// The device fails one entry and flushes all others.
    Fail(usize),
    Reap,
    Drain(u16),
    /// Posts work that requires a fence after it.
    Register(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let qp = 0..=CONNECTIONS;
    prop_oneof![
        // Empty and multi-segment messages do not use the allowance.
        30 => (qp.clone(), prop_oneof![4 => 1..=ROOM, 1 => 0..=3 * ROOM]).prop_map(|(qp, len)| Step::Post(qp, len)),
        4 => Just(Step::Ring),
        4 => (0..=usize::from(CONNECTIONS), 0..6_usize).prop_map(|(qp, count)| Step::Complete(qp, count)),
        1 => (1..=usize::from(CONNECTIONS)).prop_map(Step::Fail),
        4 => Just(Step::Reap),
        1 => (0..CONNECTIONS).prop_map(Step::Drain),
        2 => (0..CONNECTIONS).prop_map(Step::Register),
    ]
}

/// An entry without the location of its buffer.
fn seen(taken: &Taken) -> Taken {
    let mut seen = taken.clone();
    seen.pieces.iter_mut().for_each(|(address, _)| *address = 0);
    // Data segments contain addresses, and the units of a UMR entry contain keys. Both differ between the two
    // sides.
    let head = taken.units.len() - taken.pieces.len();
    seen.units.truncate(if taken.opcode == SendOpcode::Umr as u8 { 0 } else { head });
    seen
}

struct Side {
    device: Device,
    queues: TestQueues,
    /// Entries that the device owns, by queue pair.
    working: Vec<Vec<Taken>>,
    /// True for the side that never posts on the allowance.
    looks: bool,
}

impl Side {
    fn new(depths: &Depths, looks: bool) -> Self {
        let (mut device, mut queues) = Device::new(depths);
        for n in 0..CONNECTIONS {
            let rc = device.rc(0x41 + u32::from(n), 16, false, depths.signal_every);
            queues.insert(RcSlot(n), rc).unwrap();
        }
        Self { device, queues, working: vec![vec![]; usize::from(CONNECTIONS) + 1], looks }
    }

    fn post(&mut self, qp: u16, bytes: &[u8], to: &Destination) -> Result<(), PostError> {
        let buf: Buffer = self.device.buffers.chain(bytes).unwrap();
        let Self { queues, looks, .. } = self;
        let posted = match (qp.checked_sub(1).map(RcSlot), *looks) {
            (None, true) => queues.post_any_ud(UdSlot(0), to, buf),
            (None, false) => queues.post_ud(UdSlot(0), to, buf),
            (Some(slot), true) => queues.post_any_rc(slot, buf),
            (Some(slot), false) => queues.post_rc(slot, buf),
        };
        posted.map_err(|(_, error)| error)
    }

    fn take(&mut self, qp: usize) -> Vec<Taken> {
        let taken = self.device.take_sends(qp);
        self.working[qp].extend(taken.iter().cloned());
        taken
    }

    /// Returns a description of all visible effects of a step.
    fn step(&mut self, step: &Step, n: usize, to: &Destination) -> String {
        let effect = match step {
            Step::Post(qp, len) => {
                let bytes: Vec<u8> = (0..*len).map(|i| (n * 31 + i) as u8).collect();
                format!("{:?}", self.post(*qp, &bytes, to))
            }
            Step::Ring => {
                self.queues.ring_all();
                String::new()
            }
            Step::Complete(qp, count) => {
                let taken = self.take(*qp);
                for _ in 0..*count {
                    let Some(at) = self.working[*qp].iter().position(|taken| taken.signalled) else { break };
                    let done = self.working[*qp].drain(..=at).next_back().unwrap();
                    self.device.sent(*qp, done.index);
                }
                format!("{:?}", taken.iter().map(seen).collect::<Vec<_>>())
            }
            Step::Fail(qp) => {
                let taken = self.take(*qp);
                let mut syndrome = RETRY;
                for failed in std::mem::take(&mut self.working[*qp]) {
                    self.device.send_failed(*qp, failed.index, syndrome);
                    syndrome = FLUSHED;
                }
                format!("{:?}", taken.iter().map(seen).collect::<Vec<_>>())
            }
            Step::Reap => {
                let (mut events, mut done) = (Events::new(), DoneBurst::new());
                let freed = self.queues.reap(&mut events);
                self.queues.finished(&mut done);
                format!(
                    "{freed} {events:?} {:?}",
                    done.iter().map(|d| (d.ticket, d.status)).collect::<Vec<_>>()
                )
            }
            Step::Drain(slot) => format!("{:?}", self.queues.drain(RcSlot(*slot))),
            Step::Register(slot) => {
                let work = registration(&self.device, 100);
                let posted = self.queues.register_key(RcSlot(*slot), n as u32, work);
                format!("{:?}", posted.map_err(|returned| returned.error))
            }
        };
        let outstanding: Vec<_> =
            (0..CONNECTIONS).map(|slot| self.queues.outstanding(RcSlot(slot))).collect();
        let datagrams = self.queues.datagrams_outstanding(UdSlot(0));
        let rung = std::mem::take(&mut self.queues.bus().rung);
        format!("{effect} {outstanding:?} {datagrams} {} {rung:?}", self.device.buffers.out())
    }
}

proptest! {
    #[test]
    fn what_is_posted_on_allowance_is_what_a_look_at_everything_posts(
        steps in prop::collection::vec(step(), 1..300),
        signal_every in 1..20_u32,
        sends in prop_oneof![Just(12_u32), Just(40), Just(512)],
    ) {
        let depths = Depths { send: 32, ud_receive: 8, shared: 8, signal_every, sends, buffers: 2000 };
        let (mut quick, mut thorough) = (Side::new(&depths, false), Side::new(&depths, true));
        let to = destination();
        for (n, step) in steps.iter().enumerate() {
            prop_assert_eq!(quick.step(step, n, &to), thorough.step(step, n, &to), "step {}: {:?}", n, step);
        }
    }
}

/// Ensures that the test above covers posting on the allowance.
#[test]
fn most_messages_find_an_allowance() {
    let depths = Depths { send: 64, ud_receive: 8, shared: 8, signal_every: 8, sends: 512, buffers: 200 };
    let mut side = Side::new(&depths, false);
    let to = destination();
    let mut allowed = 0;
    for n in 0..60 {
        allowed += usize::from(side.queues.has_allowance(RcSlot(0)));
        side.step(&Step::Post(1, 10), n, &to);
        if n % 8 == 7 {
            side.step(&Step::Ring, n, &to);
            side.step(&Step::Complete(1, 1), n, &to);
            side.step(&Step::Reap, n, &to);
        }
    }
    assert_eq!(allowed, 60 - 60_usize.div_ceil(8), "all except the signaled ones");
}
