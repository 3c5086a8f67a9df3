//! The hot face of a device: one worker's queues.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use ::hca::{BURST, Checksum, PostError, QpEvent, QueuesId, RcSlot, Source, UdSlot};
use arrayvec::ArrayVec;
use ib_wire::Qpn;

use crate::mem::{Mbuf, Single};

/// Received messages of one poll.
pub type RxBurst = ArrayVec<Received, BURST>;

/// A message that arrived.
#[derive(Debug)]
pub struct Received<P = Mbuf> {
    /// The message: its data begins at the IPoIB header. A datagram's 40-byte GRH area lies right before the data.
    pub buf: P,
    /// The queue pair of ours that received it.
    pub qpn: Qpn,
    /// The datagram queue pair that received it, or beside which the connection stands; `None` if the connection is not in the
    /// table (yet, or any more).
    pub ud: Option<UdSlot>,
    /// The connection that it came by, if that is in the table.
    pub rc: Option<RcSlot>,
    /// How it came.
    pub source: Source,
    /// What the device says of the IPv4 header behind the IPoIB header; nothing where it does not look
    /// ([`DeviceAttributes::checks_ipv4`](super::DeviceAttributes::checks_ipv4)).
    pub checksum: Checksum,
}

/// A buffer that was not taken, and why.
#[derive(Debug)]
pub struct Refused {
    /// The buffer, unchanged.
    pub buf: Mbuf,
    /// The reason.
    pub error: PostError,
}

/// One worker's queues on one device: the completion queues, a receive queue that all datagram queue pairs share, one that all
/// connections share, and the tables of both kinds of queue pairs. Not shared between threads.
///
/// Datagrams cannot use up the connections' receives: those are a queue of their own.
pub trait Queues: Send + std::fmt::Debug + 'static {
    /// Hot half of a datagram queue pair, between [`super::Backend::create_ud`] and this worker.
    type Ud: Send + std::fmt::Debug + 'static;

    /// Hot half of a connected queue pair, between [`super::Backend::create_rc`] and this worker.
    type Rc: Send + std::fmt::Debug + 'static;

    /// A datagram destination, ready to be posted.
    type Destination: Clone + Send + Sync + std::fmt::Debug + 'static;

    /// Their name.
    fn id(&self) -> QueuesId;

    /// Gives a device that lives in this process a turn; nothing on hardware. Once per loop. Returns true if it did
    /// anything.
    fn turn(&mut self) -> bool;

    /// Queues a datagram on an open queue pair. The device sees it at the next [`Queues::ring`].
    fn send_ud(&mut self, slot: UdSlot, to: &Self::Destination, buf: Mbuf) -> Result<(), Refused>;

    /// Queues a message on a connection. The device sees it at the next [`Queues::ring`].
    fn send_rc(&mut self, slot: RcSlot, buf: Mbuf) -> Result<(), Refused>;

    /// As [`Queues::send_ud`], of a datagram of one segment that was looked at.
    #[inline]
    fn send_single_ud(
        &mut self,
        slot: UdSlot,
        to: &Self::Destination,
        message: Single,
    ) -> Result<(), Refused> {
        self.send_ud(slot, to, message.into())
    }

    /// As [`Queues::send_rc`], of a message of one segment that was looked at.
    #[inline]
    fn send_single_rc(&mut self, slot: RcSlot, message: Single) -> Result<(), Refused> {
        self.send_rc(slot, message.into())
    }

    /// True if connections are so many that one which sends lies in no near cache, and is worth being fetched before.
    fn are_many(&self) -> bool {
        false
    }

    /// Has the processor fetch what a message on a connection touches first.
    fn fetch(&self, _slot: RcSlot) {}

    /// Has it fetch what the next message on a connection is written into; a little later.
    fn fetch_entry(&self, _slot: RcSlot) {}

    /// Rings one doorbell for each queue pair that was posted to since the last call.
    fn ring(&mut self);

    /// Takes received messages, up to the burst's capacity, oldest first. Failed receives are freed and reported
    /// among `events`.
    fn poll_receive(&mut self, burst: &mut RxBurst, events: &mut ArrayVec<QpEvent, BURST>);

    /// Reaps send completions in batches: sent buffers go back to their pools. Returns how many buffers it freed.
    fn poll_send(&mut self, events: &mut ArrayVec<QpEvent, BURST>) -> usize;

    /// Fills the receive queues up from the pool. Returns how many entries it posted.
    fn refill(&mut self) -> usize;

    /// Takes a datagram queue pair into the table, closed; a taken slot hands it back.
    fn insert_ud(&mut self, slot: UdSlot, ud: Self::Ud) -> Result<(), Self::Ud>;

    /// Posts to a datagram queue pair, from its first entry: it is new, or went through RESET after [`Queues::close_ud`] with
    /// nothing outstanding, and is in INIT or beyond (IBA 10.3.1: nothing is posted in RESET).
    fn open_ud(&mut self, slot: UdSlot);

    /// Stops posting to a datagram queue pair: sends are refused, receives of its own not refilled. It goes to ERR, where it gives
    /// back what it has, before or after that.
    fn close_ud(&mut self, slot: UdSlot);

    /// What a datagram queue pair has not given back: sends, receives of its own, and what it received before it was closed. When
    /// it is 0 a closed one in ERR can go to RESET, or be removed.
    fn ud_outstanding(&self, slot: UdSlot) -> u32;

    /// Takes a datagram queue pair out of the table.
    fn remove_ud(&mut self, slot: UdSlot) -> Option<Self::Ud>;

    /// Number of the datagram queue pair in a slot.
    fn ud_qpn(&self, slot: UdSlot) -> Option<Qpn>;

    /// Asks the device to tell of the next message that arrives. False if it does not tell: then only looking helps. It does
    /// not tell of what came before, so look once more before [`Queues::wait`].
    fn arm(&mut self) -> bool {
        false
    }

    /// Readable when the device has told, and [`Queues::wait`] returns at once; `None` where it does not tell.
    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Waits until the device tells, `at_most` that long. True if it did and is to be asked again.
    fn wait(&mut self, at_most: Duration) -> bool {
        std::thread::sleep(at_most);
        false
    }

    /// Receives posted at this moment: (for datagrams, for connections).
    fn receives_posted(&self) -> (u32, u32);

    /// Sends on connections that are taken into the table from now on name no more pieces of memory than this, where devices would take
    /// more: what has more is refused ([`PostError::TooManySegments`]).
    fn limit_send_segments(&mut self, most: usize);

    /// Takes a connected queue pair into the table; a taken slot hands it back.
    fn insert_rc(&mut self, slot: RcSlot, rc: Self::Rc) -> Result<(), Self::Rc>;

    /// Posts the drain request on a connected queue pair that is in error (see [`QpFault::Drained`](super::QpFault::Drained)).
    fn post_drain(&mut self, slot: RcSlot) -> Result<(), PostError>;

    /// Takes a connected queue pair out of the table.
    fn remove_rc(&mut self, slot: RcSlot) -> Option<Self::Rc>;

    /// Sends outstanding on a connected queue pair; with those that a driver posts for itself, to fetch completions.
    fn rc_outstanding(&self, slot: RcSlot) -> usize;
}
