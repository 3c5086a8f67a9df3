//! Both ends of a cable within one process: the rings of the shared-memory cable in private memory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::ring::{Consumer, Mapping, Producer, RING_HEADER};
use super::{Broken, CableCounters, MAX_PACKET, Sent};

/// Bytes of each direction.
const RING: u32 = 512 << 10;

/// A producer, a consumer, and the life of the other end.
#[derive(Debug)]
pub(super) struct PairEnd {
    producer: Producer,
    consumer: Consumer,
    /// Cleared by either end when it goes.
    alive: Arc<AtomicBool>,
    seen_up: bool,
}

impl PairEnd {
    pub(super) fn new() -> io::Result<(Self, Self)> {
        let second = RING_HEADER + RING as usize;
        let memory = Arc::new(Mapping::anonymous(2 * second)?);
        let alive = Arc::new(AtomicBool::new(true));
        let end = |send, receive| {
            Some(Self {
                producer: Producer::new(memory.clone(), send, RING)?,
                consumer: Consumer::new(memory.clone(), receive, RING)?,
                alive: alive.clone(),
                seen_up: false,
            })
        };
        end(0, second).zip(end(second, 0)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    pub(super) fn is_up(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    pub(super) fn poll(&mut self, counters: &mut CableCounters) {
        match (self.seen_up, self.is_up()) {
            (false, true) => counters.ups += 1,
            (true, false) => {
                counters.downs += 1;
                counters.lost_going_down += self.producer.left_behind();
            }
            _ => return,
        }
        self.seen_up = !self.seen_up;
    }

    pub(super) fn has_room(&mut self, len: usize) -> bool {
        self.producer.has_room(len) != Ok(false)
    }

    pub(super) fn send(&mut self, packet: &[u8]) -> Sent {
        match self.producer.push(packet) {
            Ok(true) => Sent::Taken,
            Ok(false) => Sent::Full,
            Err(Broken) => Sent::Down,
        }
    }

    pub(super) fn receive(
        &mut self,
        max: usize,
        inn: &mut [u8; MAX_PACKET],
        take: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        self.consumer.drain(max, inn, take).0
    }
}

impl Drop for PairEnd {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Release);
    }
}
