//! Queries of a datagram queue that traffic waits for.
//!
//! A query that leaves late is worse than none: an answer after the deadline is taken for silence. If no query
//! left, however, no host would be found while the queue is oversubscribed. One query in [`PERIOD`] overtakes the
//! traffic that waits, if the queue is likely to send it before the deadline.

use std::time::{Duration, Instant};

use ib_wire::ipoib::{Arp, ArpOperation, EtherType, decapsulate};
use ipoib::link::LinkIndex;
use pmd::hca::UdSlot;
use pmd::mem::Mbuf;

/// Shortest time between two queries that overtake traffic of one queue.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);
/// Datagrams behind which a query is posted in a queue that traffic waits for. Such a queue completes at least
/// one batch of 16 in 20 ms: the query leaves in 640 ms, and three unanswered queries take a second.
pub(crate) const MOST_BEFORE: u32 = 512;
/// The same for a queue that was stuck.
pub(crate) const MOST_BEFORE_STUCK: u32 = 32;

/// True for an ARP query. The sender expects it to leave at once: an answer that comes late is taken for silence.
pub(crate) fn is_query(message: &[u8]) -> bool {
    let Some((EtherType::Arp, content)) = decapsulate(message) else { return false };
    Arp::parse(content)
        .is_ok_and(|arp| arp.operation == ArpOperation::Request && arp.sender_ip != arp.target_ip)
}

/// A query that found its queue full. It is posted before the traffic that waits.
#[derive(Debug)]
pub(crate) struct WaitingQuery<D> {
    pub(crate) link: LinkIndex,
    pub(crate) to: D,
    pub(crate) buf: Mbuf,
}

/// The rate of queries that overtake traffic, by queue.
#[derive(Debug)]
pub(crate) struct QueryPace(Box<[Option<Instant>]>);

impl QueryPace {
    pub(crate) fn new() -> Self {
        Self(vec![None; 1 << u8::BITS].into())
    }

    /// True if a query may overtake the traffic of this queue. It counts as sent.
    pub(crate) fn may_pass(&mut self, slot: UdSlot, now: Instant) -> bool {
        let Some(last) = self.0.get_mut(usize::from(slot.0)) else { return false };
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= PERIOD);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_query_of_each_queue_passes_in_a_period() {
        let (mut pace, start) = (QueryPace::new(), Instant::now());
        let passed = |pace: &mut QueryPace, slot, ms: u64| {
            pace.may_pass(UdSlot(slot), start + Duration::from_millis(ms))
        };
        assert_eq!(
            [0, 0, 50, 99, 100, 150, 200].map(|ms| passed(&mut pace, 0, ms)),
            [true, false, false, false, true, false, true]
        );
        assert!(passed(&mut pace, 255, 0), "queues do not share it");
        let in_a_second = (1000..2000).filter(|ms| passed(&mut pace, 1, *ms)).count();
        assert_eq!(in_a_second, 10);
    }
}
