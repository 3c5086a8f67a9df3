//! What crosses the rings between an endpoint and its workers.

use std::net::Ipv4Addr;

use hdrhistogram::Histogram;
use pmd::hca::{QpEvent, Queues, RcSlot};
use pmd::mem::Mbuf;

use crate::link::ConnKey;

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
    /// Send a message as a datagram.
    SendUd {
        /// Where to.
        to: Q::Destination,
        /// Encapsulation header and what follows.
        buf: Mbuf,
    },
    /// Go on recording times into this histogram and give the present one back ([`Note::Latency`]).
    Latency(Box<Histogram<u32>>),
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
    /// Something befell a queue pair.
    Qp(QpEvent),
    /// Traffic goes to a neighbour that wants a connection.
    Wanted(Ipv4Addr),
    /// Times recorded since the last one.
    Latency(Box<Histogram<u32>>),
    /// Something of the application's.
    App(N),
}
