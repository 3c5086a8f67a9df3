//! Arbitrary completions of a device, for driver queues with outstanding sends, receives, memory keys and
//! chains. Each buffer has one owner and is returned once, each work request completes at most once, and
//! nothing outside a ring is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use ib_wire::{Lid, Qpn, Rate, ServiceLevel};
use pmd::hca::{
    AddressVector, ChainSend, Done, DoneBurst, Fence, KeyRights, MemoryKey, Outcome, RcSlot, Registration,
    RemoteMemory, Source, UdDestination, UdSlot, WcStatus,
};
use pmd::mem::key::{DoubtfulKey, FreeKey, Memory, PageList, RegisteredKey};
use pmd::mem::packet::{Packet, PacketPool, Stash};
use pmd::mlx5::av::Destination;
use pmd::mlx5::mr::{MrTable, Region};
use pmd::mlx5::queues::{Events, MlxQueues};
use pmd::mlx5::rc::RcQp;
use prm::{CQE_SIZE, Cqe, SendOpcode};
use sink::puppet::{Completions, Puppet, PuppetConfig, QueuePairConfig, Receives};

/// Number of buffers, and their distance. Their content is never accessed: addresses are numbers.
const BUFFERS: usize = 512;
const EACH: usize = 2048;
const HEADROOM: usize = 128;
const ROOM: usize = 1024 - HEADROOM;
/// The data room of each buffer starts at a multiple of 2,048 bytes, so that a list of segments fits.
const BASE: u64 = 0x1_0000_0000 - HEADROOM as u64;
/// Number of the datagram queue pair; those of the connections follow.
const UD: u32 = 0x40;
const CONNECTIONS: u16 = 3;
/// The last connection only receives.
const PASSIVE: u16 = CONNECTIONS - 1;
const WQEBBS: u32 = 64;
/// Longest message on a connection: three buffers of a receive.
const MESSAGE: usize = 3 * ROOM;
/// Segments that a key can hold.
const PIECES: u32 = 64;

/// A buffer's state: whether it is in use, its length, and the next buffer of its chain.
#[derive(Clone, Copy, Default)]
struct Place {
    out: bool,
    len: usize,
    next: Option<usize>,
}

