//! One end of a cable. A cable connects two InfiniBand ports and carries complete packets, LRH to VCRC; or it
//! connects an Ethernet port and carries complete frames.
//!
//! | kind | between | when the receiver is slow |
//! |---|---|---|
//! | pair | two ports of one process | holds the sender back ([`CableFull`]) |
//! | shared memory | two processes of one host, without a system call per packet | holds the sender back |
//! | UDP, one packet per datagram | two hosts | loses packets |
//! | network interface | an Ethernet port and its network | loses frames |
//!
//! All are bounded. An end whose peer is gone is *down*: packets sent then are dropped and counted, as on a
//! disconnected cable.
//!
//! Pairs and shared memory cannot damage a packet, so InfiniBand packets need no CRCs there ([`Crcs`]). Each
//! packet says whether it has CRCs. A component that needs them computes them: a fault injector before it
//! damages the packet, a tap for its copy, and a forwarder to a cable that can damage packets. CRCs do not
//! protect against a malicious process at the other end.

mod counters;
mod fault;
mod handover;
mod key;
mod mmsg;
mod packet;
mod pair;
mod ring;
mod shm;
mod trouble;
mod udp;
mod url;

#[cfg(test)]
mod tests;

use mmsg::SocketEnd as _;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Instant;

pub use counters::CableCounters;
pub use fault::{FaultCounters, Faults};
pub use trouble::{CableError, CableTrouble};
pub use url::{CableUrl, CableUrlError, Transport};

use ib_wire::crc;
use ib_wire::packet::Frame;

use fault::Injector;
use packet::PacketEnd;
use pair::PairEnd;
use ring::Broken;
use shm::ShmEnd;
use udp::UdpEnd;

use tap::{FrameKind, Tap, TapDirection};

/// Longest packet in bytes: 4096 of payload, every header and both CRCs, including those of RoCEv2 over
/// Ethernet.
pub const MAX_PACKET: usize = 4096 + 130;

/// Whether an InfiniBand packet ends with its CRCs. Those of an Ethernet frame are always present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crcs {
    /// The CRCs are present and must be checked.
    Present,
    /// The packet never left the memory of this host: the CRC fields contain zeros or arbitrary bytes.
    Absent,
}

impl Crcs {
    /// Ends a packet with or without CRCs.
    #[inline(always)]
    pub(crate) fn end(self, frame: Frame<'_>) {
        match self {
            Self::Present => frame.seal(),
            Self::Absent => frame.leave_bare(),
        };
    }
}

/// The receiver is slow: try again later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cable is full")]
pub struct CableFull;

/// Result of handing a packet to a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    Taken,
    Full,
    Down,
    /// The packet is empty or too long.
    BadLength,
}

#[derive(Debug)]
enum Kind {
    Pair(PairEnd),
    SharedMemory(Box<ShmEnd>),
    Udp(Box<UdpEnd>),
    Packet(Box<PacketEnd>),
}

/// One end of a cable.
#[derive(Debug)]
pub struct CableEnd {
    kind: Kind,
    /// The kind of frames that it carries.
    frames: FrameKind,
    faults: Option<Box<FaultyEnd>>,
    out: Box<[u8; MAX_PACKET]>,
    inn: Box<[u8; MAX_PACKET]>,
    counters: CableCounters,
    tap: Option<Tap>,
}

/// Fault injectors of both directions.
#[derive(Debug)]
struct FaultyEnd {
    send: Injector,
    receive: Injector,
}

impl CableEnd {
    /// Creates both ends of a cable within this process, with 256 KiB of room in each direction. Each end may
    /// move to another thread; dropping one end takes the other down.
    pub fn pair() -> std::io::Result<(Self, Self)> {
        let (a, b) = PairEnd::new()?;
        Ok((Self::new(Kind::Pair(a)), Self::new(Kind::Pair(b))))
    }

    /// As [`CableEnd::pair`], between two Ethernet ports.
    pub fn ethernet_pair() -> std::io::Result<(Self, Self)> {
        let (mut a, mut b) = Self::pair()?;
        (a.frames, b.frames) = (FrameKind::Ethernet, FrameKind::Ethernet);
        Ok((a, b))
    }

