//! Messages of the control lcore that a full datagram queue did not take. They wait a little and are offered before hosts' packets when the
//! queue has room again: hosts that keep it full do not keep the gateway's queries out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ipoib::link::LinkIndex;
use pmd::mem::Mbuf;

/// Messages that wait for one link's queue.
pub const OWN: usize = 32;
/// Messages that wait at once, for all links of a worker.
const MOST: usize = 2 * OWN;
/// How long a message waits: less than a query waits for its answer.
const PATIENCE: Duration = Duration::from_millis(100);

/// A message that waits.
#[derive(Debug)]
pub(crate) struct OwnMessage<D> {
    pub(crate) link: LinkIndex,
    pub(crate) to: D,
    pub(crate) buf: Mbuf,
    /// Until when.
    pub(crate) until: Instant,
}

/// The messages that wait, in their order.
#[derive(Debug)]
pub(crate) struct Own<D> {
    waiting: VecDeque<OwnMessage<D>>,
}

impl<D> Own<D> {
    pub(crate) fn new() -> Self {
        Self { waiting: VecDeque::with_capacity(MOST) }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// How many wait for a link's queue: the next one must wait behind them.
    pub(crate) fn of(&self, link: LinkIndex) -> usize {
        self.waiting.iter().filter(|message| message.link == link).count()
    }

    /// Has a message wait, or hands its buffer back.
    #[cold]
    pub(crate) fn hold(&mut self, now: Instant, link: LinkIndex, to: D, buf: Mbuf) -> Result<(), Mbuf> {
        if self.waiting.len() >= MOST || self.of(link) >= OWN {
            return Err(buf);
        }
        self.put_back(OwnMessage { link, to, buf, until: now + PATIENCE });
        Ok(())
    }

    /// The message that has waited longest.
    pub(crate) fn take(&mut self) -> Option<OwnMessage<D>> {
        self.waiting.pop_front()
    }

    /// A message that was taken waits again, behind the others.
    pub(crate) fn put_back(&mut self, message: OwnMessage<D>) {
        self.waiting.push_back(message);
    }

    /// A link's queue is gone.
    pub(crate) fn forget(&mut self, link: LinkIndex) {
        self.waiting.retain(|message| message.link != link);
    }
}