/// All buffers. A driver never releases a buffer that the device may still read. Buffers are therefore not on
/// the heap: lost ones would fill the memory of a long run.
#[derive(Clone, Copy)]
struct Ledger(&'static Mutex<[Place; BUFFERS]>);

thread_local! {
    static LEDGER: Ledger = Ledger(Box::leak(Box::new(Mutex::new([Place::default(); BUFFERS]))));
}

impl Ledger {
    /// The ledger of this thread, with all buffers returned, including those that an earlier run lost.
    fn fresh() -> Self {
        let ledger = LEDGER.with(|ledger| *ledger);
        ledger.change(|places| *places = [Place::default(); BUFFERS]);
        ledger
    }

    fn change<T>(self, change: impl FnOnce(&mut [Place; BUFFERS]) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn chain(self, segments: usize, last: usize) -> Option<Buffer> {
        let one = |len| {
            let first = self.change(|places| {
                let first = places.iter().position(|place| !place.out)?;
                places[first] = Place { out: true, len, next: None };
                Some(first)
            })?;
            Some(Buffer { ledger: self, first })
        };
        let mut all = one(if segments > 1 { ROOM } else { last.min(ROOM) })?;
        for n in 1..segments {
            all.join(one(if n + 1 < segments { ROOM } else { last.min(ROOM) })?);
        }
        Some(all)
    }

    fn out(self) -> BTreeSet<usize> {
        self.change(|places| {
            places.iter().enumerate().filter(|(_, p)| p.out).map(|(index, _)| index).collect()
        })
    }
}

/// A chain of buffers.
struct Buffer {
    ledger: Ledger,
    first: usize,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.parts().fmt(f)
    }
}

impl Buffer {
    /// Its buffers, and the bytes in each.
    fn parts(&self) -> Vec<(usize, usize)> {
        let all = |places: &mut [Place; BUFFERS]| {
            let next = |at: &usize| places[*at].next;
            std::iter::successors(Some(self.first), next).map(|at| (at, places[at].len)).collect()
        };
        self.ledger.change(all)
    }

    fn numbers(&self) -> Vec<usize> {
        self.parts().into_iter().map(|(index, _)| index).collect()
    }

    fn join(&mut self, tail: Self) {
        let (last, first) = (self.parts().last().map_or(self.first, |(index, _)| *index), tail.first);
        std::mem::forget(tail);
        self.ledger.change(|places| places[last].next = Some(first));
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        for index in self.numbers() {
            let was = self.ledger.change(|places| std::mem::replace(&mut places[index].out, false));
            assert!(was, "buffer {index} is returned twice");
        }
    }
}

impl Packet for Buffer {
    type Pool = Ledger;

    fn segments(&self) -> usize {
        self.parts().len()
    }

    fn pieces(&self) -> impl Iterator<Item = (u64, u32)> {
        let piece = |(index, len)| (BASE + (index * EACH + HEADROOM) as u64, len as u32);
        self.parts().into_iter().map(piece)
    }

    fn room(&self) -> (u64, u32) {
        (BASE + (self.first * EACH + HEADROOM) as u64, ROOM as u32)
    }

    fn fill(&mut self, len: u32) {
        let first = self.first;
        assert!(self.segments() == 1 && len as usize <= ROOM, "{len} bytes in {self:?}");
        self.ledger.change(|places| places[first].len = len as usize);
    }

    fn lay(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.segments() == 1 && at + bytes.len() <= ROOM
    }

    fn append(&mut self, tail: Self) {
        assert_eq!(self.segments(), 1);
        self.join(tail);
    }

    fn byte_before_data(&self, distance: usize) -> u8 {
        assert!(distance <= HEADROOM);
        0xff
    }
}

impl PacketPool<Buffer> for Ledger {
    fn room(&self) -> u32 {
        ROOM as u32
    }

    fn take(&mut self, count: usize, into: &mut Stash<Buffer>) -> bool {
        let fresh: Vec<Buffer> = (0..count).map_while(|_| self.chain(1, 0)).collect();
        let enough = fresh.len() == count && count <= into.remaining_capacity();
        if enough {
            into.extend(fresh);
        }
        enough
    }

    fn lies_within(&self, start: u64, len: u64) -> bool {
        start <= BASE && start + len >= BASE + (BUFFERS * EACH) as u64
    }
}

/// The work of a ticket, with the buffers that a key holds for it.
#[derive(Debug)]
enum Posted {
    Registration(Vec<usize>),
    Chain(Vec<usize>),
    Invalidation(Vec<usize>),
    Transfer,
}

/// The worker and its state.
struct Worker {
    queues: MlxQueues<Puppet, Buffer>,
    ledger: Ledger,
    /// Outstanding work and its connection, by ticket.
    posted: BTreeMap<u32, (RcSlot, Posted)>,
    tickets: u32,
    keys: Vec<(RegisteredKey<Buffer>, Vec<usize>)>,
    free: Vec<FreeKey>,
    lists: Vec<PageList<Buffer>>,
    doubtful: Vec<DoubtfulKey<Buffer>>,
    /// Buffers of keys in an unknown state: these are never returned.
    lost: BTreeSet<usize>,
    removed: Vec<RcQp<Buffer>>,
    received: Vec<Buffer>,
    /// First entries of posted sends: of the datagram queue pair, and of the connections.
    begun: [Vec<u16>; 1 + CONNECTIONS as usize],
    /// Numbers of the connections' queue pairs; a new queue pair has a new number.
    numbers: [u32; CONNECTIONS as usize],
    next_number: u32,
    /// Number of WQEBBs that the datagram queue pair's sends took.
    datagrams: u16,
}

fn region() -> MrTable {
    let mut regions = MrTable::new();
    let region = Region { start: BASE, len: (BUFFERS * EACH) as u64, lkey: 0x1000 };
    assert!(regions.add(region).is_ok());
    regions
}

impl Worker {
    fn new() -> Option<Self> {
        let config = PuppetConfig {
            connections: CONNECTIONS,
            completions: 255,
            receives: (15, 15),
            message: MESSAGE,
            sends: 128,
        };
        let ledger = Ledger::fresh();
        let queues = Puppet::create(&config, ledger, region()).ok()?;
        let mut worker = Self {
            queues,
            ledger,
            posted: BTreeMap::new(),
            tickets: 0,
            keys: Vec::new(),
            free: Vec::new(),
            lists: Vec::new(),
            doubtful: Vec::new(),
            lost: BTreeSet::new(),
            removed: Vec::new(),
            received: Vec::new(),
            begun: Default::default(),
            numbers: [0; CONNECTIONS as usize],
            next_number: UD + 1,
            datagrams: 0,
        };
        let ud = Puppet::datagrams(&pair(UD, false)).ok()?;
        worker.queues.insert_datagrams(UdSlot(0), ud).ok()?;
        worker.queues.open_datagrams(UdSlot(0));
        (0..CONNECTIONS).try_for_each(|slot| worker.connect(slot))?;
        worker.queues.fill();
        Some(worker)
    }

    fn connect(&mut self, slot: u16) -> Option<()> {
        let number = self.next_number;
        self.next_number += 1;
        let rc = Puppet::connection(&pair(number, slot == PASSIVE)).ok()?;
        self.queues.insert(RcSlot(slot), rc).ok()?;
        self.numbers[usize::from(slot)] = number;
        self.begun[1 + usize::from(slot)].clear();
        Some(())
    }

    fn ticket(&mut self, slot: RcSlot, what: Posted) -> u32 {
        self.tickets += 1;
        self.posted.insert(self.tickets, (slot, what));
        self.tickets
    }

    fn key(&mut self) -> FreeKey {
        self.free.pop().unwrap_or_else(|| FreeKey::new(MemoryKey::new((self.tickets + 1) << 8), PIECES))
    }

    fn list(&mut self, in_buffer: bool) -> Option<PageList<Buffer>> {
        if in_buffer {
            return self.ledger.chain(1, 0).map(PageList::in_buffer);
        }
        Some(self.lists.pop().unwrap_or_else(|| PageList::new(52)))
    }

    /// Posts on a connection; takes back refused work.
    fn post(&mut self, kind: u8, choice: u8, size: u8) -> Option<()> {
        let slot = RcSlot(u16::from(choice & 0x3f) % CONNECTIONS);
        let segments = usize::from(size % 60);
        let before = self.queues.posted_wqebbs(slot);
        match kind {
            0 => drop(self.queues.post_rc(slot, self.ledger.chain(segments % 40, segments)?)),
            1 => {
                let rights = if choice & 0x40 != 0 { KeyRights::READ } else { KeyRights::WRITE };
                let buf = self.ledger.chain(segments, 1 + usize::from(choice))?;
                let numbers = buf.numbers();
                let (key, list) = (self.key(), self.list(choice & 0x80 != 0)?);
                let work =
                    Registration { key, list, memory: Memory::Chain(buf), start: 0, len: None, rights };
                let ticket = self.ticket(slot, Posted::Registration(numbers));
                if let Err(returned) = self.queues.register_key(slot, ticket, work) {
                    self.posted.remove(&ticket);
                    self.free.push(returned.work.key);
                }
            }
            2 => {
                let buf = self.ledger.chain(segments, 1 + usize::from(choice))?;
                let (key, list) = (self.key(), self.list(choice & 0x80 != 0)?);
                let ticket = self.ticket(slot, Posted::Chain(buf.numbers()));
                if let Err(returned) = self.queues.post_chain(slot, ticket, ChainSend { key, list, buf }) {
                    self.posted.remove(&ticket);
                    self.free.push(returned.work.key);
                }
            }
            3 => {
                let (key, numbers) = self.keys.pop()?;
                let ticket = self.ticket(slot, Posted::Invalidation(numbers));
                let fence = [Fence::None, Fence::Reads, Fence::All][usize::from(size % 3)];
                if let Err(returned) = self.queues.invalidate_key(slot, ticket, key, fence)
                    && let Some((_, Posted::Invalidation(numbers))) = self.posted.remove(&ticket)
                {
                    self.keys.push((returned.work, numbers));
                }
            }
            _ => {
                let buf = self.ledger.chain(segments % 40, segments)?;
                let remote = RemoteMemory { address: 0x5000, rkey: MemoryKey::new(0x77) };
                let (opcode, remote) = match size >> 6 {
                    0 => (SendOpcode::SendInvalidate, None),
                    1 => (SendOpcode::RdmaRead, Some(remote)),
                    _ => (SendOpcode::RdmaWriteImm, Some(remote)),
                };
                let ticket = self.ticket(slot, Posted::Transfer);
                if self.queues.transfer(slot, ticket, (opcode, 9), remote, buf).is_err() {
                    self.posted.remove(&ticket);
                }
            }
        }
        // The first entry of the posted work; the further ones of a chain only by chance.
        if let Some(before) = before.filter(|before| self.queues.posted_wqebbs(slot) != Some(*before)) {
            self.begun[1 + usize::from(slot.0)].push(before);
            let last = self.queues.posted_wqebbs(slot)?.wrapping_sub(1);
            self.begun[1 + usize::from(slot.0)].push(last);
        }
        Some(())
    }

    fn datagram(&mut self, size: u8) -> Option<()> {
        let segments = usize::from(size % 4).max(1);
        let av = AddressVector {
            dlid: Lid(7),
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::new(0),
            grh: None,
        };
        let to = Destination::new(&UdDestination { av, qpn: Qpn::new(9), qkey: None });
        let buf = self.ledger.chain(segments, usize::from(size))?;
        if self.queues.post_ud(UdSlot(0), &to, buf).is_ok() {
            self.begun[0].push(self.datagrams);
            self.datagrams = self.datagrams.wrapping_add((4 + segments).div_ceil(4) as u16);
        }
        Some(())
    }

    /// Handles all events of the queues.
    fn poll(&mut self, limit: usize) {
        let (received, keys) = (&mut self.received, &mut self.keys);
        let free = &mut self.free;
        let mut events = Events::new();
        self.queues.receive(
            limit,
            |message| {
                assert!(message.buf.parts().iter().all(|(_, len)| *len <= ROOM));
                if let Source::RcInvalidated(named) = message.source {
                    // Only the name identifies the counter.
                    for (key, numbers) in std::mem::take(keys) {
                        match key.invalidated_by_peer(named) {
                            Ok((key, memory)) => {
                                assert_eq!(memory.map(|memory| memory.numbers()), Some(numbers));
                                free.push(key);
                            }
                            Err(key) => keys.push((key, numbers)),
                        }
                    }
                }
                received.push(message.buf);
            },
            &mut events,
        );
        self.queues.reap(&mut events);
        self.answers();
    }

    fn answers(&mut self) {
        loop {
            let mut done = DoneBurst::new();
            self.queues.finished(&mut done);
            if done.is_empty() {
                break;
            }
            done.into_iter().for_each(|done| self.answered(done));
        }
    }

    fn answered(&mut self, done: Done<Buffer>) {
        let Done { slot, ticket, status, what } = done;
        let Some((on, posted)) = self.posted.remove(&ticket) else {
            panic!("work {ticket} completes without a post, or twice: {what:?}")
        };
        assert_eq!(on, slot, "work {ticket}");
        let earlier = self.posted.iter().find(|(other, (on, _))| **other < ticket && *on == slot);
        assert!(earlier.is_none(), "work {ticket} completes before {earlier:?}");
        let good = status == WcStatus::Success;
        match (what, posted) {
            (Outcome::Registered(key, list), Posted::Registration(numbers)) if good => {
                self.lists.extend(Some(list).filter(|list| list.room() == 52));
                self.keys.push((key, numbers));
            }
            (Outcome::NotRegistered(key, _), Posted::Registration(numbers))
            | (Outcome::NotInvalidated(key), Posted::Invalidation(numbers))
                if !good =>
            {
                self.lost.extend(numbers);
                self.doubtful.push(key);
            }
            (Outcome::Invalidated(key, memory), Posted::Invalidation(numbers)) if good => {
                assert_eq!(memory.map(|memory| memory.numbers()), Some(numbers));
                self.free.push(key);
            }
            (Outcome::Transferred(_), Posted::Transfer) => {}
            (Outcome::ChainSent(sent), Posted::Chain(numbers)) if good => {
                assert_eq!(sent.buf.numbers(), numbers);
                self.free.push(sent.key);
            }
            (Outcome::ChainNotSent(key, _), Posted::Chain(numbers)) if !good => {
                self.lost.extend(numbers);
                self.doubtful.push(key);
            }
            (what, posted) => panic!("{posted:?} completed as {what:?} with {status:?}"),
        }
    }

    /// Writes the next completion of a send, posted or not.
    fn complete_send(&mut self, [which, place, syndrome, how]: [u8; 4]) {
        let which = usize::from(which) % self.begun.len();
        let begun = &mut self.begun[which];
        let place = usize::from(place) % begun.len().max(1);
        let counter =
            if how & 2 != 0 { u16::from(how) } else { begun.get(place).copied().unwrap_or_default() };
        if how & 4 == 0 {
            // It completes earlier work, too.
            begun.drain(..begun.len().min(place + 1));
        }
        let passive = which == 1 + usize::from(PASSIVE);
        let queue = if passive ^ (how & 1 != 0) { Completions::Receives } else { Completions::Sends };
        let mut bytes: [u8; CQE_SIZE] = zerocopy::transmute!(Cqe::default());
        bytes[55] = syndrome;
        let mut cqe: Cqe = zerocopy::transmute!(bytes);
        cqe.sop_drop_qpn.set(which.checked_sub(1).map_or(UD, |at| self.numbers[at]));
        cqe.wqe_counter.set(counter);
        self.queues.bus().complete(queue, if syndrome == 0 { 0 } else { 13 }, &cqe);
    }

    /// Writes the next receive completion, of any length and source.
    fn complete_receive(&mut self, [kind, high, low, how]: [u8; 4]) {
        let queue = if kind & 1 == 0 { Receives::Connections } else { Receives::Datagrams };
        let Some(slot) = self.queues.bus().take_receive(queue) else { return };
        let mut cqe = Cqe::default();
        cqe.byte_cnt.set(u32::from(u16::from_be_bytes([high, low])) << (kind >> 6 << 2));
        cqe.wqe_counter.set(if kind & 2 == 0 { slot } else { slot ^ u16::from(how) });
        let number =
            if kind & 1 != 0 { UD } else { self.numbers[usize::from(kind >> 2) % self.numbers.len()] };
        cqe.sop_drop_qpn.set(if kind & 0x20 == 0 { number } else { number ^ u32::from(how) });
        let held = self.keys.get(usize::from(how >> 4)).map_or(0x1234, |(key, _)| key.key().get());
        cqe.imm_inval_pkey.set(held);
        cqe.flags_rqpn.set(u32::from(how) << 24);
        let code = if how & 8 != 0 { 14 } else { [2, 1, 3, 4][usize::from(how & 3)] };
        self.queues.bus().complete(Completions::Receives, code, &cqe);
    }

    /// Drains or removes a connection, and replaces it by another one.
    fn change(&mut self, choice: u8) -> Option<()> {
        let slot = RcSlot(u16::from(choice & 0x3f) % CONNECTIONS);
        if choice & 0x80 == 0 {
            let _ = self.queues.drain(slot);
            return Some(());
        }
        // Earlier completions are reported before those of its destruction.
        self.answers();
        self.removed.push(self.queues.remove(slot)?);
        // Unsignaled sends are returned with the queue pair.
        self.posted.retain(|_, (on, what)| *on != slot || !matches!(what, Posted::Transfer));
        self.answers();
        let rest = self.posted.values().find(|(on, _)| *on == slot);
        assert!(rest.is_none(), "{rest:?} did not complete at the end of its connection");
        if choice & 0x40 != 0 {
            self.removed.clear();
        }
        self.connect(slot.0)
    }

    fn step(&mut self, what: u8, data: &[u8]) -> Option<()> {
        let byte = |at: usize| data.get(at).copied().unwrap_or_default();
        let four = [byte(0), byte(1), byte(2), byte(3)];
        let completions = if what & 0x10 == 0 { Completions::Receives } else { Completions::Sends };
        let mut entry = [0; CQE_SIZE];
        entry.iter_mut().zip(data.get(1..).unwrap_or_default()).for_each(|(to, from)| *to = *from);
        match what % 16 {
            kind @ 0..=4 => drop(self.post(kind, byte(0), byte(1))),
            5 => drop(self.datagram(byte(0))),
            6 => self.queues.ring_all(),
            7 => drop(self.queues.fill()),
            8 => self.complete_send(four),
            9 => self.complete_receive(four),
            10 => self.queues.bus().complete(completions, byte(0), &zerocopy::transmute!(entry)),
            11 => self.queues.bus().scribble(completions, byte(0).into(), &entry),
            12 => self.poll(usize::from(byte(0) % 33)),
            13 => self.change(byte(0))?,
            14 if byte(0) & 1 == 0 => self.queues.close_datagrams(UdSlot(0)),
            14 => {
                let restarts = self.queues.datagrams_outstanding(UdSlot(0)) == 0;
                self.queues.open_datagrams(UdSlot(0));
                if restarts {
                    self.datagrams = 0;
                    self.begun[0].clear();
                }
            }
            _ => {
                self.received.clear();
                self.queues.ask_for_event();
            }
        }
        Some(())
    }

    /// At the end all buffers are returned, except those of keys in an unknown state.
    fn end(self) {
        let Self { queues, ledger, posted, keys, mut lost, .. } = self;
        drop((self.removed, self.received, self.lists, self.doubtful));
        drop(queues);
        let unanswered = posted.into_values().flat_map(|(_, posted)| match posted {
            Posted::Registration(numbers) | Posted::Invalidation(numbers) => numbers,
            // Only work of the same queue pair could read these.
            Posted::Chain(_) | Posted::Transfer => Vec::new(),
        });
        lost.extend(unanswered);
        lost.extend(keys.iter().flat_map(|(_, numbers)| numbers));
        drop(keys);
        assert_eq!(ledger.out(), lost, "buffers that were not returned, except those that may be lost");
    }
}

fn pair(qpn: u32, passive: bool) -> QueuePairConfig {
    QueuePairConfig { qpn, wqebbs: WQEBBS, signal_every: 4, passive }
}

/// One input: records, each after its kind and length.
pub fn run(bytes: &[u8]) {
    play(bytes).end();
}

fn play(bytes: &[u8]) -> Worker {
    let Some(mut worker) = Worker::new() else { panic!("the scripted device fails") };
    let mut rest = bytes;
    while let Some((&[what, len], more)) = rest.split_first_chunk::<2>() {
        let (data, more) = more.split_at(usize::from(len).min(more.len()));
        rest = more;
        if worker.step(what, data).is_none() {
            break;
        }
    }
    worker
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(records: &[&[u8]]) -> Worker {
        let input: Vec<u8> = records
            .iter()
            .flat_map(|record| [&[record[0], record.len() as u8 - 1], &record[1..]].concat())
            .collect();
        play(&input)
    }

    const RING: &[u8] = &[6];
    const POLL: &[u8] = &[12, 32];

    #[test]
    fn what_is_done_and_received_comes_back() {
        // Completed: a registration, a chain and a message. Received: a message of two buffers and a
        // datagram.
        let worker = played(&[
            &[1, 0, 3],
            &[2, 0, 50],
            &[0, 0, 2],
            RING,
            &[8, 1, 1, 0, 0],
            &[8, 1, 1, 0, 0],
            &[8, 1, 1, 0, 0],
            &[9, 0, 4, 0, 0],
            &[9, 1, 1, 0, 0],
            POLL,
        ]);
        assert_eq!((worker.keys.len(), worker.free.len(), worker.posted.len()), (1, 1, 0));
        assert_eq!(worker.received.iter().map(|buf| buf.segments()).collect::<Vec<_>>(), [2, 1]);
        let counters = worker.queues.anomalies();
        assert_eq!(counters, pmd::mlx5::queues::Anomalies::default());
        worker.end();
    }

    #[test]
    fn what_fails_is_in_doubt_and_nonsense_is_counted() {
        let worker = played(&[
            &[1, 0, 3],
            &[0x82, 0, 50],
            RING,
            &[8, 1, 0, 6, 0],
            &[8, 1, 2, 5, 0],
            // An unknown queue pair, entry and opcode, and a message that is too long.
            &[9, 0x20, 0, 64, 0x70],
            &[8, 1, 0, 0, 0x22],
            &[10, 9],
            &[9, 0x80, 0xff, 0xff, 0],
            POLL,
        ]);
        assert_eq!((worker.doubtful.len(), worker.posted.len()), (2, 0));
        let counters = worker.queues.anomalies();
        assert_eq!(
            (counters.unknown_entry, counters.unknown_opcode, counters.bad_length),
            (1, 1, 1),
            "{counters:?}"
        );
        assert_eq!(worker.received.len(), 1, "an unknown queue pair may have been removed");
        worker.end();
    }

    #[test]
    fn a_connection_that_goes_answers_for_its_keys() {
        let worker = played(&[&[1, 0x80, 3], &[2, 0, 50], &[4, 0, 2], &[0, 0, 2], RING, &[13, 0x80], POLL]);
        assert_eq!((worker.doubtful.len(), worker.posted.len(), worker.removed.len()), (2, 0, 1));
        worker.end();
    }

    #[test]
    fn long_streams_of_whatever_a_device_can_tell() {
        let streams = 300;
        let mut x = 0x9e37_79b9_u32;
        let mut random = || {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            (x >> 8) as u8
        };
        for _ in 0..streams {
            // Some use no unused bytes, or no ends of connections.
            let (tame, lasting) = (random() % 2 == 0, random() % 2 == 0);
            let mut input = Vec::new();
            for _ in 0..200 {
                let what = match random() % 32 {
                    what @ (10 | 11) if tame => what - 2,
                    13 if lasting => 12,
                    what @ 0..16 => what,
                    _ => [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 9, 9, 12, 12, 6][usize::from(random() % 16)],
                };
                let len = if what % 16 == 10 || what % 16 == 11 { 65 } else { 4 };
                input.extend([what | random() & 0x10, len]);
                input.extend((0..len).map(|_| random()));
                if what == 8 && tame {
                    // Nearly all sends succeed in order.
                    let at = input.len();
                    let fails = random() % 32 == 0;
                    input[at - 3..].copy_from_slice(&[1, u8::from(fails) * 5, 0]);
                }
            }
            run(&input);
        }
    }
}
