//! Asynchronous events, queued until the host fetches them.

use std::collections::VecDeque;

use hca::AsyncEvent;
use ib_wire::Qpn;

/// An event of the device. The provider translates queue numbers into its users' handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// A generic asynchronous event.
    Async(AsyncEvent),
    /// A queue pair has drained its sends, as requested.
    SqDrained(Qpn),
    /// The shared receive queue of this number fell below its limit.
    SrqLimit(u32),
    /// A link in the shared receive queue of this number leads out of its ring: it supplies no more receives.
    SrqError(u32),
    /// The completion queue of this number was full: completions are lost, and it accepts no more.
    CqOverrun(u32),
    /// The peer of a connection sent an invalid request, and no receive could report it: the queue pair is in
    /// error (IBA 11.6.3.2).
    QpRequestError(Qpn),
    /// The peer of a connection accessed memory without permission, and no receive could report it: the queue
    /// pair is in error.
    QpAccessError(Qpn),
}

/// Capacity of the event queue. Each queue pair raises few events; a host that never fetches them loses the
/// rest.
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

    /// Returns and clears the number of events lost for lack of room.
    pub(crate) const fn take_lost(&mut self) -> u64 {
        std::mem::replace(&mut self.lost, 0)
    }

    pub(crate) fn next(&mut self) -> Option<DeviceEvent> {
        self.queue.pop_front()
    }
}
