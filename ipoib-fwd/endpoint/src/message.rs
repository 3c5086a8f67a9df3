//! Messages in the rings between an endpoint and its workers.

use std::net::IpAddr;
use std::time::Instant;

use hdrhistogram::Histogram;
use pmd::hca::{PostError, QpEvent, Queues, RcSlot};
use pmd::mem::Mbuf;
use pmd::mem::key::{FreeKey, PageList};

use super::long::KeyNote;

use ipoib::link::{ConnKey, LinkIndex};

/// From the control lcore to a worker, carried out in order.
#[derive(Debug)]
pub enum Command<Q: Queues, C> {
    /// Insert a connected queue pair. Answer: [`Note::Inserted`].
    InsertRc {
        /// The connection.
        conn: ConnKey,
        /// Its slot.
        slot: RcSlot,
        /// Its data-path half.
        rc: Q::Rc,
    },
    /// Post the drain request. Answer: the queue pair's event, or [`Note::DrainRefused`].
    PostDrain {
        /// The connection.
        conn: ConnKey,
        /// Its slot.
        slot: RcSlot,
    },
    /// Return a connected queue pair. Answer: [`Note::Removed`].
    RemoveRc {
        /// The connection.
        conn: ConnKey,
        /// Its slot.
        slot: RcSlot,
    },
    /// Insert a link's datagram queue pair, closed. Answer: [`Note::UdInserted`].
    InsertUd {
        /// The link.
        link: LinkIndex,
        /// Its data-path half.
        ud: Q::Ud,
    },
    /// Return a link's datagram queue pair, which is closed and has nothing outstanding. Answer:
    /// [`Note::UdRemoved`].
    RemoveUd(LinkIndex),
    /// Stop posting to a link's datagram queue pair. Answer: [`Note::UdClosed`], when all its buffers are
    /// back.
    CloseUd(LinkIndex),
    /// Resume posting to it.
    OpenUd(LinkIndex),
    /// Send a message as a datagram.
    SendUd {
        /// The link whose queue pair sends it.
        link: LinkIndex,
        /// Destination.
        to: Q::Destination,
        /// Encapsulation header and payload.
        buf: Mbuf,
    },
    /// Record times into this histogram from now on, and return the present one ([`Note::Latency`]).
    Latency(Box<Histogram<u32>>),
    /// A key for messages in many buffers, and a list for it.
    Key(FreeKey, PageList),
    /// Return keys that were not used for a long time.
    AgeKeys(Instant),
    /// A command of the application.
    App(C),
}

/// From a worker to the control lcore.
#[derive(Debug)]
pub enum Note<Q: Queues, N> {
    /// A connected queue pair was inserted, or is returned because its slot was not free.
    Inserted {
        /// The connection.
        conn: ConnKey,
        /// The data-path half, if it was refused.
        refused: Option<Q::Rc>,
    },
    /// The drain request was refused.
    DrainRefused {
        /// The connection.
        conn: ConnKey,
    },
    /// A connected queue pair was returned.
    Removed {
        /// The connection.
        conn: ConnKey,
        /// Its data-path half; `None` if the slot was empty.
        rc: Option<Q::Rc>,
    },
    /// A datagram queue pair was inserted, or is returned because its slot was not free.
    UdInserted {
        /// The data-path half, if it was refused.
        refused: Option<Q::Ud>,
    },
    /// A datagram queue pair was returned.
    UdRemoved {
        /// The link.
        link: LinkIndex,
        /// Its data-path half; `None` if there was none.
        ud: Option<Q::Ud>,
    },
    /// All buffers of a link's datagram queue pair are back.
    UdClosed(LinkIndex),
    /// An event of a queue pair.
    Qp(QpEvent),
    /// Traffic goes to a neighbour of a link to which there is no connection yet.
    Wanted(LinkIndex, IpAddr),
    /// A datagram of the control lcore was refused.
    Refused {
        /// The link.
        link: LinkIndex,
        /// The datagram.
        buf: Mbuf,
        /// The reason.
        error: PostError,
    },
    /// Number of notes about queue pairs that were lost to a full ring since the last note that was not.
    EventsLost(u64),
    /// Times recorded since the last such note.
    Latency(Box<Histogram<u32>>),
    /// A request or report about keys for messages in many buffers.
    Key(KeyNote),
    /// A note of the application.
    App(N),
}

/// Messages that were lost between a control lcore and its workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Datagrams for which there was no buffer.
    pub no_buffers: u64,
    /// Datagrams that found a queue full.
    pub queue_full: u64,
    /// Datagrams that the device refused for another reason.
    pub refused: u64,
    /// Queue pair events that found the ring full: the timer of the waiting party took over.
    pub events: u64,
}

impl Losses {
    /// Counts a datagram that was refused.
    pub(super) const fn count(&mut self, error: PostError) {
        match error {
            PostError::Full => self.queue_full += 1,
            PostError::TooManySegments | PostError::NoConnection | PostError::NotRegistered => {
                self.refused += 1
            }
        }
    }
}