    /// True if it carries Ethernet frames.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.frames == FrameKind::Ethernet
    }

    /// Opens the fabric's end of an external cable. The socket of a shared-memory cable exists when this
    /// returns.
    pub fn listen(url: &CableUrl) -> Result<Self, CableError> {
        Self::open(url, ShmEnd::listen)
    }

    /// Opens the far end of an external cable. It attaches as soon as the fabric's end exists, and again
    /// whenever that returns.
    pub fn connect(url: &CableUrl) -> Result<Self, CableError> {
        Self::open(url, ShmEnd::connect)
    }

    fn open(url: &CableUrl, shm: fn(&Path) -> Result<ShmEnd, CableError>) -> Result<Self, CableError> {
        let kind = match &url.transport {
            Transport::SharedMemory { path } => Kind::SharedMemory(Box::new(shm(path)?)),
            Transport::Udp { local, peer } => {
                let key = url.key_file.as_deref().map(key::CableKey::read).transpose()?;
                Kind::Udp(Box::new(UdpEnd::open(*local, *peer, key)?))
            }
            Transport::Ethernet { interface } => Kind::Packet(Box::new(PacketEnd::open(interface)?)),
        };
        let mut end = Self::new(kind);
        if url.keeps_crcs {
            end.keep_crcs();
        }
        end.inject(url.faults);
        Ok(end)
    }

    fn new(kind: Kind) -> Self {
        let frames =
            if matches!(kind, Kind::Packet(_)) { FrameKind::Ethernet } else { FrameKind::InfiniBand };
        Self {
            kind,
            frames,
            faults: None,
            out: Box::new([0; MAX_PACKET]),
            inn: Box::new([0; MAX_PACKET]),
            counters: CableCounters::default(),
            tap: None,
        }
    }

    /// Makes packets keep their CRCs in both directions even if they are not needed. Call it before the first
    /// packet.
    pub fn keep_crcs(&mut self) {
        match &mut self.kind {
            Kind::Pair(end) => end.keep_crcs(),
            Kind::SharedMemory(end) => end.keep_crcs(),
            Kind::Udp(_) | Kind::Packet(_) => {}
        }
    }

    /// Whether packets sent now by [`CableEnd::send`] have CRCs.
    #[inline(always)]
    #[must_use]
    pub fn crcs(&self) -> Crcs {
        let bare = self.faults.is_none()
            && self.tap.is_none()
            && self.frames == FrameKind::InfiniBand
            && match &self.kind {
                Kind::Pair(end) => end.takes_bare(),
                Kind::SharedMemory(end) => end.takes_bare(),
                Kind::Udp(_) | Kind::Packet(_) => false,
            };
        if bare { Crcs::Absent } else { Crcs::Present }
    }

    /// Copies every packet that crosses this end to `tap`, with CRCs added if it has none; `None` removes the
    /// tap.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    /// Enables fault injection on this end, in both directions.
    pub fn inject(&mut self, faults: Faults) {
        if !faults.is_off() {
            self.keep_crcs();
        }
        self.faults = (!faults.is_off()).then(|| {
            Box::new(FaultyEnd { send: Injector::new(faults, 1), receive: Injector::new(faults, 2) })
        });
    }

    /// True while the other end is attached and alive.
    #[inline]
    #[must_use]
    pub fn is_up(&self) -> bool {
        match &self.kind {
            Kind::Pair(end) => end.is_up(),
            Kind::SharedMemory(end) => end.is_up(),
            Kind::Udp(end) => end.is_up(),
            Kind::Packet(end) => end.is_up(),
        }
    }

    /// Sends one packet of `len` bytes. `fill` writes it, with CRCs or without as its argument says.
    ///
    /// # Errors
    /// [`CableFull`] if the receiver is slow; `fill` was not called. On a cable that is down, and for a
    /// packet longer than [`MAX_PACKET`], the packet is dropped and counted, and the result is `Ok`, because
    /// a retry would not help.
    #[inline(always)]
    pub fn send(&mut self, len: usize, fill: impl FnOnce(&mut [u8], Crcs)) -> Result<(), CableFull> {
        let crcs = self.crcs();
        self.put(len, crcs, |out| fill(out, crcs))
    }

    /// As [`CableEnd::send`], for a packet that has CRCs on any cable.
    pub fn send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), CableFull> {
        self.put(len, Crcs::Present, fill)
    }

    /// Forwards a packet from another cable: with its own CRCs, or with computed ones if it has none and this
    /// cable can damage it.
    pub fn forward(&mut self, packet: &[u8], crcs: Crcs) -> Result<(), CableFull> {
        if crcs == Crcs::Absent && self.crcs() == Crcs::Present {
            return self.put(packet.len(), Crcs::Present, |out| {
                out.copy_from_slice(packet);
                crc::seal(out);
            });
        }
        let fits = (1..=MAX_PACKET).contains(&packet.len());
        if let (Kind::SharedMemory(end), None, None, true) = (&mut self.kind, &self.faults, &self.tap, fits) {
            // The packet is in memory already: one copy, directly into the ring.
            let sent = end.send(packet, crcs);
            return self.count_sent(sent, packet.len());
        }
        self.put(packet.len(), crcs, |out| out.copy_from_slice(packet))
    }

    #[inline(always)]
    fn put(&mut self, len: usize, crcs: Crcs, fill: impl FnOnce(&mut [u8])) -> Result<(), CableFull> {
        match self.place(len) {
            Ok(place) => {
                fill(place);
                self.commit(len, crcs)
            }
            Err(sent) => self.count_sent(sent, len),
        }
    }

    /// The buffer for a packet of `len` bytes, in the ring or in a separate buffer, which
    /// [`CableEnd::commit`] then sends. The error is the fate of the packet, which the caller must count.
    #[inline(always)]
    pub(crate) fn place(&mut self, len: usize) -> Result<&mut [u8], Sent> {
        let up = self.is_up();
        if !(1..=MAX_PACKET).contains(&len) {
            return Err(Sent::BadLength);
        }
        if !up {
            return Err(Sent::Down);
        }
        if self.is_made_in_ring() {
            let Kind::Pair(end) = &mut self.kind else { return Err(Sent::Down) };
            return end.place(len);
        }
        let room = match &mut self.faults {
            Some(faults) => faults.send.has_room(),
            None => has_room(&mut self.kind, &mut self.counters, len),
        };
        if room { self.out.get_mut(..len).ok_or(Sent::BadLength) } else { Err(Sent::Full) }
    }

    /// Sends the packet of `len` bytes in the buffer from [`CableEnd::place`].
    #[inline(always)]
    pub(crate) fn commit(&mut self, len: usize, crcs: Crcs) -> Result<(), CableFull> {
        if !self.is_made_in_ring() {
            return self.send_made(len, crcs);
        }
        if let Kind::Pair(end) = &mut self.kind {
            end.commit(len, crcs);
        }
        self.count_sent(Sent::Taken, len)
    }

    /// True if packets are built in the ring of the other end, which excludes faults and a tap.
    #[inline]
    const fn is_made_in_ring(&self) -> bool {
        matches!(self.kind, Kind::Pair(_)) && self.faults.is_none() && self.tap.is_none()
    }

    /// Sends the packet in `out`.
    #[inline(never)]
    fn send_made(&mut self, len: usize, crcs: Crcs) -> Result<(), CableFull> {
        let packet = self.out.get(..len).unwrap_or_default();
        if let Some(faults) = &mut self.faults {
            faults.send.put(packet);
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += len as u64;
            self.drain_injector();
            return Ok(());
        }
        let sent = transmit(&mut self.kind, &mut self.counters, (&mut self.tap, self.frames), (packet, crcs));
        self.count_sent(sent, len)
    }

    #[inline(always)]
    pub(crate) fn count_sent(&mut self, sent: Sent, len: usize) -> Result<(), CableFull> {
        match sent {
            Sent::BadLength => {
                self.counters.tx_bad_length += 1;
                Ok(())
            }
            Sent::Taken => {
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += len as u64;
                Ok(())
            }
            Sent::Down => {
                self.counters.tx_down += 1;
                Ok(())
            }
            Sent::Full => {
                self.counters.tx_full += 1;
                Err(CableFull)
            }
        }
    }

    /// True if a packet of `len` bytes would be accepted now (or dropped, on a cable that is down).
    pub fn has_room(&mut self, len: usize) -> bool {
        if !self.is_up() {
            return true;
        }
        match &self.faults {
            Some(faults) => faults.send.has_room(),
            None => has_room(&mut self.kind, &mut self.counters, len),
        }
    }

    /// Receives at most `max` packets and passes them to `each`, oldest first. CRCs are added to packets
    /// without them. Returns the number of packets.
    pub fn receive(&mut self, max: usize, mut each: impl FnMut(&[u8])) -> usize {
        let mut sealed = Vec::new();
        self.receive_as_sent(max, |packet, crcs| {
            if crcs == Crcs::Present {
                each(packet);
            } else {
                sealed.clear();
                sealed.extend_from_slice(packet);
                crc::seal(&mut sealed);
                each(&sealed);
            }
            true
        })
    }

    /// As [`CableEnd::receive`], but packets are passed as they arrived, and `take` may refuse one by
    /// returning false. That ends the round, and the next round passes the packet again. Packets that are not
    /// taken hold the sender back.
    pub fn receive_as_sent(&mut self, max: usize, mut take: impl FnMut(&[u8], Crcs) -> bool) -> usize {
        let Self { kind, counters, tap, frames, inn, out, .. } = self;
        let ends = (kind, counters, (tap, *frames));
        let Some(faults) = &mut self.faults else {
            return receive(ends, max, inn, out, take);
        };
        let injector = &mut faults.receive;
        let mut sealed = [0; MAX_PACKET];
        receive(ends, max, inn, out, |packet, crcs| {
            let room = injector.has_room();
            if room {
                // Damage is only detected if the CRCs were correct before.
                injector.put(with_crcs(packet, crcs, &mut sealed));
            }
            room
        });
        let mut n = 0;
        while n < max && injector.next(|packet| take(packet, Crcs::Present)) {
            n += 1;
        }
        n
    }

    /// Slow-path upkeep: detects that the other end attaches or leaves, reconnects, sends keepalives and
    /// releases delayed packets. Call it in every iteration; it is cheap and limits its own rate by `now`.
    /// Returns true if it consumed a wakeup message: the next packet wakes nothing until [`CableEnd::rest`]
    /// arms the cable again.
    pub fn poll(&mut self, now: Instant) -> bool {
        let mut woken = false;
        match &mut self.kind {
            Kind::Pair(end) => end.poll(&mut self.counters),
            Kind::SharedMemory(end) => {
                woken = end.poll(now, &mut self.counters);
                end.flush();
            }
            Kind::Udp(end) => end.poll(now, &mut self.counters),
            Kind::Packet(end) => end.poll(now, &mut self.counters),
        }
        if let Some(faults) = &mut self.faults {
            faults.send.set_now(now);
            faults.receive.set_now(now);
            if !self.is_up() {
                self.drop_held();
            }
            self.drain_injector();
        }
        woken
    }

    /// Sends packets that a UDP or Ethernet cable has batched, and wakes a sleeping peer on a shared-memory
    /// cable. Call it after a round of sends; [`CableEnd::receive`] and [`CableEnd::poll`] call it, too.
    pub fn flush(&mut self) {
        match &mut self.kind {
            Kind::Udp(end) => end.flush(&mut self.counters),
            Kind::Packet(end) => end.flush(&mut self.counters),
            Kind::SharedMemory(end) => end.flush(),
            Kind::Pair(_) => {}
        }
    }

    /// Arms the cable to wake this end: the returned descriptor becomes readable when something arrives from
    /// now on. Earlier arrivals do not wake it, so receive once between this call and a sleep. `None` if
    /// nothing would wake it: the cable is down, or within the process.
    pub fn rest(&mut self) -> Option<BorrowedFd<'_>> {
        match &mut self.kind {
            Kind::Pair(_) => None,
            Kind::SharedMemory(end) => end.rest(),
            Kind::Udp(end) => Some(end.waker()),
            Kind::Packet(end) => Some(end.waker()),
        }
    }

    /// For a cable that is down and cannot wake this end ([`CableEnd::rest`]): when to poll it again, and a
    /// descriptor that becomes readable if it must be polled earlier.
    #[must_use]
    pub fn next_look(&self, now: Instant) -> Option<(Instant, Option<BorrowedFd<'_>>)> {
        match &self.kind {
            Kind::SharedMemory(end) => end.next_look(now),
            Kind::Pair(_) | Kind::Udp(_) | Kind::Packet(_) => None,
        }
    }

    /// When to poll it next because fault injection delays packets.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let faults = self.faults.as_ref()?;
        faults.send.next_due().into_iter().chain(faults.receive.next_due()).min()
    }

    /// The descriptor that [`CableEnd::rest`] returned.
    #[must_use]
    pub fn waker(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Kind::Pair(_) => None,
            Kind::SharedMemory(end) => end.waker(),
            Kind::Udp(end) => Some(end.waker()),
            Kind::Packet(end) => Some(end.waker()),
        }
    }

    /// Why the cable is down, if known; for the operator.
    #[must_use]
    pub fn trouble(&self) -> Option<CableTrouble> {
        match &self.kind {
            Kind::Pair(end) => (!end.is_up()).then_some(CableTrouble::Gone),
            Kind::SharedMemory(end) => end.trouble,
            Kind::Udp(end) => end.trouble,
            Kind::Packet(end) => end.trouble,
        }
    }

    /// Counters of this end.
    #[must_use]
    pub fn counters(&self) -> CableCounters {
        self.counters
    }

    /// Counters of the fault injectors: (sending, receiving).
    #[must_use]
    pub fn fault_counters(&self) -> Option<(FaultCounters, FaultCounters)> {
        self.faults.as_ref().map(|f| (f.send.counters, f.receive.counters))
    }

    fn drop_held(&mut self) {
        if let Some(faults) = &mut self.faults {
            self.counters.lost_going_down += faults.send.clear() + faults.receive.clear();
        }
    }

    fn drain_injector(&mut self) {
        let Some(faults) = &mut self.faults else { return };
        let (kind, counters, tap, frames) = (&mut self.kind, &mut self.counters, &mut self.tap, self.frames);
        while faults
            .send
            .next(|packet| transmit(kind, counters, (tap, frames), (packet, Crcs::Present)) == Sent::Taken)
        {
        }
    }
}

