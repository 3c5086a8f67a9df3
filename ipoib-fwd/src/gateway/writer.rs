//! The thread that writes captures: a disk that is slow, or does not answer at all, holds up nobody else.
//!
//! Packets come to it by the rings of workers' taps, which lose what does not fit and count it. It takes orders and tells what became of them;
//! how much is written can be seen at any time ([`Progress`]), and when it has last come round.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use dataplane::capture::{Capture, CaptureError, Order, Progress, Recording, State};
use privileges::{Filter, FilterError};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tap::Tap;

/// Its name, for whoever lists threads.
const NAME: &str = "captures";
/// Between two looks at taps that had nothing.
const NAP: Duration = Duration::from_millis(1);
/// How long it goes on at the end of a capture, if workers do not let go of it. Tests give it time on a busy machine.
const LAST_SPELL: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 1 });
/// Orders that wait: of one capture, and the last one.
const ORDERS: usize = 4;

/// What it is to do.
#[derive(Debug)]
pub(super) enum Task {
    /// All is open: write from here on, under this filter.
    Settle(Option<Filter>),
    /// Begin a recording of so many workers in this directory.
    Begin(PathBuf, Order, u8),
    /// End it.
    Stop,
    /// End whatever there is, and itself.
    Finish,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum News {
    /// It is under its filter, or not.
    Settled(Result<(), FilterError>),
    /// A recording has begun: these taps are for workers, in their order.
    Begun(Vec<Tap>, Progress),
    /// It could not begin.
    Refused(CaptureError),
    /// A capture has ended: it has what was ordered, was stopped, or failed.
    Ended(End),
}

/// How a capture has ended.
#[derive(Debug)]
pub(super) enum End {
    Ordered,
    Stopped,
    Failed(CaptureError),
}

/// When the thread has last come round.
#[derive(Clone, Debug)]
struct Sign {
    since: Instant,
    /// Milliseconds from then on.
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

/// The thread, for those who have it write.
#[derive(Debug)]
pub(super) struct Writer {
    tasks: SyncSender<Task>,
    news: Receiver<News>,
    sign: Sign,
}

impl Writer {
    /// Makes it, on these processors, with a capture of all that it is to write. It does nothing before it is [settled](Self::settle).
    pub(super) fn start(capture: Option<Capture>, cpus: Option<CpuSet>) -> std::io::Result<Self> {
        let (this, thread) = Self::ends();
        std::thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            if let Some(cpus) = cpus {
                // Where it runs otherwise is slower for the control lcore, and no error.
                let _ = sched_setaffinity(None, &cpus);
            }
            thread.serve(capture);
        })?;
        Ok(this)
    }

    fn ends() -> (Self, Thread) {
        let (tasks, ordered) = mpsc::sync_channel(ORDERS);
        let (tell, news) = mpsc::channel();
        let sign = Sign::new();
        (Self { tasks, news, sign: sign.clone() }, Thread { tasks: ordered, news: tell, sign })
    }

    /// One whose thread is a test's to play.
    #[cfg(test)]
    pub(super) fn played() -> (Self, Receiver<Task>, Sender<News>) {
        let (this, Thread { tasks, news, .. }) = Self::ends();
        (this, tasks, news)
    }

