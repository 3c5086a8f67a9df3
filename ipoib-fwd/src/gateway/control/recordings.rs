//! `ctl capture`: Ethernet frames on their way past, recorded while the gateway runs. Workers have no tap while nothing is recorded.

use std::io;
use std::time::Instant;

use dataplane::capture::{CaptureError, Order, Recording, State};
use dataplane::telemetry::Answer;
use ipoib::link::WorkerIndex;
use pmd::hca::Backend;
use serde_json::{Value, json};

use super::GatewayControl;
use crate::event::Kind;
use crate::forward::EndpointIndex;
use crate::gateway::worker::GatewayCommand;

/// What is recorded, and what was.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Recordings {
    now: Option<Recording>,
    /// Those that have ended, and whose taps workers may still have: a worker is to free nothing.
    ended: Vec<Recording>,
    /// How the last one ended.
    last: Option<Value>,
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

/// A line of the log about the end.
fn tell_end(state: &str, recording: &Recording) {
    let [packets, _, missing] = recording.counts();
    tracing::info!("capture: {state}, {packets} packets, {missing} missing");
}

impl Recordings {
    /// Drops those that no worker has a tap of any more.
    fn forget(&mut self) {
        self.ended.retain(|recording| !recording.is_let_go());
    }

    /// The gateway ends, and its workers have: writes what they have left.
    pub(in crate::gateway) fn finish(mut self, now: Instant) {
        let Some(mut recording) = self.now.take() else { return };
        if let Err(e) = recording.drain_all(now) {
            tracing::error!("{}; the capture ends here", why(&e));
            recording.leave_rest();
        }
        tell_end("ends with the gateway", &recording);
    }
}

fn facts(recording: &Recording, state: &str) -> Value {
    let [packets, seen, dropped] = recording.counts();
    let files: Vec<_> = recording.files().map(|file| file.display().to_string()).collect();
    json!({"state": state, "packets": packets, "seen": seen, "missing": dropped, "files": files})
}

/// How one has ended, and why it did if it failed.
fn last(recording: &Recording, state: &str, why: Option<&str>) -> Value {
    let mut all = facts(recording, state);
    if let (Some(all), Some(why)) = (all.as_object_mut(), why) {
        all.insert("why".to_owned(), why.into());
    }
    all
}

impl<B: Backend> GatewayControl<B> {
    /// Begins one, ends it, or tells how it stands.
    pub(super) fn capture_now(&mut self, now: Instant, words: Option<&str>) -> Answer {
        match words.map(|words| words.split_once(',').unwrap_or((words, ""))) {
            None => {}
            Some(("stop", "")) => {
                if self.recordings.now.is_none() {
                    return Err("nothing is captured".to_owned());
                }
                let written = self.recordings.now.as_mut().map(|recording| recording.drain(now));
                match written {
                    Some(Err(e)) => self.fail_recording(now, &e),
                    _ => self.end_recording("stopped", None),
                }
            }
            Some(("start", order)) => self.begin_recording(now, order)?,
            Some(_) => {
                return Err("write /capture,start,NAME[,KEY=VALUE...], /capture,stop or /capture".to_owned());
            }
        }
        let Recordings { now, last, .. } = &self.recordings;
        Ok(match (now, last) {
            (Some(recording), _) => facts(recording, "captures"),
            (None, Some(last)) => last.clone(),
            (None, None) => json!({"state": "nothing was captured"}),
        })
    }

    fn begin_recording(&mut self, now: Instant, order: &str) -> Result<(), String> {
        if self.capture.is_some() {
            return Err(
                "the gateway was started with --capture, which captures all; start it without".to_owned()
            );
        }
        if self.recordings.now.is_some() {
            return Err("one capture is under way; stop it first".to_owned());
        }
        self.recordings.forget();
        // So each worker has two orders to wait for, at most.
        if !self.recordings.ended.is_empty() {
            return Err("workers have not let go of the last capture yet; try again in a moment".to_owned());
        }
        let order = Order::parse(order)?;
        let Some(directory) = &self.maker.config.gateway.captures else {
            return Err(
                "there is no directory for captures; configure gateway.captures and restart".to_owned()
            );
        };
        let name = order.name.clone();
        let mut recording = Recording::begin(directory, order, now).map_err(|e| why(&e))?;
        for worker in (0..self.maker.workers).map(WorkerIndex) {
            let tap = recording.tap();
            if let Some(endpoint) = self.endpoints.at(EndpointIndex(0)) {
                endpoint.order(worker, GatewayCommand::Watch(Some(tap)));
            }
        }
        tracing::info!("capture: {name} begins in {}", directory.display());
        self.recordings.now = Some(recording);
        Ok(())
    }

    fn end_recording(&mut self, state: &'static str, why: Option<&str>) {
        let Some(mut recording) = self.recordings.now.take() else { return };
        recording.leave_rest();
        tell_end(state, &recording);
        self.recordings.last = Some(last(&recording, state, why));
        self.recordings.ended.push(recording);
        for worker in (0..self.maker.workers).map(WorkerIndex) {
            if let Some(endpoint) = self.endpoints.at(EndpointIndex(0)) {
                endpoint.order(worker, GatewayCommand::Watch(None));
            }
        }
    }

    /// It cannot be written: for the log, those who follow and those who ask later.
    fn fail_recording(&mut self, now: Instant, error: &CaptureError) {
        let text = why(error);
        tracing::error!("{text}; the capture ends here");
        self.end_recording("failed", Some(&text));
        self.events.tell(now, Kind::Alarm, None, "capture-failed", || (text, Value::Null));
    }

    /// Writes what was seen, for a moment at most. True if there was anything: the taps' rings are small.
    pub(super) fn drive_recording(&mut self, now: Instant) -> bool {
        self.recordings.forget();
        match self.recordings.now.as_mut().map(|recording| recording.drain(now)) {
            Some(Ok(State::Busy)) => return true,
            None | Some(Ok(State::Idle)) => {}
            Some(Ok(State::Done)) => self.end_recording("has what was ordered", None),
            Some(Err(e)) => self.fail_recording(now, &e),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_that_failed_says_why_and_what_to_do() {
        let folder = std::env::temp_dir().join(format!("recordings-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let begin = |name: &str| Recording::begin(&folder, Order::parse(name).unwrap(), Instant::now());
        let recording = begin("one").unwrap();
        assert!(why(&begin("one").unwrap_err()).contains("choose another name"));
        let error = |errno: i32| CaptureError {
            path: folder.join("one.1.pcap"),
            source: io::Error::from_raw_os_error(errno),
        };
        // EACCES, EROFS, ENOSPC, ENOENT
        for (errno, hint) in
            [(13, "user"), (30, "ReadWritePaths"), (28, "make room"), (2, "gateway.captures")]
        {
            let why = why(&error(errno));
            assert!(why.contains("one.1.pcap") && why.contains(hint), "{why}");
            assert_eq!(last(&recording, "failed", Some(&why))["why"], why.as_str());
        }
        assert_eq!(last(&recording, "stopped", None).get("why"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
