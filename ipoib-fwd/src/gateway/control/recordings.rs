//! Captures on the control lcore: it sends orders to the thread that writes ([`Writer`]), taps to workers,
//! and the outcome to clients. Workers have no tap while nothing is recorded.

use std::io;
use std::time::{Duration, Instant};

use dataplane::capture::{CaptureError, Order, Progress};
use dataplane::telemetry::{Answer, Reply};
use ipoib::link::WorkerIndex;
use pmd::hca::Backend;
use privileges::{Filter, FilterError};
use serde_json::{Value, json};
use tap::Tap;
use tokio::sync::oneshot;

use super::GatewayControl;
use crate::event::What;
use crate::forward::EndpointIndex;
use crate::gateway::worker::GatewayCommand;
use crate::gateway::writer::{End, Gone, News, Task, Writer};

/// Longest time that a client waits for the disk.
const PATIENCE: Duration = Duration::from_secs(3);
/// A thread that writes and has not iterated for this long is blocked by the disk.
const SILENCE: Duration = Duration::from_secs(1);
/// Longest time that the exit of the gateway waits for unwritten packets.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// The current capture and the last one.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Recordings {
    /// The thread that writes; `None` if captures are not possible.
    writer: Option<Writer>,
    phase: Phase,
    /// The outcome of the last capture.
    last: Option<Value>,
    /// Packets written and missing in captures that have ended.
    before: [u64; 2],
    /// It has been reported that the disk does not accept data.
    is_stalled: bool,
}

/// Phase of the current capture.
#[derive(Debug, Default)]
enum Phase {
    /// No capture.
    #[default]
    Nothing,
    /// Its first file is being created. Without a client, the client has given up.
    Begins(Option<Client>),
    /// It runs; `is_all`: it records everything from the start of the gateway.
    Runs { progress: Progress, is_all: bool },
    /// Its last packets are being written.
    Stops { progress: Progress, client: Option<Client> },
}

/// A client that waits for an answer, and until when.
#[derive(Debug)]
struct Client {
    answer: oneshot::Sender<Answer>,
    until: Instant,
}

impl Client {
    fn new(now: Instant) -> (Self, Reply) {
        let (answer, reply) = oneshot::channel();
        (Self { answer, until: now + PATIENCE }, Reply::Later(reply))
    }

    fn reply(self, answer: Answer) {
        // The client may be gone.
        let _ = self.answer.send(answer);
    }
}

/// An order to workers.
#[derive(Debug)]
enum Watch {
    /// Show frames to these taps, one for each worker.
    Begin(Vec<Tap>),
    /// Remove the taps.
    End,
}

/// Result of checking a capture.
#[derive(Debug, Default)]
struct Step {
    watch: Option<Watch>,
    /// An alarm for the operator.
    alarm: Option<(What, String)>,
}

/// Describes an error and its remedy.
fn why(error: &CaptureError) -> String {
    let hint = match error.source.kind() {
        io::ErrorKind::AlreadyExists => "; choose another name",
        io::ErrorKind::NotFound => "; make the directory gateway.captures",
        io::ErrorKind::PermissionDenied => {
            "; the user that the gateway runs as must own the directory gateway.captures ([gateway] user; root without capabilities needs \
             root's permissions there)"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "; the service may not write there: choose a directory that its unit lets it write (ReadWritePaths=, StateDirectory=)"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room, or order fewer or smaller files"
        }
        _ => "",
    };
    format!("{error}: {}{hint}", error.source)
}

/// State and counters of a capture and, if it failed, the reason.
fn facts(progress: &Progress, state: &str, why: Option<&str>) -> Value {
    let [packets, seen, missing] = progress.counts();
    let files: Vec<_> = progress.files().iter().map(|file| file.display().to_string()).collect();
    let mut all =
        json!({"state": state, "packets": packets, "seen": seen, "missing": missing, "files": files});
    if let (Some(all), Some(why)) = (all.as_object_mut(), why) {
        all.insert("why".to_owned(), why.into());
    }
    all
}

