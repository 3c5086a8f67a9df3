//! Queries the gateway in a separate thread, so that keys have an effect while no answer arrives.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use dataplane::telemetry::{TelemetryError, ask};
use serde_json::Value;

use super::snapshot::Snapshot;
use super::text::harmless;
use crate::command::{Asked, Command};

/// Timeout for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The data for a view in addition to those of all views.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Wish {
    /// The first page of the connections.
    pub(super) connections: bool,
    /// Drops of this segment.
    pub(super) segment: Option<String>,
}

/// A snapshot, or the reason why there is none.
pub(super) type Outcome = Result<Snapshot, String>;

/// Queries the gateway once for all data.
pub(super) fn look(socket: &Path, wish: &Wish) -> Outcome {
    let query = |command, argument| {
        let request = Asked { command, argument };
        ask(socket, &request.request(), PATIENCE)
    };
    let fault = |error: TelemetryError| match &error {
        TelemetryError::Refused(_) | TelemetryError::Protocol { .. } => {
            harmless(&format!("{}: {error}", socket.display()))
        }
        _ => harmless(&error.to_string()),
    };
    let stats = query(Command::Stats, None).map_err(fault)?;
    if stats.get("process").is_none() {
        return Err(harmless(&format!(
            "{}: not a gateway, or one of another version; use the `ipoib-fwd top` of that version",
            socket.display()
        )));
    }
    let links = query(Command::Links, None).map_err(fault)?;
    // Only one page: a screen shows no more, and each page costs the control lcore time.
    let connections = wish.connections.then(|| query(Command::Connections, None));
    let connections = connections.transpose().map_err(fault)?;
    // The segment may have been removed meanwhile.
    let detail = wish.segment.as_ref().and_then(|name| query(Command::Stats, Some(name.clone())).ok());
    Ok(Snapshot::of(
        &stats,
        &links,
        connections.as_ref(),
        detail.as_ref().filter(|detail| is_of_segment(detail)),
    ))
}

/// True for the answer about one segment, which has its name. The answer about the whole gateway has none.
fn is_of_segment(answer: &Value) -> bool {
    answer.get("segment").is_some_and(Value::is_string)
}

/// The thread and its channels.
#[derive(Debug)]
pub(super) struct Poller {
    queries: Sender<Wish>,
    outcomes: Receiver<Outcome>,
    /// True if an answer is pending.
    is_pending: bool,
}

impl Poller {
    /// Starts a thread that queries a socket.
    pub(super) fn start(socket: PathBuf) -> std::io::Result<Self> {
        let ((queries, received), (answers, outcomes)) = (mpsc::channel::<Wish>(), mpsc::channel());
        std::thread::Builder::new().name("poller".to_owned()).spawn(move || {
            for wish in received {
                if answers.send(look(&socket, &wish)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { queries, outcomes, is_pending: false })
    }

    /// Sends a query, unless one is pending. Returns true if it was sent.
    pub(super) fn query(&mut self, wish: Wish) -> bool {
        let is_sent = !self.is_pending && self.queries.send(wish).is_ok();
        self.is_pending |= is_sent;
        is_sent
    }

    /// Takes the answer, if it has arrived.
    pub(super) fn take(&mut self) -> Option<Outcome> {
        match self.outcomes.try_recv() {
            Ok(outcome) => {
                self.is_pending = false;
                Some(outcome)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err("the polling thread has stopped; restart this program".to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gateway_the_error_has_the_socket() {
        let mut poller = Poller::start(PathBuf::from("/nonexistent/\u{1b}[2J.sock")).unwrap();
        assert!(poller.query(Wish::default()));
        assert!(!poller.query(Wish::default()), "one query at a time");
        let outcome = loop {
            if let Some(outcome) = poller.take() {
                break outcome;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let why = outcome.unwrap_err();
        assert!(why.contains("/nonexistent/?[2J.sock") && why.contains("is the gateway running"), "{why}");
        assert!(poller.query(Wish::default()));
    }
}
