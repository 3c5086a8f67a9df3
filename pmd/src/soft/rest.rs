//! How a worker rests on the software device, and what wakes it.
//!
//! Each who rests has an epoll instance of its own. It is readable when
//!
//! * a completion came to its queue, in whoever's turn: the queue rings its bell;
//! * a packet came to a cable. That wakes all who rest: one of them gives the device the turn that takes the packet, and a bell tells
//!   whose it was;
//! * it is time for something that the device waits for.
//!
//! Asking comes first, then a look (a turn), then the rest. What a cable promised is used up by the packet that it tells of; who takes
//! its message has been busy by that ([`Engine::step`]) and asks anew before it rests, and with that for all the others.

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

/// How often cables are asked anew to wake: one that was plugged in since, or came back, has not been asked.
const AGAIN: Duration = Duration::from_millis(10);
/// Until the next look while the device has work that it cannot do: nobody tells when a cable has room again.
const HELD_UP: Duration = Duration::from_micros(20);
/// Until the next look while no cable is asked: the device is kept busy by others, or has no cable that tells.
const UNTOLD: Duration = Duration::from_millis(2);

/// The arm word and the number of a completion queue, as written to the register that arms it.
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

/// One worker's rests.
#[derive(Debug)]
pub(super) struct Rest {
    wakers: OwnedFd,
    bell: OwnedFd,
    timer: OwnedFd,
    /// The completion queue that rings the bell.
    queue: Option<u32>,
    /// It has asked, and nothing has come since.
    asked: bool,
    /// When the cables were asked.
    cables: Option<Instant>,
    /// When the timer ends.
    due: Option<Instant>,
}

impl Rest {
    /// Nothing asked yet. An error is one of the limits on descriptors.
    pub(super) fn new() -> rustix::io::Result<Self> {
        let this = Self {
            wakers: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?,
            queue: None,
            asked: false,
            cables: None,
            due: None,
        };
        for waker in [&this.bell, &this.timer] {
            this.watch(waker.as_fd())?;
        }
        Ok(this)
    }

    /// Each arrival tells once: who was woken takes all there is. One that is closed is out of it by itself.
    fn watch(&self, waker: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        match epoll::add(&self.wakers, waker, epoll::EventData::new_u64(0), flags) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Asks to be woken. False if nobody would; what came before does not wake, so a look is to follow.
    pub(super) fn ask(&mut self, engine: &mut Engine, arming: Arming, now: Instant) -> bool {
        if self.queue != Some(arming.queue) {
            let Ok(bell) = self.bell.try_clone() else { return false };
            self.queue = engine.set_bell(arming.queue, bell).ok().map(|()| arming.queue);
        }
        self.asked = engine.arm_cq(arming.queue, arming.consumer, arming.solicited_only).is_ok();
        self.cables = None;
        self.ask_again(engine, now);
        self.asked
    }

    /// Before a look of who may rest on after it: asks cables that have not been asked, or not for long.
    pub(super) fn ask_again(&mut self, engine: &mut Engine, now: Instant) {
        if !self.asked || self.cables.is_some_and(|at| now.saturating_duration_since(at) < AGAIN) {
            return;
        }
        let told = engine.rest(now, |waker| {
            if let Err(e) = self.watch(waker) {
                tracing::debug!("a cable that does not wake: {e}");
            }
        });
        self.cables = told.then_some(now);
        let due = engine.next_deadline(now).map(|at| at.max(now + HELD_UP));
        self.set_timer(due.into_iter().chain((!told).then_some(now + UNTOLD)).min(), now);
    }

    fn set_timer(&mut self, due: Option<Instant>, now: Instant) {
        if due == self.due {
            return;
        }
        let wait = due.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let it_value = timespec(wait);
        let time = Itimerspec { it_interval: timespec(Duration::ZERO), it_value };
        // Without it, a rest is as long as it was to be.
        self.due = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time).ok().and(due);
    }

    /// True between a question and what comes: each turn may be the last one before a rest.
    #[inline]
    pub(super) const fn is_asked(&self) -> bool {
        self.asked
    }

    /// There was something to do.
    #[inline]
    pub(super) const fn end(&mut self) {
        self.asked = false;
    }

    /// Readable when something came.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        self.wakers.as_fd()
    }

    /// Waits until something comes, `at_most` that long. True if it did.
    pub(super) fn wait(&mut self, at_most: Duration) -> bool {
        let mut events = [MaybeUninit::uninit(); 8];
        // An interrupted wait is a short one.
        let woken = epoll::wait(&self.wakers, &mut events[..], Some(&timespec(at_most)))
            .is_ok_and(|(new, _)| !new.is_empty());
        self.asked &= !woken;
        woken
    }
}

const fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos() as i64 }
}
