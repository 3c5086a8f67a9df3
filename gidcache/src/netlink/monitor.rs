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

/// Bytes that the socket keeps for us.
const SOCKET_BUFFER: u32 = 1 << 20;
/// Longest datagram; the kernel's lists come in parts of at most 32 KiB.
const DATAGRAM: usize = 1 << 16;
/// Most datagrams of one turn, so that a storm of events leaves time for other things.
const DATAGRAMS_PER_TURN: usize = 64;

/// Why events cannot be had.
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

/// Who is told: the rules of one device, or of as many as there are.
pub trait Audience {
    /// Hears what the kernel told, in its order.
    fn hear(&mut self, notice: &Notice);
}

impl Audience for Rules {
    fn hear(&mut self, notice: &Notice) {
        notice.tell(self);
    }
}

/// What a turn left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// All that was there is handled.
    Idle,
    /// There may be more.
    More,
}

/// Follows the interfaces and addresses of the network namespace that it was made in.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    session: Session,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Subscribes; the first list is asked for in the first turn.
    pub fn new(now: Instant) -> Result<Self, MonitorError> {
        Self::with_socket_buffer(now, SOCKET_BUFFER)
    }

    /// As [`Monitor::new`], with so many bytes of events that the socket keeps between turns; what is beyond is lost, and everything is
    /// listed again.
    pub fn with_socket_buffer(now: Instant, bytes: u32) -> Result<Self, MonitorError> {
        let error = |what| move |source| MonitorError { what, source };
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(error("make"))?;
        let address = socket.bind_auto().map_err(error("bind"))?;
        socket.set_non_blocking(true).map_err(error("set up"))?;
        socket.set_rx_buf_sz(bytes).map_err(error("set up"))?;
        for group in [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR] {
            socket.add_membership(group).map_err(error("subscribe"))?;
        }
        Ok(Self { socket, session: Session::new(now, address.port_number()), buffer: vec![0; DATAGRAM] })
    }

    /// Does what there is to do, without waiting: call it when [`Monitor::as_raw_fd`] is readable and at [`Monitor::poll_timeout`].
    pub fn turn(&mut self, now: Instant, audience: &mut impl Audience) -> Result<Turn, MonitorError> {
        for _ in 0..DATAGRAMS_PER_TURN {
            self.session.handle_timeout(now);
            if let Some(request) = self.session.poll_transmit() {
                let sent = self.socket.send_to(&request, &SocketAddr::new(0, 0), 0);
                sent.map_err(|source| MonitorError { what: "write to", source })?;
            }
            let mut room: &mut [u8] = &mut self.buffer;
            match self.socket.recv_from(&mut room, libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
                // Any process may write to a netlink socket; only the kernel is port 0.
                Ok((_, from)) if from.port_number() != 0 => continue,
                Ok((length, _)) => match self.buffer.get(..length) {
                    Some(datagram) => self.session.handle_datagram(now, datagram),
                    None => self.session.handle_overrun(now),
                },
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOBUFS) => self.session.handle_overrun(now),
                    Some(libc::EINTR) => continue,
                    _ if error.kind() == io::ErrorKind::WouldBlock => {
                        self.tell(audience);
                        return Ok(Turn::Idle);
                    }
                    _ => return Err(MonitorError { what: "read from", source: error }),
                },
            }
            self.tell(audience);
        }
        Ok(Turn::More)
    }

    /// When a turn is due even without a datagram.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.session.poll_timeout()
    }

    /// True when the rules know all that the kernel had told at the last turn.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.session.is_settled()
    }

    /// Makes the next turn list everything, as after a loss.
    pub fn rescan(&mut self, now: Instant) {
        self.session.handle_overrun(now);
    }

    /// What was seen.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.session.counters()
    }

    fn tell(&mut self, audience: &mut impl Audience) {
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
