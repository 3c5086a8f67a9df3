//! A worker with additional measurements: the duration of its iterations, and preemptions of its processor
//! while it idles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dataplane::worker::{Turn, Wakes, Worker};
use hdrhistogram::Histogram;

use super::away::{Watch, spin};
use super::histogram;
use crate::pair::PATIENCE;

// Requests; another number is the time until which it must observe its processor.
const NOTHING: u64 = 0;
const TURNS: u64 = 1;

/// The request, and the answers.
#[derive(Debug)]
pub(super) struct Desk {
    order: AtomicU64,
    turns: Mutex<Histogram<u64>>,
    watch: Mutex<Watch>,
}

fn open<T>(drawer: &Mutex<T>) -> MutexGuard<'_, T> {
    drawer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    pub(super) fn new() -> Arc<Self> {
        let (turns, watch) = (Mutex::new(histogram()), Mutex::default());
        Arc::new(Self { order: AtomicU64::new(NOTHING), turns, watch })
    }

    /// Waits for the answer to the request.
    fn wait(&self) -> Result<(), String> {
        let begin = Instant::now();
        while self.order.load(Ordering::Acquire) != NOTHING {
            if begin.elapsed() > PATIENCE {
                return Err("a worker does not answer".to_owned());
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Nanoseconds of its busy iterations since the last query.
    pub(super) fn turns(&self) -> Result<Histogram<u64>, String> {
        self.order.store(TURNS, Ordering::Release);
        self.wait()?;
        Ok(std::mem::replace(&mut open(&self.turns), histogram()))
    }

    /// Requests an observation of its processor until a time; it does nothing else.
    pub(super) fn look(&self, until: u64) {
        self.order.store(until.max(TURNS + 1), Ordering::Release);
    }

    /// The result of the observation.
    pub(super) fn seen(&self) -> Result<Watch, String> {
        self.wait()?;
        Ok(std::mem::take(&mut open(&self.watch)))
    }
}

/// The worker.
pub(super) struct Watched<W> {
    pub(super) worker: W,
    turns: Histogram<u64>,
    desk: Arc<Desk>,
}

impl<W> Watched<W> {
    pub(super) fn new(worker: W, desk: &Arc<Desk>) -> Self {
        Self { worker, turns: histogram(), desk: Arc::clone(desk) }
    }

    #[cold]
    fn obey(&mut self, order: u64) {
        match order {
            TURNS => std::mem::swap(&mut self.turns, &mut open(&self.desk.turns)),
            until => *open(&self.desk.watch) = spin(until),
        }
        self.desk.order.store(NOTHING, Ordering::Release);
    }
}

impl<W: Worker> Worker for Watched<W> {
    #[inline]
    fn begin_turn(&mut self, now: Instant) {
        self.worker.begin_turn(now);
    }

    #[inline]
    fn turn(&mut self) -> Turn {
        match self.desk.order.load(Ordering::Acquire) {
            NOTHING => self.worker.turn(),
            order => {
                self.obey(order);
                // Idle iterations are not timed.
                Turn::Idle
            }
        }
    }

    fn record_service_time(&mut self, ns: u64) {
        self.turns.saturating_record(ns.max(1));
        self.worker.record_service_time(ns);
    }

    fn record_rest(&mut self, ns: u64) {
        self.worker.record_rest(ns);
    }

    fn arm(&mut self) -> Wakes {
        self.worker.arm()
    }

    fn disarm(&mut self) {
        self.worker.disarm();
    }

    fn rest(&mut self, at_most: Duration) -> bool {
        self.worker.rest(at_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane::worker::{Handle, IdlePolicy, run};
    use pmd::eal;

    struct Busy;

    impl Worker for Busy {
        fn turn(&mut self) -> Turn {
            Turn::Busy
        }

        fn record_service_time(&mut self, _ns: u64) {}
    }

    #[test]
    fn it_answers_between_its_turns_and_what_it_is_asked_for_is_no_turn() {
        eal::for_tests();
        let (desk, handle) = (Desk::new(), Handle::new());
        handle.set_idle(IdlePolicy::Poll);
        let (seen, turned) = std::thread::scope(|scope| {
            scope.spawn(|| run(Watched::new(Busy, &desk), &handle));
            desk.look(eal::tsc() + eal::tsc_hz() / 100);
            let seen = desk.seen();
            // On a busy machine it may not have run between two queries.
            let turned = (0..1000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                desk.turns().is_ok_and(|turns| !turns.is_empty())
            });
            handle.stop();
            (seen, turned)
        });
        assert!(seen.is_ok() && turned, "{seen:?}");
    }
}
