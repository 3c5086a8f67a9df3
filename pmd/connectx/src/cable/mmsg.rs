//! Batches of datagrams in one system call.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use rustix::fd::AsFd;
use rustix::net::sockopt;

use super::udp::MAX_TRAILER;
use super::{CableCounters, MAX_PACKET, Sent};

/// Most datagrams of one call.
pub(super) const BATCH: usize = 32;
/// Size of a slot: one byte more than the longest packet with its trailer, to detect longer datagrams.
const SLOT: usize = MAX_PACKET + MAX_TRAILER + 1;
/// Size of a socket's buffers in bytes, as far as the system allows.
const SOCKET_BUFFER: usize = 4 << 20;

/// Datagrams to send, or received ones, in order.
#[derive(Debug, Default)]
pub(super) struct Batch {
    slots: Vec<Slot>,
    first: usize,
    used: usize,
}

#[derive(Debug)]
struct Slot {
    bytes: Box<[u8; SLOT]>,
    len: usize,
}

impl Batch {
    pub(super) fn new() -> Self {
        let slots = (0..BATCH).map(|_| Slot { bytes: Box::new([0; SLOT]), len: 0 }).collect();
        Self { slots, first: 0, used: 0 }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.used >= self.slots.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.first == self.used
    }

    /// Adds a datagram made of these parts. Does nothing if the batch is full or the datagram is too long.
    pub(super) fn push(&mut self, parts: &[&[u8]]) {
        let Some(slot) = self.slots.get_mut(self.used) else { return };
        slot.len = 0;
        for part in parts {
            let Some(to) = slot.bytes.get_mut(slot.len..).and_then(|rest| rest.get_mut(..part.len())) else {
                return;
            };
            to.copy_from_slice(part);
            slot.len += part.len();
        }
        self.used += 1;
    }

    /// Removes the first `n`.
    pub(super) fn remove(&mut self, n: usize) {
        self.first = (self.first + n).min(self.used);
        if self.is_empty() {
            self.first = 0;
            self.used = 0;
        }
    }

    /// Removes all and returns how many there were.
    pub(super) const fn clear(&mut self) -> usize {
        let n = self.used - self.first;
        self.first = 0;
        self.used = 0;
        n
    }

    /// The first datagram; `None` if there is none, or if it was too long.
    pub(super) fn first(&self) -> Option<&[u8]> {
        let slot = self.slots.get(self.first).filter(|_| !self.is_empty())?;
        slot.bytes.get(..slot.len).filter(|b| b.len() < SLOT)
    }
}

/// An array of message headers, each with its buffer.
struct Headers {
    vectors: [libc::iovec; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

impl Headers {
    const fn new() -> Self {
        // SAFETY: both are plain structures of numbers and pointers for which all zeros is a valid value
        // (null pointers with zero lengths).
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    fn point(&mut self, slots: &mut [Slot], whole: bool) -> libc::c_uint {
        let mut n = 0;
        for ((slot, vector), message) in slots.iter_mut().zip(&mut self.vectors).zip(&mut self.messages) {
            vector.iov_base = slot.bytes.as_mut_ptr().cast();
            vector.iov_len = if whole { SLOT } else { slot.len };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            n += 1;
        }
        n
    }
}

fn result(n: libc::c_int) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Gives a socket the largest buffers that the system allows. Smaller buffers only mean more loss under load.
pub(super) fn large_buffers(socket: &impl AsFd) {
    let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER);
    let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER);
}

/// An end of a cable that is a socket.
pub(super) trait SocketEnd {
    /// True if packets can be sent.
    fn is_up(&self) -> bool;

    /// The batch of packets to send.
    fn out(&mut self) -> &mut Batch;

    /// Adds a packet to the batch.
    fn push(&mut self, packet: &[u8]) {
        self.out().push(&[packet]);
    }

    /// Sends the batch, as far as the socket accepts it.
    fn flush(&mut self, counters: &mut CableCounters);

    /// True if it accepts another packet.
    fn has_room(&mut self, counters: &mut CableCounters) -> bool {
        if self.out().is_full() {
            self.flush(counters);
        }
        !self.out().is_full()
    }

    /// Sends a packet.
    fn send(&mut self, packet: &[u8], counters: &mut CableCounters) -> Sent {
        if !self.is_up() {
            return Sent::Down;
        }
        if !self.has_room(counters) {
            return Sent::Full;
        }
        self.push(packet);
        if self.out().is_full() {
            self.flush(counters);
        }
        Sent::Taken
    }
}

/// Sends all of `batch`, as far as the socket accepts it. A datagram that is too long for the path is counted
/// and dropped.
pub(super) fn send_all(socket: &impl AsRawFd, batch: &mut Batch, counters: &mut CableCounters) {
    let mut retried = false;
    while !batch.is_empty() {
        match send(socket, batch) {
            Ok(n) => {
                batch.remove(n);
                retried = false;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // An ICMP error for an earlier datagram is reported once, instead of this send.
            Err(e) if !retried && e.raw_os_error() != Some(libc::EMSGSIZE) => {
                counters.socket_errors += 1;
                retried = true;
            }
            Err(_) => {
                batch.remove(1);
                counters.tx_errors += 1;
                retried = false;
            }
        }
    }
}

/// Sends datagrams of `batch` on a connected socket and returns the number sent.
fn send(socket: &impl AsRawFd, batch: &mut Batch) -> io::Result<usize> {
    let mut headers = Headers::new();
    let n = headers.point(batch.slots.get_mut(batch.first..batch.used).unwrap_or_default(), false);
    // SAFETY: `n` headers are set up; their buffers live until after the call, which only reads them.
    result(unsafe {
        libc::sendmmsg(socket.as_raw_fd(), headers.messages.as_mut_ptr(), n, libc::MSG_DONTWAIT)
    })
}

/// Receives into `batch`, replacing its content, and returns the number received.
pub(super) fn receive(socket: &impl AsRawFd, batch: &mut Batch) -> io::Result<usize> {
    let mut headers = Headers::new();
    batch.clear();
    let n = headers.point(&mut batch.slots, true);
    // SAFETY: `n` headers are set up; each buffer is `SLOT` bytes long, belongs to us alone, and outlives the
    // call; no timeout.
    let got = result(unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.messages.as_mut_ptr(),
            n,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    })?;
    for (slot, message) in batch.slots.iter_mut().zip(&headers.messages).take(got) {
        slot.len = (message.msg_len as usize).min(SLOT);
    }
    batch.used = got.min(batch.slots.len());
    Ok(got)
}
