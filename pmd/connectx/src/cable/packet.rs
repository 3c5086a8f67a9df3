//! A cable to an Ethernet network through a packet socket (packet(7)) on a network interface, with complete
//! frames as packets.
//!
//! The kernel's own stack receives the frames, too: the interface should have none of the port's addresses.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::mmsg::{self, Batch, SocketEnd};
use super::{CableCounters, CableError, CableTrouble, MAX_PACKET};

/// Interval between two checks of the interface's state.
const LOOK: Duration = Duration::from_millis(50);

/// One end.
#[derive(Debug)]
pub(super) struct PacketEnd {
    socket: OwnedFd,
    /// Index of the interface, which does not change when it is renamed.
    interface: u32,
    up: bool,
    next_look: Option<Instant>,
    out: Batch,
    inn: Batch,
    pub(super) trouble: Option<CableTrouble>,
}

impl PacketEnd {
    pub(super) fn open(interface: &str) -> Result<Self, CableError> {
        let failed = |what| {
            move |source| CableError::Socket { what, name: format!("on interface {interface}"), source }
        };
        let index = interface::index(interface).map_err(failed("find the interface of the"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol, so that nothing arrives before the socket is bound to the interface.
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|e| failed("open (it needs CAP_NET_RAW) the")(e.into()))?;
        mmsg::large_buffers(&socket);
        option(&socket, libc::PACKET_IGNORE_OUTGOING, &1i32).map_err(failed("set up the"))?;
        let membership = libc::packet_mreq {
            mr_ifindex: index as libc::c_int,
            mr_type: libc::PACKET_MR_ALLMULTI as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        option(&socket, libc::PACKET_ADD_MEMBERSHIP, &membership).map_err(failed("set up the"))?;
        bind(&socket, index).map_err(failed("bind the"))?;
        Ok(Self {
            socket,
            interface: index,
            up: false,
            next_look: None,
            out: Batch::new(),
            inn: Batch::new(),
            trouble: None,
        })
    }

    /// The descriptor that is readable when something has arrived.
    pub(super) fn waker(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn poll(&mut self, now: Instant, counters: &mut CableCounters) {
        if self.next_look.is_none_or(|at| now >= at) {
            self.next_look = Some(now + LOOK);
            match interface::is_running(self.interface) {
                Ok(true) if !self.up => {
                    // The next call would report the pending error again, and lose a frame.
                    let _ = sockopt::socket_error(&self.socket);
                    self.up = true;
                    self.trouble = None;
                    counters.ups += 1;
                }
                Ok(true) => {}
                Ok(false) => self.go_down(CableTrouble::NoCarrier, counters),
                Err(_) => self.go_down(CableTrouble::Gone, counters),
            }
        }
        self.flush(counters);
    }

    fn go_down(&mut self, why: CableTrouble, counters: &mut CableCounters) {
        self.trouble = Some(why);
        counters.lost_going_down += self.out.clear() as u64;
        if std::mem::replace(&mut self.up, false) {
            counters.downs += 1;
        }
    }

    pub(super) fn receive(
        &mut self,
        max: usize,
        counters: &mut CableCounters,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        self.flush(counters);
        let mut n = 0;
        while n < max {
            if self.inn.is_empty() && mmsg::receive(&self.socket, &mut self.inn).is_err() {
                break;
            }
            let last = !self.inn.is_full();
            while n < max && !self.inn.is_empty() {
                match self.inn.first().filter(|frame| frame.len() <= MAX_PACKET) {
                    // Longer than any RoCEv2 packet: the interface merges packets, or carries other traffic.
                    None => counters.rx_invalid += 1,
                    Some(frame) if take(frame) => n += 1,
                    Some(_) => return n,
                }
                self.inn.remove(1);
            }
            if last {
                break;
            }
        }
        n
    }
}

impl SocketEnd for PacketEnd {
    fn is_up(&self) -> bool {
        self.up
    }

    fn out(&mut self) -> &mut Batch {
        &mut self.out
    }

    fn flush(&mut self, counters: &mut CableCounters) {
        // If the interface is gone, the next check detects it.
        mmsg::send_all(&self.socket, &mut self.out, counters);
    }
}

fn option<T>(socket: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    let (fd, len) = (socket.as_raw_fd(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `value` is `len` readable bytes; these options take a number or a `struct packet_mreq`.
    let result =
        unsafe { libc::setsockopt(fd, libc::SOL_PACKET, name, std::ptr::from_ref(value).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn bind(socket: &OwnedFd, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is of the socket's family and `len` bytes long.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
