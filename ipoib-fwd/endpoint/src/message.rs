//! What crosses the rings between an endpoint and its workers.

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
    /// Take a connected queue pair. Answer: [`Note::Inserted`].
    InsertRc {
        /// The connection.
        conn: ConnKey,
        /// Its place.
        slot: RcSlot,
        /// Its hot half.
        rc: Q::Rc,
    },
    /// Post the drain request. Answer: the queue pair's event, or [`Note::DrainRefused`].
    PostDrain {
        /// The connection.
        conn: ConnKey,
        /// Its place.
        slot: RcSlot,
    },
    /// Give a connected queue pair back. Answer: [`Note::Removed`].
    RemoveRc {
        /// The connection.
        conn: ConnKey,
        /// Its place.
        slot: RcSlot,
    },
    /// Take a link's datagram queue pair, closed. Answer: [`Note::UdInserted`].
    InsertUd {
        /// The link.
        link: LinkIndex,
        /// Its hot half.
        ud: Q::Ud,
    },
    /// Give a link's datagram queue pair back, which has been closed and has nothing outstanding. Answer: [`Note::UdRemoved`].
    RemoveUd(LinkIndex),
    /// Stop posting to a link's datagram queue pair. Answer: [`Note::UdClosed`], when it has given back all it had.
    CloseUd(LinkIndex),
    /// Post to it again.
    OpenUd(LinkIndex),
    /// Send a message as a datagram.
    SendUd {
        /// By which link's queue pair.
        link: LinkIndex,
        /// Where to.
        to: Q::Destination,
        /// Encapsulation header and what follows.
        buf: Mbuf,
    },
    /// Go on recording times into this histogram and give the present one back ([`Note::Latency`]).
    Latency(Box<Histogram<u32>>),
    /// A key for messages in many buffers, and a list for it.
    Key(FreeKey, PageList),
    /// Give keys back that were not used for long.
    AgeKeys(Instant),
    /// Something of the application's.
    App(C),
}

/// From a worker to the control lcore.
#[derive(Debug)]
pub enum Note<Q: Queues, N> {
    /// A connected queue pair was taken, or its slot was not free and here it is again.
    Inserted {
        /// The connection.
        conn: ConnKey,
        /// The hot half, if it was refused.
        refused: Option<Q::Rc>,
    },
    /// The drain request was refused.
    DrainRefused {
        /// The connection.
        conn: ConnKey,
    },
    /// A connected queue pair was given back.
    Removed {
        /// The connection.
        conn: ConnKey,
        /// Its hot half; `None` if the slot was empty.
        rc: Option<Q::Rc>,
    },
    /// A datagram queue pair was taken, or its place was not free and here it is again.
    UdInserted {
        /// The hot half, if it was refused.
        refused: Option<Q::Ud>,
    },
    /// A datagram queue pair was given back.
    UdRemoved {
        /// The link.
        link: LinkIndex,
        /// Its hot half; `None` if there was none.
        ud: Option<Q::Ud>,
    },
    /// A link's datagram queue pair has given back all it had.
    UdClosed(LinkIndex),
    /// Something befell a queue pair.
    Qp(QpEvent),
    /// Traffic goes to a neighbour of a link that wants a connection.
    Wanted(LinkIndex, IpAddr),
    /// A datagram of the control lcore's was not taken.
    Refused {
        /// The link.
        link: LinkIndex,
        /// The datagram.
        buf: Mbuf,
        /// Why.
        error: PostError,
    },
    /// So many notes about queue pairs found the ring full since the last one that did not.
    EventsLost(u64),
    /// Times recorded since the last one.
    Latency(Box<Histogram<u32>>),
    /// Something about keys for messages in many buffers.
    Key(KeyNote),
    /// Something of the application's.
    App(N),
}

/// What was lost on the way between a control lcore and its workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Datagrams for which there was no buffer.
    pub no_buffers: u64,
    /// Datagrams that found a queue full.
    pub queue_full: u64,
    /// Datagrams that the device refused for another reason.
    pub refused: u64,
    /// Queue pair events that found the ring full: what waited for them went on by its timer.
    pub events: u64,
}

impl Losses {
    /// Counts a datagram that was not taken.
    pub(super) const fn count(&mut self, error: PostError) {
        match error {
            PostError::Full => self.queue_full += 1,
            PostError::TooManySegments | PostError::NoConnection | PostError::NotRegistered => {
                self.refused += 1
            }
        }
    }
}
