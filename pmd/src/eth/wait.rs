//! Waits for frames and device events at the same time.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::EthQueue;
use super::waker::WakeEvent;

/// Maximum number of queues, and of devices, that are waited for. Any further ones do not end the wait.
pub const MOST_WAITED: usize = 16;

/// Reason for the end of a wait, other than a timeout or a readable socket of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Woken {
    /// A queue's interrupt, or the loss of its wakeup source. It must be armed again ([`EthQueue::disarm`],
    /// [`EthQueue::arm`]).
    pub interrupt: bool,
    /// A device event.
    pub device: bool,
}

fn wanted(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Waits up to `at_most` until a queue has a frame or a device's descriptor is readable.
///
/// Queues of ports without wakeups, and queues whose interrupt is not armed ([`EthQueue::arm`]), do not end
/// the wait.
pub fn wait<'q, 'd>(
    queues: impl Iterator<Item = &'q mut EthQueue>,
    devices: impl Iterator<Item = BorrowedFd<'d>>,
    at_most: Duration,
) -> Woken {
    let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
    let mut waited: ArrayVec<&mut EthQueue, MOST_WAITED> =
        queues.filter(|q| q.events().is_some()).take(MOST_WAITED).collect();
    let mut fds: ArrayVec<PollFd<'_>, { 2 * MOST_WAITED }> = devices.take(MOST_WAITED).map(wanted).collect();
    let count = fds.len();
    fds.extend(waited.iter().filter_map(|queue| queue.events()).map(wanted));
    // An interrupted call ends the wait early.
    if !poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
        return Woken::default();
    }
    let found: ArrayVec<PollFlags, { 2 * MOST_WAITED }> = fds.iter().map(PollFd::revents).collect();
    drop(fds);
    let (devices, ports) = found.split_at(count);
    let mut woken = Woken { interrupt: false, device: devices.iter().any(|flags| !flags.is_empty()) };
    for (queue, &flags) in waited.iter_mut().zip(ports) {
        match queue.waker.as_ref().map_or(WakeEvent::Nothing, |waker| waker.classify(flags)) {
            WakeEvent::Nothing => {}
            WakeEvent::Interrupt => woken.interrupt = true,
            // Return early so that the caller arms its queues again and sees that this one no longer wakes
            // it.
            WakeEvent::Gone => (queue.waker, woken.interrupt) = (None, true),
        }
    }
    woken
}
