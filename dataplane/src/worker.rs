//! The loop of a worker lcore.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// What a worker does when a turn found nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IdlePolicy {
    /// Polls on at once: the lowest latency; takes the whole CPU.
    Poll,
    /// Polls on after a CPU pause hint: lets the sibling thread run.
    Pause,
    /// Rests after a while, longer and longer, and wakes at once for what a port tells of: for CPUs that are shared.
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

/// Who wakes a worker that rests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wakes {
    /// Nobody: a rest is a nap.
    Nobody,
    /// Some of its ports; what comes to others waits for the end of a rest.
    Some,
    /// All of its ports.
    All,
}

/// One worker's duty.
pub trait Worker {
    /// Called before each [`Worker::turn`] with the time, which the loop reads anyway.
    fn begin_turn(&mut self, _now: Instant) {}

    /// Takes one turn over all queues. Never waits.
    fn turn(&mut self) -> Turn;

    /// Called once in each loop in which [`Worker::turn`] was busy, with how long it took, in nanoseconds.
    fn record_service_time(&mut self, ns: u64);

    /// Called after each [`Worker::rest`], with how long that took, in nanoseconds.
    fn record_rest(&mut self, _ns: u64) {}

    /// Asks to be woken when something comes. What came before does not wake, so a turn is taken between this and [`Worker::rest`],
    /// unless nobody will.
    fn arm(&mut self) -> Wakes {
        Wakes::Nobody
    }

    /// Called when it has work again or will rest no more, after it was asked to [`Worker::arm`] or to [`Worker::rest`].
    fn disarm(&mut self) {}

    /// Waits, `at_most` that long. True if something came and has to be asked for again.
    fn rest(&mut self, at_most: Duration) -> bool {
        std::thread::sleep(at_most);
        false
    }
}

/// What a running worker and its supervisor share.
#[derive(Debug, Default)]
pub struct Handle {
    stop: AtomicBool,
    /// What it does when idle, by [`IdlePolicy::code`].
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
    /// A handle for a worker that has not started.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What the worker does from now on when it is idle.
    pub fn set_idle(&self, policy: IdlePolicy) {
        self.idle.store(policy.code(), Ordering::Relaxed);
    }

    /// What the worker does when it is idle: [`IdlePolicy::Sleep`] until it is told otherwise.
    #[must_use]
    pub fn idle(&self) -> IdlePolicy {
        IdlePolicy::from_code(self.idle.load(Ordering::Relaxed))
    }

    /// Asks the worker to return from [`run`] after its present turn.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Idle turns that are spun through before the first rest: some 15 us. Where a sender or a fabric waits for this very processor it has nothing
/// to send before it gets it, so longer ones slow it down.
const SPINS: u32 = 32;
/// First and longest nap where something may come that wakes nobody: the latter bounds the latency that sleeping adds.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(2));
/// The same where all ports wake. Only what the control lcore asks for waits for the end of such a rest, and that gets so long in a worker only
/// that was asked for nothing for as long.
const RESTS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));
/// How long naps stay short after work was seen: a conversation goes on.
const ATTENTIVE: Duration = Duration::from_millis(2);

/// The idle policy at work: call once per turn.
#[derive(Debug)]
pub struct Idle {
    policy: IdlePolicy,
    idle_turns: u32,
    nap: Duration,
    attentive_until: Instant,
    /// Who wakes, of those that were asked last.
    wakes: Wakes,
    /// They have been asked, and nothing has come since.
    armed: bool,
}

impl Idle {
    /// At the start of a loop.
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

    /// From now on it waits as this policy says.
    fn follow(&mut self, policy: IdlePolicy, worker: &mut impl Worker) {
        if policy != self.policy {
            self.wake(worker);
            self.policy = policy;
        }
    }

    /// It rests no more: work may be what the device was asked to tell of, and a rest begins with asking.
    fn wake(&mut self, worker: &mut impl Worker) {
        if self.idle_turns >= SPINS {
            worker.disarm();
        }
        self.idle_turns = 0;
        self.armed = false;
    }

    /// After a turn: waits as the policy says.
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
            // Work was seen since the last nap.
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

/// Runs a worker until its handle says stop, and gives it back.
///
/// Idle, it does as the handle says at that moment.
pub fn run<W: Worker>(mut worker: W, handle: &Handle) -> W {
    let mut idle = Idle::new(handle.idle());
    // Reading the clock is no system call (vDSO).
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

    /// What a loop asks of a worker that has work in some of its turns.
    struct Script<'a> {
        busy: &'a [usize],
        turns: usize,
        /// The device can tell, and does so at each rest.
        tells: bool,
        told: bool,
        calls: Vec<&'static str>,
        /// Rests that were told of, each as long as it was.
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
            if self.tells { Wakes::Some } else { Wakes::Nobody }
        }

