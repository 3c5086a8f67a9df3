//! Asynchronous events, until the host fetches them.

use std::collections::VecDeque;

use hca::AsyncEvent;
use ib_wire::Qpn;

/// An event of the device. The provider turns numbers of queues into what its users call them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// As it is.
    Async(AsyncEvent),
    /// A queue pair that was told to drain its sends has done so.
    SqDrained(Qpn),
    /// The shared receive queue of this number fell below its limit.
    SrqLimit(u32),
    /// A link in the shared receive queue of this number leads out of its ring: it gives no receives any more.
    SrqError(u32),
    /// The completion queue of this number was full: completions are lost, and it takes none any more.
    CqOverrun(u32),
    /// The other end of a connection has asked for what cannot be, and no receive could say so: the queue pair is in error (IBA
    /// 11.6.3.2).
    QpRequestError(Qpn),
    /// The other end of a connection has reached for memory that it may not, and no receive could say so: the queue pair is in error.
    QpAccessError(Qpn),
}

/// Most events kept. Each queue pair raises few in its life; a host that never fetches them loses the rest.
const MAX_EVENTS: usize = 1 << 14;

/// The queue of events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    queue: VecDeque<DeviceEvent>,
    lost: u64,
}

impl Events {
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        self.push(DeviceEvent::Async(event));
    }

    pub(crate) fn push(&mut self, event: DeviceEvent) {
        if self.queue.len() < MAX_EVENTS {
            self.queue.push_back(event);
        } else {
            self.lost += 1;
        }
    }

    /// Events that were lost since there was room last.
    pub(crate) const fn take_lost(&mut self) -> u64 {
        std::mem::replace(&mut self.lost, 0)
    }

    pub(crate) fn next(&mut self) -> Option<DeviceEvent> {
        self.queue.pop_front()
    }
}
