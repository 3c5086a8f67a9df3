//! The server side.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::net::{
    RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, accept_with, bind, connect, listen, recv, send,
    sockopt,
};
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::places::{MAX_CLIENTS, Place, Places};
use super::{
    Access, Command, MAX_ANSWER, MAX_MESSAGE, MAX_REQUEST, Reply, Request, Subscription, TelemetryError,
    seqpacket,
};

/// Maximum number of clients with repeated answers, so that slots remain for others.
pub const MAX_FOLLOWERS: usize = 8;
/// Send buffer for a client with repeated answers that does not read.
const UNREAD: usize = 1 << 17;
/// Time limit for a client to read an answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Time that clients have at the end to read their last answers, after everything that fits has been sent.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Number of attempts of a starting process to lock the socket's directory, and the interval between them.
const LOCK_TRIES: u32 = 5000;
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// Requests that arrive within this time after the end are still answered.
const LAST_LOOK: Duration = Duration::from_millis(5);
/// Number of runtime iterations at the end, for accepting requests and sending what fits, before clients are
/// waited for. The runtime polls sockets at least every 61st iteration.
const LAST_TURNS: u32 = 61 * 16;

/// Clients that are owed an answer.
#[derive(Debug)]
struct Listeners {
    /// Slots for clients with repeated answers.
    followers: Semaphore,
    /// Slots for clients that wait for an answer.
    askers: Semaphore,
}

/// The server. On drop it removes the socket's path if that still refers to its socket.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    /// Device and inode of its socket.
    made: (u64, u64),
    task: tokio::task::JoinHandle<()>,
    listeners: Arc<Listeners>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // The path may have been removed, and another socket created there.
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
        let address = SocketAddrUnix::new(path)
            .map_err(|e| fail("use this path", "; a path has at most 107 bytes")(e.into()))?;
        let socket = seqpacket(SocketFlags::NONBLOCK).map_err(fail("create the socket", ""))?;
        // Without the lock, a socket that another process has bound but does not listen on yet would look
        // like a leftover.
        let _lock = lock_directory(path);
        clear(path, &address)?;
        bind(&socket, &address).map_err(|e| {
            let hint = match e {
                rustix::io::Errno::NOENT => "; create its directory, or choose another path",
                _ => "; choose another path",
            };
            fail("bind it", hint)(e.into())
        })?;
        access.give(path).map_err(fail("set its owner and group", ""))?;
        let made = fs::symlink_metadata(path).map_err(fail("access it", ""))?;
        listen(&socket, 4).map_err(|e| fail("listen", "")(e.into()))?;
        let socket = watch(socket).map_err(fail("poll it", ""))?;
        let listeners = Arc::new(Listeners {
            followers: Semaphore::new(MAX_FOLLOWERS),
            askers: Semaphore::new(MAX_CLIENTS),
        });
        let task = tokio::spawn(accept_clients(socket, requests, Arc::clone(&listeners)));
        Ok(Self { path: path.to_owned(), made: (made.dev(), made.ino()), task, listeners })
    }

    /// Lets clients read the remaining answers and the end mark. Feeds have ended, and no more requests are
    /// accepted.
    pub(crate) async fn finish(self) {
        tokio::time::sleep(LAST_LOOK).await;
        // Take pending requests from their sockets, even if this thread waited long for a CPU.
        for _ in 0..LAST_TURNS {
            tokio::task::yield_now().await;
        }
        let Listeners { followers, askers } = &*self.listeners;
        let all = async {
            drop(askers.acquire_many(MAX_CLIENTS as u32).await);
            drop(followers.acquire_many(MAX_FOLLOWERS as u32).await);
        };
        // First send everything that does not depend on clients.
        let mut all = pin!(all);
        for _ in 0..LAST_TURNS {
            if poll_once(all.as_mut()).await {
                return;
            }
            tokio::task::yield_now().await;
        }
        // A client that has not read by then is gone, or will find the connection closed.
        let _ = tokio::time::timeout(LAST_WORDS, all).await;
    }
}

