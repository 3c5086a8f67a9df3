//! A cable over UDP: one packet per datagram, and a small hello datagram as keepalive.
//!
//! The socket is connected, so the kernel drops datagrams from other addresses. A source address can be
//! forged. Every datagram therefore carries the session numbers of both ends, and with a key an
//! authentication code ([`datagram`]).

use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::key::CableKey;
use super::mmsg::{self, BATCH, Batch, SocketEnd};
use super::{CableCounters, CableError, CableTrouble, MAX_PACKET};
pub(super) use datagram::MAX_TRAILER;
use datagram::{BadHello, Codec, Hello, Sessions};

mod datagram;

/// Interval between two hellos.
const HELLO: Duration = Duration::from_millis(100);
/// Silence after which the other end counts as dead.
const SILENCE: Duration = Duration::from_secs(1);
/// An end that has not polled for this long was stalled itself; datagrams of the other end may still be in
/// the socket.
const STILL: Duration = Duration::from_millis(300);
/// Grace period after a stall, in which these are read or the next hello arrives.
const EXCUSE: Duration = Duration::from_millis(250);
/// Interval between two warnings about refused hellos.
const WARNING: Duration = Duration::from_secs(10);
/// Interval between two checks of the socket while the cable is down.
const CHECK: Duration = Duration::from_millis(1);

/// State of the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    /// Nothing.
    Unknown,
    /// It sends, but has not received from us.
    Talking { session: u64 },
    /// Both ends receive from each other. `heard_at` is the last time, extended by at most one grace period
    /// after a stall.
    Up { session: u64, heard_at: Instant, excused: bool },
}

impl Peer {
    /// The state after a datagram of the session, any of which proves that the peer is alive.
    const fn heard_at(self, now: Instant) -> Self {
        match self {
            Self::Up { session, .. } => Self::Up { session, heard_at: now, excused: false },
            Self::Unknown | Self::Talking { .. } => self,
        }
    }
}

/// A random session number.
fn life() -> u64 {
    std::hash::RandomState::new().build_hasher().finish() | 1
}

/// One end.
#[derive(Debug)]
pub(super) struct UdpEnd {
    socket: UdpSocket,
    codec: Codec,
    session: u64,
    peer: Peer,
    /// The poller has seen the cable down, so it may come up again.
    down_seen: bool,
    now: Instant,
    next_hello: Option<Instant>,
    next_check: Option<Instant>,
    next_warning: Option<Instant>,
    out: Batch,
    inn: Batch,
    /// Sessions and length of the first packet of `inn`, which was opened and refused by its receiver for
    /// lack of room.
    refused: Option<(Sessions, usize)>,
    pub(super) trouble: Option<CableTrouble>,
}

impl UdpEnd {
    pub(super) fn open(
        local: SocketAddr,
        peer: SocketAddr,
        key: Option<CableKey>,
    ) -> Result<Self, CableError> {
        let failed = |what, name: SocketAddr| {
            move |source| CableError::Socket { what, name: name.to_string(), source }
        };
        let socket = UdpSocket::bind(local).map_err(failed("bind", local))?;
        socket.connect(peer).map_err(failed("connect", peer))?;
        socket.set_nonblocking(true).map_err(failed("set up", local))?;
        mmsg::large_buffers(&socket);
        Ok(Self {
            socket,
            codec: Codec::new(key),
            session: life(),
            peer: Peer::Unknown,
            down_seen: true,
            now: Instant::now(),
            next_hello: None,
            next_check: None,
            next_warning: None,
            out: Batch::new(),
            inn: Batch::new(),
            refused: None,
            trouble: None,
        })
    }

