//! The guest's side, which shares no code with the device: a virtual machine monitor's messages, and a small
//! mlx5 driver that writes its layouts as bytes.

#![allow(dead_code, reason = "each test program uses a part of it")]

mod driver;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ib_wire::{Guid, Lid, Mtu};
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use softhca::hca::{Hca, HcaConfig, HcaPort, TableSizes};
use softhca::vfio_user::socket::{Client, Gone};

pub(crate) use driver::*;

/// Bytes of the guest's memory.
pub(crate) const MEMORY: u64 = 16 << 20;
/// Address of the first free page.
pub(crate) const FREE: u64 = 0x10_0000;
pub(crate) const PORT: hca::PortNumber = hca::PortNumber(1);
pub(crate) const SECOND: hca::PortNumber = hca::PortNumber(2);

/// A reply: its error number and body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) error: u32,
    pub(crate) body: Vec<u8>,
}

/// A guest and its monitor, with the device in the same thread.
pub(crate) struct Guest {
    pub(crate) hca: Hca,
    client: Client,
    socket: UnixStream,
    pub(crate) memory: File,
    pub(crate) gone: Option<Gone>,
    next_id: u16,
    /// First byte that is not allocated.
    free: u64,
    pub(crate) vectors: Vec<OwnedFd>,
    /// Offset of the device's clock from the real one.
    ahead: Duration,
}

