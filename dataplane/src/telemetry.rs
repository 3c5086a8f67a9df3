//! The control socket: JSON over a UNIX seqpacket socket in the shape of DPDK telemetry v2.
//!
//! A client connects and is greeted with `{"version":…,"pid":…,"max_output_len":…}`. It sends `/command` or
//! `/command,parameters`, one message each, and gets `{"/command": answer}`. What the system's bound of a message
//! (`net.core.wmem_max`) does not take in one comes in several, of which all but the last have `max_output_len` bytes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

/// Longest answer; a longer one is replaced by an error that says so.
pub const MAX_ANSWER: usize = 16 << 20;
/// Longest message, as far as the system takes it.
const MAX_MESSAGE: usize = 1 << 20;
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
    /// What is there was not made by this program.
    #[error("control socket {0}: {1} is there already and stays; choose another path with --control-socket")]
    Occupied(PathBuf, &'static str),
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

/// Who may use the socket: its user, and a group if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Number of the user whose the socket shall be, if not of this process's.
    pub user: Option<u32>,
    /// Number of the group whose members may use it, too.
    pub group: Option<u32>,
}

impl Access {
    /// Applies to the socket at a path, which nobody but its user could use up to now.
    fn give(self, path: &Path) -> io::Result<()> {
        let mode = if self.group.is_some() { 0o660 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        if self != Self::default() {
            lchown(path, self.user, self.group)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }
}

/// The serving end. Removes the socket's path when dropped, if it is still the one that it made.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    /// Device and inode of the socket that was made.
    made: (u64, u64),
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // It may have been removed by hand, and another one made.
        if fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.made) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Server {
    /// Binds the socket and serves it on the current runtime.
    pub(crate) fn start(
        path: &Path,
        access: Access,
        requests: mpsc::Sender<Request>,
    ) -> Result<Self, TelemetryError> {
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
        clear(path, &address)?;
        bind(&socket, &address).map_err(|e| fail("be bound", "; choose another path")(e.into()))?;
        access.give(path).map_err(fail("be given to its user and group", ""))?;
        let made = fs::symlink_metadata(path).map_err(fail("be found", ""))?;
        listen(&socket, 4).map_err(|e| fail("listen", "")(e.into()))?;
        let socket = watch(socket).map_err(fail("be watched", ""))?;
        let task = tokio::spawn(accept_clients(socket, requests));
        Ok(Self { path: path.to_owned(), made: (made.dev(), made.ino()), task })
    }
}

/// Removes what a process that was killed has left at the path: a socket on which nobody listens, and nothing else.
fn clear(path: &Path, address: &SocketAddrUnix) -> Result<(), TelemetryError> {
    let fail = |what, source| TelemetryError::Socket {
        path: path.to_owned(),
        what,
        source,
        hint: "; choose another path",
    };
    let there = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(fail("look at its path", e)),
        Ok(there) => there,
    };
    let occupied = |what| Err(TelemetryError::Occupied(path.to_owned(), what));
    if !there.file_type().is_socket() {
        return occupied("a file that is no socket");
    }
    // A server whose backlog is full must not hold us up.
    let probe = seqpacket(SocketFlags::NONBLOCK).map_err(|e| fail("be made", e))?;
    match connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => {
            fs::remove_file(path).map_err(|e| fail("replace the old one", e))
        }
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Err(TelemetryError::InUse(path.to_owned())),
        Err(rustix::io::Errno::PROTOTYPE) => occupied("another program's socket"),
        Err(e) => Err(fail("look who serves it", e.into())),
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

/// Sends a value in messages of `part` bytes, the last one shorter: so its reader knows that it is the last.
async fn send_value(client: &AsyncFd<OwnedFd>, value: &Value, part: usize) -> io::Result<()> {
    let mut bytes = value.to_string().into_bytes();
    if bytes.len().is_multiple_of(part) {
        bytes.push(b' ');
    }
    for message in bytes.chunks(part) {
        async_io(client, Interest::Write, |fd| Ok(send(fd, message, SendFlags::NOSIGNAL)?)).await?;
    }
    Ok(())
}

/// Largest message that the system takes on a client's socket: what the send buffer may hold, by half.
fn largest_message(client: &OwnedFd) -> io::Result<usize> {
    sockopt::set_socket_send_buffer_size(client, 2 * MAX_MESSAGE)?;
    Ok((sockopt::socket_send_buffer_size(client)? / 2).clamp(1024, MAX_MESSAGE))
}

async fn serve_client(client: &AsyncFd<OwnedFd>, requests: &mpsc::Sender<Request>) -> io::Result<()> {
    let part = largest_message(client.get_ref())?;
    let greeting = json!({
        "version": concat!("ipoib-fwd ", env!("CARGO_PKG_VERSION")),
        "pid": std::process::id(),
        "max_output_len": part,
    });
    send_value(client, &greeting, part).await?;
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
        send_value(client, &reply, part).await?;
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

/// Asks a running program one thing; within `timeout`, however slowly the other end goes on.
pub fn ask(path: &Path, request: &str, timeout: Duration) -> Result<Value, TelemetryError> {
    let end = Instant::now() + timeout;
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
    // Also for connecting, which waits for a server that accepts nobody.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))
        .map_err(fail("set a time limit", ""))?;
    connect(&socket, &address).map_err(|error| {
        let hint = match error {
            rustix::io::Errno::AGAIN => "; whoever serves it takes no more clients",
            _ => "; is the gateway running, and with this control socket (--control-socket)?",
        };
        fail("connect", hint)(error)
    })?;
    let late = "; the gateway did not answer in time";
    let mut buffer = vec![0u8; MAX_MESSAGE];
    let mut receive = |part: usize| -> Result<Value, TelemetryError> {
        let mut answer = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(fail("read an answer", late)(rustix::io::Errno::TIMEDOUT));
            }
            sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(left))
                .map_err(fail("set a time limit", ""))?;
            let (length, _) = recv(socket.as_fd(), &mut buffer[..], RecvFlags::empty())
                .map_err(fail("read an answer", late))?;
            if length == 0 {
                return Err(protocol("the other end closed the socket".to_owned()));
            }
            answer.extend_from_slice(buffer.get(..length).unwrap_or_default());
            if answer.len() > MAX_ANSWER + part {
                return Err(protocol(format!("it is longer than {MAX_ANSWER} bytes")));
            }
            if length < part {
                return serde_json::from_slice(&answer).map_err(|e| protocol(e.to_string()));
            }
        }
    };
    let greeting = receive(MAX_MESSAGE)?;
    let part = greeting.get("max_output_len").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    send(&socket, request.as_bytes(), SendFlags::NOSIGNAL).map_err(fail("send the request", ""))?;
    let mut reply = receive(part.unwrap_or(MAX_MESSAGE).clamp(1, MAX_MESSAGE))?;
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
            let server = Server::start(&path, Access::default(), tx).unwrap();
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
                            "/long" => {
                                let length = request.command.parameters.and_then(|n| n.parse().ok());
                                Ok(json!("x".repeat(length.unwrap_or_default())))
                            }
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
    fn answers_of_any_length_arrive_whole() {
        echo_server(&scratch("long"), |path| {
            let part = {
                let socket = seqpacket(SocketFlags::empty()).unwrap();
                connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
                largest_message(&socket).unwrap()
            };
            // `{"/long":"` and `"}` stand around it.
            let whole = part - 12;
            for length in [0, whole - 1, whole, whole + 1, 5 * part - 12, MAX_ANSWER - 12] {
                let answer = ask(path, &format!("/long,{length}"), Duration::from_secs(20)).unwrap();
                assert_eq!(answer.as_str().map(str::len), Some(length));
            }
            assert_eq!(ask(path, "/echo,next", Duration::from_secs(1)).unwrap(), json!("next"));
        });
    }

    fn start(path: &Path) -> Result<(), TelemetryError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (tx, _rx) = mpsc::channel(1);
        runtime.block_on(async { Server::start(path, Access::default(), tx).map(drop) })
    }

    #[test]
    fn what_others_have_at_the_path_stays() {
        let path = scratch("file");
        fs::write(&path, "mine").unwrap();
        let error = start(&path).unwrap_err();
        assert!(error.to_string().contains("no socket is there already and stays"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        fs::remove_file(&path).unwrap();

        let path = scratch("daemon");
        let daemon = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(start(&path), Err(TelemetryError::Occupied(..))));
        assert!(path.exists());
        drop(daemon);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn who_answers_nothing_or_without_end_is_waited_for_no_longer_than_was_said() {
        let path = scratch("slow");
        let served = seqpacket(SocketFlags::empty()).unwrap();
        bind(&served, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&served, 0).unwrap();
        let patience = Duration::from_millis(300);
        let asked = || {
            let begin = Instant::now();
            let error = ask(&path, "/stats", patience).unwrap_err().to_string();
            assert!((patience..20 * patience).contains(&begin.elapsed()), "{:?}: {error}", begin.elapsed());
            error
        };
        // Nobody accepts: the first is taken by the kernel, the second finds the queue full.
        let first = std::thread::scope(|scope| {
            let first = scope.spawn(asked);
            std::thread::sleep(patience / 10);
            assert!(asked().contains("takes no more clients"));
            first.join().unwrap()
        });
        assert!(first.contains("did not answer in time"), "{first}");
        // A byte now and then, each in good time, and no end.
        drop(accept_with(&served, SocketFlags::CLOEXEC).unwrap());
        let trickle = std::thread::spawn(move || {
            let client = accept_with(&served, SocketFlags::CLOEXEC).unwrap();
            let greeting = br#"{"max_output_len":1}"#;
            send(&client, greeting, SendFlags::NOSIGNAL).unwrap();
            while send(&client, b" ", SendFlags::NOSIGNAL).is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert!(asked().contains("did not answer in time"));
        trickle.join().unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_full_backlog_is_a_served_socket_and_does_not_hold_us_up() {
        let path = scratch("backlog");
        let address = SocketAddrUnix::new(&path).unwrap();
        let busy = seqpacket(SocketFlags::empty()).unwrap();
        bind(&busy, &address).unwrap();
        listen(&busy, 0).unwrap();
        let mut waiting = Vec::new();
        loop {
            let client = seqpacket(SocketFlags::NONBLOCK).unwrap();
            if connect(&client, &address).is_err() {
                break;
            }
            waiting.push(client);
        }
        assert!(matches!(start(&path), Err(TelemetryError::InUse(_))));
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_socket_that_another_made_meanwhile_stays() {
        let path = scratch("successor");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (tx, _rx) = mpsc::channel(1);
            let first = Server::start(&path, Access::default(), tx).unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, "another's").unwrap();
            drop(first);
        });
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
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
            let second = runtime.block_on(async { Server::start(path, Access::default(), tx).map(drop) });
            assert!(matches!(second, Err(TelemetryError::InUse(_))), "{second:?}");
        });
    }

    #[test]
    fn a_socket_is_its_users_or_a_groups_too() {
        let own = rustix::process::getegid().as_raw();
        for (group, mode) in [(None, 0o600), (Some(own), 0o660)] {
            let path = scratch("access");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let access = Access { user: None, group };
                let server = Server::start(&path, access, mpsc::channel(1).0).unwrap();
                let about = fs::symlink_metadata(&path).unwrap();
                assert_eq!((about.mode() & 0o7777, about.gid()), (mode, own));
                drop(server);
            });
            assert!(!path.exists());
        }
    }

    #[test]
    fn nobody_there_says_what_to_do() {
        let error = ask(&scratch("nobody"), "/stats", Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.contains("--control-socket"), "{error}");
    }
}
