//! A hostile process at the other end of a cable, in shared memory or over UDP: its handshake, the memory
//! that it passes, and the content of the rings. Received packets never exceed the maximum length, and an
//! honest peer that follows it gets a working cable.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use connectx::cable::{CableEnd, CableUrl, MAX_PACKET, Transport};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Size of a ring's header, and of the ring that a listener creates.
const HEADER: u64 = 256;
const RING: u64 = 1 << 20;
/// Maximum of records of an input, and of polls until a cable is up.
const RECORDS: usize = 64;
const POLLS: usize = 100;

/// Resources of the hostile end.
enum Enemy {
    /// A socket, perhaps memory, and the offset of its own ring.
    Process {
        socket: OwnedFd,
        memory: Option<File>,
        ring: u64,
    },
    Host {
        socket: UdpSocket,
        victim: SocketAddr,
    },
}

struct World {
    now: Instant,
    end: CableEnd,
    enemy: Enemy,
    /// Offset of its next record.
    head: u32,
}

fn url(transport: Transport) -> CableUrl {
    CableUrl { transport, keeps_crcs: false, key_file: None, faults: connectx::cable::Faults::default() }
}

/// A unique path.
fn path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("fuzz-cable-{}-{number}", std::process::id()))
}

fn unix() -> Option<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()
}

/// The first messages of a listener and of a connector, with a changed word.
fn greeting(word: u16) -> Vec<u8> {
    [&b"ibfablnk"[..], &2u16.to_le_bytes(), &word.to_le_bytes()].concat()
}

fn say(socket: impl AsFd, bytes: &[u8], file: Option<&File>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}

fn heard(socket: impl AsFd) -> Option<File> {
    let mut bytes = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::DONTWAIT)
        .ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next().map(File::from),
        _ => None,
    })
}

/// The enemy connects, maps the memory and answers.
fn dials(transport: &Transport, at: &SocketAddrUnix, answer: u8, words: &[u8]) -> Option<World> {
    let now = Instant::now();
    let mut end = CableEnd::listen(&url(transport.clone())).ok()?;
    let socket = unix()?;
    rustix::net::connect(&socket, at).ok()?;
    end.poll(now);
    let memory = heard(&socket);
    match answer % 4 {
        0 | 1 => say(&socket, &greeting(1 + 3 * u16::from(answer % 4)), None),
        2 => say(&socket, &greeting(answer.into()), None),
        _ => say(&socket, words, None),
    }
    Some(World { now, end, enemy: Enemy::Process { socket, memory, ring: HEADER + RING }, head: 0 })
}

/// The enemy listens, and passes memory.
fn listens(transport: &Transport, at: &SocketAddrUnix, answer: u8, words: &[u8]) -> Option<World> {
    let now = Instant::now();
    let listener = unix()?;
    rustix::net::bind(&listener, at).ok()?;
    rustix::net::listen(&listener, 1).ok()?;
    let mut end = CableEnd::connect(&url(transport.clone())).ok()?;
    end.poll(now + Duration::from_millis(10));
    let socket = rustix::net::accept_with(&listener, SocketFlags::NONBLOCK).ok()?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = File::from(rustix::fs::memfd_create("enemy", flags).ok()?);
    // Valid, or of another size, or of a size that may change.
    let ring = if answer & 4 == 0 {
        1u32 << 15
    } else {
        u32::from(words.first().copied().unwrap_or_default()) << 24
    };
    let length = if answer & 8 == 0 { 2 * (HEADER + (1 << 15)) } else { u64::from(answer) << 8 };
    memory.set_len(length).ok()?;
    if answer & 16 == 0 {
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).ok()?;
    }
    let _ = memory.write_all_at(&[answer >> 7], 64);
    let hello = [greeting(0), ring.to_le_bytes().to_vec()].concat();
    match answer % 4 {
        0..=2 => say(&socket, &hello, Some(&memory)),
        _ => say(&socket, words, (answer & 32 != 0).then_some(&memory)),
    }
    Some(World { now, end, enemy: Enemy::Process { socket, memory: Some(memory), ring: 0 }, head: 0 })
}

/// The enemy uses the address of the other end.
fn far_away(answer: u8) -> Option<World> {
    let now = Instant::now();
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    socket.set_nonblocking(true).ok()?;
    let (local, peer) = ("127.0.0.1:0".parse().ok()?, socket.local_addr().ok()?);
    let mut end = CableEnd::connect(&url(Transport::Udp { local, peer })).ok()?;
    end.poll(now);
    let mut hello = [0; 64];
    let (length, victim) = socket.recv_from(&mut hello).ok()?;
    let world = World { now, end, enemy: Enemy::Host { socket, victim }, head: 0 };
    if answer & 1 == 0 && length == 25 {
        // Like an honest end: its own session number and the received one.
        let (ours, life) = (hello[8..16].to_vec(), u64::from(answer | 1).to_be_bytes());
        world.say(&[&hello[..8], &life, &ours, &[0]].concat());
    }
    Some(world)
}

