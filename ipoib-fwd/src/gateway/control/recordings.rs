//! Captures, as the control lcore has them: it tells the thread that writes ([`Writer`]) what to do, workers whom to show frames, and clients
//! what became of it. Workers have no tap while nothing is recorded.

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

/// How long a client waits for the disk.
const PATIENCE: Duration = Duration::from_secs(3);
/// Whoever writes and has not come round for so long waits for the disk.
const SILENCE: Duration = Duration::from_secs(1);
/// How long the end of the gateway waits for what is still to be written.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// What is recorded, and what was.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Recordings {
    /// Who writes; nobody if nothing can be captured.
    writer: Option<Writer>,
    phase: Phase,
    /// How the last one ended.
    last: Option<Value>,
    /// Packets written and missing, of those that have ended.
    before: [u64; 2],
    /// It is told that the disk takes nothing.
    is_stalled: bool,
}

/// How far the present one is.
#[derive(Debug, Default)]
enum Phase {
    /// There is none.
    #[default]
    Nothing,
    /// Its first file is made. Without a client it was given up meanwhile.
    Begins(Option<Client>),
    /// It runs; all that there is since the start, if so.
    Runs { progress: Progress, is_all: bool },
    /// What was taken is written.
    Stops { progress: Progress, client: Option<Client> },
}

/// Who waits for an answer, and until when.
#[derive(Debug)]
struct Client {
    answer: oneshot::Sender<Answer>,
    until: Instant,
}

impl Client {
    fn new(now: Instant) -> (Self, Reply) {
        let (answer, told) = oneshot::channel();
        (Self { answer, until: now + PATIENCE }, Reply::Later(told))
    }

    fn tell(self, answer: Answer) {
        // It may have gone.
        let _ = self.answer.send(answer);
    }
}

/// What workers are to do.
#[derive(Debug)]
enum Watch {
    /// Show frames to these taps, a worker each.
    Begin(Vec<Tap>),
    /// Show them to nobody.
    End,
}

/// What came of looking after a capture.
#[derive(Debug, Default)]
struct Step {
    watch: Option<Watch>,
    /// Something that an operator should know.
    alarm: Option<(What, String)>,
}

