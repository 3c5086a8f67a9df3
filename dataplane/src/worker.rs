//! The loop of a worker lcore.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a worker does when a turn found nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IdlePolicy {
    /// Polls on at once: the lowest latency; takes the whole CPU.
    Poll,
    /// Polls on after a CPU pause hint: lets the sibling thread run.
    Pause,
    /// Naps after a while, longer and longer: for CPUs that are shared.
    #[default]
    Sleep,
}

/// A burst of useful work, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Something was done.
    Busy,
    /// Nothing was there.
    Idle,
}

/// One worker's duty.
pub trait Worker {
    /// Takes one turn over all queues. Never waits.
    fn turn(&mut self) -> Turn;

    /// Called once in each loop in which [`Worker::turn`] was busy, with how long it took, in nanoseconds.
    fn record_service_time(&mut self, ns: u64);
}

/// What a running worker and its supervisor share.
#[derive(Debug, Default)]
pub struct Handle {
    stop: AtomicBool,
    /// Turns taken: the heartbeat.
    turns: AtomicU64,
}

impl Handle {
    /// A handle for a worker that has not started.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Asks the worker to return from [`run`] after its present turn.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Counts a turn, for a loop that is not [`run`]'s. Only one thread may.
    pub fn beat(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// Turns taken so far. It stands still only if the worker does.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }
}

/// Idle turns that are spun through before the first nap.
const SPINS: u32 = 256;
/// First nap.
const NAP_MIN: Duration = Duration::from_micros(20);
/// Longest nap: bounds the latency that sleeping adds.
const NAP_MAX: Duration = Duration::from_micros(2000);
/// How long naps stay short after work was seen: a conversation goes on.
const ATTENTIVE: Duration = Duration::from_millis(2);

/// The idle policy at work: call once per turn. Also for loops that are not a worker's.
#[derive(Debug)]
pub struct Idle {
    policy: IdlePolicy,
    idle_turns: u32,
    nap: Duration,
    attentive_until: Instant,
}

impl Idle {
    /// At the start of a loop.
    #[must_use]
    pub fn new(policy: IdlePolicy) -> Self {
        Self { policy, idle_turns: 0, nap: NAP_MIN, attentive_until: Instant::now() }
    }

    /// After a turn: waits as the policy says.
    pub fn after(&mut self, turn: Turn) {
        match (self.policy, turn) {
            (IdlePolicy::Poll, _) | (IdlePolicy::Pause, Turn::Busy) => {}
            (IdlePolicy::Pause, Turn::Idle) => std::hint::spin_loop(),
            (IdlePolicy::Sleep, Turn::Busy) => self.idle_turns = 0,
            (IdlePolicy::Sleep, Turn::Idle) => self.rest(),
        }
    }

    fn rest(&mut self) {
        self.idle_turns = self.idle_turns.saturating_add(1);
        if self.idle_turns < SPINS {
            std::hint::spin_loop();
            return;
        }
        let now = Instant::now();
        if self.idle_turns == SPINS {
            // Work was seen since the last nap.
            self.attentive_until = now + ATTENTIVE;
            self.nap = NAP_MIN;
        } else if now >= self.attentive_until {
            self.nap = (self.nap * 2).min(NAP_MAX);
        }
        std::thread::sleep(self.nap);
    }
}

/// Runs a worker until its handle says stop, and gives it back.
pub fn run<W: Worker>(mut worker: W, handle: &Handle, policy: IdlePolicy) -> W {
    let mut idle = Idle::new(policy);
    let clock = Clock::start();
    let mut begin = clock.now_ns();
    // Only this thread writes the heartbeat, so a plain store keeps it exact.
    let mut turns = handle.turns.load(Ordering::Relaxed);
    while !handle.stop.load(Ordering::Acquire) {
        let turn = worker.turn();
        let end = clock.now_ns();
        if turn == Turn::Busy {
            worker.record_service_time(end.saturating_sub(begin));
        }
        turns += 1;
        handle.turns.store(turns, Ordering::Release);
        idle.after(turn);
        begin = if turn == Turn::Busy { end } else { clock.now_ns() };
    }
    worker
}

/// Nanoseconds since its start. Reading it is no system call (vDSO).
#[derive(Clone, Copy, Debug)]
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn now_ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
