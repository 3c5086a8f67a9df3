//! A cable in shared memory between two processes.
//!
//! The listener (the fabric) owns a UNIX socket whose path names the cable. For each connector it allocates
//! memory with a ring for each direction and passes its descriptor. After that the socket shows whether the
//! other process lives, and carries wakeups for a sleeping end: messages of one byte.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::handover::{self, Answer, Hello, Word};
use super::ring::{Broken, Consumer, Mapping, Producer, RING_HEADER};
use super::{CableCounters, CableError, CableTrouble, Crcs, MAX_PACKET, Sent};

/// Bytes of each direction: 250 packets of the largest size.
const RING: u32 = 1 << 20;
/// Largest ring accepted from a listener.
const MAX_RING: u32 = 64 << 20;
/// Interval between two checks of the sockets.
const CHECK: Duration = Duration::from_millis(1);
/// The wakeup message.
const WAKE: u8 = 0xa5;
/// Wakeup messages consumed in one check.
const WAKES: usize = 64;
/// Most connectors handled in one check.
const ACCEPTS: usize = 2;
/// Timeout of the handshake.
const GREETING: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_millis(500);
const SOCKET: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

#[derive(Debug)]
struct Rings {
    producer: Producer,
    consumer: Consumer,
    /// Packets may have no CRCs: offered, and agreed after the other end has answered.
    bare: bool,
}

#[derive(Debug)]
enum State {
    /// Not connected. A connector dials again at `retry`; a listener waits.
    Detached { retry: Instant },
    /// Connected. The listener waits for the answer, the connector (without rings yet) for the hello.
    Greeting { socket: OwnedFd, rings: Option<Rings>, until: Instant },
    /// Packets can pass. `broken` after the other end has violated the protocol.
    Attached { socket: OwnedFd, rings: Rings, broken: bool },
}

