//! One end of a cable between two InfiniBand ports, which carries whole packets, LRH to VCRC; or of an Ethernet port's, which
//! carries whole frames.
//!
//! Four kinds behind one type: a pair in one process, shared memory between two processes of one machine (no system
//! call per packet), UDP between machines (one packet a datagram), and for Ethernet a network interface. All are bounded. The first two hold the sender back
//! ([`CableFull`]) where the receiver is slow; UDP and Ethernet lose, as they do. An end whose other end is gone is *down*: what is
//! sent then is dropped and counted, as on a cable that was pulled.

mod counters;
mod fault;
mod handover;
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

use fault::Injector;
use packet::PacketEnd;
use pair::PairEnd;
use ring::Broken;
use shm::ShmEnd;
use udp::UdpEnd;

use tap::{FrameKind, Tap, TapDirection};

/// Most bytes of one packet: 4096 of payload and room for every header and both CRCs, those of RoCEv2 in Ethernet, too.
pub const MAX_PACKET: usize = 4096 + 130;

/// The other end is slow: try again later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cable is full")]
pub struct CableFull;

/// What became of a packet that was handed to a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    Taken,
    Full,
    Down,
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
    /// What it carries.
    frames: FrameKind,
    faults: Option<Box<FaultyEnd>>,
    out: Box<[u8; MAX_PACKET]>,
    inn: Box<[u8; MAX_PACKET]>,
    counters: CableCounters,
    tap: Option<Tap>,
}

/// Injectors of both directions.
#[derive(Debug)]
struct FaultyEnd {
    send: Injector,
    receive: Injector,
}

impl CableEnd {
    /// Both ends of a cable within this process, with 512 KiB of room in each direction. Either may go to another
    /// thread; dropping one takes the other down.
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

    /// The fabric's end of an external cable. A shared-memory cable's socket is there when this returns.
    pub fn listen(url: &CableUrl) -> Result<Self, CableError> {
        Self::open(url, ShmEnd::listen)
    }

    /// The far end of an external cable: it looks for the fabric's end and attaches as soon as that is there, and
    /// again whenever it comes back.
    pub fn connect(url: &CableUrl) -> Result<Self, CableError> {
        Self::open(url, ShmEnd::connect)
    }

