//! The control socket: JSON over a UNIX seqpacket socket in the shape of DPDK telemetry v2.
//!
//! A client connects and is greeted with `{"version":…,"pid":…,"max_output_len":…}`. It sends `/command` or
//! `/command,parameters`, one message each, and gets `{"/command": answer}`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

/// Longest answer; a longer one is replaced by an error that says so.
pub const MAX_ANSWER: usize = 1 << 20;
/// Longest request.
pub const MAX_REQUEST: usize = 1024;
/// Most clients at a time, as in DPDK.
const MAX_CLIENTS: usize = 10;

/// What a client asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// The command with its leading slash.
    pub name: String,
    /// What came behind the first comma.
    pub parameters: Option<String>,
}

/// What it is told: a value, or why not.
pub type Answer = Result<Value, String>;

/// A command and the way back.
#[derive(Debug)]
pub struct Request {
    /// The command.
    pub command: Command,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Answer>,
}

/// Why the control socket does not work.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A step failed.
    #[error("control socket {path}: cannot {what}: {source}{hint}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The step.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
        /// The remedy, beginning with punctuation; empty where none is known.
        hint: &'static str,
    },
    /// Somebody answers on it.
    #[error(
        "control socket {0}: another process serves it; stop that one or choose another path with --control-socket"
    )]
    InUse(PathBuf),
    /// The answer was not what this protocol says.
    #[error("control socket {path}: bad answer: {what}")]
    Protocol {
        /// Its path.
        path: PathBuf,
        /// What was wrong.
        what: String,
    },
    /// The program answered with an error.
    #[error("{0}")]
    Refused(String),
}

impl Command {
    /// From a client's bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the request is not UTF-8".to_owned())?;
        let text = text.trim_end_matches(['\n', '\0']);
        if !text.starts_with('/') {
            return Err("a request begins with a slash, as in /stats".to_owned());
        }
        Ok(match text.split_once(',') {
            Some((name, parameters)) => {
                Self { name: name.to_owned(), parameters: Some(parameters.to_owned()) }
            }
            None => Self { name: text.to_owned(), parameters: None },
        })
    }
}

/// The serving end. Removes the socket's path when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // It may have been removed by hand.
        let _ = fs::remove_file(&self.path);
    }
}

impl Server {
    /// Binds the socket and serves it on the current runtime.
    pub(crate) fn start(path: &Path, requests: mpsc::Sender<Request>) -> Result<Self, TelemetryError> {
        let fail = |what, hint| {
            let path = path.to_owned();
            move |e: io::Error| TelemetryError::Socket { path, what, source: e, hint }
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(fail("make its folder", "; choose another path"))?;
        }
        let address = SocketAddrUnix::new(path)
            .map_err(|e| fail("use this path", "; a path has at most 107 bytes")(e.into()))?;
        let socket = seqpacket(SocketFlags::NONBLOCK).map_err(fail("be made", ""))?;
        if path.exists() {
            // A socket that nobody serves is left from a process that was killed.
            let probe = seqpacket(SocketFlags::empty()).map_err(fail("be made", ""))?;
            if connect(&probe, &address).is_ok() {
                return Err(TelemetryError::InUse(path.to_owned()));
            }
            fs::remove_file(path).map_err(fail("replace the old one", ""))?;
        }
        bind(&socket, &address).map_err(|e| fail("be bound", "; choose another path")(e.into()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(fail("restrict access", ""))?;
        listen(&socket, 4).map_err(|e| fail("listen", "")(e.into()))?;
        let socket = watch(socket).map_err(fail("be watched", ""))?;
        let task = tokio::spawn(accept_clients(socket, requests));
        Ok(Self { path: path.to_owned(), task })
    }
}

fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)?)
}

fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for types that may change their descriptor; an OwnedFd cannot"
    )]
    AsyncFd::new(fd)
}