/// The socket of the listening side.
#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file, so that only our own is removed.
    name: Option<(u64, u64)>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.name.is_some() && name_of(&self.path) == self.name {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn name_of(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// One end.
#[derive(Debug)]
pub(super) struct ShmEnd {
    address: SocketAddrUnix,
    listener: Option<Listener>,
    state: State,
    backoff: Duration,
    next_check: Option<Instant>,
    /// The last check consumed a wakeup message.
    woken: bool,
    /// Packets without CRCs are neither offered nor accepted.
    keeps_crcs: bool,
    pub(super) trouble: Option<CableTrouble>,
}

impl ShmEnd {
    /// Opens the listening side; the socket exists when this returns.
    pub(super) fn listen(path: &Path) -> Result<Self, CableError> {
        let failed =
            |what, e: Errno| CableError::Socket { what, name: path.display().to_string(), source: e.into() };
        let address = SocketAddrUnix::new(path).map_err(|e| failed("name", e))?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| CableError::Socket {
                what: "create the directory of",
                name: path.display().to_string(),
                source,
            })?;
        }
        let open = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None);
        let socket = open().map_err(|e| failed("open", e))?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                // Stale socket of a killed process, or in use?
                let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
                let probe = open().map_err(|e| failed("open", e))?;
                if !is_socket || rustix::net::connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                    return Err(CableError::InUse(path.display().to_string()));
                }
                rustix::fs::unlink(path).map_err(|e| failed("remove the stale", e))?;
                rustix::net::bind(&socket, &address).map_err(|e| failed("bind", e))?;
            }
            other => other.map_err(|e| failed("bind", e))?,
        }
        let listener = Listener { socket, path: path.to_owned(), name: name_of(path) };
        // A process that may connect can send into the fabric: owner and group only.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(|source| {
            CableError::Socket { what: "set the mode of", name: path.display().to_string(), source }
        })?;
        rustix::net::listen(&listener.socket, 4).map_err(|e| failed("listen on", e))?;
        Ok(Self::new(address, Some(listener)))
    }

    /// Opens the connecting side. The listener need not exist yet.
    pub(super) fn connect(path: &Path) -> Result<Self, CableError> {
        let address = SocketAddrUnix::new(path).map_err(|e| CableError::Socket {
            what: "name",
            name: path.display().to_string(),
            source: e.into(),
        })?;
        Ok(Self::new(address, None))
    }

    fn new(address: SocketAddrUnix, listener: Option<Listener>) -> Self {
        Self {
            address,
            listener,
            state: State::Detached { retry: Instant::now() },
            backoff: FIRST_RETRY,
            next_check: None,
            woken: false,
            keeps_crcs: false,
            trouble: None,
        }
    }

    /// Keeps CRCs in our packets from now on, and in those of the other end from the next connection on.
    pub(super) const fn keep_crcs(&mut self) {
        self.keeps_crcs = true;
    }

    /// True if packets may be sent without CRCs.
    pub(super) const fn takes_bare(&self) -> bool {
        !self.keeps_crcs && matches!(&self.state, State::Attached { rings: Rings { bare: true, .. }, .. })
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, State::Attached { broken: false, .. })
    }

    /// Returns true if a wakeup message was consumed.
    pub(super) fn poll(&mut self, now: Instant, counters: &mut CableCounters) -> bool {
        if self.next_check.is_some_and(|at| now < at) {
            return false;
        }
        self.next_check = Some(now + CHECK);
        let state = std::mem::replace(&mut self.state, State::Detached { retry: now });
        self.state = match state {
            State::Attached { socket, rings, broken } => self.check(socket, rings, broken, now, counters),
            State::Greeting { socket, rings: Some(rings), until } => {
                self.await_answer(socket, rings, until, now, counters)
            }
            State::Greeting { socket, rings: None, until } => self.await_hello(socket, until, now, counters),
            State::Detached { retry } if self.listener.is_none() && now >= retry => self.dial(now),
            other @ State::Detached { .. } => other,
        };
        self.accept(now);
        std::mem::take(&mut self.woken)
    }

    /// Attached: checks that the other end is alive and follows the protocol.
    fn check(
        &mut self,
        socket: OwnedFd,
        rings: Rings,
        broken: bool,
        now: Instant,
        counters: &mut CableCounters,
    ) -> State {
        let mut talks = false;
        for _ in 0..WAKES {
            let mut word = [0u8; 2];
            match rustix::net::recv(&socket, &mut word[..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) if !broken => {
                    return State::Attached { socket, rings, broken };
                }
                Ok((1, _)) if word == [WAKE, 0] && !broken => {
                    self.woken = true;
                    continue;
                }
                // The protocol has no other message after the handshake.
                Ok((n, _)) => talks = n > 0,
                Err(_) => {}
            }
            return self.detach(&rings, broken || talks, now, counters);
        }
        State::Attached { socket, rings, broken }
    }

    fn detach(&mut self, rings: &Rings, violated: bool, now: Instant, counters: &mut CableCounters) -> State {
        if violated {
            counters.violations += 1;
            self.trouble = Some(CableTrouble::Violation);
        } else {
            self.trouble = Some(CableTrouble::Gone);
        }
        counters.downs += 1;
        counters.lost_going_down += rings.producer.left_behind() + rings.consumer.waiting();
        self.backoff = FIRST_RETRY;
        State::Detached { retry: now + FIRST_RETRY }
    }

    fn attached(&mut self, socket: OwnedFd, rings: Rings, counters: &mut CableCounters) -> State {
        counters.ups += 1;
        self.trouble = None;
        self.backoff = FIRST_RETRY;
        State::Attached { socket, rings, broken: false }
    }

    /// Listener: waits for the connector's answer to the hello.
    fn await_answer(
        &mut self,
        socket: OwnedFd,
        rings: Rings,
        until: Instant,
        now: Instant,
        counters: &mut CableCounters,
    ) -> State {
        self.trouble = Some(match handover::receive_answer(&socket) {
            Ok(Some(Answer::Attached { bare })) if rings.bare || !bare => {
                return self.attached(socket, rings.agreed(bare), counters);
            }
            Ok(None) if now < until => return State::Greeting { socket, rings: Some(rings), until },
            Ok(None) => CableTrouble::Silent,
            Ok(Some(Answer::OtherVersion)) => CableTrouble::Version,
            Ok(Some(Answer::Gone)) => CableTrouble::Gone,
            // Accepting what was not offered violates the protocol as well.
            Ok(Some(Answer::Attached { .. })) | Err(handover::Malformed) => {
                counters.violations += 1;
                CableTrouble::Violation
            }
        });
        State::Detached { retry: now }
    }

    /// Listener: accepts the next connector if there is none, and rejects all others as busy.
    fn accept(&mut self, now: Instant) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..ACCEPTS {
            let Ok(socket) = rustix::net::accept_with(&listener.socket, SOCKET) else { return };
            if !matches!(self.state, State::Detached { .. }) {
                handover::send_word(&socket, Word::Busy);
                continue;
            }
            match offer(&socket, !self.keeps_crcs) {
                Ok(rings) => {
                    self.state = State::Greeting { socket, rings: Some(rings), until: now + GREETING };
                    return;
                }
                Err(_) => self.trouble = Some(CableTrouble::NoMemory),
            }
        }
    }

    fn later(&mut self, now: Instant) -> State {
        let retry = now + self.backoff;
        self.backoff = (self.backoff * 2).min(LAST_RETRY);
        State::Detached { retry }
    }

    /// Connector: tries to connect to the socket.
    fn dial(&mut self, now: Instant) -> State {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None)
            .and_then(|socket| rustix::net::connect(&socket, &self.address).map(|()| socket));
        match socket {
            Ok(socket) => State::Greeting { socket, rings: None, until: now + GREETING },
            Err(e) => {
                self.trouble = Some(match e {
                    Errno::NOENT | Errno::CONNREFUSED => CableTrouble::NoListener,
                    Errno::ACCESS | Errno::PERM => CableTrouble::NotAllowed,
                    _ => CableTrouble::Gone,
                });
                self.later(now)
            }
        }
    }

    /// Connector: waits for the listener's hello.
    fn await_hello(
        &mut self,
        socket: OwnedFd,
        until: Instant,
        now: Instant,
        counters: &mut CableCounters,
    ) -> State {
        self.trouble = Some(match handover::receive_hello(&socket) {
            Ok(None) if now < until => return State::Greeting { socket, rings: None, until },
            Ok(None) => CableTrouble::Silent,
            Ok(Some(Hello::Memory { file, ring })) => match adopt(&file, ring, !self.keeps_crcs) {
                Some(rings) => {
                    let word = if rings.bare { Word::AttachedBare } else { Word::Attached };
                    handover::send_word(&socket, word);
                    return self.attached(socket, rings, counters);
                }
                None => {
                    counters.violations += 1;
                    CableTrouble::Violation
                }
            },
            Ok(Some(Hello::OtherVersion)) => {
                handover::send_word(&socket, Word::BadVersion);
                CableTrouble::Version
            }
            Ok(Some(Hello::Busy)) => CableTrouble::Busy,
            Ok(Some(Hello::Gone)) => CableTrouble::Gone,
            Err(handover::Malformed) => {
                counters.violations += 1;
                CableTrouble::Violation
            }
        });
        self.later(now)
    }

    /// Wakes the other end if it sleeps and something was sent since the last call.
    pub(super) fn flush(&mut self) {
        if let State::Attached { socket, rings, broken: false } = &mut self.state
            && rings.producer.has_to_wake()
        {
            // If the socket is full of wakeup messages, it wakes the other end anyway.
            let _ = rustix::net::send(&*socket, &[WAKE], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Requests wakeups from the other end; `None` if it is not attached. Earlier arrivals do not wake this
    /// end.
    pub(super) fn rest(&mut self) -> Option<BorrowedFd<'_>> {
        // The next check consumes the last wakeup message, which would otherwise wake this end again.
        self.next_check = None;
        match &self.state {
            State::Attached { socket, rings, broken: false } => {
                rings.consumer.request_wakeup();
                Some(socket.as_fd())
            }
            _ => None,
        }
    }

    /// The descriptor that signals wakeups from the other end.
    pub(super) fn waker(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Attached { socket, broken: false, .. } => Some(socket.as_fd()),
            _ => None,
        }
    }

    /// When to check an end that cannot be woken, and a descriptor that signals that an earlier check is
    /// needed. `None` for an end that is up.
    pub(super) fn next_look(&self, now: Instant) -> Option<(Instant, Option<BorrowedFd<'_>>)> {
        match (&self.state, &self.listener) {
            (State::Attached { broken: false, .. }, _) => None,
            (State::Attached { .. }, _) => Some((now, None)),
            (State::Greeting { socket, until, .. }, _) => Some((*until, Some(socket.as_fd()))),
            (State::Detached { .. }, Some(listener)) => {
                Some((now + LAST_RETRY, Some(listener.socket.as_fd())))
            }
            (State::Detached { retry }, None) => Some((*retry, None)),
        }
    }

    pub(super) fn has_room(&mut self, len: usize) -> bool {
        let State::Attached { rings, broken, .. } = &mut self.state else { return true };
        rings.producer.has_room(len).unwrap_or_else(|Broken| {
            *broken = true;
            true
        })
    }

    pub(super) fn send(&mut self, packet: &[u8], crcs: Crcs) -> Sent {
        let State::Attached { rings, broken: broken @ false, .. } = &mut self.state else {
            return Sent::Down;
        };
        match rings.producer.push(packet, crcs) {
            Ok(true) => Sent::Taken,
            Ok(false) => Sent::Full,
            Err(Broken) => {
                *broken = true;
                Sent::Down
            }
        }
    }

    pub(super) fn receive(
        &mut self,
        max: usize,
        inn: &mut [u8; MAX_PACKET],
        take: impl FnMut(&[u8], Crcs) -> bool,
    ) -> usize {
        let State::Attached { rings, broken: broken @ false, .. } = &mut self.state else { return 0 };
        let (n, verdict) = rings.consumer.drain(max, inn, take);
        *broken = verdict.is_err();
        n
    }
}

