//! The control lcore's event loop: ticks, signals and requests from the control socket, one at a time.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::telemetry::{self, Access, Request, Server, TelemetryError};

/// Interval between calls of a busy controller. A connection handshake takes a few of these.
pub const TICK: Duration = Duration::from_millis(1);

/// Interval between calls of an idle controller.
pub const IDLE_TICK: Duration = Duration::from_millis(4);

/// Maximum number of requests that wait for a response. Further ones wait in the socket.
const REQUESTS: usize = 64;

/// State of the controller after a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Work is pending: call again soon.
    Busy,
    /// No work is pending.
    Idle,
    /// The controller has shut down.
    Done,
}

/// The control path of an application.
pub trait Controller {
    /// Does pending work. Called at least every [`IDLE_TICK`].
    fn tick(&mut self, now: Instant) -> Flow;

    /// Answers a request from the control socket.
    fn request(&mut self, now: Instant, request: &telemetry::Command) -> Result<telemetry::Reply, String>;

    /// Reloads the configuration, after SIGHUP. The controller reports errors itself.
    fn reload(&mut self, now: Instant);

    /// Starts the shutdown. [`Controller::tick`] returns [`Flow::Done`] when it is complete.
    fn stop(&mut self, now: Instant);

    /// The last call, for any end of the loop: after a complete shutdown, or after a second signal.
    ///
    /// Clients are served a moment longer. Pending requests must be answered now; otherwise their clients
    /// only learn that the program stops.
    fn end(&mut self) {}
}

/// Errors of the loop itself.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The event loop could not be created.
    #[error("cannot start the control loop")]
    Runtime(#[source] std::io::Error),
    /// The control socket could not be created.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
}

/// A loop that is not running yet. It handles SIGHUP from now on; [`ControlLoop::run`] processes an earlier
/// signal.
#[derive(Debug)]
pub struct ControlLoop {
    runtime: Runtime,
    hangup: Signal,
    /// Channel for requests.
    requests: (mpsc::Sender<Request>, mpsc::Receiver<Request>),
    server: Option<Server>,
}

impl ControlLoop {
    /// Creates the loop.
    pub fn new() -> Result<Self, ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ControlError::Runtime)?;
        let hangup = {
            let _entered = runtime.enter();
            signal(SignalKind::hangup()).map_err(ControlError::Runtime)?
        };
        Ok(Self { runtime, hangup, requests: mpsc::channel(REQUESTS), server: None })
    }

    /// Creates the control socket. Requests are answered when the loop runs.
    pub fn listen(&mut self, path: &Path, access: Access) -> Result<(), ControlError> {
        let _entered = self.runtime.enter();
        self.server = Some(Server::start(path, access, self.requests.0.clone())?);
        Ok(())
    }

    /// Runs a controller until it has finished. SIGINT and SIGTERM stop it; a second signal ends the loop
    /// without a complete shutdown. SIGHUP reloads the configuration.
    pub fn run<C: Controller>(self, controller: &mut C) -> Result<(), ControlError> {
        let Self { runtime, hangup, requests: (_sender, inbox), server } = self;
        runtime.block_on(async {
            let served = serve(controller, inbox, hangup).await;
            controller.end();
            if let Some(server) = server {
                server.finish().await;
            }
            served
        })
    }
}

async fn serve<C: Controller>(
    controller: &mut C,
    mut inbox: mpsc::Receiver<Request>,
    mut hangup: Signal,
) -> Result<(), ControlError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ControlError::Runtime)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(ControlError::Runtime)?;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop_requested = false;
    loop {
        let stop = tokio::select! {
            biased;
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
            _ = hangup.recv() => {
                controller.reload(Instant::now());
                false
            }
            Some(request) = inbox.recv() => {
                let answer = controller.request(Instant::now(), &request.command);
                // The client may have disconnected. The response is then discarded.
                let _ = request.answer.send(answer);
                false
            }
            _ = ticks.tick() => false,
        };
        let now = Instant::now();
        if stop {
            if stop_requested {
                return Ok(());
            }
            stop_requested = true;
            controller.stop(now);
        }
        match controller.tick(now) {
            Flow::Done => return Ok(()),
            Flow::Busy => {}
            Flow::Idle => ticks.reset_after(IDLE_TICK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    /// Sends SIGTERM in its first iteration, and again after the first one was handled: simultaneous signals
    /// are merged.
    #[derive(Default)]
    struct Stubborn {
        signals: u32,
        stops: u32,
        ends: u32,
    }

    impl Controller for Stubborn {
        fn tick(&mut self, _: Instant) -> Flow {
            if self.signals == self.stops {
                self.signals += 1;
                kill_process(getpid(), Signal::TERM).unwrap();
            }
            Flow::Busy
        }

        fn request(&mut self, _: Instant, _: &telemetry::Command) -> Result<telemetry::Reply, String> {
            Err("nothing".to_owned())
        }

        fn reload(&mut self, _: Instant) {}

        fn stop(&mut self, _: Instant) {
            self.stops += 1;
        }

        fn end(&mut self) {
            self.ends += 1;
        }
    }

    /// Answers no requests before the end, and finishes after three requests.
    #[derive(Default)]
    struct Silent {
        pending: Vec<(String, tokio::sync::oneshot::Sender<telemetry::Answer>)>,
    }

    impl Controller for Silent {
        fn tick(&mut self, _: Instant) -> Flow {
            if self.pending.len() == 3 { Flow::Done } else { Flow::Busy }
        }

        fn request(&mut self, _: Instant, asks: &telemetry::Command) -> Result<telemetry::Reply, String> {
            let (answer, receiver) = tokio::sync::oneshot::channel();
            self.pending.push((asks.name.clone(), answer));
            Ok(telemetry::Reply::Later(receiver))
        }

        fn reload(&mut self, _: Instant) {}

        fn stop(&mut self, _: Instant) {}

        fn end(&mut self) {
            for (name, answer) in self.pending.drain(..) {
                let _ = match name.as_str() {
                    "/yes" => answer.send(Ok("written".into())),
                    "/no" => answer.send(Err("the end came first".to_owned())),
                    // Forgotten.
                    _ => continue,
                };
            }
        }
    }

    #[test]
    fn pending_requests_are_answered_at_the_end() {
        let path = std::env::temp_dir().join(format!("control-end-{}", std::process::id()));
        let mut control = ControlLoop::new().unwrap();
        control.listen(&path, Access::default()).unwrap();
        let ask = |what: &'static str| {
            let path = path.clone();
            std::thread::spawn(move || telemetry::ask(&path, what, Duration::from_secs(120)))
        };
        let clients = ["/yes", "/no", "/forgotten"].map(ask);
        control.run(&mut Silent::default()).unwrap();
        let [yes, no, forgotten] = clients.map(|client| client.join().unwrap());
        assert_eq!(yes.unwrap(), "written");
        assert_eq!(no.unwrap_err().to_string(), "the end came first");
        assert!(forgotten.unwrap_err().to_string().contains("the program is stopping"));
    }

    #[test]
    fn a_second_signal_ends_the_wait_and_calls_end() {
        let mut controller = Stubborn::default();
        ControlLoop::new().unwrap().run(&mut controller).unwrap();
        assert_eq!((controller.stops, controller.ends), (1, 1));
    }
}
