//! `ctl capture`: Ethernet frames on their way past, recorded while the gateway runs. Workers have no tap while nothing is recorded.

use std::time::Instant;

use dataplane::capture::{Order, Recording, State};
use dataplane::telemetry::Answer;
use ipoib::link::WorkerIndex;
use pmd::hca::Backend;
use serde_json::{Value, json};

use super::GatewayControl;
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

fn facts(recording: &Recording, state: &str) -> Value {
    let [packets, seen, dropped] = recording.counts();
    let files: Vec<_> = recording.files().map(|file| file.display().to_string()).collect();
    json!({"state": state, "packets": packets, "seen": seen, "missing": dropped, "files": files})
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
                self.end_recording("stopped");
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
        let order = Order::parse(order)?;
        let Some(directory) = &self.maker.config.gateway.captures else {
            return Err(
                "there is no directory for captures; configure gateway.captures and restart".to_owned()
            );
        };
        let name = order.name.clone();
        let mut recording = Recording::begin(directory, order, now).map_err(|e| {
            let hint = match e.source.kind() {
                std::io::ErrorKind::AlreadyExists => "; choose another name",
                std::io::ErrorKind::NotFound => "; make the directory gateway.captures",
                _ => "",
            };
            format!("{e}: {}{hint}", e.source)
        })?;
        for worker in (0..self.maker.workers).map(WorkerIndex) {
            let tap = Box::new(recording.tap());
            if let Some(endpoint) = self.endpoints.at(EndpointIndex(0)) {
                endpoint.send(worker, GatewayCommand::Watch(Some(tap)));
            }
        }
        tracing::info!("capture: {name} begins in {}", directory.display());
        self.recordings.now = Some(recording);
        Ok(())
    }

    fn end_recording(&mut self, state: &'static str) {
        let Some(recording) = self.recordings.now.take() else { return };
        let all = facts(&recording, state);
        tracing::info!("capture: {state}, {} packets", recording.counts()[0]);
        self.recordings.last = Some(all);
        self.recordings.ended.push(recording);
        for worker in (0..self.maker.workers).map(WorkerIndex) {
            if let Some(endpoint) = self.endpoints.at(EndpointIndex(0)) {
                endpoint.send(worker, GatewayCommand::Watch(None));
            }
        }
    }

    /// Writes what was seen, for a moment at most.
    pub(super) fn drive_recording(&mut self, now: Instant) {
        self.recordings.ended.retain(|recording| !recording.is_let_go());
        match self.recordings.now.as_mut().map(|recording| recording.drain(now)) {
            None | Some(Ok(State::On)) => {}
            Some(Ok(State::Done)) => self.end_recording("has what was ordered"),
            Some(Err(e)) => {
                tracing::error!("{e}: {}; the capture ends here", e.source);
                self.end_recording("failed");
            }
        }
    }
}