const fn memory_size(ring: u32) -> usize {
    2 * (RING_HEADER + ring as usize)
}

impl Rings {
    /// Records the agreement of both ends on packets without CRCs.
    const fn agreed(mut self, bare: bool) -> Self {
        self.bare = bare;
        if bare {
            self.consumer.take_bare();
        }
        self
    }
}

/// Listener: allocates the memory and sends it, with an offer to omit CRCs if `bare`. The first ring leads
/// from the listener to the connector.
fn offer(socket: &OwnedFd, bare: bool) -> rustix::io::Result<Rings> {
    let file = rustix::fs::memfd_create("ib-cable", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, memory_size(RING) as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let memory = Arc::new(Mapping::shared(&file, memory_size(RING))?);
    let second = RING_HEADER + RING as usize;
    let rings = Producer::new(memory.clone(), 0, RING)
        .zip(Consumer::new(memory, second, RING))
        .map(|(producer, consumer)| Rings { producer, consumer, bare })
        .ok_or(Errno::INVAL)?;
    rings.producer.offer_bare(bare);
    handover::send_hello(socket, &file, RING)?;
    Ok(rings)
}

/// Connector: checks the memory and maps it. CRCs are omitted if that is offered and `bare`.
fn adopt(file: &OwnedFd, ring: u32, bare: bool) -> Option<Rings> {
    let sealed = rustix::fs::fcntl_get_seals(file).ok()?.contains(SealFlags::SHRINK);
    let size = rustix::fs::fstat(file).ok()?.st_size;
    if !sealed || ring > MAX_RING || usize::try_from(size).ok()? != memory_size(ring) {
        return None;
    }
    let memory = Arc::new(Mapping::shared(file, memory_size(ring)).ok()?);
    let consumer = Consumer::new(memory.clone(), 0, ring)?;
    let producer = Producer::new(memory, RING_HEADER + ring as usize, ring)?;
    // Read once: a later write by the listener has no effect.
    let bare = bare && consumer.is_offered_bare();
    Some(Rings { producer, consumer, bare }.agreed(bare))
}

#[cfg(test)]
mod tests;
