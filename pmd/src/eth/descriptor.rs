//! File descriptors that belong to drivers and that a worker may wait on.

use std::os::fd::{AsFd, BorrowedFd, RawFd};

/// A driver's file descriptor. The driver keeps it open until the port is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor(pub(super) RawFd);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the driver keeps the descriptor open until the port is closed, which the holder of this
        // value prevents (`Running`).
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}
