//! A device for benchmarks of the driver: no transport, no link, no wire.
//!
//! In each iteration it consumes all sends whose doorbell was rung, completes the signaled ones, and fills
//! shared receives with configured messages. Its own cost is counted separately ([`SinkStats::cycles`]), so
//! that the rest of a loop's time belongs to the driver and the layers above it. It executes the same rings
//! as the device model.
//!
//! It checks what keeps memory safe and a benchmark valid: the order of entries, keys and lengths of
//! receives, and room in completion queues. In a sample of the packets it also checks key, address and length
//! of the send, and every byte ([`Inspector`]).
//!
//! [`puppet`] is another device, which is scripted and may misbehave.

pub mod puppet;
mod rings;
mod sample;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use connectx::HostMemory;
use pmd::eal;
use pmd::fetch::fetch;
use pmd::hca::{HcaError, QueuesId, UdSlot};
use pmd::mem::{Mbuf, Pool};
use pmd::mlx5::bus::Bus;
use pmd::mlx5::mr::{MrTable, Region};
use pmd::mlx5::queues::{MlxQueues, Parts};
use pmd::mlx5::rc::RcQp;
use pmd::mlx5::rings::{QpRequest, Register, SendOperations, Transport};
use pmd::mlx5::ud::UdQp;
use prm::{Cqe, CqeOpcode};
use rings::{CompletionWriter, SendReader, SharedReader, Taken};
use sample::{Regions, Sample};

pub use sample::{Inspector, ROOM_BEFORE, SAMPLE_EVERY, Seen};

/// Number of the first queue pair, the datagram one.
const FIRST_QPN: u32 = 0x40;
/// Datagram sends that may be outstanding.
const DATAGRAM_SENDS: u32 = 256;
/// Receives for datagrams.
const DATAGRAMS: u32 = 64;
/// Bytes in front of a datagram's data that are reserved for its GRH.
const GRH_AREA: usize = 40;
/// Source queue pair of received datagrams.
const REMOTE_QPN: u32 = 0x123;
/// Limit of messages received in one iteration.
const MOST_RECEIVES: usize = 256;
/// Number of queue pairs whose state fits in the near caches.
const NEAR: usize = 64;
/// Room for doorbells of an iteration, in addition to those of its sends.
const RUNG: usize = 128;
/// Key of the first memory region.
const FIRST_LKEY: u32 = 0x1000;

/// Configuration of a sink.
#[derive(Clone, Debug)]
pub struct SinkConfig {
    /// Connected queue pairs.
    pub connections: u16,
    /// Datagram queue pairs to which they are assigned in round robin order: links, for the receiver; at
    /// least one.
    pub links: u8,
    /// Sends of each that may be outstanding.
    pub send_depth: u32,
    /// Depth of the shared receive queue.
    pub srq_depth: u32,
    /// Largest message of a shared receive in bytes.
    pub srq_message: usize,
    /// One signaled send in this many.
    pub signal_every: u32,
    /// Most sends that may be outstanding in total; bounded by the capacity of the rings.
    pub max_sends: u32,
    /// Messages to receive, repeated in order and distributed over the connections in round robin order. If
    /// there are none, nothing is received.
    pub messages: Vec<Vec<u8>>,
    /// Receive them as datagrams instead of over connections.
    pub datagrams: bool,
    /// Most messages received in one iteration.
    pub receives_per_turn: usize,
    /// Checks a sample of the packets. Messages count as forwarded in place when the next iteration starts.
    pub inspector: Option<Arc<dyn Inspector>>,
}

/// Counters of a sink, readable while it runs.
#[derive(Debug, Default)]
pub struct SinkStats {
    sends: AtomicU64,
    send_bytes: AtomicU64,
    completions: AtomicU64,
    receives: AtomicU64,
    doorbells: AtomicU64,
    bad: AtomicU64,
    compared: AtomicU64,
    wrong: AtomicU64,
    cycles: AtomicU64,
}

fn add(cell: &AtomicU64, n: u64) {
    // The sink is the only writer.
    cell.store(cell.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl SinkStats {
    /// Sends consumed.
    #[must_use]
    pub fn sends(&self) -> u64 {
        self.sends.load(Ordering::Relaxed)
    }

    /// Bytes of their messages.
    #[must_use]
    pub fn send_bytes(&self) -> u64 {
        self.send_bytes.load(Ordering::Relaxed)
    }

    /// Send completions written.
    #[must_use]
    pub fn completions(&self) -> u64 {
        self.completions.load(Ordering::Relaxed)
    }

    /// Messages received.
    #[must_use]
    pub fn receives(&self) -> u64 {
        self.receives.load(Ordering::Relaxed)
    }

    /// Doorbells rung.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.doorbells.load(Ordering::Relaxed)
    }

    /// Entries that a device would have rejected, and completions without room. A value above 0 invalidates a
    /// benchmark.
    #[must_use]
    pub fn bad(&self) -> u64 {
        self.bad.load(Ordering::Relaxed)
    }

    /// Packets compared with their expected content.
    #[must_use]
    pub fn compared(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }

    /// Compared packets that differed. A value above 0 invalidates a benchmark.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Cycles of the time-stamp counter spent in the sink.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cycles.load(Ordering::Relaxed)
    }
}