impl World {
    fn say(&self, bytes: &[u8]) {
        match &self.enemy {
            Enemy::Process { socket, .. } => say(socket, bytes, None),
            Enemy::Host { socket, victim } => drop(socket.send_to(bytes, victim)),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        if let Enemy::Process { memory: Some(memory), .. } = &self.enemy {
            let length = memory.metadata().map(|file| file.len()).unwrap_or_default();
            if at + bytes.len() as u64 <= length {
                let _ = memory.write_all_at(bytes, at);
            }
        }
    }

    /// Writes a record with any length into the ring that the victim reads.
    fn push(&mut self, length: u32, data: &[u8]) {
        let Enemy::Process { ring, .. } = self.enemy else { return };
        let size = if ring == 0 { 1 << 15 } else { RING as u32 };
        let at = ring + HEADER + u64::from(self.head & (size - 1));
        self.write(at, &length.to_le_bytes());
        self.write(at + 4, data);
        self.head = self.head.wrapping_add((data.len() as u32 + 4).next_multiple_of(8));
        self.write(ring, &self.head.to_le_bytes());
    }

    fn take(&mut self) {
        let taken = self.end.receive(256, |packet| assert!(packet.len() <= MAX_PACKET));
        assert!(taken <= 256);
    }

    fn record(&mut self, kind: u8, data: &[u8]) {
        let number = |at: usize| data.get(at).copied().unwrap_or_default();
        match kind % 8 {
            0 => {
                let at = u64::from(u16::from_le_bytes([number(0), number(1)])) % (2 * HEADER / 4) * 4;
                let at = if at < HEADER { at } else { at + RING };
                self.write(at, data.get(2..).unwrap_or_default());
            }
            1 => self.push(data.len() as u32, data),
            2 => self.push(u32::from_le_bytes([number(0), number(1), number(2), number(3)]), data),
            3 => self.say(data),
            4 => {
                let length = 26 + usize::from(number(0)) * 16;
                let _ = self.end.send_with(length, |out| out.fill(0));
            }
            5 => self.now += Duration::from_millis(u64::from(number(0)) * 10),
            6 => {
                let _ = (self.end.has_room(usize::from(number(0)) * 16), self.end.is_up());
                self.end.flush();
            }
            _ => self.take(),
        }
        self.now += Duration::from_millis(1);
        self.end.poll(self.now);
        self.take();
    }
}

/// Brings up both ends, and sends a packet from one to the other.
fn works(near: &mut CableEnd, far: &mut CableEnd, mut now: Instant) -> bool {
    for _ in 0..POLLS {
        if near.is_up() && far.is_up() {
            break;
        }
        now += Duration::from_millis(100);
        near.poll(now);
        far.poll(now);
    }
    near.receive(usize::MAX, |_| ());
    let _ = far.send_with(64, |out| out.fill(0x70));
    far.flush();
    let mut whole = 0;
    near.receive(usize::MAX, |packet| whole += usize::from(packet == [0x70; 64]));
    whole == 1
}

/// One input: kind of cable, listening end, handshake of the enemy (kind, length, content); then records,
/// each after its kind and length.
pub fn run(bytes: &[u8]) {
    let Some((&[how, answer, length], rest)) = bytes.split_first_chunk::<3>() else { return };
    let (words, mut rest) = rest.split_at(usize::from(length).min(rest.len()));
    let path = path();
    let shared = Transport::SharedMemory { path: path.clone() };
    let Ok(at) = SocketAddrUnix::new(&path) else { return };
    let world = match how % 4 {
        0 | 1 => dials(&shared, &at, answer, words),
        2 => listens(&shared, &at, answer, words),
        _ => far_away(answer),
    };
    let Some(mut world) = world else {
        let _ = std::fs::remove_file(&path);
        return;
    };
    for _ in 0..RECORDS {
        let Some((&[kind, len], more)) = rest.split_first_chunk::<2>() else { break };
        let (data, more) = more.split_at(usize::from(len).min(more.len()));
        rest = more;
        world.record(kind, data);
    }
    let World { now, mut end, enemy, .. } = world;
    let honest = match enemy {
        Enemy::Process { ring: 0, .. } => {
            drop(enemy);
            let _ = std::fs::remove_file(&path);
            CableEnd::listen(&url(shared))
        }
        Enemy::Process { .. } => {
            drop(enemy);
            CableEnd::connect(&url(shared))
        }
        Enemy::Host { socket, victim } => {
            let local = socket.local_addr().expect("is bound");
            drop(socket);
            CableEnd::connect(&url(Transport::Udp { local, peer: victim }))
        }
    };
    // Another process may have taken the port meanwhile.
    if let Ok(mut honest) = honest {
        assert!(works(&mut end, &mut honest, now), "an honest end gets no cable");
    }
    let _ = std::fs::remove_file(&path);
}