impl Recordings {
    /// With a thread that writes, and its capture of everything, if it has one.
    pub(in crate::gateway) fn new(writer: Writer, all: Option<Progress>) -> Self {
        let phase = all.map_or(Phase::Nothing, |progress| Phase::Runs { progress, is_all: true });
        Self { writer: Some(writer), phase, ..Self::default() }
    }

    /// Everything is open: the thread restricts its system calls, and writes from now on.
    pub(in crate::gateway) fn settle(&self, filter: Option<Filter>) -> Result<(), FilterError> {
        self.writer.as_ref().map_or(Ok(()), |writer| writer.settle(filter))
    }

    /// State of the current capture, or of the last one.
    pub(super) fn facts(&self, now: Instant) -> Value {
        let mut all = match (&self.phase, &self.last) {
            (Phase::Begins(_), _) => json!({"state": "begins"}),
            (Phase::Runs { progress, .. }, _) => facts(progress, "captures", None),
            (Phase::Stops { progress, .. }, _) => facts(progress, "stops", None),
            (Phase::Nothing, Some(last)) => return last.clone(),
            (Phase::Nothing, None) => return json!({"state": "nothing was captured"}),
        };
        if let (Some(silence), Some(all)) = (self.silence(now), all.as_object_mut()) {
            all.insert("disk_silent_ms".to_owned(), (silence.as_millis() as u64).into());
        }
        all
    }

    /// Packets of all captures: written, and missing.
    pub(super) fn totals(&self) -> [u64; 2] {
        let [mut written, mut missing] = self.before;
        if let Phase::Runs { progress, .. } | Phase::Stops { progress, .. } = &self.phase {
            let [packets, _, lost] = progress.counts();
            (written, missing) = (written + packets, missing + lost);
        }
        [written, missing]
    }

    /// Time since the disk last accepted data, if it is long.
    fn silence(&self, now: Instant) -> Option<Duration> {
        let silence = self.writer.as_ref()?.silence(now);
        (silence >= SILENCE && !matches!(self.phase, Phase::Nothing)).then_some(silence)
    }

    /// Starts a capture in a directory.
    fn begin(
        &mut self,
        now: Instant,
        directory: Option<&std::path::Path>,
        order: &str,
        workers: u8,
    ) -> Result<Reply, String> {
        match &self.phase {
            Phase::Nothing => {}
            Phase::Runs { is_all: true, .. } => {
                return Err(
                    "the gateway was started with --capture, which captures everything; start it without"
                        .to_owned(),
                );
            }
            Phase::Runs { .. } => return Err("a capture is running; stop it first".to_owned()),
            Phase::Begins(_) => return Err("a capture is starting; try again in a moment".to_owned()),
            Phase::Stops { .. } => {
                return Err("the last capture is still being written; `ipoib-fwd ctl capture` shows when it is complete".to_owned());
            }
        }
        let order = Order::parse(order)?;
        let Some(directory) = directory else {
            return Err(
                "there is no directory for captures; configure gateway.captures and restart".to_owned()
            );
        };
        let Some(writer) = &self.writer else { return Err(Gone.to_string()) };
        tracing::info!("capture: {} begins in {}", order.name, directory.display());
        if !writer.order(now, Task::Begin(directory.to_owned(), order, workers)) {
            return Err(
                "the disk does not accept the last capture; check the disk of gateway.captures".to_owned()
            );
        }
        let (client, reply) = Client::new(now);
        self.phase = Phase::Begins(Some(client));
        Ok(reply)
    }

    /// Stops the capture; packets recorded until now are still written.
    fn stop(&mut self, now: Instant, step: &mut Step) -> Result<Reply, String> {
        match std::mem::take(&mut self.phase) {
            Phase::Runs { progress, is_all: false } => {
                let (client, reply) = Client::new(now);
                self.let_go(now, progress, Some(client), step);
                Ok(reply)
            }
            before @ Phase::Runs { .. } => {
                self.phase = before;
                Err("the gateway was started with --capture, which runs until its exit".to_owned())
            }
            before @ Phase::Begins(_) => {
                self.phase = before;
                Err("the capture is starting; try again in a moment".to_owned())
            }
            before @ Phase::Stops { .. } => {
                self.phase = before;
                Err("the capture is already stopped, and is still being written".to_owned())
            }
            Phase::Nothing => Err("nothing is captured".to_owned()),
        }
    }