fn message(id: u16, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
    for word in [16 + body.len() as u32, flags, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub(crate) fn config(number: u64) -> HcaConfig {
    HcaConfig {
        node_guid: Guid(0x1000 * number),
        description: format!("device {number}"),
        port: HcaPort { guid: Guid(0x1000 * number + 1), cable: None },
        second_port: None,
        grh_required: false,
        seed: number,
        tables: TableSizes::default(),
    }
}

impl Guest {
    /// Connected, before the first message.
    pub(crate) fn silent() -> Self {
        Self::silent_with(config(1))
    }

    fn silent_with(config: HcaConfig) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let memory = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, MEMORY).unwrap();
        Self {
            hca: Hca::new(config).unwrap(),
            client: Client::new(theirs),
            socket,
            memory: memory.into(),
            gone: None,
            next_id: 1,
            free: FREE,
            vectors: Vec::new(),
            ahead: Duration::ZERO,
        }
    }

    /// With its memory mapped, interrupts set up, bus mastering enabled, and an active port.
    pub(crate) fn new() -> Self {
        let mut guest = Self::silent();
        guest.introduce();
        guest
    }

    /// The same, with a device of other table sizes.
    pub(crate) fn with_tables(tables: TableSizes) -> Self {
        let mut guest = Self::silent_with(HcaConfig { tables, ..config(1) });
        guest.introduce();
        guest
    }

    /// The same, with a device of two ports; the second is active with LID 8.
    pub(crate) fn with_two_ports() -> Self {
        let second_port = Some(HcaPort { guid: Guid(0x1002), cable: None });
        let mut guest = Self::silent_with(HcaConfig { second_port, ..config(1) });
        guest.introduce();
        guest.hca.engine_mut().activate(SECOND, Lid(8), Mtu::B4096).unwrap();
        guest
    }

    pub(crate) fn introduce(&mut self) {
        let answer = self.ask(1, &[0, 0, 3, 0]);
        assert!(answer.error == 0 && answer.body.ends_with(b"}\0"), "{answer:?}");
        let memory = self.memory.try_clone().unwrap();
        assert_eq!(self.map(0, 0, MEMORY, Some(memory.as_fd())), 0);
        self.vectors = (0..4).map(|_| rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        let fds: Vec<_> = self.vectors.iter().map(|fd| fd.try_clone().unwrap()).collect();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let set = words(&[20, 0x24, 2, 0, 4]);
        assert_eq!(self.ask_with(8, &set, &fds).error, 0);
        self.write(7, 4, &[6, 0]);
        self.hca.engine_mut().activate(PORT, Lid(7), Mtu::B4096).unwrap();
    }

    /// Runs the device until it has nothing to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            let busy = match self.gone {
                None => match self.client.turn(&mut self.hca) {
                    Ok(busy) => busy,
                    Err(gone) => {
                        self.gone = Some(gone);
                        self.hca.disconnect();
                        true
                    }
                },
                Some(_) => false,
            };
            if !(busy | self.hca.turn(self.now())) {
                return;
            }
        }
        panic!("the device does not become idle");
    }

    /// The device's clock.
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }

    /// Advances the device's clock, without waiting.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.ahead += time;
    }

    /// Waits for a timeout of the device, by its clock.
    pub(crate) fn wait(&mut self, time: Duration) {
        const STEP: Duration = Duration::from_micros(200);
        let mut left = time;
        while !left.is_zero() {
            self.settle();
            let step = left.min(STEP);
            self.pass(step);
            left -= step;
        }
        self.settle();
    }

    pub(crate) fn send(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let bytes = [std::io::IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.socket, &bytes, &mut control, SendFlags::empty()).unwrap();
    }

    pub(crate) fn ask(&mut self, command: u16, body: &[u8]) -> Answer {
        self.ask_with(command, body, &[])
    }

    pub(crate) fn ask_with(&mut self, command: u16, body: &[u8], files: &[BorrowedFd<'_>]) -> Answer {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.send(&message(id, command, 0, body), files);
        self.settle();
        assert_eq!(self.gone, None);
        let mut header = [0; 16];
        self.socket.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((&header[..2], &header[2..4]), (&id.to_le_bytes()[..], &command.to_le_bytes()[..]));
        let error = word(12);
        assert_eq!(word(8), if error == 0 { 1 } else { 0x21 });
        let mut body = vec![0; word(4) as usize - 16];
        self.socket.read_exact(&mut body).unwrap();
        Answer { error, body }
    }

    /// Sends a message without a reply, as writes are.
    pub(crate) fn post(&mut self, command: u16, body: &[u8]) {
        self.send(&message(0, command, 0x10, body), &[]);
        self.settle();
    }

    pub(crate) fn map(&mut self, offset: u64, address: u64, len: u64, file: Option<BorrowedFd<'_>>) -> u32 {
        let mut body = words(&[32, 3]);
        for number in [offset, address, len] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        self.ask_with(2, &body, file.as_slice()).error
    }

    pub(crate) fn unmap(&mut self, address: u64, len: u64) -> u32 {
        let mut body = words(&[24, 0]);
        body.extend_from_slice(&address.to_le_bytes());
        body.extend_from_slice(&len.to_le_bytes());
        self.ask(3, &body).error
    }

    fn access(offset: u64, region: u32, count: u32) -> Vec<u8> {
        [&offset.to_le_bytes()[..], &words(&[region, count])].concat()
    }

    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let body = [&Self::access(offset, region, data.len() as u32), data].concat();
        self.post(10, &body);
    }

    pub(crate) fn read(&mut self, region: u32, offset: u64, count: u32) -> Answer {
        self.ask(9, &Self::access(offset, region, count))
    }

    pub(crate) fn read_word(&mut self, offset: u64) -> u32 {
        let answer = self.read(0, offset, 4);
        u32::from_be_bytes(answer.body[16..].try_into().unwrap())
    }

    /// The bytes of a reply.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Disconnects the client.
    pub(crate) fn hang_up(&mut self) {
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
        self.settle();
    }

    /// Connects another client.
    pub(crate) fn connect_again(&mut self) {
        let (socket, theirs) = UnixStream::pair().unwrap();
        (self.socket, self.client, self.gone) = (socket, Client::new(theirs), None);
    }

    /// Interrupts of a vector since the last call.
    pub(crate) fn interrupts(&self, vector: usize) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.vectors[vector], &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    // ---- memory

    pub(crate) fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, address).unwrap();
    }

    pub(crate) fn get(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, address).unwrap();
        bytes
    }

    /// Frees all pages, as another kernel would.
    pub(crate) fn forget_pages(&mut self) {
        self.free = FREE;
    }

    /// Allocates zeroed contiguous pages.
    pub(crate) fn pages(&mut self, count: u64) -> u64 {
        let at = self.free;
        self.free += count * 4096;
        assert!(self.free <= MEMORY, "the guest has no memory left");
        self.put(at, &vec![0; count as usize * 4096]);
        at
    }

    /// Allocates pages that are not contiguous, in descending order.
    pub(crate) fn scattered(&mut self, count: u64) -> Vec<u64> {
        let at = self.pages(2 * count);
        (0..count).map(|n| at + 2 * (count - 1 - n) * 4096).collect()
    }
}

/// Takes the port down, which raises an event.
pub(crate) fn down(g: &mut Guest) {
    g.hca.engine_mut().set_cable(PORT, None).unwrap();
    g.settle();
}

/// Brings the port up again.
pub(crate) fn up(g: &mut Guest) {
    g.hca.engine_mut().activate(PORT, Lid(7), Mtu::B4096).unwrap();
    g.settle();
}
