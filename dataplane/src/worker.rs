//! The loop of a worker lcore.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Behavior of a worker after an iteration without work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IdlePolicy {
    /// Poll again immediately: minimum latency, full CPU load.
    Poll,
    /// Poll again after a CPU pause hint, which benefits the sibling hyperthread.
    Pause,
    /// Sleep after a while, with increasing duration, and wake up immediately for ports with wakeups. For
    /// shared CPUs.
    #[default]
    Sleep,
}

/// Result of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// There was work.
    Busy,
    /// There was no work.
    Idle,
}

/// Wakeup sources of a sleeping worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wakes {
    /// None: each sleep lasts for its full time.
    Nobody,
    /// Some of its ports. Traffic on the others waits for the end of the sleep.
    Some,
    /// All of its ports.
    All,
}

/// The work of one worker.
pub trait Worker {
    /// Called before each [`Worker::turn`] with the current time, which the loop reads anyway.
    fn begin_turn(&mut self, _now: Instant) {}

    /// Runs one iteration over all queues. Never waits.
    fn turn(&mut self) -> Turn;

    /// Called after each busy [`Worker::turn`] with its duration in nanoseconds.
    fn record_service_time(&mut self, ns: u64);

    /// Called after each [`Worker::rest`] with its duration in nanoseconds.
    fn record_rest(&mut self, _ns: u64) {}

    /// Arms the wakeup sources. Earlier events do not wake the worker, so the loop runs an iteration before
    /// [`Worker::rest`], unless there are no sources.
    fn arm(&mut self) -> Wakes {
        Wakes::Nobody
    }

    /// Called when there is work again or the worker will not sleep any more, after [`Worker::arm`] or
    /// [`Worker::rest`].
    fn disarm(&mut self) {}

    /// Sleeps up to `at_most`. Returns true if an event occurred and the sources must be armed again.
    fn rest(&mut self, at_most: Duration) -> bool {
        std::thread::sleep(at_most);
        false
    }
}

/// State shared by a running worker and its supervisor.
#[derive(Debug, Default)]
pub struct Handle {
    stop: AtomicBool,
    /// Idle policy, as [`IdlePolicy::code`].
    idle: AtomicU8,
}

impl IdlePolicy {
    const fn code(self) -> u8 {
        match self {
            Self::Sleep => 0,
            Self::Poll => 1,
            Self::Pause => 2,
        }
    }

    const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Poll,
            2 => Self::Pause,
            _ => Self::Sleep,
        }
    }
}

impl Handle {
    /// Creates a handle for a worker that has not started.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets the worker's idle policy.
    pub fn set_idle(&self, policy: IdlePolicy) {
        self.idle.store(policy.code(), Ordering::Relaxed);
    }

    /// Returns the worker's idle policy. The default is [`IdlePolicy::Sleep`].
    #[must_use]
    pub fn idle(&self) -> IdlePolicy {
        IdlePolicy::from_code(self.idle.load(Ordering::Relaxed))
    }

    /// Makes the worker return from [`run`] after its current iteration.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Number of idle iterations before the first sleep, about 15 us. If a sender or a fabric needs this CPU to
/// produce traffic, longer spinning delays it.
const SPINS: u32 = 32;
/// Minimum and maximum sleep if some traffic cannot wake the worker. The maximum limits the latency added by
/// sleeping.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));
/// Minimum and maximum sleep if all ports can wake the worker. Only requests of the control lcore wait for
/// the end of such a sleep. It reaches the maximum only if there were none for as long.
const RESTS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));
/// Time after work during which sleeps stay short, because more traffic of the same exchange is likely.
const ATTENTIVE: Duration = Duration::from_millis(2);

/// The idle policy state machine. Call it once per iteration.
#[derive(Debug)]
pub struct Idle {
    policy: IdlePolicy,
    idle_turns: u32,
    nap: Duration,
    attentive_until: Instant,
    /// Wakeup sources that were armed last.
    wakes: Wakes,
    /// True if they are armed and no event has occurred since.
    armed: bool,
}

impl Idle {
    /// Creates the initial state.
    #[must_use]
    pub fn new(policy: IdlePolicy) -> Self {
        Self {
            policy,
            idle_turns: 0,
            nap: NAPS.0,
            attentive_until: Instant::now(),
            wakes: Wakes::Nobody,
            armed: false,
        }
    }

    /// Switches to a policy.
    fn follow(&mut self, policy: IdlePolicy, worker: &mut impl Worker) {
        if policy != self.policy {
            self.wake(worker);
            self.policy = policy;
        }
    }

    /// Ends sleeping. The work may be the event that was armed, and the next sleep starts with arming.
    fn wake(&mut self, worker: &mut impl Worker) {
        if self.idle_turns >= SPINS {
            worker.disarm();
        }
        self.idle_turns = 0;
        self.armed = false;
    }

