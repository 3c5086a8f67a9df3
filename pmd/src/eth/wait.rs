//! Waiting for frames and for a device at once.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_error;

use super::EthQueue;

/// Most queues, and most devices, that are waited for at once; those behind them wake nobody.
const MOST: usize = 16;

/// Waits until one of these queues has a frame or one of these devices' descriptors is readable, `at_most` that long. True if it is
/// a device that tells. Queues of ports that do not tell ([`EthQueue::events`]) wake nobody.
pub fn wait<'q>(
    queues: impl Iterator<Item = &'q EthQueue>,
    devices: impl Iterator<Item = BorrowedFd<'q>>,
    at_most: Duration,
) -> bool {
    let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
    let waited: ArrayVec<BorrowedFd<'_>, MOST> = queues.filter_map(EthQueue::events).take(MOST).collect();
    let wanted = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds: ArrayVec<PollFd<'_>, { 2 * MOST }> = devices.take(MOST).map(wanted).collect();
    let count = fds.len();
    fds.extend(waited.iter().copied().map(wanted));
    // An interrupted wait is a short one.
    if !poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
        return false;
    }
    let (told, ports) = fds.split_at(count);
    // An interface that went down leaves an error which wakes until somebody asks for it.
    for (fd, queue) in ports.iter().zip(&waited) {
        if fd.revents().contains(PollFlags::ERR) {
            let _ = socket_error(queue);
        }
    }
    told.iter().any(|fd| !fd.revents().is_empty())
}
