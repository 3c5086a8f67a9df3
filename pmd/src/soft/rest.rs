//! Sleep and wakeup of workers on the software device.
//!
//! Each sleeping worker has its own epoll instance. It becomes readable when one of these events occurs:
//!
//! * A completion is added to its queue, by any thread. The queue signals the worker's eventfd.
//! * A packet arrives on a cable. This wakes all sleeping workers. One of them advances the device, which
//!   takes the packet and signals its receiver.
//! * A deadline of the device expires.
//!
//! A worker first arms, then polls once more, then sleeps. A packet consumes the arming of its cable. The
//! worker that takes the packet is busy ([`Engine::step`]) and arms again, also for the others, before it
//! sleeps.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use connectx::engine::Engine;
use prm::ARM_SOLICITED;

/// Interval for arming cables again: a cable that was plugged in or came up later is not armed yet.
const AGAIN: Duration = Duration::from_millis(10);
/// Poll interval while the device has work that it cannot do: there is no wakeup when a cable has room again.
const HELD_UP: Duration = Duration::from_micros(20);
/// Poll interval while no cable is armed, because other threads keep the device busy or no cable supports
/// wakeups.
const UNARMED: Duration = Duration::from_millis(2);

/// Arm value and number of a completion queue, as written to its arm register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arming {
    queue: u32,
    consumer: u32,
    solicited_only: bool,
}

impl From<[u8; 8]> for Arming {
    fn from([w0, w1, w2, w3, n0, n1, n2, n3]: [u8; 8]) -> Self {
        let word = u32::from_be_bytes([w0, w1, w2, w3]);
        Self {
            queue: u32::from_be_bytes([n0, n1, n2, n3]),
            consumer: word & 0x00ff_ffff,
            solicited_only: word & ARM_SOLICITED != 0,
        }
    }
}

/// Sleep state of a worker.
#[derive(Debug)]
pub(super) struct Rest {
    wakers: OwnedFd,
    bell: OwnedFd,
    timer: OwnedFd,
    /// Completion queue that signals the eventfd.
    queue: Option<u32>,
    /// True if the queue is armed and nothing has arrived since.
    armed: bool,
    /// Time when the cables were armed.
    cables: Option<Instant>,
    /// Expiry of the timer.
    due: Option<Instant>,
}

impl Rest {
    /// Creates the unarmed state. Fails if a limit on file descriptors is reached.
    pub(super) fn new() -> rustix::io::Result<Self> {
        let this = Self {
            wakers: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?,
            queue: None,
            armed: false,
            cables: None,
            due: None,
        };
        for waker in [&this.bell, &this.timer] {
            this.watch(waker.as_fd())?;
        }
        Ok(this)
    }

    /// Adds an edge-triggered source: the woken worker handles everything that is pending. The kernel removes
    /// a closed descriptor.
    fn watch(&self, waker: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match epoll::add(&self.wakers, waker, epoll::EventData::new_u64(0), flags) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Arms the completion queue. Returns false if it cannot signal. Earlier completions do not wake the
    /// worker, so it must poll afterwards.
    pub(super) fn arm(&mut self, engine: &mut Engine, arming: Arming, now: Instant) -> bool {
        if self.queue != Some(arming.queue) {
            let Ok(bell) = self.bell.try_clone() else { return false };
            self.queue = engine.set_bell(arming.queue, bell).ok().map(|()| arming.queue);
        }
        self.armed = engine.arm_cq(arming.queue, arming.consumer, arming.solicited_only).is_ok();
        self.cables = None;
        self.arm_cables(engine, now);
        self.armed
    }

    /// Arms cables that are not armed, or not recently. Called before a poll that may be followed by a sleep.
    pub(super) fn arm_cables(&mut self, engine: &mut Engine, now: Instant) {
        if !self.armed || self.cables.is_some_and(|at| now.saturating_duration_since(at) < AGAIN) {
            return;
        }
        let armed = engine.rest(now, |waker| {
            if let Err(e) = self.watch(waker) {
                tracing::debug!("cannot wait for a cable: {e}");
            }
        });
        self.cables = armed.then_some(now);
        let due = engine.next_deadline(now).map(|at| at.max(now + HELD_UP));
        self.set_timer(due.into_iter().chain((!armed).then_some(now + UNARMED)).min(), now);
    }

    fn set_timer(&mut self, due: Option<Instant>, now: Instant) {
        if due == self.due {
            return;
        }
        let wait = due.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let it_value = timespec(wait);
        let time = Itimerspec { it_interval: timespec(Duration::ZERO), it_value };
        // If this fails, the sleep lasts for its full time.
        self.due = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time).ok().and(due);
    }

    /// True from arming to the next event. Each poll in between may be the last one before a sleep.
    #[inline]
    pub(super) const fn is_armed(&self) -> bool {
        self.armed
    }

    /// Disarms because there was work.
    #[inline]
    pub(super) const fn disarm(&mut self) {
        self.armed = false;
    }

    /// Returns a descriptor that is readable after an event.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.wakers.as_fd()
    }

    /// Waits up to `at_most` for an event. Returns true if there was one.
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        let mut events = [MaybeUninit::uninit(); 8];
        // An interrupted call ends the wait early.
        let woken = epoll::wait(&self.wakers, &mut events[..], Some(&timespec(at_most)))
            .is_ok_and(|(new, _)| !new.is_empty());
        self.armed &= !woken;
        woken
    }
}

const fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as i64 }
}