        fn disarm(&mut self) {
            self.calls.push("disarm");
        }

        fn rest(&mut self, at_most: Duration) -> bool {
            assert!(at_most <= NAPS.1);
            self.calls.push("rest");
            std::thread::sleep(Duration::from_micros(10));
            self.told
        }

        fn record_rest(&mut self, ns: u64) {
            self.rested.push(ns);
        }
    }

    fn calls(tells: bool, told: bool) -> Vec<&'static str> {
        let handle = Handle::new();
        let script = Script {
            busy: &[1, 3],
            turns: 0,
            tells,
            told,
            calls: Vec::new(),
            rested: Vec::new(),
            handle: Arc::clone(&handle),
        };
        let Script { calls, rested, .. } = run(script, &handle);
        assert_eq!(rested.len(), calls.iter().filter(|c| **c == "rest").count());
        assert!(rested.iter().all(|ns| *ns >= 10_000), "{rested:?}");
        // All the turns before the first rest are spun through.
        let first = calls.iter().position(|c| *c != "turn").unwrap();
        assert_eq!(first as u32, 3 + SPINS);
        calls[first..first + 9].to_vec()
    }

    #[test]
    fn a_turn_is_taken_between_asking_to_be_woken_and_resting() {
        let (turn, arm, rest) = ("turn", "arm", "rest");
        assert_eq!(calls(true, false), [arm, turn, rest, turn, rest, turn, rest, turn, rest]);
        assert_eq!(calls(true, true), [arm, turn, rest, turn, arm, turn, rest, turn, arm]);
        // Nothing will wake it: it naps, and asks again.
        assert_eq!(calls(false, false), [arm, rest, turn, arm, rest, turn, arm, rest, turn]);
    }

    #[test]
    fn work_takes_what_was_asked_for_with_it() {
        let look = 3 + SPINS as usize + 1;
        for busy in [look, look + 1] {
            let handle = Handle::new();
            let busy = [1, 3, busy];
            let script = Script {
                busy: &busy,
                turns: 0,
                tells: true,
                told: false,
                calls: Vec::new(),
                rested: Vec::new(),
                handle,
            };
            let handle = Arc::clone(&script.handle);
            let calls = run(script, &handle).calls;
            let asked: Vec<_> =
                calls.iter().enumerate().filter(|(_, c)| **c == "arm").map(|(n, _)| n).collect();
            let &[_, again] = &asked[..] else { panic!("asked at {asked:?}") };
            assert_eq!(calls[again..again + 3], ["arm", "turn", "rest"]);
            // It is told once, right after the turn that found work, and never without a rest before it.
            let told: Vec<_> =
                calls.iter().enumerate().filter(|(_, c)| **c == "disarm").map(|(n, _)| n).collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(calls[..=told[0]].iter().filter(|c| **c == "turn").count(), busy[2]);
        }
    }

    #[test]
    fn rests_are_longest_where_all_ports_wake() {
        /// Finds nothing, and notes how long its rests were to be.
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
            // Twice the shortest if the thread had no processor for longer than [`ATTENTIVE`] before its first rest.
            assert!((shortest..=2 * shortest).contains(&worker.1[0]), "{:?}", worker.1[0]);
            assert_eq!(worker.1.iter().max(), Some(&longest));
            // A port that wakes nobody any more waits for no longer rest.
            worker.0 = Wakes::Nobody;
            idle.armed = false;
            worker.1.clear();
            idle.after(Turn::Idle, &mut worker);
            assert!(worker.1.iter().all(|rest| *rest <= NAPS.1), "{:?}", worker.1);
        }
    }

    #[test]
    fn what_an_idle_worker_does_changes_while_it_runs() {
        /// Rests only after it was told to sleep, in its thousandth turn, and no more after its four thousandth.
        struct Told {
            turns: u32,
            first_rest: Option<u32>,
            last_rest: u32,
            disarmed: Vec<u32>,
            handle: Arc<Handle>,
        }
        impl Worker for Told {
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
        let told = Told {
            turns: 0,
            first_rest: None,
            last_rest: 0,
            disarmed: Vec::new(),
            handle: Arc::clone(&handle),
        };
        let told = run(told, &handle);
        assert!(told.first_rest.is_some_and(|turn| (1000..1000 + 2 * SPINS).contains(&turn)));
        assert_eq!((told.last_rest, told.disarmed), (3999, vec![4000]));
        for policy in [IdlePolicy::Poll, IdlePolicy::Pause, IdlePolicy::Sleep] {
            handle.set_idle(policy);
            assert_eq!(handle.idle(), policy);
        }
    }
}
