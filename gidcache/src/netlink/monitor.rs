//! The rtnetlink socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Instant;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::session::{Counters, Notice, Session};
use crate::rules::Rules;

const RTNLGRP_LINK: u32 = 1;
const RTNLGRP_IPV4_IFADDR: u32 = 5;
const RTNLGRP_IPV6_IFADDR: u32 = 9;

/// Receive buffer of the socket in bytes.
const SOCKET_BUFFER: u32 = 1 << 20;
/// Maximum datagram length. The kernel sends lists in parts of at most 32 KiB.
const DATAGRAM: usize = 1 << 16;
/// Maximum number of datagrams per iteration, so that a storm of events does not block other work.
const DATAGRAMS_PER_TURN: usize = 64;

/// Error of the netlink socket.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} a netlink socket")]
pub struct MonitorError {
    what: &'static str,
    #[source]
    source: io::Error,
}

impl MonitorError {
    pub(super) const fn new(what: &'static str, source: io::Error) -> Self {
        Self { what, source }
    }
}

/// Receiver of events: the rules of one or more devices.
pub trait Audience {
    /// Handles a notice. Notices arrive in the kernel's order.
    fn hear(&mut self, notice: &Notice);
}

impl Audience for Rules {
    fn hear(&mut self, notice: &Notice) {
        notice.tell(self);
    }
}

/// Result of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// All pending datagrams were handled.
    Idle,
    /// There may be more datagrams.
    More,
}

/// Follows the interfaces and addresses of the network namespace in which it was created.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    session: Session,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Subscribes to events. The first iteration requests the first list.
    pub fn new(now: Instant) -> Result<Self, MonitorError> {
        Self::with_socket_buffer(now, SOCKET_BUFFER)
    }

    /// Like [`Monitor::new`], with this receive buffer length. If it overflows, events are lost and
    /// everything is listed again.
    pub fn with_socket_buffer(now: Instant, bytes: u32) -> Result<Self, MonitorError> {
        let error = |what| move |source| MonitorError { what, source };
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(error("create"))?;
        let address = socket.bind_auto().map_err(error("bind"))?;
        socket.set_non_blocking(true).map_err(error("set up"))?;
        socket.set_rx_buf_sz(bytes).map_err(error("set up"))?;
        for group in [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR] {
            socket.add_membership(group).map_err(error("subscribe"))?;
        }
        Ok(Self { socket, session: Session::new(now, address.port_number()), buffer: vec![0; DATAGRAM] })
    }

    /// Handles pending work without waiting. Call it when [`Monitor::as_raw_fd`] is readable and at
    /// [`Monitor::poll_timeout`].
    pub fn turn(&mut self, now: Instant, audience: &mut impl Audience) -> Result<Turn, MonitorError> {
        for _ in 0..DATAGRAMS_PER_TURN {
            self.session.handle_timeout(now);
            if let Some(request) = self.session.poll_transmit() {
                let sent = self.socket.send_to(&request, &SocketAddr::new(0, 0), 0);
                sent.map_err(|source| MonitorError { what: "write to", source })?;
            }
            let mut room: &mut [u8] = &mut self.buffer;
            match self.socket.recv_from(&mut room, libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
                // Any process may send to a netlink socket. Port 0 is the kernel.
                Ok((_, from)) if from.port_number() != 0 => continue,
                Ok((length, _)) => match self.buffer.get(..length) {
                    Some(datagram) => self.session.handle_datagram(now, datagram),
                    None => self.session.handle_overrun(now),
                },
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOBUFS) => self.session.handle_overrun(now),
                    Some(libc::EINTR) => continue,
                    _ if error.kind() == io::ErrorKind::WouldBlock => {
                        self.dispatch(audience);
                        return Ok(Turn::Idle);
                    }
                    _ => return Err(MonitorError { what: "read from", source: error }),
                },
            }
            self.dispatch(audience);
        }
        Ok(Turn::More)
    }

    /// Returns the time when an iteration is due without a datagram.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.session.poll_timeout()
    }

    /// True when the rules know everything that the kernel had reported by the last iteration.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.session.is_settled()
    }

    /// Makes the next iteration list everything, as after lost events.
    pub fn rescan(&mut self, now: Instant) {
        self.session.handle_overrun(now);
    }

    /// Returns the event counters.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.session.counters()
    }

    fn dispatch(&mut self, audience: &mut impl Audience) {
        while let Some(notice) = self.session.poll_notice() {
            audience.hear(&notice);
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