fn has_room(kind: &mut Kind, counters: &mut CableCounters, len: usize) -> bool {
    match kind {
        Kind::Pair(end) => end.has_room(len),
        Kind::SharedMemory(end) => end.has_room(len),
        Kind::Udp(end) => end.has_room(counters),
        Kind::Packet(end) => end.has_room(counters),
    }
}

fn transmit(
    kind: &mut Kind,
    counters: &mut CableCounters,
    (tap, frames): (&mut Option<Tap>, FrameKind),
    (packet, crcs): (&[u8], Crcs),
) -> Sent {
    let sent = match kind {
        Kind::Pair(end) => end.send(packet, crcs),
        Kind::SharedMemory(end) => end.send(packet, crcs),
        Kind::Udp(end) => end.send(packet, counters),
        Kind::Packet(end) => end.send(packet, counters),
    };
    if let (Sent::Taken, Some(tap)) = (sent, tap) {
        tap.offer(frames, TapDirection::Sent, packet);
    }
    sent
}

/// The packet with CRCs: itself, or a copy in `sealed` with computed CRCs.
fn with_crcs<'p>(packet: &'p [u8], crcs: Crcs, sealed: &'p mut [u8; MAX_PACKET]) -> &'p [u8] {
    match sealed.get_mut(..packet.len()) {
        Some(copy) if crcs == Crcs::Absent => {
            copy.copy_from_slice(packet);
            crc::seal(copy);
            copy
        }
        _ => packet,
    }
}

fn receive(
    (kind, counters, (tap, frames)): (&mut Kind, &mut CableCounters, (&mut Option<Tap>, FrameKind)),
    max: usize,
    inn: &mut [u8; MAX_PACKET],
    sealed: &mut [u8; MAX_PACKET],
    mut take: impl FnMut(&[u8], Crcs) -> bool,
) -> usize {
    let mut bytes = 0;
    let mut count = |packet: &[u8], crcs| {
        let taken = take(packet, crcs);
        if taken {
            bytes += packet.len() as u64;
            if let Some(tap) = tap {
                tap.offer(frames, TapDirection::Received, with_crcs(packet, crcs, sealed));
            }
        }
        taken
    };
    let n = match kind {
        Kind::Pair(end) => end.receive(max, count),
        Kind::SharedMemory(end) => end.receive(max, inn, count),
        Kind::Udp(end) => end.receive(max, counters, |packet| count(packet, Crcs::Present)),
        Kind::Packet(end) => end.receive(max, counters, |packet| count(packet, Crcs::Present)),
    };
    counters.rx_packets += n as u64;
    counters.rx_bytes += bytes;
    n
}