async fn accept_clients(socket: AsyncFd<OwnedFd>, requests: mpsc::Sender<Request>) {
    let places = std::sync::Arc::new(tokio::sync::Semaphore::new(MAX_CLIENTS));
    loop {
        let Ok(place) = std::sync::Arc::clone(&places).acquire_owned().await else { return };
        let accepted = async_io(&socket, Interest::Read, |fd| {
            Ok(accept_with(fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?)
        })
        .await;
        let requests = requests.clone();
        match accepted.and_then(watch) {
            Ok(client) => {
                tokio::spawn(async move {
                    // A client that fails to read or write is gone; the others are not concerned.
                    let _ = serve_client(&client, &requests).await;
                    drop(place);
                });
            }
            // Out of descriptors or memory: try again when that may have passed.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

enum Interest {
    Read,
    Write,
}

async fn async_io<T>(
    fd: &AsyncFd<OwnedFd>,
    interest: Interest,
    mut step: impl FnMut(&OwnedFd) -> io::Result<T>,
) -> io::Result<T> {
    loop {
        let mut ready = match interest {
            Interest::Read => fd.readable().await?,
            Interest::Write => fd.writable().await?,
        };
        if let Ok(result) = ready.try_io(|fd| step(fd.get_ref())) {
            return result;
        }
    }
}

async fn send_value(client: &AsyncFd<OwnedFd>, value: &Value) -> io::Result<()> {
    let bytes = value.to_string().into_bytes();
    async_io(client, Interest::Write, |fd| Ok(send(fd, &bytes, SendFlags::NOSIGNAL)?)).await.map(drop)
}

async fn serve_client(client: &AsyncFd<OwnedFd>, requests: &mpsc::Sender<Request>) -> io::Result<()> {
    // A large answer is one message: the send buffer has to hold it.
    sockopt::set_socket_send_buffer_size(client.get_ref(), 2 * MAX_ANSWER)?;
    let greeting = json!({
        "version": concat!("ipoib-fwd ", env!("CARGO_PKG_VERSION")),
        "pid": std::process::id(),
        "max_output_len": MAX_ANSWER,
    });
    send_value(client, &greeting).await?;
    let mut buffer = [0u8; MAX_REQUEST + 1];
    loop {
        let length =
            async_io(client, Interest::Read, |fd| Ok(recv(fd, &mut buffer, RecvFlags::empty())?.0)).await?;
        let bytes = match buffer.get(..length) {
            None | Some([]) => return Ok(()),
            Some(bytes) => bytes,
        };
        let reply = if length > MAX_REQUEST {
            json!({"error": format!("a request has at most {MAX_REQUEST} bytes")})
        } else {
            match Command::parse(bytes) {
                Ok(command) => answer(command, requests).await,
                Err(why) => json!({ "error": why }),
            }
        };
        send_value(client, &reply).await?;
    }
}

async fn answer(command: Command, requests: &mpsc::Sender<Request>) -> Value {
    let name = command.name.clone();
    let (tx, rx) = oneshot::channel();
    if requests.send(Request { command, answer: tx }).await.is_err() {
        return json!({"error": "the program is stopping"});
    }
    match rx.await {
        Ok(Ok(value)) => {
            let reply = json!({ name.clone(): value });
            if reply.to_string().len() > MAX_ANSWER {
                json!({"error": format!("the answer to {name} is longer than {MAX_ANSWER} bytes; ask for a part of it")})
            } else {
                reply
            }
        }
        Ok(Err(why)) => json!({name: null, "error": why}),
        Err(_) => json!({"error": "the program is stopping"}),
    }
}

/// Asks a running program one thing.
pub fn ask(path: &Path, request: &str, timeout: Duration) -> Result<Value, TelemetryError> {
    let fail = |what, hint| {
        let path = path.to_owned();
        move |e: rustix::io::Errno| TelemetryError::Socket { path, what, source: e.into(), hint }
    };
    let protocol = |what: String| TelemetryError::Protocol { path: path.to_owned(), what };
    let address =
        SocketAddrUnix::new(path).map_err(fail("use this path", "; a path has at most 107 bytes"))?;
    let socket = seqpacket(SocketFlags::empty()).map_err(|e| TelemetryError::Socket {
        path: path.to_owned(),
        what: "be made",
        source: e,
        hint: "",
    })?;
    connect(&socket, &address).map_err(fail(
        "connect",
        "; is the gateway running, and with this control socket (--control-socket)?",
    ))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(timeout))
        .map_err(fail("set a time limit", ""))?;
    let mut buffer = vec![0u8; MAX_ANSWER + 1];
    let mut receive = |socket: &OwnedFd| -> Result<Value, TelemetryError> {
        let (length, _) = recv(socket.as_fd(), &mut buffer[..], RecvFlags::empty())
            .map_err(fail("read an answer", "; the gateway did not answer in time"))?;
        if length == 0 {
            return Err(protocol("the other end closed the socket".to_owned()));
        }
        serde_json::from_slice(buffer.get(..length).unwrap_or_default()).map_err(|e| protocol(e.to_string()))
    };
    receive(&socket)?;
    send(&socket, request.as_bytes(), SendFlags::NOSIGNAL).map_err(fail("send the request", ""))?;
    let mut reply = receive(&socket)?;
    if let Some(why) = reply.get("error").and_then(Value::as_str) {
        return Err(TelemetryError::Refused(why.to_owned()));
    }
    let name = request.split(',').next().unwrap_or_default();
    reply.get_mut(name).map(Value::take).ok_or_else(|| protocol(format!("it does not name {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo_server(path: &Path, body: impl FnOnce(&Path) + Send + 'static) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let path = path.to_owned();
        runtime.block_on(async move {
            let (tx, mut rx) = mpsc::channel::<Request>(4);
            let server = Server::start(&path, tx).unwrap();
            let client = {
                let path = path.clone();
                tokio::task::spawn_blocking(move || body(&path))
            };
            tokio::pin!(client);
            loop {
                tokio::select! {
                    done = &mut client => break done.unwrap(),
                    Some(request) = rx.recv() => {
                        let answer = match request.command.name.as_str() {
                            "/echo" => Ok(json!(request.command.parameters)),
                            "/huge" => Ok(json!("x".repeat(MAX_ANSWER))),
                            name => Err(format!("no command {name}")),
                        };
                        let _ = request.answer.send(answer);
                    }
                }
            }
            drop(server);
            assert!(!path.exists(), "the socket is removed");
        });
    }

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("telemetry-{}-{name}", std::process::id()))
    }

    #[test]
    fn answers_refuses_and_survives_bad_requests() {
        echo_server(&scratch("ask"), |path| {
            let second = Duration::from_secs(1);
            assert_eq!(ask(path, "/echo,a,b", second).unwrap(), json!("a,b"));
            assert!(matches!(ask(path, "/nothing", second), Err(TelemetryError::Refused(_))));
            assert!(matches!(ask(path, "no slash", second), Err(TelemetryError::Refused(_))));
            assert!(matches!(ask(path, &"/long".repeat(300), second), Err(TelemetryError::Refused(_))));
            assert!(matches!(ask(path, "/huge", second), Err(TelemetryError::Refused(_))));
            assert_eq!(ask(path, "/echo", second).unwrap(), Value::Null);
        });
    }

    #[test]
    fn a_served_socket_is_not_taken_over_but_a_stale_one_is() {
        let path = scratch("stale");
        {
            let stale = seqpacket(SocketFlags::empty()).unwrap();
            bind(&stale, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        }
        assert!(path.exists());
        echo_server(&path, |path| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (tx, _rx) = mpsc::channel(1);
            let second = runtime.block_on(async { Server::start(path, tx).map(drop) });
            assert!(matches!(second, Err(TelemetryError::InUse(_))), "{second:?}");
        });
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let error = ask(&scratch("nobody"), "/stats", Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.contains("--control-socket"), "{error}");
    }
}
