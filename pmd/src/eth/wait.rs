//! Waiting for frames and for a device at once.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::EthQueue;
use super::waker::Told;

/// Most queues, and most devices, that are waited for at once; those behind them wake nobody.
pub const MOST_WAITED: usize = 16;

/// What ended a wait, beside time and the sockets of queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Woken {
    /// The interrupt of a queue, or the end of what woke it, which has to be asked for again ([`EthQueue::disarm`], [`EthQueue::arm`]).
    pub interrupt: bool,
    /// A device that tells.
    pub device: bool,
}

fn wanted(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Waits until one of these queues has a frame or one of these devices' descriptors is readable, `at_most` that long. Queues of ports
/// that do not tell, and those whose interrupt nobody asked for ([`EthQueue::arm`]), wake nobody.
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
    // An interrupted wait is a short one.
    if !poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
        return Woken::default();
    }
    let found: ArrayVec<PollFlags, { 2 * MOST_WAITED }> = fds.iter().map(PollFd::revents).collect();
    drop(fds);
    let (devices, ports) = found.split_at(count);
    let mut woken = Woken { interrupt: false, device: devices.iter().any(|flags| !flags.is_empty()) };
    for (queue, &flags) in waited.iter_mut().zip(ports) {
        match queue.waker.as_ref().map_or(Told::Nothing, |waker| waker.told(flags)) {
            Told::Nothing => {}
            Told::Interrupt => woken.interrupt = true,
            // Who rests is to ask anew, and learns that this one wakes no more.
            Told::Gone => (queue.waker, woken.interrupt) = (None, true),
        }
    }
    woken
}