/// The device, which is also the driver's bus.
#[derive(Debug)]
pub struct Sink {
    stats: Arc<SinkStats>,
    /// Send queues by queue pair number from [`FIRST_QPN`] on.
    sends: Vec<SendReader>,
    /// Send queues with a pending doorbell. A duplicate finds nothing the second time.
    rung: Vec<usize>,
    send_cq: CompletionWriter,
    receive_cq: CompletionWriter,
    srq: SharedReader,
    /// The receives of datagrams, if datagrams are received.
    datagrams: Option<SharedReader>,
    /// Registered memory; the key is [`FIRST_LKEY`] plus the index.
    regions: Vec<HostMemory>,
    /// The pool that owns the regions.
    _pool: Pool,
    messages: Vec<Box<[u8]>>,
    next_message: usize,
    next_connection: u32,
    receives_per_turn: usize,
    sample: Sample,
}

/// A sink with the driver on it.
#[derive(Debug)]
pub struct Made {
    /// The driver's queues; the sink is their bus. Nothing is posted yet.
    pub queues: MlxQueues<Sink, Mbuf>,
    /// The connected queue pairs, to be inserted in the table.
    pub connections: Vec<RcQp<Mbuf>>,
    /// Counters of the sink.
    pub stats: Arc<SinkStats>,
}

impl Sink {
    /// Creates a sink and the driver's queues on it; receive buffers come from `pool`.
    pub fn create(config: &SinkConfig, pool: &Pool) -> Result<Made, HcaError> {
        let segments = config.srq_message.div_ceil(pool.data_room().max(1)).max(1) as u32;
        let request = |transport, send_wr, recv_wr| QpRequest {
            transport,
            send_wr,
            send_sge: 2,
            recv_wr,
            recv_sge: 1,
            inline_data: 0,
            operations: SendOperations::SendOnly,
        };
        let (ud, reader) = SendReader::create(FIRST_QPN, &request(Transport::Ud, DATAGRAM_SENDS, 0))?;
        let mut sends = vec![reader];
        let mut connections = Vec::new();
        let mut wqebbs = ud.sq_wqebbs;
        for index in 0..u32::from(config.connections) {
            let request = request(Transport::Rc, config.send_depth.max(16), 0);
            let (rings, reader) = SendReader::create(FIRST_QPN + 1 + index, &request)?;
            wqebbs += rings.sq_wqebbs;
            sends.push(reader);
            let link = UdSlot((index % u32::from(config.links.max(1))) as u8);
            connections.push(RcQp::new(&rings, false, link, config.signal_every, None));
        }
        let (srq_ring, srq) = SharedReader::create(config.srq_depth, segments)?;
        let (datagrams, datagram_reader) = SharedReader::create(DATAGRAMS, 1)?;
        let max_sends = config.max_sends.min(wqebbs);
        let (send_ring, send_cq) = CompletionWriter::create(max_sends, 1)?;
        let (receive_ring, receive_cq) = CompletionWriter::create(srq_ring.slots.max(DATAGRAMS), 2)?;
        let (mut regions, mut table) = (Vec::new(), MrTable::new());
        for zone in pool.zones() {
            let Some(base) = NonNull::new(zone.address as *mut u8) else { continue };
            // SAFETY: a pool's zones stay mapped as long as the pool, and the sink keeps a handle to it.
            // Posted buffers belong to the device until they complete.
            regions.push(unsafe { HostMemory::new(base, zone.length as usize) });
            let lkey = FIRST_LKEY + regions.len() as u32 - 1;
            let region = Region { start: zone.address, len: zone.length, lkey };
            table.add(region).map_err(|_| HcaError::Exhausted("memory regions"))?;
        }
        let stats = Arc::<SinkStats>::default();
        let sink = Self {
            stats: Arc::clone(&stats),
            rung: Vec::with_capacity(2 * sends.len() + RUNG),
            sends,
            send_cq,
            receive_cq,
            srq,
            datagrams: config.datagrams.then_some(datagram_reader),
            regions,
            _pool: pool.clone(),
            messages: config.messages.iter().map(|m| m.as_slice().into()).collect(),
            next_message: 0,
            next_connection: 0,
            receives_per_turn: config.receives_per_turn,
            sample: Sample::new(config.inspector.clone()),
        };
        let mut queues = MlxQueues::new(Parts {
            id: QueuesId(0),
            receive_cq: receive_ring,
            send_cq: send_ring,
            datagrams,
            connections: Some(srq_ring),
            receive_depth: (DATAGRAMS, config.srq_depth),
            srq_message: config.srq_message,
            regions: table,
            pool: pool.clone(),
            bus: sink,
            max_ud: 1,
            max_rc: config.connections.into(),
            max_sends,
            datagrams_anchor: None,
            connections_anchor: None,
        });
        let ud = UdQp::new(&ud, false, config.signal_every, None);
        queues
            .insert_datagrams(UdSlot(0), ud)
            .map_err(|_| HcaError::Exhausted("slots for datagram queue pairs"))?;
        queues.open_datagrams(UdSlot(0));
        Ok(Made { queues, connections, stats })
    }

