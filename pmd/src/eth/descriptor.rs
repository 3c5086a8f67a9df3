//! What a worker may wait on: descriptors that belong to drivers.

use std::os::fd::{AsFd, BorrowedFd, RawFd};

/// A descriptor of a driver, which has it open as long as the port is not closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor(pub(super) RawFd);

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the driver keeps it open until the port is closed, which who has this descriptor prevents (`Running`).
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}
