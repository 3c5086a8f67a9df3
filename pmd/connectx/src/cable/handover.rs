//! The handshake of the two processes of a shared-memory cable.
//!
//! It has one message each way on a SEQPACKET socket, in little-endian byte order:
//!
//! - The listener sends `ibfablnk`, version (u16), code (u16) and ring size (u32), with the memory's file
//!   descriptor.
//! - The connector answers with the first twelve bytes of the same format.
//!
//! The listener offers packets without CRCs in the memory ([`super::ring`]), at an offset that older versions
//! do not read. A connector that agrees says so in its answer. It must not do so without an offer.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

const MAGIC: [u8; 8] = *b"ibfablnk";
const VERSION: u16 = 2;
const WORD_LEN: usize = 12;
const HELLO_LEN: usize = 16;

/// Codes of messages without memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum Word {
    /// The connector has mapped the memory: the cable is up.
    Attached = 1,
    /// The listener already has a connector.
    Busy = 2,
    /// The connector has another protocol version.
    BadVersion = 3,
    /// As `Attached`, and both ends accept packets without CRCs, as the listener offered.
    AttachedBare = 4,
}

const MEMORY: u16 = 0;

/// The listener's message.
#[derive(Debug)]
pub(super) enum Hello {
    /// The shared memory.
    Memory { file: OwnedFd, ring: u32 },
    /// Another protocol version.
    OtherVersion,
    /// The listener already has a connector.
    Busy,
    /// The listener closed the socket.
    Gone,
}

/// The connector's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Attached, with or without agreement to packets without CRCs.
    Attached { bare: bool },
    /// Another protocol version.
    OtherVersion,
    /// The connector closed the socket.
    Gone,
}

/// Not a message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed;

fn header(word: u16) -> [u8; WORD_LEN] {
    let mut bytes = [0; WORD_LEN];
    let (magic, rest) = bytes.split_at_mut(8);
    magic.copy_from_slice(&MAGIC);
    let (version, code) = rest.split_at_mut(2);
    version.copy_from_slice(&VERSION.to_le_bytes());
    code.copy_from_slice(&word.to_le_bytes());
    bytes
}

/// Version and code of a message.
fn parse(bytes: &[u8]) -> Option<(u16, u16)> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    let (version, rest) = rest.split_first_chunk()?;
    let (word, _) = rest.split_first_chunk()?;
    Some((u16::from_le_bytes(*version), u16::from_le_bytes(*word)))
}

/// Sends a code. If that fails, the other end is gone, which the caller detects later.
pub(super) fn send_word(socket: impl AsFd, word: Word) {
    let _ = rustix::net::send(socket, &header(word as u16), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// The connector's answer, if it has arrived.
pub(super) fn receive_answer(socket: impl AsFd) -> Result<Option<Answer>, Malformed> {
    let mut bytes = [0u8; WORD_LEN + 1];
    let n = match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((n, _)) => n,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(_) => 0,
    };
    match (n, bytes.get(..n).and_then(parse)) {
        (0, _) => Ok(Some(Answer::Gone)),
        (WORD_LEN, Some((VERSION, word))) if word == Word::Attached as u16 => {
            Ok(Some(Answer::Attached { bare: false }))
        }
        (WORD_LEN, Some((VERSION, word))) if word == Word::AttachedBare as u16 => {
            Ok(Some(Answer::Attached { bare: true }))
        }
        (WORD_LEN, Some((_, word))) if word == Word::BadVersion as u16 => Ok(Some(Answer::OtherVersion)),
        _ => Err(Malformed),
    }
}

/// Sends the memory.
pub(super) fn send_hello(socket: impl AsFd, file: impl AsFd, ring: u32) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let ring = ring.to_le_bytes();
    rustix::net::sendmsg(socket, &[IoSlice::new(&header(MEMORY)), IoSlice::new(&ring)], &mut control, flags)
        .map(|_| ())
}

/// The listener's hello, if it has arrived.
pub(super) fn receive_hello(socket: impl AsFd) -> Result<Option<Hello>, Malformed> {
    let mut bytes = [0u8; HELLO_LEN + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
    {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(_) => return Ok(Some(Hello::Gone)),
    };
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let Some(bytes) = bytes.get(..received.bytes).filter(|b| !b.is_empty()) else {
        return Ok(Some(Hello::Gone));
    };
    match (parse(bytes).ok_or(Malformed)?, file) {
        ((VERSION, MEMORY), Some(file)) if bytes.len() == HELLO_LEN => {
            let ring = bytes.last_chunk().map(|b| u32::from_le_bytes(*b)).ok_or(Malformed)?;
            Ok(Some(Hello::Memory { file, ring }))
        }
        ((VERSION, word), None) if word == Word::Busy as u16 => Ok(Some(Hello::Busy)),
        ((VERSION, _), _) => Err(Malformed),
        _ => Ok(Some(Hello::OtherVersion)),
    }
}
