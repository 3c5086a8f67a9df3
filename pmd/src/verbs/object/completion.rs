//! Completion queues and their event channels.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs_sys as sys;

use super::super::device::Context;
use super::super::remedy;
use super::{complain, threads};
use crate::hca::HcaError;

threads! { CompletionChannel CompletionQueue }

/// Channel for events of completion queues.
#[derive(Debug)]
pub(in crate::verbs) struct CompletionChannel {
    raw: NonNull<sys::ibv_comp_channel>,
    _context: Arc<Context>,
}

impl CompletionChannel {
    pub(in crate::verbs) fn new(context: &Arc<Context>) -> Result<Self, HcaError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { sys::ibv_create_comp_channel(context.raw()) })
            .ok_or_else(|| remedy::last("creating a completion channel"))?;
        let channel = Self { raw, _context: Arc::clone(context) };
        let events = channel.events();
        fcntl_getfl(events).and_then(|flags| fcntl_setfl(events, flags | OFlags::NONBLOCK)).map_err(|e| {
            HcaError::Io { what: "setting a completion channel to not block".to_owned(), source: e.into() }
        })?;
        Ok(channel)
    }

    fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    /// Waits up to `at_most` for events and consumes all pending ones. Returns their number.
    pub(in crate::verbs) fn wait(&self, at_most: Duration) -> u32 {
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(self.events(), PollFlags::IN)];
        // An interrupted call ends the wait early.
        if !poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            return 0;
        }
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut count = 0;
        // SAFETY: a live, nonblocking channel; the results go to local variables.
        while unsafe { sys::ibv_get_cq_event(self.raw.as_ptr(), &mut cq, &mut context) } == 0 {
            count += 1;
            // SAFETY: the queue lives until its events are acknowledged, which is done here, once each.
            unsafe { sys::ibv_ack_cq_events(cq, 1) };
        }
        count
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: owned by `self`, and no completion queue uses it any more.
        complain("completion channel", unsafe { sys::ibv_destroy_comp_channel(self.raw.as_ptr()) });
    }
}

/// A completion queue.
#[derive(Debug)]
pub(in crate::verbs) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: Option<Arc<CompletionChannel>>,
    _context: Arc<Context>,
}

impl CompletionQueue {
    /// Creates a queue. It supports waiting if it has a channel.
    pub(in crate::verbs) fn new(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
    ) -> Result<Self, HcaError> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let to = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: the context is open; the channel, if any, is held as long as the queue.
        let raw = unsafe { sys::ibv_create_cq(context.raw(), entries, std::ptr::null_mut(), to, 0) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| remedy::last(format!("creating a completion queue of {entries} entries")))?;
        Ok(Self { raw, channel, _context: Arc::clone(context) })
    }

    /// Number of completions that it holds.
    pub(in crate::verbs) fn entries(&self) -> u32 {
        // SAFETY: live; the library sets it once, when the queue is made.
        u32::try_from(unsafe { (*self.raw()).cqe }).unwrap_or(u32::MAX)
    }

    /// Arms an event for the next completion. Returns false without a channel or if the provider does not
    /// support it.
    pub(in crate::verbs) fn arm(&self) -> bool {
        // SAFETY: live.
        self.channel.is_some() && unsafe { sys::inline::req_notify_cq(self.raw()) } == 0
    }

    /// Returns a descriptor that is readable when an armed event is pending.
    pub(in crate::verbs) fn events(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(|channel| channel.events())
    }

    /// Waits up to `at_most` for an armed event. Returns the number of events.
    pub(in crate::verbs) fn wait(&self, at_most: Duration) -> u32 {
        match &self.channel {
            Some(channel) => channel.wait(at_most),
            None => {
                std::thread::sleep(at_most);
                0
            }
        }
    }

    pub(in crate::verbs) const fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: owned by `self`, and no queue pair uses it any more.
        complain("completion queue", unsafe { sys::ibv_destroy_cq(self.raw()) });
    }
}

#[cfg(test)]
impl CompletionQueue {
    pub(super) fn played(context: Arc<Context>, raw: NonNull<sys::ibv_cq>) -> Self {
        Self { raw, channel: None, _context: context }
    }
}
