//! The data path of a device: one worker's queues.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use ::hca::{BURST, Checksum, PostError, QpEvent, QueuesId, RcSlot, Source, UdSlot};
use arrayvec::ArrayVec;
use ib_wire::Qpn;

use crate::mem::{Mbuf, Single};

/// Messages received by one poll.
pub type RxBurst = ArrayVec<Received, BURST>;

/// A received message.
#[derive(Debug)]
pub struct Received<P = Mbuf> {
    /// The message. Its data starts at the IPoIB header. A datagram's 40-byte GRH area lies directly in front
    /// of the data.
    pub buf: P,
    /// Local queue pair that received it.
    pub qpn: Qpn,
    /// The datagram queue pair that received it, or the one of the connection's link. `None` if the
    /// connection is not in the table, or no longer.
    pub ud: Option<UdSlot>,
    /// The connection that received it, if it is in the table.
    pub rc: Option<RcSlot>,
    /// Sender information.
    pub source: Source,
    /// The device's check of the IPv4 header after the IPoIB header. Unknown unless the device checks it
    /// ([`DeviceAttributes::checks_ipv4`](super::DeviceAttributes::checks_ipv4)).
    pub checksum: Checksum,
}

/// A rejected buffer with the reason.
#[derive(Debug)]
pub struct Refused {
    /// The buffer, unchanged.
    pub buf: Mbuf,
    /// The reason.
    pub error: PostError,
}

/// One worker's queues on one device. Not shared between threads.
///
/// They consist of the completion queues, a receive queue for all datagram queue pairs, another for all
/// connections, and the tables of both kinds of queue pairs. Datagrams cannot exhaust the receives of
/// connections, because these have a separate queue.
pub trait Queues: Send + std::fmt::Debug + 'static {
    /// Data path of a datagram queue pair, passed from [`super::Backend::create_ud`] to this worker.
    type Ud: Send + std::fmt::Debug + 'static;

    /// Data path of a connected queue pair, passed from [`super::Backend::create_rc`] to this worker.
    type Rc: Send + std::fmt::Debug + 'static;

    /// A datagram destination, prepared for posting.
    type Destination: Clone + Send + Sync + std::fmt::Debug + 'static;

    /// Returns the identifier of the queue set.
    fn id(&self) -> QueuesId;

    /// Lets a device in this process make progress; does nothing for hardware. Call it once per iteration.
    /// Returns true if the device did any work.
    fn turn(&mut self) -> bool;

    /// Posts a datagram on an open queue pair. The device sees it after the next [`Queues::ring`].
    fn send_ud(&mut self, slot: UdSlot, to: &Self::Destination, buf: Mbuf) -> Result<(), Refused>;

    /// Posts a message on a connection. The device sees it after the next [`Queues::ring`].
    fn send_rc(&mut self, slot: RcSlot, buf: Mbuf) -> Result<(), Refused>;

    /// Like [`Queues::send_ud`], for a single-segment datagram.
    #[inline]
    fn send_single_ud(
        &mut self,
        slot: UdSlot,
        to: &Self::Destination,
        message: Single,
    ) -> Result<(), Refused> {
        self.send_ud(slot, to, message.into())
    }

    /// Like [`Queues::send_rc`], for a single-segment message.
    #[inline]
    fn send_single_rc(&mut self, slot: RcSlot, message: Single) -> Result<(), Refused> {
        self.send_rc(slot, message.into())
    }

    /// True if the number of connections is so large that a sending one is not in a near cache, and
    /// prefetching pays off.
    fn are_many(&self) -> bool {
        false
    }

    /// Prefetches the memory that a message on a connection touches first.
    fn fetch(&self, _slot: RcSlot) {}

    /// Prefetches the entry that the next message on a connection fills. Call it some time after
    /// [`Queues::fetch`].
    fn fetch_entry(&self, _slot: RcSlot) {}

    /// Rings one doorbell for each queue pair with posts since the last call.
    fn ring(&mut self);

    /// Returns received messages, oldest first, up to the burst's capacity. Failed receives are freed and
    /// reported in `events`.
    fn poll_receive(&mut self, burst: &mut RxBurst, events: &mut ArrayVec<QpEvent, BURST>);

    /// Reaps send completions in batches and returns the buffers to their pools. Returns the number of
    /// buffers freed.
    fn poll_send(&mut self, events: &mut ArrayVec<QpEvent, BURST>) -> usize;

    /// Refills the receive queues from the pool. Returns the number of entries posted.
    fn refill(&mut self) -> usize;

    /// Inserts a datagram queue pair into the table, closed. If the slot is in use, the queue pair is
    /// returned.
    fn insert_ud(&mut self, slot: UdSlot, ud: Self::Ud) -> Result<(), Self::Ud>;

    /// Enables posting to a datagram queue pair, from its first entry.
    ///
    /// The queue pair is new, or went through RESET after [`Queues::close_ud`] with nothing outstanding. It
    /// is in INIT or a later state (IBA 10.3.1: nothing is posted in RESET).
    fn open_ud(&mut self, slot: UdSlot);

    /// Disables posting to a datagram queue pair: sends are rejected, and its own receive queue is not
    /// refilled. Move it to ERR before or after this call to get its buffers back.
    fn close_ud(&mut self, slot: UdSlot);

    /// Number of a datagram queue pair's pending items: sends, receives on its own queue, and messages
    /// received before it was closed. At 0, a closed queue pair in ERR can go to RESET or be removed.
    fn ud_outstanding(&self, slot: UdSlot) -> u32;

    /// Number of outstanding sends on a datagram queue pair. Its receives are not counted.
    fn ud_sends(&self, slot: UdSlot) -> u32;

    /// Removes a datagram queue pair from the table.
    fn remove_ud(&mut self, slot: UdSlot) -> Option<Self::Ud>;

    /// Returns the number of the datagram queue pair in a slot.
    fn ud_qpn(&self, slot: UdSlot) -> Option<Qpn>;

    /// Arms the device to report the next message. Returns false if it cannot; then only polling works.
    ///
    /// Earlier messages are not reported, so poll once more before [`Queues::wait`].
    fn arm(&mut self) -> bool {
        false
    }

    /// Returns a descriptor that is readable after the device has reported a message, so that
    /// [`Queues::wait`] returns at once. `None` if it does not report any.
    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Waits up to `at_most` for the device to report a message. Returns true if it did and must be armed
    /// again.
    fn wait(&mut self, at_most: Duration) -> bool {
        std::thread::sleep(at_most);
        false
    }

    /// Number of receives currently posted: (for datagrams, for connections).
    fn receives_posted(&self) -> (u32, u32);

    /// Limits the number of segments of a send on connections inserted later, below the device's own limit.
    /// Longer chains are rejected with [`PostError::TooManySegments`].
    fn limit_send_segments(&mut self, most: usize);

    /// Inserts a connected queue pair into the table. If the slot is in use, the queue pair is returned.
    fn insert_rc(&mut self, slot: RcSlot, rc: Self::Rc) -> Result<(), Self::Rc>;

    /// Posts the drain request on a connected queue pair in the error state (see
    /// [`QpFault::Drained`](super::QpFault::Drained)).
    fn post_drain(&mut self, slot: RcSlot) -> Result<(), PostError>;

    /// Removes a connected queue pair from the table.
    fn remove_rc(&mut self, slot: RcSlot) -> Option<Self::Rc>;

    /// Number of outstanding sends on a connected queue pair, including those that a driver posts to request
    /// completions.
    fn rc_outstanding(&self, slot: RcSlot) -> usize;
}