    /// Waits after an iteration as the policy requires.
    pub fn after(&mut self, turn: Turn, worker: &mut impl Worker) {
        match (self.policy, turn) {
            (IdlePolicy::Poll, _) | (IdlePolicy::Pause, Turn::Busy) => {}
            (IdlePolicy::Pause, Turn::Idle) => std::hint::spin_loop(),
            (IdlePolicy::Sleep, Turn::Busy) => self.wake(worker),
            (IdlePolicy::Sleep, Turn::Idle) => self.rest(worker),
        }
    }

    fn rest(&mut self, worker: &mut impl Worker) {
        self.idle_turns = self.idle_turns.saturating_add(1);
        if self.idle_turns < SPINS {
            std::hint::spin_loop();
            return;
        }
        let now = Instant::now();
        if self.idle_turns == SPINS {
            // There was work since the last sleep.
            self.attentive_until = now + ATTENTIVE;
            self.nap = NAPS.0;
        } else if now >= self.attentive_until {
            self.nap = (self.nap * 2).min(RESTS.1);
        }
        if !self.armed {
            self.wakes = worker.arm();
            self.armed = self.wakes != Wakes::Nobody;
            if self.armed {
                return;
            }
        }
        let (shortest, longest) = if self.wakes == Wakes::All { RESTS } else { NAPS };
        self.armed &= !worker.rest(self.nap.clamp(shortest, longest));
        worker.record_rest(now.elapsed().as_nanos() as u64);
    }
}

