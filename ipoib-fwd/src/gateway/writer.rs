//! The thread that writes captures, so that a slow or hung disk delays nothing else.
//!
//! It receives packets through the rings of workers' taps, which drop and count what does not fit. It accepts
//! orders and reports their outcome. [`Progress`] shows the amount written and the time of its last iteration
//! at any moment.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use dataplane::capture::{Capture, CaptureError, Order, Progress, Recording, State};
use privileges::{Filter, FilterError};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tap::Tap;

/// The thread's name.
const NAME: &str = "captures";
/// Sleep between two polls of taps that were empty.
const NAP: Duration = Duration::from_millis(1);
/// How long it continues at the end of a capture if workers do not release it. Tests allow for a busy host.
const LAST_SPELL: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 1 });
/// Capacity of the queue of orders: those of one capture, and the last one.
const ORDERS: usize = 4;

/// An order to the thread.
#[derive(Debug)]
pub(super) enum Task {
    /// Everything is open: apply this filter, and write from now on.
    Settle(Option<Filter>),
    /// Start a recording of this number of workers in this directory.
    Begin(PathBuf, Order, u8),
    /// Stop the recording.
    Stop,
    /// Stop any recording, and exit.
    Finish,
}

/// A report of the thread.
#[derive(Debug)]
pub(super) enum News {
    /// Whether the filter was applied.
    Settled(Result<(), FilterError>),
    /// A recording has started: these taps are for the workers, in their order.
    Begun(Vec<Tap>, Progress),
    /// The recording could not start.
    Refused(CaptureError),
    /// A capture has ended: it is complete, was stopped, or failed.
    Ended(End),
}

/// How a capture has ended.
#[derive(Debug)]
pub(super) enum End {
    Ordered,
    Stopped,
    Failed(CaptureError),
}

/// Time of the thread's last iteration.
#[derive(Clone, Debug)]
struct Sign {
    since: Instant,
    /// Milliseconds since `start`.
    last: Arc<AtomicU64>,
}

impl Sign {
    fn new() -> Self {
        Self { since: Instant::now(), last: Arc::default() }
    }

    fn give(&self, now: Instant) {
        self.last.store(now.saturating_duration_since(self.since).as_millis() as u64, Ordering::Relaxed);
    }

    fn silence(&self, now: Instant) -> Duration {
        let last = self.since + Duration::from_millis(self.last.load(Ordering::Relaxed));
        now.saturating_duration_since(last)
    }
}

/// The owner's handle of the thread.
#[derive(Debug)]
pub(super) struct Writer {
    tasks: SyncSender<Task>,
    news: Receiver<News>,
    sign: Sign,
}

