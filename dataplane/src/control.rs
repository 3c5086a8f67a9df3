//! The control lcore's event loop: ticks, signals and requests from the control socket, one at a time.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::telemetry::{self, Access, Request, Server, TelemetryError};

/// How often a controller is called when nothing else happens. A connection's handshake takes a few of these.
pub const TICK: Duration = Duration::from_millis(1);

/// How often an idle one is.
pub const IDLE_TICK: Duration = Duration::from_millis(4);

/// Most requests that wait for an answer; a client that sends more waits in the socket.
const REQUESTS: usize = 64;

/// What goes on after a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// There is work in hand: call again soon.
    Busy,
    /// Nothing in hand.
    Idle,
    /// The controller has wound everything up.
    Done,
}

/// The slow path of an application.
pub trait Controller {
    /// Does what is due. Called at least every [`IDLE_TICK`].
    fn tick(&mut self, now: Instant) -> Flow;

    /// Answers a request from the control socket.
    fn request(&mut self, now: Instant, request: &telemetry::Command) -> Result<telemetry::Reply, String>;

    /// Someone asked by SIGHUP for the configuration to be read again. What does not work is the controller's to tell.
    fn reload(&mut self, now: Instant);

    /// Someone asked us to end; [`Controller::tick`] says [`Flow::Done`] when all is wound up.
    fn stop(&mut self, now: Instant);

    /// The last call, whatever ended the loop: all was wound up, or somebody would not wait for that. Clients are told for a moment longer: who is
    /// to be answered later has to be answered now, or learns only that the program stops.
    fn end(&mut self) {}
}

/// What can go wrong with the loop itself.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The event loop could not be made.
    #[error("cannot start the control loop")]
    Runtime(#[source] std::io::Error),
    /// The control socket could not be made.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
}

/// The loop before it runs. From here on SIGHUP ends nobody: one that comes before [`ControlLoop::run`] is answered by it.
#[derive(Debug)]
pub struct ControlLoop {
    runtime: Runtime,
    hangup: Signal,
    /// Where requests come from, and where they are taken.
    requests: (mpsc::Sender<Request>, mpsc::Receiver<Request>),
    server: Option<Server>,
}

impl ControlLoop {
    /// Makes it.
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

    /// Makes the control socket. Who asks from here on is answered when the loop runs.
    pub fn listen(&mut self, path: &Path, access: Access) -> Result<(), ControlError> {
        let _entered = self.runtime.enter();
        self.server = Some(Server::start(path, access, self.requests.0.clone())?);
        Ok(())
    }

    /// Runs a controller until it is done. SIGINT and SIGTERM stop it; a second one ends the wait for a clean stop.
    /// SIGHUP has it read its configuration again.
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
    let mut asked_to_stop = false;
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
                // The client may have gone; then nobody wants the answer.
                let _ = request.answer.send(answer);
                false
            }
            _ = ticks.tick() => false,
        };
        let now = Instant::now();
        if stop {
            if asked_to_stop {
                return Ok(());
            }
            asked_to_stop = true;
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

    /// It asks to be stopped in its first turn, and, when it is and is not done, again: signals that come together are one.
    #[derive(Default)]
    struct Stubborn {
        asked: u32,
        stops: u32,
        ends: u32,
    }

    impl Controller for Stubborn {
        fn tick(&mut self, _: Instant) -> Flow {
            if self.asked == self.stops {
                self.asked += 1;
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

    /// Says nothing to anybody before the end, and ends when it has been asked three things.
    #[derive(Default)]
    struct Silent {
        asked: Vec<(String, tokio::sync::oneshot::Sender<telemetry::Answer>)>,
    }

    impl Controller for Silent {
        fn tick(&mut self, _: Instant) -> Flow {
            if self.asked.len() == 3 { Flow::Done } else { Flow::Busy }
        }

        fn request(&mut self, _: Instant, asks: &telemetry::Command) -> Result<telemetry::Reply, String> {
            let (answer, told) = tokio::sync::oneshot::channel();
            self.asked.push((asks.name.clone(), answer));
            Ok(telemetry::Reply::Later(told))
        }

        fn reload(&mut self, _: Instant) {}

        fn stop(&mut self, _: Instant) {}

        fn end(&mut self) {
            for (name, answer) in self.asked.drain(..) {
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
    fn who_waits_at_the_end_is_answered() {
        let path = std::env::temp_dir().join(format!("control-end-{}", std::process::id()));
        let mut control = ControlLoop::new().unwrap();
        control.listen(&path, Access::default()).unwrap();
        let ask = |what: &'static str| {
            let path = path.clone();
            std::thread::spawn(move || telemetry::ask(&path, what, Duration::from_secs(120)))
        };
        let asked = ["/yes", "/no", "/forgotten"].map(ask);
        control.run(&mut Silent::default()).unwrap();
        let [yes, no, forgotten] = asked.map(|asked| asked.join().unwrap());
        assert_eq!(yes.unwrap(), "written");
        assert_eq!(no.unwrap_err().to_string(), "the end came first");
        assert!(forgotten.unwrap_err().to_string().contains("the program is stopping"));
    }

    #[test]
    fn a_second_signal_ends_the_wait_and_the_end_is_told() {
        let mut controller = Stubborn::default();
        ControlLoop::new().unwrap().run(&mut controller).unwrap();
        assert_eq!((controller.stops, controller.ends), (1, 1));
    }
}