/// Runs a worker until its handle requests a stop, and returns it.
///
/// The idle policy is read from the handle in each idle iteration.
pub fn run<W: Worker>(mut worker: W, handle: &Handle) -> W {
    let mut idle = Idle::new(handle.idle());
    // Reading the clock is not a system call (vDSO).
    let mut begin = Instant::now();
    while !handle.stop.load(Ordering::Acquire) {
        worker.begin_turn(begin);
        let turn = worker.turn();
        let end = Instant::now();
        if turn == Turn::Busy {
            worker.record_service_time(end.saturating_duration_since(begin).as_nanos() as u64);
        }
        if turn == Turn::Idle {
            idle.follow(handle.idle(), &mut worker);
        }
        idle.after(turn, &mut worker);
        begin = if turn == Turn::Busy { end } else { Instant::now() };
    }
    worker
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that has work in some of its iterations and records the loop's calls.
    struct Script<'a> {
        busy: &'a [usize],
        turns: usize,
        /// True if the device supports wakeups; `signals` is true if it signals in each sleep.
        can_wake: bool,
        signals: bool,
        calls: Vec<&'static str>,
        /// Duration of each reported sleep.
        rested: Vec<u64>,
        handle: Arc<Handle>,
    }

    impl Worker for Script<'_> {
        fn turn(&mut self) -> Turn {
            self.turns += 1;
            self.calls.push("turn");
            if self.calls.iter().filter(|c| **c == "rest").count() >= 4 {
                self.handle.stop();
            }
            if self.busy.contains(&self.turns) { Turn::Busy } else { Turn::Idle }
        }

        fn record_service_time(&mut self, _ns: u64) {}

        fn arm(&mut self) -> Wakes {
            self.calls.push("arm");
            if self.can_wake { Wakes::Some } else { Wakes::Nobody }
        }

        fn disarm(&mut self) {
            self.calls.push("disarm");
        }

        fn rest(&mut self, at_most: Duration) -> bool {
            assert!(at_most <= NAPS.1);
            self.calls.push("rest");
            std::thread::sleep(Duration::from_micros(10));
            self.signals
        }

        fn record_rest(&mut self, ns: u64) {
            self.rested.push(ns);
        }
    }

    fn calls(can_wake: bool, signals: bool) -> Vec<&'static str> {
        let handle = Handle::new();
        let script = Script {
            busy: &[1, 3],
            turns: 0,
            can_wake,
            signals,
            calls: Vec::new(),
            rested: Vec::new(),
            handle: Arc::clone(&handle),
        };
        let Script { calls, rested, .. } = run(script, &handle);
        assert_eq!(rested.len(), calls.iter().filter(|c| **c == "rest").count());
        assert!(rested.iter().all(|ns| *ns >= 10_000), "{rested:?}");
        // All iterations before the first sleep spin.
        let first = calls.iter().position(|c| *c != "turn").unwrap();
        assert_eq!(first as u32, 3 + SPINS);
        calls[first..first + 9].to_vec()
    }

    #[test]
    fn a_turn_is_taken_between_asking_to_be_woken_and_resting() {
        let (turn, arm, rest) = ("turn", "arm", "rest");
        assert_eq!(calls(true, false), [arm, turn, rest, turn, rest, turn, rest, turn, rest]);
        assert_eq!(calls(true, true), [arm, turn, rest, turn, arm, turn, rest, turn, arm]);
        // It has no wakeup source: it sleeps for a fixed time and arms again.
        assert_eq!(calls(false, false), [arm, rest, turn, arm, rest, turn, arm, rest, turn]);
    }

    #[test]
    fn work_disarms_the_wakeup() {
        let look = 3 + SPINS as usize + 1;
        for busy in [look, look + 1] {
            let handle = Handle::new();
            let busy = [1, 3, busy];
            let script = Script {
                busy: &busy,
                turns: 0,
                can_wake: true,
                signals: false,
                calls: Vec::new(),
                rested: Vec::new(),
                handle,
            };
            let handle = Arc::clone(&script.handle);
            let calls = run(script, &handle).calls;
            let armed: Vec<_> =
                calls.iter().enumerate().filter(|(_, c)| **c == "arm").map(|(n, _)| n).collect();
            let &[_, again] = &armed[..] else { panic!("armed at {armed:?}") };
            assert_eq!(calls[again..again + 3], ["arm", "turn", "rest"]);
            // `disarm` is called once, right after the iteration that found work, and never without a sleep
            // before it.
            let disarmed: Vec<_> =
                calls.iter().enumerate().filter(|(_, c)| **c == "disarm").map(|(n, _)| n).collect();
            assert_eq!(disarmed.len(), 1, "{disarmed:?}");
            assert_eq!(calls[..=disarmed[0]].iter().filter(|c| **c == "turn").count(), busy[2]);
        }
    }

    #[test]
    fn rests_are_longest_where_all_ports_wake() {
        /// Finds no work, and records the requested sleep durations.
        struct Resting(Wakes, Vec<Duration>);

        impl Worker for Resting {
            fn turn(&mut self) -> Turn {
                Turn::Idle
            }

            fn record_service_time(&mut self, _ns: u64) {}

            fn arm(&mut self) -> Wakes {
                self.0
            }

            fn rest(&mut self, at_most: Duration) -> bool {
                self.1.push(at_most);
                false
            }
        }

        for (wakes, (shortest, longest)) in [(Wakes::Nobody, NAPS), (Wakes::Some, NAPS), (Wakes::All, RESTS)]
        {
            let mut worker = Resting(wakes, Vec::new());
            let mut idle = Idle::new(IdlePolicy::Sleep);
            while worker.1.last() != Some(&longest) {
                idle.after(Turn::Idle, &mut worker);
            }
            for _ in 0..100 {
                idle.after(Turn::Idle, &mut worker);
            }
            // Twice the minimum if the thread had no CPU for longer than [`ATTENTIVE`] before its first
            // sleep.
            assert!((shortest..=2 * shortest).contains(&worker.1[0]), "{:?}", worker.1[0]);
            assert_eq!(worker.1.iter().max(), Some(&longest));
            // Without wakeups the longer sleep no longer applies.
            worker.0 = Wakes::Nobody;
            idle.armed = false;
            worker.1.clear();
            idle.after(Turn::Idle, &mut worker);
            assert!(worker.1.iter().all(|rest| *rest <= NAPS.1), "{:?}", worker.1);
        }
    }

    #[test]
    fn what_an_idle_worker_does_changes_while_it_runs() {
        /// Sleeps only after the policy changes in its 1000th iteration, and not after its 4000th.
        struct Switching {
            turns: u32,
            first_rest: Option<u32>,
            last_rest: u32,
            disarmed: Vec<u32>,
            handle: Arc<Handle>,
        }
        impl Worker for Switching {
            fn turn(&mut self) -> Turn {
                self.turns += 1;
                if self.turns == 1000 {
                    self.handle.set_idle(IdlePolicy::Sleep);
                }
                if self.turns == 4000 {
                    self.handle.set_idle(IdlePolicy::Poll);
                }
                if self.turns == 5000 {
                    self.handle.stop();
                }
                Turn::Idle
            }

            fn record_service_time(&mut self, _ns: u64) {}

            fn rest(&mut self, _at_most: Duration) -> bool {
                self.first_rest.get_or_insert(self.turns);
                self.last_rest = self.turns;
                false
            }

            fn disarm(&mut self) {
                self.disarmed.push(self.turns);
            }
        }
        let handle = Handle::new();
        handle.set_idle(IdlePolicy::Poll);
        let switching = Switching {
            turns: 0,
            first_rest: None,
            last_rest: 0,
            disarmed: Vec::new(),
            handle: Arc::clone(&handle),
        };
        let switching = run(switching, &handle);
        assert!(switching.first_rest.is_some_and(|turn| (1000..1000 + 2 * SPINS).contains(&turn)));
        assert_eq!((switching.last_rest, switching.disarmed), (3999, vec![4000]));
        for policy in [IdlePolicy::Poll, IdlePolicy::Pause, IdlePolicy::Sleep] {
            handle.set_idle(policy);
            assert_eq!(handle.idle(), policy);
        }
    }
}