    fn open(url: &CableUrl, shm: fn(&Path) -> Result<ShmEnd, CableError>) -> Result<Self, CableError> {
        let kind = match &url.transport {
            Transport::SharedMemory { path } => Kind::SharedMemory(Box::new(shm(path)?)),
            Transport::Udp { local, peer } => Kind::Udp(Box::new(UdpEnd::open(*local, *peer)?)),
            Transport::Ethernet { interface } => Kind::Packet(Box::new(PacketEnd::open(interface)?)),
        };
        let mut end = Self::new(kind);
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

    /// Copies every packet that crosses this end, as it is on the wire, to `tap`; `None` ends that.
    pub fn set_tap(&mut self, tap: Option<Tap>) {
        self.tap = tap;
    }

    /// Lets faults happen on this end, in both directions.
    pub fn inject(&mut self, faults: Faults) {
        self.faults = (!faults.is_off()).then(|| {
            Box::new(FaultyEnd { send: Injector::new(faults, 1), receive: Injector::new(faults, 2) })
        });
    }

    /// True while the other end is attached and alive.
    #[must_use]
    pub fn is_up(&self) -> bool {
        match &self.kind {
            Kind::Pair(end) => end.is_up(),
            Kind::SharedMemory(end) => end.is_up(),
            Kind::Udp(end) => end.is_up(),
            Kind::Packet(end) => end.is_up(),
        }
    }

    /// Sends one packet of `len` bytes, which `fill` writes. [`CableFull`] if the other end is slow; `fill` was not
    /// called then. On a cable that is down, and for a packet longer than [`MAX_PACKET`], the packet is dropped and
    /// counted and the answer is `Ok`, since trying again would not help.
    pub fn send_with(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), CableFull> {
        let up = self.is_up();
        let Some(packet) = self.out.get_mut(..len).filter(|p| !p.is_empty()) else {
            self.counters.tx_bad_length += 1;
            return Ok(());
        };
        if !up {
            self.counters.tx_down += 1;
            return Ok(());
        }
        let room = match &mut self.faults {
            Some(faults) => faults.send.has_room(),
            None => has_room(&mut self.kind, &mut self.counters, len),
        };
        if !room {
            self.counters.tx_full += 1;
            return Err(CableFull);
        }
        fill(packet);
        if let Some(faults) = &mut self.faults {
            faults.send.put(packet);
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += len as u64;
            self.drain_injector();
            return Ok(());
        }
        match transmit(&mut self.kind, &mut self.counters, (&mut self.tap, self.frames), packet) {
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

    /// True if a packet of `len` bytes would be taken (or dropped, on a cable that is down) now.
    pub fn has_room(&mut self, len: usize) -> bool {
        if !self.is_up() {
            return true;
        }
        match &self.faults {
            Some(faults) => faults.send.has_room(),
            None => has_room(&mut self.kind, &mut self.counters, len),
        }
    }

    /// Takes up to `max` packets that have arrived and shows them to `each`, oldest first. Returns how many.
    pub fn receive(&mut self, max: usize, mut each: impl FnMut(&[u8])) -> usize {
        self.receive_while(max, |packet| {
            each(packet);
            true
        })
    }

    /// As [`CableEnd::receive`], but `take` may refuse a packet by returning false: that ends the round, and the packet
    /// is shown again in the next one. What is not taken holds the other end back.
    pub fn receive_while(&mut self, max: usize, mut take: impl FnMut(&[u8]) -> bool) -> usize {
        let Some(faults) = &mut self.faults else {
            return receive(
                &mut self.kind,
                &mut self.counters,
                (&mut self.tap, self.frames),
                max,
                &mut self.inn,
                take,
            );
        };
        let injector = &mut faults.receive;
        receive(
            &mut self.kind,
            &mut self.counters,
            (&mut self.tap, self.frames),
            max,
            &mut self.inn,
            |packet| {
                let room = injector.has_room();
                if room {
                    injector.put(packet);
                }
                room
            },
        );
        let mut n = 0;
        while n < max && injector.next(&mut take) {
            n += 1;
        }
        n
    }

    /// Slow upkeep: notices the other end coming and going, reconnects, keeps alive, lets delayed packets go. Call it
    /// every turn; it is cheap and paces itself by `now`. True if it took a message that wakes: the next packet wakes nobody unless
    /// [`CableEnd::rest`] asks anew.
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

    /// Sends what a UDP or an Ethernet cable collects to send at once, and wakes the other end of a shared-memory cable that rests. Call
    /// it after a round of sends;
    /// [`CableEnd::receive`] and [`CableEnd::poll`] do it too.
    pub fn flush(&mut self) {
        match &mut self.kind {
            Kind::Udp(end) => end.flush(&mut self.counters),
            Kind::Packet(end) => end.flush(&mut self.counters),
            Kind::SharedMemory(end) => end.flush(),
            Kind::Pair(_) => {}
        }
    }

    /// Asks to be woken by what arrives from now on: the descriptor becomes readable then. What arrived before does not wake, so
    /// a turn is to be taken between this and a rest. `None` where nobody would tell: a cable that is down, or within the process.
    pub fn rest(&mut self) -> Option<BorrowedFd<'_>> {
        match &mut self.kind {
            Kind::Pair(_) => None,
            Kind::SharedMemory(end) => end.rest(),
            Kind::Udp(end) => Some(end.waker()),
            Kind::Packet(end) => Some(end.waker()),
        }
    }

    /// Of a cable that is down and does not wake ([`CableEnd::rest`]): when it is to be looked at again, and a descriptor that becomes
    /// readable if that is to be earlier.
    #[must_use]
    pub fn next_look(&self, now: Instant) -> Option<(Instant, Option<BorrowedFd<'_>>)> {
        match &self.kind {
            Kind::SharedMemory(end) => end.next_look(now),
            Kind::Pair(_) | Kind::Udp(_) | Kind::Packet(_) => None,
        }
    }

    /// When it wants its next turn since its faults hold packets back.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let faults = self.faults.as_ref()?;
        faults.send.next_due().into_iter().chain(faults.receive.next_due()).min()
    }

    /// What [`CableEnd::rest`] answered.
    #[must_use]
    pub fn waker(&self) -> Option<BorrowedFd<'_>> {
        match &self.kind {
            Kind::Pair(_) => None,
            Kind::SharedMemory(end) => end.waker(),
            Kind::Udp(end) => Some(end.waker()),
            Kind::Packet(end) => Some(end.waker()),
        }
    }

    /// Why the cable is down, as far as is known; for the operator.
    #[must_use]
    pub fn trouble(&self) -> Option<CableTrouble> {
        match &self.kind {
            Kind::Pair(end) => (!end.is_up()).then_some(CableTrouble::Gone),
            Kind::SharedMemory(end) => end.trouble,
            Kind::Udp(end) => end.trouble,
            Kind::Packet(end) => end.trouble,
        }
    }

    /// What happened on this end so far.
    #[must_use]
    pub fn counters(&self) -> CableCounters {
        self.counters
    }

    /// What the injector did so far: (sending, receiving).
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
        while faults.send.next(|packet| transmit(kind, counters, (tap, frames), packet) == Sent::Taken) {}
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
    packet: &[u8],
) -> Sent {
    let sent = match kind {
        Kind::Pair(end) => end.send(packet),
        Kind::SharedMemory(end) => end.send(packet),
        Kind::Udp(end) => end.send(packet, counters),
        Kind::Packet(end) => end.send(packet, counters),
    };
    if let (Sent::Taken, Some(tap)) = (sent, tap) {
        tap.offer(frames, TapDirection::Sent, packet);
    }
    sent
}

fn receive(
    kind: &mut Kind,
    counters: &mut CableCounters,
    (tap, frames): (&mut Option<Tap>, FrameKind),
    max: usize,
    inn: &mut [u8; MAX_PACKET],
    mut take: impl FnMut(&[u8]) -> bool,
) -> usize {
    let mut bytes = 0;
    let count = |packet: &[u8]| {
        let taken = take(packet);
        if taken {
            bytes += packet.len() as u64;
            if let Some(tap) = tap {
                tap.offer(frames, TapDirection::Received, packet);
            }
        }
        taken
    };
    let n = match kind {
        Kind::Pair(end) => end.receive(max, inn, count),
        Kind::SharedMemory(end) => end.receive(max, inn, count),
        Kind::Udp(end) => end.receive(max, counters, count),
        Kind::Packet(end) => end.receive(max, counters, count),
    };
    counters.rx_packets += n as u64;
    counters.rx_bytes += bytes;
    n
}
