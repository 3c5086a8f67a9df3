//! A cable in shared memory between two processes.
//!
//! The listener (the fabric) owns a UNIX socket whose path names the cable. For each connector it makes fresh memory with
//! a ring for each direction and hands it over; from then on the socket tells that the other process lives, and wakes an end
//! that rests: a message of one byte.

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

/// Bytes of each direction: 250 packets of the largest kind.
const RING: u32 = 1 << 20;
/// Largest ring that we accept from a listener.
const MAX_RING: u32 = 64 << 20;
/// Time between two looks at the sockets.
const CHECK: Duration = Duration::from_millis(1);
/// The message that wakes.
const WAKE: u8 = 0xa5;
/// Such messages taken at one look.
const WAKES: usize = 64;
/// Most connectors that are looked at each time.
const ACCEPTS: usize = 2;
/// Time that the other end has to answer.
const GREETING: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LAST_RETRY: Duration = Duration::from_millis(500);
const SOCKET: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

#[derive(Debug)]
struct Rings {
    producer: Producer,
    consumer: Consumer,
    /// Packets may have no CRCs: offered, and once the other end has answered agreed to.
    bare: bool,
}

#[derive(Debug)]
enum State {
    /// Nobody there. A connector dials again at `retry`; a listener waits.
    Detached { retry: Instant },
    /// Connected; the listener waits for the answer, the connector (without rings yet) for the hello.
    Greeting { socket: OwnedFd, rings: Option<Rings>, until: Instant },
    /// Packets pass. `broken` once the other end wrote nonsense.
    Attached { socket: OwnedFd, rings: Rings, broken: bool },
}

/// The socket of the listening side.
#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket's name, so that we remove only what is ours.
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
    /// A message that wakes was taken at the last look.
    woken: bool,
    /// Packets without CRCs are neither offered nor agreed to.
    keeps_crcs: bool,
    pub(super) trouble: Option<CableTrouble>,
}

impl ShmEnd {
    /// The listening side; the socket is there when this returns.
    pub(super) fn listen(path: &Path) -> Result<Self, CableError> {
        let failed =
            |what, e: Errno| CableError::Socket { what, name: path.display().to_string(), source: e.into() };
        let address = SocketAddrUnix::new(path).map_err(|e| failed("name", e))?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| CableError::Socket {
                what: "make the folder of",
                name: path.display().to_string(),
                source,
            })?;
        }
        let open = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None);
        let socket = open().map_err(|e| failed("open", e))?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                // Left behind by a process that was killed, or in use?
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
        // Whoever may connect can send into the fabric: owner and group only.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(|source| {
            CableError::Socket { what: "set the mode of", name: path.display().to_string(), source }
        })?;
        rustix::net::listen(&listener.socket, 4).map_err(|e| failed("listen on", e))?;
        Ok(Self::new(address, Some(listener)))
    }

    /// The connecting side. It need not find a listener yet.
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

    /// From now on its packets have CRCs, and those of the other end when the cable comes up the next time.
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

    /// True if a message that wakes was taken.
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

    /// Attached: is the other end alive and sane?
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
                // Any other word after the greeting is not in the protocol.
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

    /// Listener: the hello is out, what does the connector say?
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
            // Agreeing to what was not offered is as little in the protocol.
            Ok(Some(Answer::Attached { .. })) | Err(handover::Malformed) => {
                counters.violations += 1;
                CableTrouble::Violation
            }
        });
        State::Detached { retry: now }
    }

    /// Listener: takes the next connector if there is none, and tells all others that the place is taken.
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

    /// Connector: tries the socket.
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

    /// Connector: has the listener's hello come?
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

    /// Wakes the other end if it rests and something was sent since the last call.
    pub(super) fn flush(&mut self) {
        if let State::Attached { socket, rings, broken: false } = &mut self.state
            && rings.producer.has_to_wake()
        {
            // Full of such messages, the socket wakes anyway.
            let _ = rustix::net::send(&*socket, &[WAKE], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Asks the other end to wake us; `None` if there is none. What came before does not wake.
    pub(super) fn rest(&mut self) -> Option<BorrowedFd<'_>> {
        // What woke us last is taken at the next look, or would wake again.
        self.next_check = None;
        match &self.state {
            State::Attached { socket, rings, broken: false } => {
                rings.consumer.rest();
                Some(socket.as_fd())
            }
            _ => None,
        }
    }

    /// What tells that the other end wakes us.
    pub(super) fn waker(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Attached { socket, broken: false, .. } => Some(socket.as_fd()),
            _ => None,
        }
    }

    /// When an end that nobody wakes is to be looked at again, and what tells that it has become earlier. `None` for one that is up.
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
    /// Both ends have said whether packets may have no CRCs.
    const fn agreed(mut self, bare: bool) -> Self {
        self.bare = bare;
        if bare {
            self.consumer.take_bare();
        }
        self
    }
}

/// Listener: makes the memory and sends it, with the offer to leave CRCs out if `bare`. The first ring leads from the listener to the
/// connector.
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

/// Connector: checks the memory and maps it; CRCs are left out if that is offered and `bare`.
fn adopt(file: &OwnedFd, ring: u32, bare: bool) -> Option<Rings> {
    let sealed = rustix::fs::fcntl_get_seals(file).ok()?.contains(SealFlags::SHRINK);
    let size = rustix::fs::fstat(file).ok()?.st_size;
    if !sealed || ring > MAX_RING || usize::try_from(size).ok()? != memory_size(ring) {
        return None;
    }
    let memory = Arc::new(Mapping::shared(file, memory_size(ring)).ok()?);
    let consumer = Consumer::new(memory.clone(), 0, ring)?;
    let producer = Producer::new(memory, RING_HEADER + ring as usize, ring)?;
    // Read once: what the listener writes there later changes nothing.
    let bare = bare && consumer.is_offered_bare();
    Some(Rings { producer, consumer, bare }.agreed(bare))
}

#[cfg(test)]
mod tests;