    /// All is open: it narrows its system calls, and writes from here on.
    pub(super) fn settle(&self, filter: Option<Filter>) -> Result<(), FilterError> {
        self.order(Instant::now(), Task::Settle(filter));
        match self.news.recv() {
            Ok(News::Settled(outcome)) => outcome,
            // It tells nothing else first; if it has ended, whoever looks for news finds that.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Has it do something, when it comes round. False if it does not take anything.
    pub(super) fn order(&self, now: Instant, task: Task) -> bool {
        // Before these it had nothing to come round for.
        if matches!(task, Task::Settle(_) | Task::Begin(..)) {
            self.sign.give(now);
        }
        self.tasks.try_send(task).is_ok()
    }

    /// What it tells, if it does. An error if it has ended.
    pub(super) fn news(&self) -> Result<Option<News>, Gone> {
        match self.news.try_recv() {
            Ok(news) => Ok(Some(news)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    /// The same, which is waited for until then at most.
    pub(super) fn news_until(&self, end: Instant) -> Result<Option<News>, Gone> {
        match self.news.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(news) => Ok(Some(news)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Gone),
        }
    }

    /// How long it has not come round, while it has something to do.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        self.sign.silence(now)
    }
}

/// The thread is no more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the thread that writes captures has ended; restart the gateway to capture again")]
pub(super) struct Gone;

/// The thread's own end.
#[derive(Debug)]
struct Thread {
    tasks: Receiver<Task>,
    news: Sender<News>,
    sign: Sign,
}

impl Thread {
    fn tell(&self, news: News) {
        // Whoever wanted to know is gone when the gateway is.
        let _ = self.news.send(news);
    }

    fn come_round(&self) {
        self.sign.give(Instant::now());
    }

    fn serve(&self, capture: Option<Capture>) {
        let Ok(Task::Settle(filter)) = self.tasks.recv() else { return };
        let settled = filter.map_or(Ok(()), |filter| filter.apply());
        let is_settled = settled.is_ok();
        self.tell(News::Settled(settled));
        if !is_settled {
            return;
        }
        if let Some(capture) = capture {
            let end = self.write_all(capture).map_or_else(End::Failed, |()| End::Stopped);
            self.tell(News::Ended(end));
        }
        while let Ok(task) = self.tasks.recv() {
            match task {
                Task::Begin(directory, order, workers) => {
                    match Recording::begin(&directory, order, Instant::now()) {
                        Ok(recording) => self.write(recording, workers),
                        Err(error) => self.tell(News::Refused(error)),
                    }
                }
                // What it was to end has ended by itself.
                Task::Stop | Task::Settle(_) => {}
                Task::Finish => return,
            }
        }
    }

    /// True if there is a task, which can only be to end this one, or nobody gives any more.
    fn is_to_end(&self, was_busy: bool) -> bool {
        self.come_round();
        let pause = if was_busy { Duration::ZERO } else { NAP };
        !matches!(self.tasks.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }

    fn write(&self, mut recording: Recording, workers: u8) {
        let taps = (0..workers).map(|_| recording.tap()).collect();
        self.tell(News::Begun(taps, recording.progress()));
        let end = loop {
            match recording.drain(Instant::now()) {
                Err(error) => break End::Failed(error),
                Ok(State::Done) => break End::Ordered,
                Ok(state) if !self.is_to_end(state == State::Busy) => {}
                Ok(_) => break recording.drain_all(LAST_SPELL).map_or_else(End::Failed, |()| End::Stopped),
            }
        };
        recording.leave_rest();
        self.tell(News::Ended(end));
        // A worker is to free nothing.
        while !recording.is_let_go() {
            std::thread::sleep(NAP);
        }
    }

    /// Everything there is, until the gateway ends.
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

/// The processors that a thread may have which is to keep out of the lcores' way: those of the process before EAL had any, without these.
/// If all are lcores', those that are no worker's.
pub(super) fn beside(before: &CpuSet, main: &CpuSet, workers: &[CpuSet]) -> Option<CpuSet> {
    let without = |taken: &dyn Fn(usize) -> bool| {
        let mut left = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu) && !taken(cpu)).for_each(|cpu| left.set(cpu));
        (left.count() > 0).then_some(left)
    };
    let of_worker = |cpu: usize| workers.iter().any(|worker| worker.is_set(cpu));
    without(&|cpu| of_worker(cpu) || main.is_set(cpu)).or_else(|| without(&of_worker))
}

/// The processors of the calling thread.
pub(super) fn own_cpus() -> CpuSet {
    sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new())
}

#[cfg(test)]
mod tests;
