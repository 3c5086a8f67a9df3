//! A device for benchmarks of the driver: no transport, no link, no wire.
//!
//! It takes every send that is rung for, as soon as it gets a turn, and completes those that ask for it; and it fills
//! shared receives with messages that it was given beforehand. What it costs is counted apart ([`SinkStats::cycles`]), so
//! that the rest of a loop's time is the driver's and what stands above it. It executes the same rings as the device
//! model, and checks what keeps memory safe and a benchmark honest: entries in order, keys and lengths of receives, room in completion
//! queues; and of a sample of the packets the send's key, address and length, and every byte ([`Inspector`]).
//!
//! [`puppet`] is another: it does what it is told, right or wrong.

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

/// Number of the first queue pair, which is the datagram one.
const FIRST_QPN: u32 = 0x40;
/// Sends of datagrams that may be outstanding.
const DATAGRAM_SENDS: u32 = 256;
/// Receives for datagrams.
const DATAGRAMS: u32 = 64;
/// Bytes in front of a datagram's data where its GRH goes, or nothing.
const GRH_AREA: usize = 40;
/// Whom datagrams come from.
const REMOTE_QPN: u32 = 0x123;
/// Most messages received in one turn, whatever is asked for.
const MOST_RECEIVES: usize = 256;
/// Queue pairs of which near caches hold what is looked at.
const NEAR: usize = 64;
/// Doorbells of a turn for which there is room, beside those of its sends.
const RUNG: usize = 128;
/// Key of the first memory region.
const FIRST_LKEY: u32 = 0x1000;

/// What a sink is made with.
#[derive(Clone, Debug)]
pub struct SinkConfig {
    /// Connected queue pairs.
    pub connections: u16,
    /// Datagram queue pairs beside which they stand, in turn: links, for who receives; at least one.
    pub links: u8,
    /// Sends of each that may be outstanding.
    pub send_depth: u32,
    /// Depth of the shared receive queue.
    pub srq_depth: u32,
    /// Largest message that an entry of it takes, bytes.
    pub srq_message: usize,
    /// One signalled send in this many.
    pub signal_every: u32,
    /// Most sends that may be outstanding altogether; never more than the rings promise.
    pub max_sends: u32,
    /// Messages to receive, one after the other and again from the first, by the connections in turn; none = nothing is
    /// received.
    pub messages: Vec<Vec<u8>>,
    /// They are datagrams: none comes by a connection.
    pub datagrams: bool,
    /// Most messages received in one turn.
    pub receives_per_turn: usize,
    /// Who looks at a sample of the packets. Messages are taken for forwarded in place when the next turn begins.
    pub inspector: Option<Arc<dyn Inspector>>,
}

/// What a sink did, readable while it works.
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
    /// Sends taken.
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

    /// Entries that a device would not have taken, and completions that found no room. More than 0 spoils a benchmark.
    #[must_use]
    pub fn bad(&self) -> u64 {
        self.bad.load(Ordering::Relaxed)
    }

    /// Packets that were compared with what they should be.
    #[must_use]
    pub fn compared(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }

    /// Those of them that were something else. More than 0 spoils a benchmark.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Cycles of the time-stamp counter that its turns took.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cycles.load(Ordering::Relaxed)
    }
}

/// The device, which is also the bus that leads to it.
#[derive(Debug)]
pub struct Sink {
    stats: Arc<SinkStats>,
    /// Send queues by queue pair number from [`FIRST_QPN`] on.
    sends: Vec<SendReader>,
    /// Those that were rung for. Who was twice has nothing more the second time.
    rung: Vec<usize>,
    send_cq: CompletionWriter,
    receive_cq: CompletionWriter,
    srq: SharedReader,
    /// The receives of datagrams, if they are what comes.
    datagrams: Option<SharedReader>,
    /// Registered memory; its key is [`FIRST_LKEY`] and its place.
    regions: Vec<HostMemory>,
    /// What the regions are of.
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
    /// The connected queue pairs, to be taken into the table.
    pub connections: Vec<RcQp<Mbuf>>,
    /// What the sink does.
    pub stats: Arc<SinkStats>,
}

impl Sink {
    /// A sink and the driver's queues on it; receive buffers come from `pool`.
    pub fn create(config: &SinkConfig, pool: &Pool) -> Result<Made, HcaError> {
        let segments = config.srq_message.div_ceil(pool.data_room().max(1)).max(1) as u32;
        let asked = |transport, send_wr, recv_wr| QpRequest {
            transport,
            send_wr,
            send_sge: 2,
            recv_wr,
            recv_sge: 1,
            inline_data: 0,
            operations: SendOperations::SendOnly,
        };
        let (ud, reader) = SendReader::create(FIRST_QPN, &asked(Transport::Ud, DATAGRAM_SENDS, 0))?;
        let mut sends = vec![reader];
        let mut connections = Vec::new();
        let mut wqebbs = ud.sq_wqebbs;
        for index in 0..u32::from(config.connections) {
            let asked = asked(Transport::Rc, config.send_depth.max(16), 0);
            let (rings, reader) = SendReader::create(FIRST_QPN + 1 + index, &asked)?;
            wqebbs += rings.sq_wqebbs;
            sends.push(reader);
            let beside = UdSlot((index % u32::from(config.links.max(1))) as u8);
            connections.push(RcQp::new(&rings, false, beside, config.signal_every, None));
        }
        let (srq_ring, srq) = SharedReader::create(config.srq_depth, segments)?;
        let (datagrams, datagram_reader) = SharedReader::create(DATAGRAMS, 1)?;
        let max_sends = config.max_sends.min(wqebbs);
        let (send_ring, send_cq) = CompletionWriter::create(max_sends, 1)?;
        let (receive_ring, receive_cq) = CompletionWriter::create(srq_ring.slots.max(DATAGRAMS), 2)?;
        let (mut regions, mut table) = (Vec::new(), MrTable::new());
        for zone in pool.zones() {
            let Some(base) = NonNull::new(zone.address as *mut u8) else { continue };
            // SAFETY: a pool's zones stay mapped as long as the pool, which the sink keeps a handle of. Posted buffers are
            // the device's until they complete.
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
            .map_err(|_| HcaError::Exhausted("places for datagram queue pairs"))?;
        queues.open_datagrams(UdSlot(0));
        Ok(Made { queues, connections, stats })
    }

    fn take_sends(&mut self) {
        let mut all = Taken::default();
        // An adapter would not wait for the processor's caches once a queue pair.
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

    /// Fills receives. Returns how many.
    fn receive(&mut self) -> u64 {
        if self.messages.is_empty() || self.sends.len() < 2 {
            return 0;
        }
        // A datagram's data stands behind the place of its GRH.
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

    /// Fills receives behind `front` bytes; `name` says by which of the connections, or from whom instead. First all messages, then all completions:
    /// each loop has the registers for itself.
    #[inline(always)]
    fn receive_each(&mut self, front: usize, name: impl Fn(&mut Cqe, u32)) -> u64 {
        let connections = self.sends.len() as u32 - 1;
        let Self { messages, regions, sample, receive_cq, .. } = self;
        let queue = self.datagrams.as_mut().unwrap_or(&mut self.srq);
        let most = self.receives_per_turn.min(queue.posted().into()).min(MOST_RECEIVES);
        // A full queue holds the sink back, as a wire would hold a sender back that waits for acknowledgements.
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
        // The number and no more: what there is to look at is looked at in the sink's own time.
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