    fn take_sends(&mut self) {
        let mut all = Taken::default();
        // An adapter would not wait for a cache miss of the processor for each queue pair.
        if self.sends.len() > NEAR {
            self.rung.iter().filter_map(|index| self.sends.get(*index)).for_each(fetch);
            self.rung.iter().filter_map(|index| self.sends.get(*index)).for_each(SendReader::fetch);
        }
        for index in self.rung.drain(..) {
            let Some(queue) = self.sends.get_mut(index) else { continue };
            queue.take(&mut self.send_cq, &mut self.sample, &self.regions, &mut all);
        }
        add(&self.stats.sends, all.sends);
        add(&self.stats.send_bytes, all.bytes);
        add(&self.stats.completions, all.completions);
        add(&self.stats.bad, all.bad);
    }

    /// Fills receives and returns their number.
    fn receive(&mut self) -> u64 {
        if self.messages.is_empty() || self.sends.len() < 2 {
            return 0;
        }
        // A datagram's data follows the room for its GRH.
        if self.datagrams.is_some() {
            self.receive_each(GRH_AREA, |cqe, connection| {
                cqe.sop_drop_qpn.set(FIRST_QPN);
                cqe.slid.set(1 + connection as u16);
                cqe.flags_rqpn.set(REMOTE_QPN);
            })
        } else {
            self.receive_each(0, |cqe, connection| cqe.sop_drop_qpn.set(FIRST_QPN + 1 + connection))
        }
    }

    /// Fills receives behind `front` bytes. `name` sets the connection, or the source of a datagram, in the
    /// completion. All messages are written first, then all completions: each loop has the registers to
    /// itself.
    #[inline(always)]
    fn receive_each(&mut self, front: usize, name: impl Fn(&mut Cqe, u32)) -> u64 {
        let connections = self.sends.len() as u32 - 1;
        let Self { messages, regions, sample, receive_cq, .. } = self;
        let queue = self.datagrams.as_mut().unwrap_or(&mut self.srq);
        let most = self.receives_per_turn.min(queue.posted().into()).min(MOST_RECEIVES);
        // A full queue holds the sink back, like a sender that waits for acknowledges.
        let mut completions = receive_cq.batch(most as u32);
        let most = completions.room() as usize;
        let looks = sample.has_message_within(most);
        let Some(mut regions) = Regions::new(regions) else { return 0 };
        let mut filled = ArrayVec::<(u16, u32), MOST_RECEIVES>::new();
        let mut bad = 0;
        let mut entries = queue.batch();
        while filled.len() < most {
            // Up to the last message; then again from the first.
            let Some(run) = messages.get(self.next_message..).filter(|run| !run.is_empty()) else { break };
            let before = filled.len();
            for (message, _) in run.iter().zip(before..most) {
                let Some((slot, data)) = entries.take() else { break };
                let place = regions.segment(&data).and_then(|segment| segment.part(front, message.len()));
                if !place.is_some_and(|place| place.write(message)) {
                    bad += 1;
                }
                if looks {
                    sample.received(self.next_message + filled.len() - before, message.len(), data, front);
                }
                filled.push((slot, (front + message.len()) as u32));
            }
            let done = filled.len() - before;
            if done == 0 {
                break;
            }
            self.next_message = if done == run.len() { 0 } else { self.next_message + done };
        }
        let mut connection = self.next_connection;
        let cqes = filled.iter().map(|&(slot, len)| {
            let mut cqe = Cqe::default();
            cqe.byte_cnt.set(len);
            name(&mut cqe, connection);
            cqe.wqe_counter.set(slot);
            connection = if connection + 1 == connections { 0 } else { connection + 1 };
            cqe
        });
        completions.write(CqeOpcode::ReceiveSend, cqes);
        self.next_connection = connection;
        let received = filled.len() as u64;
        if !looks {
            sample.pass_messages(received);
        }
        add(&self.stats.receives, received);
        add(&self.stats.bad, bad);
        received
    }
}

impl Bus for Sink {
    #[inline]
    fn ring(&mut self, register: &mut Register, doorbell: [u8; 8]) {
        register.turn_over();
        add(&self.stats.doorbells, 1);
        let [.., a, b, c, _] = doorbell;
        let index = u32::from_be_bytes([0, a, b, c]).wrapping_sub(FIRST_QPN) as usize;
        // Only record the number: everything else is read in the sink's own time.
        if index < self.sends.len() {
            self.rung.push(index);
        } else {
            add(&self.stats.bad, 1);
        }
    }

    #[inline]
    fn turn(&mut self) -> bool {
        let begin = eal::tsc();
        self.sample.turn(&self.regions);
        let sent = !self.rung.is_empty();
        if sent {
            self.take_sends();
        }
        let received = self.receive();
        self.stats.compared.store(self.sample.compared, Ordering::Relaxed);
        self.stats.wrong.store(self.sample.wrong, Ordering::Relaxed);
        add(&self.stats.cycles, eal::tsc().wrapping_sub(begin));
        sent || received > 0
    }
}

#[cfg(test)]
mod tests;