/// Locks a path's directory until the lock is dropped. Continues without the lock if another process holds it
/// for long, since any user who may read the directory can take it.
fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    for _ in 0..LOCK_TRIES {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(LOCK_PAUSE),
            Err(_) => return None,
        }
    }
    None
}

/// Removes a leftover socket without a listener from the path. Nothing else is removed.
fn clear(path: &Path, address: &SocketAddrUnix) -> Result<(), TelemetryError> {
    let fail = |what, source| TelemetryError::Socket {
        path: path.to_owned(),
        what,
        source,
        hint: "; choose another path",
    };
    let there = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(fail("check its path", e)),
        Ok(there) => there,
    };
    let occupied = |what| Err(TelemetryError::Occupied(path.to_owned(), what));
    if !there.file_type().is_socket() {
        return occupied("a file that is not a socket");
    }
    // Do not wait for a server whose backlog is full.
    let probe = seqpacket(SocketFlags::NONBLOCK).map_err(|e| fail("create a socket", e))?;
    match connect(&probe, address) {
        Err(rustix::io::Errno::CONNREFUSED) => remove_stale(path, (there.dev(), there.ino())),
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Err(TelemetryError::InUse(path.to_owned())),
        Err(rustix::io::Errno::PROTOTYPE) => occupied("another program's socket"),
        Err(e) => Err(fail("check whether another process serves it", e.into())),
    }
}

/// Removes a socket without a listener, if it still has this device and inode. A process that starts at the
/// same time may have replaced it with its own socket, which stays.
fn remove_stale(path: &Path, stale: (u64, u64)) -> Result<(), TelemetryError> {
    let fail = |source| TelemetryError::Socket {
        path: path.to_owned(),
        what: "replace the old socket",
        source,
        hint: "; choose another path",
    };
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".stale-{}", std::process::id()));
    fs::rename(path, &aside).map_err(fail)?;
    let moved = fs::symlink_metadata(&aside).map_err(fail)?;
    if (moved.dev(), moved.ino()) == stale {
        return fs::remove_file(&aside).map_err(fail);
    }
    fs::rename(&aside, path).map_err(fail)?;
    Err(TelemetryError::InUse(path.to_owned()))
}

/// Polls a future. Returns true if it has completed.
async fn poll_once(mut future: Pin<&mut impl Future<Output = ()>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}

fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for types that may change their descriptor; an OwnedFd cannot"
    )]
    AsyncFd::new(fd)
}

