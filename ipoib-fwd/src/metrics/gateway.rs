//! The gateway that the exporter queries: one query at a time, and at most five a second,
//! whatever the number of clients.
//!
//! An answer is shared by all clients whose requests came before the gateway was queried, so that no client
//! has values that are older than its request.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::telemetry::{TelemetryError, ask};
use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::to_prometheus;
use crate::command::Command;

/// Time limit for the gateway's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Shortest time between the starts of two queries.
const PACE: Duration = Duration::from_millis(200);

/// The metrics of one moment, in both formats.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    pub(super) open_metrics: Bytes,
    pub(super) prometheus: Bytes,
}

/// The metrics, or why there are none.
type Answer = Result<Pages, String>;
type Query = dyn Fn() -> Result<String, String> + Send + Sync;

/// The gateway that is queried.
pub struct Gateway {
    query: Arc<Query>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Start time of the last query.
    begun: Option<Instant>,
    /// The query in progress. It continues if the client that started it disconnects.
    running: Option<JoinHandle<Answer>>,
    answer: Option<Answer>,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Gateway {
    /// The gateway with this control socket.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        let socket = socket.to_owned();
        Self::with(move || query(&socket))
    }

    /// A gateway whose answers come from this function.
    pub(super) fn with(query: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self { query: Arc::new(query), state: Mutex::default() }
    }

    /// Returns metrics that are not older than this call.
    pub(super) async fn pages(&self) -> Answer {
        let requested = Instant::now();
        let mut state = self.state.lock().await;
        loop {
            if let Some(running) = &mut state.running {
                let answer = running.await.unwrap_or_else(|error| Err(error.to_string()));
                (state.running, state.answer) = (None, Some(answer));
            }
            if let (Some(begun), Some(answer)) = (state.begun, &state.answer)
                && begun >= requested
            {
                return answer.clone();
            }
            if let Some(begun) = state.begun {
                tokio::time::sleep(PACE.saturating_sub(begun.elapsed())).await;
            }
            let query = Arc::clone(&self.query);
            state.begun = Some(Instant::now());
            state.running = Some(tokio::task::spawn_blocking(move || {
                let text = query()?;
                let prometheus = to_prometheus(&text).into();
                Ok(Pages { open_metrics: text.into(), prometheus })
            }));
        }
    }
}

fn query(socket: &Path) -> Result<String, String> {
    match ask(socket, &format!("/{}", Command::Metrics.word()), PATIENCE) {
        Ok(Value::String(text)) => Ok(text),
        Ok(_) => Err("the gateway has another version: its answer is not text".to_owned()),
        Err(error @ TelemetryError::Socket { .. }) => Err(error.to_string()),
        Err(error) => Err(format!("{}: {error}", socket.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    /// A gateway that numbers its answers and gives one for each message on the channel.
    fn held() -> (mpsc::Sender<()>, Arc<AtomicU32>, Gateway) {
        let (answers, inbox) = mpsc::channel();
        let queries = Arc::new(AtomicU32::new(0));
        let (count, inbox) = (Arc::clone(&queries), std::sync::Mutex::new(inbox));
        let gateway = Gateway::with(move || {
            let n = count.fetch_add(1, Ordering::SeqCst);
            // Concurrent queries fail the test.
            inbox.try_lock().unwrap().recv().unwrap();
            Ok(format!("answer {n}"))
        });
        (answers, queries, gateway)
    }

    fn on_runtime<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn clients_that_come_during_a_query_share_the_next_one() {
        let (answers, queries, gateway) = held();
        let text = |answer: Answer| answer.unwrap().open_metrics;
        on_runtime(async {
            let release = async {
                for _ in 0..3 {
                    answers.send(()).unwrap();
                }
            };
            let ask = || gateway.pages();
            let (_, b, c, d, e, f, ()) = tokio::join!(ask(), ask(), ask(), ask(), ask(), ask(), release);
            let b = text(b);
            assert!([c, d, e, f].into_iter().all(|other| text(other) == b));
            let before = queries.load(Ordering::SeqCst);
            assert!(before <= 2, "{before} queries");
            // A later client gets newer values.
            assert_eq!(text(gateway.pages().await), format!("answer {before}"));
        });
    }

    #[test]
    fn a_client_that_disconnects_leaves_no_second_query() {
        let (answers, queries, gateway) = held();
        on_runtime(async {
            for _ in 0..5 {
                // The client sends a request and disconnects.
                tokio::select! {
                    biased;
                    _ = gateway.pages() => {}
                    () = tokio::task::yield_now() => {}
                }
            }
            for _ in 0..2 {
                answers.send(()).unwrap();
            }
            gateway.pages().await.unwrap();
        });
        assert_eq!(queries.load(Ordering::SeqCst), 2);
    }
}