/// What went wrong, and what to do about it.
fn why(error: &CaptureError) -> String {
    let hint = match error.source.kind() {
        io::ErrorKind::AlreadyExists => "; choose another name",
        io::ErrorKind::NotFound => "; make the directory gateway.captures",
        io::ErrorKind::PermissionDenied => {
            "; the directory gateway.captures must be that user's as whom the gateway runs ([gateway] user; root without capabilities writes \
             where root may)"
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

/// How one stands, or has ended and, if it failed, why.
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
    /// With a thread that writes, and a capture of all from the start on if it has one.
    pub(in crate::gateway) fn new(writer: Writer, all: Option<Progress>) -> Self {
        let phase = all.map_or(Phase::Nothing, |progress| Phase::Runs { progress, is_all: true });
        Self { writer: Some(writer), phase, ..Self::default() }
    }

    /// All is open: the thread narrows its system calls, and writes from here on.
    pub(in crate::gateway) fn settle(&self, filter: Option<Filter>) -> Result<(), FilterError> {
        self.writer.as_ref().map_or(Ok(()), |writer| writer.settle(filter))
    }

    /// How it stands.
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

    /// How long the disk has taken nothing, if that is long.
    fn silence(&self, now: Instant) -> Option<Duration> {
        let silence = self.writer.as_ref()?.silence(now);
        (silence >= SILENCE && !matches!(self.phase, Phase::Nothing)).then_some(silence)
    }

    /// Begins one in a directory.
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
                    "the gateway was started with --capture, which captures all; start it without".to_owned()
                );
            }
            Phase::Runs { .. } => return Err("one capture is under way; stop it first".to_owned()),
            Phase::Begins(_) => return Err("one capture is begun now; try again in a moment".to_owned()),
            Phase::Stops { .. } => {
                return Err("what the last capture has taken is still written; `ipoib-fwd ctl capture` says when it is".to_owned());
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
                "the disk takes nothing of the last capture; see to that of gateway.captures".to_owned()
            );
        }
        let (client, reply) = Client::new(now);
        self.phase = Phase::Begins(Some(client));
        Ok(reply)
    }

    /// Ends it: what was taken until now is written yet.
    fn stop(&mut self, now: Instant, step: &mut Step) -> Result<Reply, String> {
        match std::mem::take(&mut self.phase) {
            Phase::Runs { progress, is_all: false } => {
                let (client, reply) = Client::new(now);
                self.let_go(now, progress, Some(client), step);
                Ok(reply)
            }
            before @ Phase::Runs { .. } => {
                self.phase = before;
                Err("the gateway was started with --capture, which goes on until it ends".to_owned())
            }
            before @ Phase::Begins(_) => {
                self.phase = before;
                Err("the capture is begun now; try again in a moment".to_owned())
            }
            before @ Phase::Stops { .. } => {
                self.phase = before;
                Err("the capture is stopped already, and what it has taken is still written".to_owned())
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

    /// Looks what the thread tells, and who has waited for long enough.
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
                let text = "the disk that captures are written to takes nothing; packets are missing in them until it does";
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
                client.tell(Ok(facts(&progress, "captures", None)));
                self.phase = Phase::Runs { progress, is_all: false };
            }
            (News::Refused(error), Phase::Begins(client)) => {
                if let Some(client) = client {
                    client.tell(Err(why(&error)));
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
            // What is told is what was asked for.
            (News::Settled(_) | News::Begun(..) | News::Refused(_), before) => self.phase = before,
        }
    }

    /// It has ended. A failure is for the log, those who follow and those who ask later.
    fn over(&mut self, state: &'static str, failed: Option<String>, step: &mut Step) {
        if let Some(why) = &failed {
            tracing::error!(event = What::CaptureFailed.journal(), "{why}; the capture ends here");
            step.alarm = Some((What::CaptureFailed, why.clone()));
        }
        let (progress, client) = match std::mem::take(&mut self.phase) {
            Phase::Nothing => return,
            Phase::Begins(client) => {
                if let Some(client) = client {
                    client.tell(Err(failed.unwrap_or_else(late_beginning)));
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
            client.tell(Ok(last));
        }
    }

    /// Clients are not kept waiting for a disk that does not answer.
    fn lose_patience(&mut self, now: Instant) {
        match std::mem::take(&mut self.phase) {
            Phase::Stops { progress, client: Some(client) } if now >= client.until => {
                client.tell(Err(format!(
                    "the disk has not taken in {} seconds what was captured; `ipoib-fwd ctl capture` says when it has",
                    PATIENCE.as_secs()
                )));
                self.phase = Phase::Stops { progress, client: None };
            }
            Phase::Begins(Some(client)) if now >= client.until => {
                client.tell(Err(late_beginning()));
                self.phase = Phase::Begins(None);
            }
            before => self.phase = before,
        }
    }

    /// Nobody is answered any more after this: whoever still waits is told so.
    fn dismiss(&mut self) {
        let (client, why) = match &mut self.phase {
            Phase::Begins(client) => (client, "the gateway ends before the capture has begun"),
            Phase::Stops { client, .. } => (
                client,
                "the gateway ends before the disk has taken all that was captured; its log says what became of it",
            ),
            Phase::Nothing | Phase::Runs { .. } => return,
        };
        if let Some(client) = client.take() {
            client.tell(Err(why.to_owned()));
        }
    }

    /// The gateway ends, and its workers have: what they have left is written, if the disk takes it soon. The error of a capture from the start on.
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
                // What begins only now ends at once.
                Ok(Some(News::Begun(_, progress))) => self.phase = Phase::Stops { progress, client: None },
                Ok(Some(news)) => self.take(Instant::now(), news, &mut step),
                Err(gone) => self.over("failed", Some(gone.to_string()), &mut step),
                Ok(None) => {
                    tracing::error!(
                        "capture: its disk has not taken what was left in {} seconds; the gateway ends without",
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
        "the disk of gateway.captures has not answered in {} seconds, so that nothing is captured; see to it and try again",
        PATIENCE.as_secs()
    )
}

impl<B: Backend> GatewayControl<B> {
    /// Begins one, ends it, or tells how it stands.
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
            self.events.tell(now, alarm, None, || (text, Value::Null));
        }
    }

    /// The last look before the control socket closes; what is still to be written then is [`Recordings::finish`]'s.
    pub(super) fn end_of_captures(&mut self, now: Instant) {
        self.drive_recording(now);
        self.recordings.dismiss();
    }

    /// Looks after a capture.
    pub(super) fn drive_recording(&mut self, now: Instant) {
        let step = self.recordings.look(now);
        self.watch_captures(now, step);
    }
}

#[cfg(test)]
mod tests;
