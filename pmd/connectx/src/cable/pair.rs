//! Both ends of a cable within one process: the rings of the shared-memory cable in private memory. No other
//! process can write there, so packets are built and parsed in place.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::ring::{Consumer, Mapping, Producer, RING_HEADER, Trust};
use super::{Broken, CableCounters, Crcs, Sent};

/// Bytes of each direction: 60 packets of the largest size. The consumer then still finds them in the
/// processor's second-level cache.
const RING: u32 = 256 << 10;

/// State shared by both ends.
#[derive(Debug)]
struct Both {
    /// Cleared when either end is dropped.
    alive: AtomicBool,
    /// Set by either end to keep CRCs.
    keeps_crcs: AtomicBool,
}

/// A producer, a consumer, and the shared state.
#[derive(Debug)]
pub(super) struct PairEnd {
    producer: Producer,
    consumer: Consumer,
    trust: Trust,
    both: Arc<Both>,
    seen_up: bool,
}

impl PairEnd {
    pub(super) fn new() -> io::Result<(Self, Self)> {
        let second = RING_HEADER + RING as usize;
        let memory = Arc::new(Mapping::anonymous(2 * second)?);
        let both = Arc::new(Both { alive: AtomicBool::new(true), keeps_crcs: AtomicBool::new(false) });
        let end = |send, receive| {
            let mut consumer = Consumer::new(memory.clone(), receive, RING)?;
            consumer.take_bare();
            Some(Self {
                producer: Producer::new(memory.clone(), send, RING)?,
                consumer,
                // SAFETY: the memory was mapped here and is known only to these two ends; the producer of
                // each is the counterpart of the other's consumer.
                trust: unsafe { Trust::both_ends_are_ours() },
                both: both.clone(),
                seen_up: false,
            })
        };
        end(0, second).zip(end(second, 0)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    pub(super) fn is_up(&self) -> bool {
        self.both.alive.load(Ordering::Acquire)
    }

    /// Makes both ends send packets with CRCs from now on.
    pub(super) fn keep_crcs(&self) {
        self.both.keeps_crcs.store(true, Ordering::Relaxed);
    }

    /// True if packets may be sent without CRCs.
    pub(super) fn takes_bare(&self) -> bool {
        !self.both.keeps_crcs.load(Ordering::Relaxed)
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

    /// The buffer for a packet that [`PairEnd::commit`] then sends; the error is the fate of the packet.
    #[inline]
    pub(super) fn place(&mut self, len: usize) -> Result<&mut [u8], Sent> {
        match self.producer.place(self.trust, len) {
            Ok(Some(place)) => Ok(place),
            Ok(None) => Err(Sent::Full),
            Err(Broken) => Err(Sent::Down),
        }
    }

    /// Sends the packet of `len` bytes in the buffer.
    #[inline]
    pub(super) fn commit(&mut self, len: usize, crcs: Crcs) {
        self.producer.commit(len, crcs);
    }

    /// Sends a copy of a packet.
    pub(super) fn send(&mut self, packet: &[u8], crcs: Crcs) -> Sent {
        match self.place(packet.len()) {
            Ok(out) => {
                out.copy_from_slice(packet);
                self.commit(packet.len(), crcs);
                Sent::Taken
            }
            Err(sent) => sent,
        }
    }

    pub(super) fn receive(&mut self, max: usize, take: impl FnMut(&[u8], Crcs) -> bool) -> usize {
        self.consumer.drain_in_place(self.trust, max, take).0
    }
}

impl Drop for PairEnd {
    fn drop(&mut self) {
        self.both.alive.store(false, Ordering::Release);
    }
}