    fn let_go(&mut self, now: Instant, progress: Progress, client: Option<Client>, step: &mut Step) {
        step.watch = Some(Watch::End);
        if let Some(writer) = &self.writer {
            writer.order(now, Task::Stop);
        }
        self.phase = Phase::Stops { progress, client };
    }

    /// Reads the thread's reports, and checks the time limits of clients.
    fn look(&mut self, now: Instant) -> Step {
        let mut step = Step::default();
        match self.writer.as_ref().map(Writer::news) {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(news))) => self.take(now, news, &mut step),
            Some(Err(gone)) => {
                self.writer = None;
                self.over("failed", Some(gone.to_string()), &mut step);
            }
        }
        self.lose_patience(now);
        match self.silence(now) {
            None => self.is_stalled = false,
            Some(_) if self.is_stalled => {}
            Some(_) => {
                self.is_stalled = true;
                let text = "the disk of the captures does not accept data; packets are missing in them until it does";
                tracing::warn!(event = What::CaptureStalls.journal(), "capture: {text}");
                step.alarm = Some((What::CaptureStalls, format!("capture: {text}")));
            }
        }
        step
    }

    fn take(&mut self, now: Instant, news: News, step: &mut Step) {
        match (news, std::mem::take(&mut self.phase)) {
            (News::Begun(_, progress), Phase::Begins(None)) => self.let_go(now, progress, None, step),
            (News::Begun(taps, progress), Phase::Begins(Some(client))) => {
                step.watch = Some(Watch::Begin(taps));
                client.reply(Ok(facts(&progress, "captures", None)));
                self.phase = Phase::Runs { progress, is_all: false };
            }
            (News::Refused(error), Phase::Begins(client)) => {
                if let Some(client) = client {
                    client.reply(Err(why(&error)));
                }
            }
            (News::Ended(end), before) => {
                let (state, failed) = match (end, &before) {
                    (End::Failed(error), _) => ("failed", Some(why(&error))),
                    (_, Phase::Stops { .. }) => ("stopped", None),
                    (End::Ordered, _) => ("has what was ordered", None),
                    (End::Stopped, _) => ("ends with the gateway", None),
                };
                self.phase = before;
                self.over(state, failed, step);
            }
            // A report that does not change the phase.
            (News::Settled(_) | News::Begun(..) | News::Refused(_), before) => self.phase = before,
        }
    }

    /// Ends the capture. A failure is reported to the log, to subscribers and in later answers.
    fn over(&mut self, state: &'static str, failed: Option<String>, step: &mut Step) {
        if let Some(why) = &failed {
            tracing::error!(event = What::CaptureFailed.journal(), "{why}; the capture ends here");
            step.alarm = Some((What::CaptureFailed, why.clone()));
        }
        let (progress, client) = match std::mem::take(&mut self.phase) {
            Phase::Nothing => return,
            Phase::Begins(client) => {
                if let Some(client) = client {
                    client.reply(Err(failed.unwrap_or_else(late_beginning)));
                }
                return;
            }
            Phase::Runs { progress, .. } => {
                step.watch = Some(Watch::End);
                (progress, None)
            }
            Phase::Stops { progress, client } => (progress, client),
        };
        let [packets, _, missing] = progress.counts();
        tracing::info!("capture: {state}, {packets} packets, {missing} missing");
        let [written, lost] = &mut self.before;
        (*written, *lost) = (*written + packets, *lost + missing);
        let last = facts(&progress, state, failed.as_deref());
        self.last = Some(last.clone());
        if let Some(client) = client {
            client.reply(Ok(last));
        }
    }

    /// Answers clients whose time limit is over: the disk does not respond.
    fn lose_patience(&mut self, now: Instant) {
        match std::mem::take(&mut self.phase) {
            Phase::Stops { progress, client: Some(client) } if now >= client.until => {
                client.reply(Err(format!(
                    "the disk has not taken the capture in {} seconds; `ipoib-fwd ctl capture` shows when it is complete",
                    PATIENCE.as_secs()
                )));
                self.phase = Phase::Stops { progress, client: None };
            }
            Phase::Begins(Some(client)) if now >= client.until => {
                client.reply(Err(late_beginning()));
                self.phase = Phase::Begins(None);
            }
            before => self.phase = before,
        }
    }

    /// Last answers: reports to waiting clients that the gateway exits.
    fn dismiss(&mut self) {
        let (client, why) = match &mut self.phase {
            Phase::Begins(client) => (client, "the gateway exits before the capture has begun"),
            Phase::Stops { client, .. } => {
                (client, "the gateway exits before the capture is on the disk; its log reports the outcome")
            }
            Phase::Nothing | Phase::Runs { .. } => return,
        };
        if let Some(client) = client.take() {
            client.reply(Err(why.to_owned()));
        }
    }

    /// Finishes the capture at the exit of the gateway, after its workers: their last packets are written if
    /// the disk accepts them soon. Returns the error of a capture of everything.
    pub(in crate::gateway) fn finish(mut self) -> Result<(), CaptureError> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let until = Instant::now() + LAST_PATIENCE;
        writer.order(Instant::now(), Task::Finish);
        let mut step = Step::default();
        while !matches!(self.phase, Phase::Nothing) {
            match writer.news_until(until) {
                Ok(Some(News::Ended(End::Failed(error))))
                    if matches!(self.phase, Phase::Runs { is_all: true, .. }) =>
                {
                    return Err(error);
                }
                // A capture that starts only now is stopped at once.
                Ok(Some(News::Begun(_, progress))) => self.phase = Phase::Stops { progress, client: None },
                Ok(Some(news)) => self.take(Instant::now(), news, &mut step),
                Err(gone) => self.over("failed", Some(gone.to_string()), &mut step),
                Ok(None) => {
                    tracing::error!(
                        "capture: its disk has not taken the last packets in {} seconds; the gateway exits without them",
                        LAST_PATIENCE.as_secs()
                    );
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn late_beginning() -> String {
    format!(
        "the disk of gateway.captures has not answered in {} seconds, so that nothing is captured; check it and try again",
        PATIENCE.as_secs()
    )
}

impl<B: Backend> GatewayControl<B> {
    /// Starts a capture, stops it, or reports its state.
    pub(super) fn capture_now(&mut self, now: Instant, words: Option<&str>) -> Result<Reply, String> {
        let mut step = Step::default();
        let reply = match words.map(|words| words.split_once(',').unwrap_or((words, ""))) {
            None => Ok(self.recordings.facts(now).into()),
            Some(("stop", "")) => self.recordings.stop(now, &mut step),
            Some(("start", order)) => {
                let directory = self.maker.config.gateway.captures.as_deref();
                self.recordings.begin(now, directory, order, self.maker.workers)
            }
            Some(_) => Err("write /capture,start,NAME[,KEY=VALUE...], /capture,stop or /capture".to_owned()),
        };
        self.watch_captures(now, step);
        reply
    }

    fn watch_captures(&mut self, now: Instant, step: Step) {
        if let (Some(watch), Some(endpoint)) = (step.watch, self.endpoints.at(EndpointIndex(0))) {
            let mut taps = match watch {
                Watch::Begin(taps) => taps.into_iter(),
                Watch::End => Vec::new().into_iter(),
            };
            for worker in (0..self.maker.workers).map(WorkerIndex) {
                endpoint.order(worker, GatewayCommand::Watch(taps.next()));
            }
        }
        if let Some((alarm, text)) = step.alarm {
            self.events.report(now, alarm, None, || (text, Value::Null));
        }
    }

    /// The last check before the control socket closes; [`Recordings::finish`] handles packets that are
    /// unwritten then.
    pub(super) fn end_of_captures(&mut self, now: Instant) {
        self.drive_recording(now);
        self.recordings.dismiss();
    }

    /// Checks the current capture.
    pub(super) fn drive_recording(&mut self, now: Instant) {
        let step = self.recordings.look(now);
        self.watch_captures(now, step);
    }
}

#[cfg(test)]
mod tests;
