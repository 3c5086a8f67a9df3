//! Who asks the gateway: a thread of its own, so that keys are answered while the gateway is not.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use dataplane::telemetry::{TelemetryError, ask};
use serde_json::Value;

use super::snapshot::Snapshot;
use super::text::harmless;
use crate::command::{Asked, Command};

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is wanted beside the figures of all views.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Wish {
    /// The first page of the connections.
    pub(super) connections: bool,
    /// Drops of this segment.
    pub(super) segment: Option<String>,
}

/// What came of it: figures, or why not.
pub(super) type Outcome = Result<Snapshot, String>;

/// Asks once, for all of it.
pub(super) fn look(socket: &Path, wish: &Wish) -> Outcome {
    let told = |command, argument| {
        let asked = Asked { command, argument };
        ask(socket, &asked.request(), PATIENCE)
    };
    let fault = |error: TelemetryError| match &error {
        TelemetryError::Refused(_) | TelemetryError::Protocol { .. } => {
            harmless(&format!("{}: {error}", socket.display()))
        }
        _ => harmless(&error.to_string()),
    };
    let stats = told(Command::Stats, None).map_err(fault)?;
    if stats.get("process").is_none() {
        return Err(harmless(&format!(
            "{}: whoever answers is no gateway, or one of another version; its own `ipoib-fwd top` knows it",
            socket.display()
        )));
    }
    let links = told(Command::Links, None).map_err(fault)?;
    // One page: a screen shows no more, and each page costs the control lcore time.
    let connections = wish.connections.then(|| told(Command::Connections, None));
    let connections = connections.transpose().map_err(fault)?;
    // A segment may have gone since.
    let detail = wish.segment.as_ref().and_then(|name| told(Command::Stats, Some(name.clone())).ok());
    Ok(Snapshot::of(
        &stats,
        &links,
        connections.as_ref(),
        detail.as_ref().filter(|detail| is_of_segment(detail)),
    ))
}

/// A gateway with one segment only tells of that as of any.
fn is_of_segment(answer: &Value) -> bool {
    answer.get("segment").is_some_and(Value::is_string)
}

/// The thread, and the ways to it.
#[derive(Debug)]
pub(super) struct Asker {
    wishes: Sender<Wish>,
    outcomes: Receiver<Outcome>,
    /// An answer is still to come.
    is_asked: bool,
}

impl Asker {
    /// A thread that asks at a socket.
    pub(super) fn start(socket: PathBuf) -> std::io::Result<Self> {
        let ((wishes, wished), (tell, outcomes)) = (mpsc::channel::<Wish>(), mpsc::channel());
        std::thread::Builder::new().name("asker".to_owned()).spawn(move || {
            for wish in wished {
                if tell.send(look(&socket, &wish)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { wishes, outcomes, is_asked: false })
    }

    /// Asks, if nothing is asked already. True if it does.
    pub(super) fn ask(&mut self, wish: Wish) -> bool {
        let asks = !self.is_asked && self.wishes.send(wish).is_ok();
        self.is_asked |= asks;
        asks
    }

    /// What came, if something did.
    pub(super) fn take(&mut self) -> Option<Outcome> {
        match self.outcomes.try_recv() {
            Ok(outcome) => {
                self.is_asked = false;
                Some(outcome)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err("nobody asks any more; end this and begin again".to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gateway_it_is_told_where_it_was_looked_for() {
        let mut asker = Asker::start(PathBuf::from("/nonexistent/\u{1b}[2J.sock")).unwrap();
        assert!(asker.ask(Wish::default()));
        assert!(!asker.ask(Wish::default()), "one question at a time");
        let outcome = loop {
            if let Some(outcome) = asker.take() {
                break outcome;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let why = outcome.unwrap_err();
        assert!(why.contains("/nonexistent/?[2J.sock") && why.contains("is the gateway running"), "{why}");
        assert!(asker.ask(Wish::default()));
    }
}