async fn accept_clients(
    socket: AsyncFd<OwnedFd>,
    requests: mpsc::Sender<Request>,
    listeners: Arc<Listeners>,
) {
    let places = Places::new();
    loop {
        let accepted = async_io(&socket, Interest::Read, |fd| {
            Ok(accept_with(fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?)
        })
        .await;
        let (requests, listeners) = (requests.clone(), Arc::clone(&listeners));
        let places = Arc::clone(&places);
        match accepted.and_then(watch) {
            Ok(client) => {
                tokio::spawn(async move {
                    // A client that fails to read or write is closed. The others are not affected.
                    let _ = match places.take(is_root(client.get_ref())).await {
                        Some(place) => serve_client(&client, &requests, &listeners, &place).await,
                        None => refuse(&client).await,
                    };
                });
            }
            // Out of descriptors or memory: try again later.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// True for a client of root, for which a slot is reserved.
fn is_root(client: &OwnedFd) -> bool {
    sockopt::socket_peercred(client).is_ok_and(|peer| peer.uid.is_root())
}

/// Sends an error instead of the greeting.
async fn refuse(client: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let why = format!(
        "{MAX_CLIENTS} clients are being served, which is the maximum, and others are waiting; try again"
    );
    send_value(client, &json!({ "error": why }), largest_message(client.get_ref())?).await
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

/// Sends a value in messages of `part` bytes. The last one is shorter, which marks the end.
async fn send_value(client: &AsyncFd<OwnedFd>, value: &Value, part: usize) -> io::Result<()> {
    send_bytes(client, value.to_string().into_bytes(), part).await
}

async fn send_bytes(client: &AsyncFd<OwnedFd>, mut bytes: Vec<u8>, part: usize) -> io::Result<()> {
    if bytes.len().is_multiple_of(part) {
        bytes.push(b' ');
    }
    for message in bytes.chunks(part) {
        async_io(client, Interest::Write, |fd| Ok(send(fd, message, SendFlags::NOSIGNAL)?)).await?;
    }
    Ok(())
}

/// Returns the system's message limit for a client's socket: half of the send buffer.
pub(super) fn largest_message(client: &OwnedFd) -> io::Result<usize> {
    sockopt::set_socket_send_buffer_size(client, 2 * MAX_MESSAGE)?;
    Ok((sockopt::socket_send_buffer_size(client)? / 2).clamp(1024, MAX_MESSAGE))
}

async fn serve_client(
    client: &AsyncFd<OwnedFd>,
    requests: &mpsc::Sender<Request>,
    listeners: &Listeners,
    place: &Place,
) -> io::Result<()> {
    let part = largest_message(client.get_ref())?;
    let greeting = json!({
        "version": concat!("ipoib-fwd ", env!("CARGO_PKG_VERSION")),
        "pid": std::process::id(),
        "max_output_len": part,
    });
    send_value(client, &greeting, part).await?;
    let mut buffer = [0u8; MAX_REQUEST + 1];
    loop {
        place.idle();
        let length = tokio::select! {
            biased;
            length = async_io(client, Interest::Read, |fd| Ok(recv(fd, &mut buffer, RecvFlags::empty())?.0)) => length?,
            () = place.wanted() => return Ok(()),
        };
        place.busy();
        let bytes = match buffer.get(..length) {
            None | Some([]) => return Ok(()),
            Some(bytes) => bytes,
        };
        // There is a slot for each client. At the end, when all are taken, the client continues without one.
        let asks = listeners.askers.try_acquire();
        let command = if length > MAX_REQUEST {
            Err(format!("a request has at most {MAX_REQUEST} bytes"))
        } else {
            Command::parse(bytes)
        };
        let reply = match command {
            Ok(command) => {
                let name = command.name.clone();
                match ask(command, requests).await {
                    Ok(Reply::Once(value)) => whole(&name, value),
                    Ok(Reply::Later(answer)) => match answer.await.unwrap_or_else(|_| Err(stopping())) {
                        Ok(value) => whole(&name, value),
                        Err(why) => refusal(&name, &why),
                    },
                    Ok(Reply::Follow(_)) if place.is_kept() => {
                        let why = format!(
                            "{MAX_CLIENTS} clients are being served, and the slot reserved for root has no repeated answers; try again"
                        );
                        refusal(&name, &why)
                    }
                    Ok(Reply::Follow(subscription)) => match listeners.followers.try_acquire() {
                        Ok(_place) => {
                            drop(asks);
                            match follow(client, &name, subscription, part).await? {
                                Followed::Asks => continue,
                                Followed::ToTheEnd => return Ok(()),
                            }
                        }
                        Err(_) => {
                            let most = format!(
                                "{MAX_FOLLOWERS} clients with repeated answers are being served, which is the maximum"
                            );
                            refusal(&name, &most)
                        }
                    },
                    Err(why) => refusal(&name, &why),
                }
            }
            Err(why) => json!({ "error": why }).to_string().into_bytes(),
        };
        // Close a client that sends requests and does not read the answers.
        tokio::time::timeout(ANSWER_TIME, send_bytes(client, reply, part)).await??;
    }
}

/// Reason why a client's repeated answers ended.
enum Followed {
    /// It sent a request or disconnected.
    Asks,
    /// The feed has ended.
    ToTheEnd,
}

/// Sends repeated answers to a client.
async fn follow(
    client: &AsyncFd<OwnedFd>,
    name: &str,
    subscription: Subscription,
    part: usize,
) -> io::Result<Followed> {
    let Subscription { first, mut values } = subscription;
    send_value(client, &json!({ name: first }), part).await?;
    sockopt::set_socket_send_buffer_size(client.get_ref(), UNREAD)?;
    loop {
        let mut peeked = [0; 1];
        tokio::select! {
            value = values.recv() => {
                let Some(value) = value else { break };
                send_value(client, &json!({ name: *value }), part).await?;
            }
            asks = async_io(client, Interest::Read, |fd| Ok(recv(fd, &mut peeked, RecvFlags::PEEK)?)) => {
                asks?;
                largest_message(client.get_ref())?;
                return Ok(Followed::Asks);
            }
        }
    }
    send_value(client, &json!({ name: null }), part).await?;
    Ok(Followed::ToTheEnd)
}

fn stopping() -> String {
    "the program is stopping".to_owned()
}

/// Passes a request to the program.
async fn ask(command: Command, requests: &mpsc::Sender<Request>) -> Result<Reply, String> {
    let (tx, rx) = oneshot::channel();
    requests.send(Request { command, answer: tx }).await.map_err(|_| stopping())?;
    rx.await.map_err(|_| stopping())?
}

/// Formats an error response.
fn refusal(name: &str, why: &str) -> Vec<u8> {
    json!({name: null, "error": why}).to_string().into_bytes()
}

/// A buffer with a maximum length, beyond which writing fails.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_ANSWER {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Formats an answer, or an error if it is too long.
fn whole(name: &str, value: Value) -> Vec<u8> {
    let mut bytes = Bounded(Vec::new());
    if serde_json::to_writer(&mut bytes, &json!({ name: value })).is_ok() {
        return bytes.0;
    }
    let why = format!("the answer to {name} is longer than {MAX_ANSWER} bytes; request a part of it");
    json!({ "error": why }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn an_answer_that_is_too_long_is_given_up_at_the_bound() {
        let mut bounded = Bounded(Vec::new());
        bounded.write_all(&vec![0; MAX_ANSWER]).unwrap();
        assert_eq!(bounded.write(&[0]).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(bounded.0.len(), MAX_ANSWER);
        // `{"/x":""}` surrounds the text.
        let of = |length: usize| whole("/x", Value::String("y".repeat(length)));
        assert_eq!(of(MAX_ANSWER - 9).len(), MAX_ANSWER);
        assert!(of(MAX_ANSWER - 8).starts_with(b"{\"error\":\"the answer to /x is longer than"));
    }

    #[test]
    fn a_socket_that_took_the_stale_ones_place_stays() {
        let path = std::env::temp_dir().join(format!("control-race-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let address = SocketAddrUnix::new(&path).unwrap();
        let inode = || fs::symlink_metadata(&path).map(|there| (there.dev(), there.ino())).unwrap();
        let left = seqpacket(SocketFlags::NONBLOCK).unwrap();
        bind(&left, &address).unwrap();
        let stale = inode();
        // Another process replaces the leftover between the check and its removal.
        fs::rename(&path, path.with_extension("left")).unwrap();
        let quicker = seqpacket(SocketFlags::NONBLOCK).unwrap();
        bind(&quicker, &address).unwrap();
        let theirs = inode();
        assert!(matches!(remove_stale(&path, stale), Err(TelemetryError::InUse(_))));
        assert_eq!(inode(), theirs);
        fs::remove_file(&path).unwrap();
        fs::rename(path.with_extension("left"), &path).unwrap();
        remove_stale(&path, stale).unwrap();
        assert!(fs::symlink_metadata(&path).is_err());
    }
}