    /// The descriptor that is readable when something has arrived.
    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn poll(&mut self, now: Instant, counters: &mut CableCounters) {
        let stood_still = now.saturating_duration_since(self.now) >= STILL;
        self.now = now;
        if let Peer::Up { session, heard_at, excused } = self.peer
            && now.saturating_duration_since(heard_at) > SILENCE
        {
            if stood_still && !excused {
                let heard_at = (now + EXCUSE).checked_sub(SILENCE).unwrap_or(now);
                self.peer = Peer::Up { session, heard_at, excused: true };
            } else {
                self.go_down(CableTrouble::Silent, counters);
            }
        }
        if !self.is_up() && self.next_check.is_none_or(|at| now >= at) {
            self.next_check = Some(now + CHECK);
            self.receive(BATCH, counters, |_| true);
        }
        self.down_seen = true;
        if self.next_hello.is_none_or(|at| now >= at) {
            self.say_hello(false);
        }
        self.flush(counters);
    }

    fn say_hello(&mut self, bye: bool) {
        self.next_hello = Some(self.now + HELLO);
        let heard = match self.peer {
            Peer::Unknown => 0,
            Peer::Talking { session } | Peer::Up { session, .. } => session,
        };
        let hello = self.codec.hello(Hello { session: self.session, heard, bye });
        let Err(e) = self.socket.send(&hello) else { return };
        // An ICMP error for an earlier datagram is reported once, instead of a send. A second failure counts
        // as a lost datagram.
        let _ = self.socket.send(&hello);
        if !self.is_up() {
            self.trouble = Some(match e.kind() {
                io::ErrorKind::ConnectionRefused => CableTrouble::NoListener,
                io::ErrorKind::PermissionDenied => CableTrouble::NotAllowed,
                _ => CableTrouble::Gone,
            });
        }
    }

    /// Ends the session. The next hello starts a new session, so that recorded datagrams of the old one
    /// become invalid and a live peer detects the restart. Otherwise one port would be down and wait for its
    /// subnet manager, which sees no change at the other port.
    fn go_down(&mut self, why: CableTrouble, counters: &mut CableCounters) {
        counters.lost_going_down += self.out.clear() as u64;
        counters.downs += 1;
        self.trouble = Some(why);
        self.peer = Peer::Unknown;
        self.session = life();
        self.down_seen = false;
    }

    /// Handles a hello that cannot be accepted. While the cable is up it is a forgery, or the last hello of
    /// an older session.
    fn refuse(&mut self, bad: BadHello, counters: &mut CableCounters) {
        let why = match bad {
            BadHello::NoHello => {
                counters.rx_invalid += 1;
                return;
            }
            BadHello::OtherVersion => CableTrouble::Version,
            BadHello::OtherKey => CableTrouble::Key,
        };
        counters.rx_forged += 1;
        if self.is_up() {
            return;
        }
        self.trouble = Some(why);
        if self.next_warning.is_none_or(|at| self.now >= at) {
            self.next_warning = Some(self.now + WARNING);
            if let (Ok(local), Ok(peer)) = (self.socket.local_addr(), self.socket.peer_addr()) {
                tracing::warn!("cable udp:{local}-{peer} stays down: {why}");
            }
        }
    }

    /// Session numbers of the datagrams that we send; `None` while the cable is down.
    const fn sessions(&self) -> Option<Sessions> {
        match self.peer {
            Peer::Up { session, .. } => Some(Sessions { sender: self.session, receiver: session }),
            Peer::Unknown | Peer::Talking { .. } => None,
        }
    }

