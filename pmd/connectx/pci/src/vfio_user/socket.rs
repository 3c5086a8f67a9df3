//! Nonblocking transfer of bytes and descriptors on a client's socket.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};

use super::Device;
use super::message::{MAX_FILES, MAX_MESSAGE};
use super::session::{Session, Violation};

/// Messages handled in one iteration.
const MESSAGES: usize = 64;

/// Why a client is disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Gone {
    /// The client closed the connection.
    #[error("the client has closed the connection")]
    HungUp,
    /// The client violated the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The socket failed.
    #[error("the client's socket: {0}")]
    Socket(#[from] Errno),
}

/// A client on its socket.
#[derive(Debug)]
pub struct Client {
    socket: UnixStream,
    session: Session,
    buffer: Vec<u8>,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Client {
    /// Creates a client from its connection.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, session: Session::new(), buffer: vec![0; MAX_MESSAGE] }
    }

    /// True if replies wait for the client to read.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        !self.session.output().is_empty()
    }

    /// Handles received messages. Returns true if there were any.
    pub fn turn(&mut self, device: &mut impl Device) -> Result<bool, Gone> {
        let mut worked = false;
        for _ in 0..MESSAGES {
            self.send()?;
            // A client that does not read its replies gets no further ones.
            if self.is_held_up() || !self.receive(device)? {
                break;
            }
            worked = true;
        }
        self.send()?;
        Ok(worked)
    }

    /// Receives a part of a message. Returns false if there was nothing.
    fn receive(&mut self, device: &mut impl Device) -> Result<bool, Gone> {
        let wants = self.session.wants()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let Some(buffer) = self.buffer.get_mut(..wants) else { return Ok(false) };
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags);
        let len = match received {
            Ok(received) if received.bytes == 0 => return Err(Gone::HungUp),
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(Errno::CONNRESET) => return Err(Gone::HungUp),
            Err(error) => return Err(error.into()),
        };
        let files: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        self.session.handle(self.buffer.get(..len).unwrap_or_default(), files, device)?;
        Ok(true)
    }

    fn send(&mut self) -> Result<(), Gone> {
        while !self.session.output().is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, self.session.output(), flags) {
                Ok(n) => self.session.sent(n),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Gone::HungUp),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