impl Writer {
    /// Starts the thread on these CPUs, with a capture of everything if requested. It does nothing before
    /// [`Self::settle`].
    pub(super) fn start(capture: Option<Capture>, cpus: Option<CpuSet>) -> std::io::Result<Self> {
        let (this, thread) = Self::ends();
        std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            if let Some(cpus) = cpus {
                // On other CPUs it slows down the control lcore, which is not an error.
                let _ = sched_setaffinity(None, &cpus);
            }
            thread.serve(capture);
        })?;
        Ok(this)
    }

    fn ends() -> (Self, Thread) {
        let (tasks, ordered) = mpsc::sync_channel(ORDERS);
        let (sender, news) = mpsc::channel();
        let sign = Sign::new();
        (Self { tasks, news, sign: sign.clone() }, Thread { tasks: ordered, news: sender, sign })
    }

    /// A handle whose thread is simulated by a test.
    #[cfg(test)]
    pub(super) fn played() -> (Self, Receiver<Task>, Sender<News>) {
        let (this, Thread { tasks, news, .. }) = Self::ends();
        (this, tasks, news)
    }

    /// Everything is open: the thread restricts its system calls, and writes from now on.
    pub(super) fn settle(&self, filter: Option<Filter>) -> Result<(), FilterError> {
        self.order(Instant::now(), Task::Settle(filter));
        match self.news.recv() {
            Ok(News::Settled(outcome)) => outcome,
            // It reports nothing else first. If it has exited, the next caller of [`Self::news`] finds out.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Sends an order to the thread. False if its queue is full or the thread has exited.
    pub(super) fn order(&self, now: Instant, task: Task) -> bool {
        // The thread had no reason to iterate before these orders.
        if matches!(task, Task::Settle(_) | Task::Begin(..)) {
            self.sign.give(now);
        }
        self.tasks.try_send(task).is_ok()
    }

    /// The next report, if there is one. An error if the thread has exited.
    pub(super) fn news(&self) -> Result<Option<News>, Gone> {
        match self.news.try_recv() {
            Ok(news) => Ok(Some(news)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    /// The next report; waits for it until `end`.
    pub(super) fn news_until(&self, end: Instant) -> Result<Option<News>, Gone> {
        match self.news.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(news) => Ok(Some(news)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Gone),
        }
    }

    /// Time since its last iteration while it has work to do.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        self.sign.silence(now)
    }
}

/// The thread has exited.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the thread that writes captures has ended; restart the gateway to capture again")]
pub(super) struct Gone;

/// The thread's side of the channels.
#[derive(Debug)]
struct Thread {
    tasks: Receiver<Task>,
    news: Sender<News>,
    sign: Sign,
}

impl Thread {
    fn report(&self, news: News) {
        // The receiver is gone when the gateway is.
        let _ = self.news.send(news);
    }

    fn come_round(&self) {
        self.sign.give(Instant::now());
    }

    fn serve(&self, capture: Option<Capture>) {
        let Ok(Task::Settle(filter)) = self.tasks.recv() else { return };
        let settled = filter.map_or(Ok(()), |filter| filter.apply());
        let is_settled = settled.is_ok();
        self.report(News::Settled(settled));
        if !is_settled {
            return;
        }
        if let Some(capture) = capture {
            let end = self.write_all(capture).map_or_else(End::Failed, |()| End::Stopped);
            self.report(News::Ended(end));
        }
        while let Ok(task) = self.tasks.recv() {
            match task {
                Task::Begin(directory, order, workers) => {
                    match Recording::begin(&directory, order, Instant::now()) {
                        Ok(recording) => self.write(recording, workers),
                        Err(error) => self.report(News::Refused(error)),
                    }
                }
                // The capture has already ended.
                Task::Stop | Task::Settle(_) => {}
                Task::Finish => return,
            }
        }
    }

    /// True if there is an order, which can only be to stop this capture, or if the owner is gone.
    fn is_to_end(&self, was_busy: bool) -> bool {
        self.come_round();
        let pause = if was_busy { Duration::ZERO } else { NAP };
        !matches!(self.tasks.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }

    fn write(&self, mut recording: Recording, workers: u8) {
        let taps = (0..workers).map(|_| recording.tap()).collect();
        self.report(News::Begun(taps, recording.progress()));
        let end = loop {
            match recording.drain(Instant::now()) {
                Err(error) => break End::Failed(error),
                Ok(State::Done) => break End::Ordered,
                Ok(state) if !self.is_to_end(state == State::Busy) => {}
                Ok(_) => break recording.drain_all(LAST_SPELL).map_or_else(End::Failed, |()| End::Stopped),
            }
        };
        recording.leave_rest();
        self.report(News::Ended(end));
        // A worker must not free memory.
        while !recording.is_let_go() {
            std::thread::sleep(NAP);
        }
    }

    /// Writes all packets until the gateway exits.
    fn write_all(&self, mut capture: Capture) -> Result<(), CaptureError> {
        let outcome = self.write_until_end(&mut capture);
        capture.leave_rest();
        outcome
    }

    fn write_until_end(&self, capture: &mut Capture) -> Result<(), CaptureError> {
        while !self.is_to_end(capture.drain()? > 0) {}
        let begin = Instant::now();
        while capture.drain()? > 0 && begin.elapsed() < LAST_SPELL {}
        Ok(())
    }
}

/// The CPUs for a thread that should not disturb the lcores: the CPUs of the process before EAL started,
/// without the lcores' CPUs. If all belong to lcores, those of no worker.
pub(super) fn spare_cpus(before: &CpuSet, main: &CpuSet, workers: &[CpuSet]) -> Option<CpuSet> {
    let without = |taken: &dyn Fn(usize) -> bool| {
        let mut left = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu) && !taken(cpu)).for_each(|cpu| left.set(cpu));
        (left.count() > 0).then_some(left)
    };
    let of_worker = |cpu: usize| workers.iter().any(|worker| worker.is_set(cpu));
    without(&|cpu| of_worker(cpu) || main.is_set(cpu)).or_else(|| without(&of_worker))
}

/// The CPUs of the calling thread.
pub(super) fn own_cpus() -> CpuSet {
    sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new())
}

#[cfg(test)]
mod tests;