    fn hear(&mut self, hello: Hello, counters: &mut CableCounters) {
        let known = match self.peer {
            Peer::Unknown => None,
            Peer::Talking { session } | Peer::Up { session, .. } => Some(session),
        };
        // A sender that repeats our number has read what we sent; anyone can forge the source address of a
        // datagram.
        let heard_us = hello.heard == self.session;
        // A starting end has heard no one. While we are down, the other end may know an earlier session of
        // ours.
        if !heard_us && self.is_up() {
            let count = if hello.heard == 0 { &mut counters.rx_stale } else { &mut counters.rx_forged };
            *count += 1;
        } else if !heard_us && hello.heard != 0 {
            counters.rx_stale += 1;
        }
        if self.is_up() {
            if !heard_us {
                // A restarted end repeats our number as soon as it receives our next hello.
                return;
            }
            if hello.bye || known != Some(hello.session) {
                self.go_down(CableTrouble::Gone, counters);
            }
        }
        if hello.bye {
            if heard_us {
                self.peer = Peer::Unknown;
            }
            return;
        }
        let session = hello.session;
        let was_up = self.is_up();
        self.peer = match heard_us {
            true if was_up || self.down_seen => Peer::Up { session, heard_at: self.now, excused: false },
            _ => Peer::Talking { session },
        };
        if !was_up {
            // Refused hellos may have been forged.
            self.trouble = self.trouble.filter(|t| ![CableTrouble::Version, CableTrouble::Key].contains(t));
            // Reply at once, so that the other end comes up without waiting for its timer.
            if !heard_us || known.is_none() {
                self.say_hello(false);
            }
            if self.is_up() {
                counters.ups += 1;
                self.trouble = None;
            }
        }
    }

    pub(super) fn receive(
        &mut self,
        max: usize,
        counters: &mut CableCounters,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        self.flush(counters);
        let mut inn = std::mem::take(&mut self.inn);
        let mut n = 0;
        // Every datagram counts, taken or not: a fast sender must not keep us in this loop.
        let mut looked_at = 0;
        'all: while looked_at < max {
            let last_call_was_full = inn.is_empty() && {
                match mmsg::receive(&self.socket, &mut inn) {
                    Err(e)
                        if ![io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&e.kind()) =>
                    {
                        // Datagrams that arrived are read after the error.
                        counters.socket_errors += u64::from(self.is_up());
                        looked_at += 1;
                        continue;
                    }
                    _ => inn.is_full(),
                }
            };
            while looked_at < max && !inn.is_empty() {
                looked_at += 1;
                match inn.first() {
                    None => counters.rx_invalid += 1,
                    Some(bytes) if datagram::is_packet(bytes) => {
                        // While the cable is down, no packet can belong to a session.
                        let ours = self.sessions();
                        let known = self.refused.take().filter(|(sessions, _)| ours == Some(*sessions));
                        let opened = match known {
                            Some((_, len)) => bytes.get(..len),
                            None => {
                                let opened = ours.and_then(|ours| self.codec.open(bytes, ours.reversed()));
                                if opened.is_some() {
                                    self.peer = self.peer.heard_at(self.now);
                                }
                                opened
                            }
                        };
                        match opened {
                            None if ours.is_none() => counters.rx_stale += 1,
                            None => counters.rx_forged += 1,
                            Some(packet) if packet.is_empty() || packet.len() > MAX_PACKET => {
                                counters.rx_invalid += 1;
                            }
                            Some(packet) if take(packet) => n += 1,
                            Some(packet) => {
                                self.refused = ours.map(|ours| (ours, packet.len()));
                                break 'all;
                            }
                        }
                    }
                    Some(bytes) => match self.codec.parse_hello(bytes) {
                        Ok(hello) => self.hear(hello, counters),
                        Err(bad) => self.refuse(bad, counters),
                    },
                }
                inn.remove(1);
            }
            if !last_call_was_full {
                break;
            }
        }
        self.inn = inn;
        n
    }
}

impl SocketEnd for UdpEnd {
    fn is_up(&self) -> bool {
        matches!(self.peer, Peer::Up { .. })
    }

    fn out(&mut self) -> &mut Batch {
        &mut self.out
    }

    fn push(&mut self, packet: &[u8]) {
        if let Some(sessions) = self.sessions() {
            self.out.push(&[packet, self.codec.trailer(packet, sessions).as_slice()]);
        }
    }

    fn flush(&mut self, counters: &mut CableCounters) {
        mmsg::send_all(&self.socket, &mut self.out, counters);
    }
}

impl Drop for UdpEnd {
    fn drop(&mut self) {
        self.say_hello(true);
    }
}

#[cfg(test)]
mod tests;
