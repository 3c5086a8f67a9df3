//! The worker or workers, and the generator on both sides of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::ring;
use dataplane::table::Publisher;
use dataplane::usage::Marks;
use dataplane::worker::{Handle, IdlePolicy, run as run_worker};
use endpoint::LinkWorker;
use hdrhistogram::Histogram;
use ipoib_fwd::counter::{Totals, WorkerCounterReader};
use ipoib_fwd::forward::Tables;
use ipoib_fwd::gateway::{GatewayWorker, Leases, WorkerParts};
use pmd::eal::{self, Eal, LcoreJob};
use pmd::eth::{Burst, EthConfig, EthPort, EthQueue};
use pmd::hca::Queues as _;
use pmd::mem::{Mbuf, Pool, PoolConfig};
use pmd::mlx5::av::Destination;
use pmd::soft::SoftHca;

use super::away::{Watch, spin};
use super::generator::{Heard, Pace, Schedule};
use super::watched::{Desk, Watched};
use super::{Way, histogram};
use crate::frames::{self, Load, SHORTEST};
use crate::pair::{Depths, DriverQueues, End, PATIENCE, SLOT, dismantle, end, ns, pair, text};
use crate::rig::{Transport, tables};
use crate::series::Spread;

/// One connection for each worker, which carries the flows of all hosts of the steps.
const LOAD: Load = Load { connections: 1, ..Load::PLAIN };
/// More than can be in flight: nothing is dropped for lack of a slot.
const DEPTHS: Depths = Depths { send: 1024, receive: [2048; 2], largest: 2048 };
const DATA_ROOM: u16 = 2048;
/// Buffers for a worker's receives at both ends, sends, and packets in flight.
const BUFFERS: u32 = 4 * 4096;
/// As a power of two: entries of the rings to and from the workers.
const RING: u32 = 10;
/// Packets in flight in the search for the maximum.
const WINDOW: u64 = 512;
/// Offset of a packet's UDP payload, which contains the scheduled time.
const PAYLOAD: usize = 28;
/// Offset of the packet in a frame and in a message.
const FRONT: [usize; 2] = [14, 4];
/// Timeout of lost packets: connections retransmit after a timeout, several times on a busy machine.
const LOST: Duration = Duration::from_secs(60);
/// Duration of the search for the maximum if the worker has no processor in most intervals.
const STARVED: Duration = Duration::from_secs(5);

type Worker = Watched<GatewayWorker<DriverQueues>>;

/// EAL's arguments for pairs of Ethernet ports, the worker's and the generator's, for each number of workers.
pub(super) fn vdevs(workers: &[u8]) -> Vec<String> {
    let pair = |(index, _): (usize, &u8)| {
        let end = |n: usize, role| {
            // An abstract socket: no file.
            let socket = format!("/bench/{}-{index}", std::process::id());
            format!("net_memif{},role={role},rsize={RING},socket={socket}", 2 * index + n)
        };
        [end(0, "server"), end(1, "client")]
    };
    workers.iter().enumerate().flat_map(pair).collect()
}

/// A running worker.
struct Working {
    job: LcoreJob<Worker>,
    device: SoftHca,
    reader: WorkerCounterReader,
    desk: Arc<Desk>,
}

/// The whole setup.
pub(super) struct Rig {
    working: Vec<Working>,
    handle: Arc<Handle>,
    _publisher: Publisher<Tables<Destination>>,
    port: EthPort,
    near: Near,
}

/// The generator's end.
struct Near {
    pool: Pool,
    port: EthPort,
    /// Queues by worker.
    faces: Vec<Face>,
    frames: Vec<Vec<u8>>,
    messages: Vec<Vec<u8>>,
    next: usize,
}

/// The opposite side of one worker.
struct Face {
    eth: EthQueue,
    end: End,
    outgoing: Burst,
    incoming: Burst,
    /// Answers without room in the queue.
    answers: VecDeque<Mbuf>,
}

impl Rig {
    /// Starts workers on EAL's lcores, with the pair of ports of this number.
    pub(super) fn start(eal: &Eal, index: usize, workers: u8) -> Result<Self, String> {
        let count = BUFFERS * u32::from(workers);
        let config = PoolConfig { count, data_room: DATA_ROOM, cache: 256, socket: -1 };
        let pool = Pool::create(&format!("latency-{index}"), &config).map_err(text)?;
        let config = EthConfig {
            queues: workers.into(),
            rx_descriptors: 1 << RING,
            tx_descriptors: 1 << RING,
            mtu: 1500,
            promiscuous: false,
            offloads: true,
        };
        let start = |n: usize| EthPort::start(Some(&format!("net_memif{n}")), &config, &pool).map_err(text);
        let (port, queues) = start(2 * index)?;
        let (near_port, near_queues) = start(2 * index + 1)?;
        let begin = Instant::now();
        while !(port.link().up && near_port.link().up) {
            if begin.elapsed() > PATIENCE {
                return Err("the two ends of net_memif do not find each other".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut publisher = Publisher::new(tables(&LOAD, Transport::Connections, workers)?);
        let handle = Handle::new();
        handle.set_idle(IdlePolicy::Poll);
        let (mut working, mut faces) = (Vec::new(), Vec::new());
        let lcores = eal.worker_lcores();
        for (number, (eth, near)) in queues.into_iter().zip(near_queues).enumerate() {
            let (End { hca: device, queues, .. }, end) = pair(&[&pool], &pool, DEPTHS)?;
            let (_commands, inbox) = ring::channel(64);
            let (notes, _notes) = ring::channel(4096);
            let worker = GatewayWorker::new(WorkerParts {
                links: vec![LinkWorker::new(number as u8, queues, inbox, notes, Marks::new(1 << 16))],
                ethernets: vec![eth],
                tables: publisher.reader(),
                pool: pool.clone(),
                srq_low: 1,
                seed: 1,
                storm: Arc::default(),
                leases: Arc::new(Leases::new(Instant::now())),
                tap: None,
            });
            let reader = worker.counters().reader();
            let desk = Desk::new();
            let worker = Watched::new(worker, &desk);
            let lcore = *lcores.get(number).ok_or("there is no worker lcore")?;
            let on_lcore = Arc::clone(&handle);
            let job = eal.launch(lcore, move || run_worker(worker, &on_lcore)).map_err(text)?;
            working.push(Working { job, device, reader, desk });
            let (outgoing, incoming) = (Burst::new(), Burst::new());
            faces.push(Face { eth: near, end, outgoing, incoming, answers: VecDeque::new() });
        }
        let frames = timeless(frames::frames(&LOAD).collect(), 14);
        let messages = timeless(frames::messages(&LOAD), 4);
        let near = Near { pool, port: near_port, faces, frames, messages, next: 0 };
        Ok(Self { working, handle, _publisher: publisher, port, near })
    }

    /// Sets the idle policy of the workers.
    pub(super) fn set_idle(&self, policy: IdlePolicy) {
        self.handle.set_idle(policy);
    }

    /// Packets per second under full load: the median of several intervals.
    pub(super) fn maximum(&mut self, way: Way, time: Duration) -> Result<f64, String> {
        self.set_idle(IdlePolicy::Poll);
        let mut rates = Vec::new();
        let (mut sent, mut arrived) = (0, 0);
        const LOOKS: u32 = 10;
        // The first interval includes the start.
        let middle = |rates: &[f64]| rates.get(1..).and_then(Spread::of).map_or(0.0, |spread| spread.median);
        let start = eal::tsc();
        // Take more intervals if a worker has no processor in half of them.
        while rates.len() <= LOOKS as usize || (middle(&rates) == 0.0 && eal::tsc() - start < cycles(STARVED))
        {
            let (begin, before) = (eal::tsc(), arrived);
            let over = begin + cycles(time / LOOKS);
            let mut now = begin;
            while now < over {
                while sent < arrived + WINDOW && self.near.offer(way, now)? {
                    sent += 1;
                }
                self.near.flush(way)?;
                self.near.collect(way, |_| arrived += 1)?;
                now = eal::tsc();
            }
            rates.push((arrived - before) as f64 * 1e9 / ns(now - begin));
        }
        let begin = eal::tsc();
        while arrived < sent {
            self.near.flush(way)?;
            self.near.collect(way, |_| arrived += 1)?;
            if eal::tsc() - begin > cycles(PATIENCE) {
                return Err(format!("{} of {sent} packets {way:?} arrived; {}", arrived, self.drops()));
            }
        }
        // Use the total if most of the intervals had no packets.
        let all = arrived as f64 * 1e9 / ns(eal::tsc() - start);
        let most = if middle(&rates) > 0.0 { middle(&rates) } else { all };
        if most > 0.0 { Ok(most) } else { Err(format!("nothing comes through {way:?}; {}", self.drops())) }
    }

    /// Sends at this pace for a while, and receives.
    pub(super) fn hear(
        &mut self,
        way: Way,
        pace: Pace,
        time: Duration,
        heard: &mut Heard,
    ) -> Result<(), String> {
        let begin = eal::tsc();
        let end = begin + cycles(time);
        let mut schedule = Schedule::new(pace, begin, begin);
        let (mut sent, mut arrived, mut last) = (0_u64, 0_u64, begin);
        let Heard { times, lateness, lost } = heard;
        loop {
            let now = eal::tsc();
            while schedule.due() <= now.min(end) && self.near.offer(way, schedule.due())? {
                record(lateness, now - schedule.due());
                schedule.advance();
                sent += 1;
            }
            self.near.flush(way)?;
            self.near.collect(way, |stamp| {
                let now = eal::tsc();
                // Packets that timed out in an earlier cell count there.
                if (begin..=now).contains(&stamp) {
                    record(times, now - stamp);
                    arrived += 1;
                    last = now;
                }
            })?;
            if now.saturating_sub(end) > cycles(PATIENCE) {
                return Err(format!("packets {way:?} find no room; {}", self.drops()));
            }
            if schedule.due() > end && (arrived == sent || now.saturating_sub(last.max(end)) > cycles(LOST)) {
                // Without them, the percentiles would look better just when the worker cannot keep up.
                times.saturating_record_n(LOST.as_nanos() as u64, sent - arrived);
                *lost += sent - arrived;
                return Ok(());
            }
        }
    }

    /// Nanoseconds of all workers' busy iterations since the last query.
    pub(super) fn turns(&self) -> Result<Histogram<u64>, String> {
        let mut all = histogram();
        for Working { desk, .. } in &self.working {
            all.add(desk.turns()?).map_err(text)?;
        }
        Ok(all)
    }

    /// Observes the generator's processor, and at the same time each worker's, while these do nothing else.
    pub(super) fn look(&self, time: Duration) -> Result<(Watch, Vec<Watch>), String> {
        self.set_idle(IdlePolicy::Poll);
        let until = eal::tsc() + cycles(time);
        self.working.iter().for_each(|working| working.desk.look(until));
        let here = spin(until);
        // It stops early after too many gaps; workers may not have.
        while eal::tsc() < until {
            std::hint::spin_loop();
        }
        let there = self.working.iter().map(|working| working.desk.seen()).collect::<Result<_, _>>()?;
        Ok((here, there))
    }

    /// Drops of the workers by reason.
    pub(super) fn drops(&self) -> String {
        format!("dropped: {}", Totals::of(self.working.iter().map(|w| &w.reader)).drops_json())
    }

    /// Stops the workers and releases everything.
    pub(super) fn end(self) -> Result<(), String> {
        let Self { working, handle, _publisher, port, near } = self;
        handle.stop();
        for Working { job, mut device, .. } in working {
            let (queues, _, _) = job.join().map_err(text)?.worker.into_parts();
            for queues in queues {
                dismantle(&mut device, queues)?;
            }
        }
        let Near { pool, port: near_port, faces, .. } = near;
        for face in faces {
            end(face.end)?;
        }
        drop((port, near_port));
        match pool.in_use() {
            0 => Ok(()),
            out => Err(format!("{out} buffers are not home")),
        }
    }
}

/// Clears the time and the UDP checksum, which would depend on the time.
fn timeless(mut packets: Vec<Vec<u8>>, front: usize) -> Vec<Vec<u8>> {
    for packet in &mut packets {
        for byte in packet.iter_mut().skip(front + PAYLOAD - 2).take(2 + 8) {
            *byte = 0;
        }
    }
    packets
}

pub(super) fn cycles(time: Duration) -> u64 {
    (time.as_secs_f64() * eal::tsc_hz() as f64) as u64
}

pub(super) fn record(histogram: &mut Histogram<u64>, cycles: u64) {
    histogram.saturating_record((ns(cycles) as u64).max(1));
}

/// Writes the scheduled time into a packet.
fn stamp(buf: &mut Mbuf, front: usize, time: u64) -> Option<()> {
    let place = buf.data_mut().get_mut(front + PAYLOAD..)?.first_chunk_mut()?;
    *place = time.to_le_bytes();
    Some(())
}

/// Returns the scheduled time of a packet, if it is one of ours and complete.
fn stamped(buf: &Mbuf, front: usize) -> Result<u64, String> {
    let whole = || {
        let data = buf.data();
        (data.len() == front + SHORTEST).then_some(())?;
        data.get(front + PAYLOAD..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    };
    whole().ok_or_else(|| format!("what arrived is no packet of ours: {buf:?}"))
}

impl Near {
    /// Sends a packet that was scheduled for `time`. Returns false without room: the caller must try again.
    fn offer(&mut self, way: Way, time: u64) -> Result<bool, String> {
        let workers = self.faces.len();
        let Some(face) = self.faces.get_mut(self.next % workers) else { return Ok(false) };
        let (packets, [front, _]) = match way {
            Way::IbEth => (&self.messages, [FRONT[1], 0]),
            Way::EthIb | Way::Ping => (&self.frames, FRONT),
        };
        if way != Way::IbEth && face.outgoing.is_full() {
            return Ok(false);
        }
        let Some(packet) = packets.get(self.next % packets.len()) else { return Ok(false) };
        let Some(mut buf) = self.pool.copy_from_slice(packet) else { return Ok(false) };
        stamp(&mut buf, front, time).ok_or("a packet has no room for its time")?;
        match way {
            Way::IbEth => {
                if face.end.queues.send_rc(SLOT, buf).is_err() {
                    return Ok(false);
                }
            }
            Way::EthIb | Way::Ping => face.outgoing.push(buf),
        }
        self.next += 1;
        Ok(true)
    }

    /// Sends the queued packets.
    fn flush(&mut self, way: Way) -> Result<(), String> {
        for face in &mut self.faces {
            if way != Way::IbEth && !face.outgoing.is_empty() {
                face.eth.tx_burst(&mut face.outgoing);
            }
            face.end.turn()?;
        }
        Ok(())
    }

    /// Receives packets, and answers pings.
    fn collect(&mut self, way: Way, mut arrived: impl FnMut(u64)) -> Result<(), String> {
        let [in_frame, in_message] = FRONT;
        for face in &mut self.faces {
            for received in face.end.burst.drain(..) {
                let time = stamped(&received.buf, in_message)?;
                match (way, self.messages.first()) {
                    (Way::Ping, Some(answer)) => {
                        let mut buf = self.pool.copy_from_slice(answer).ok_or("the pool is empty")?;
                        stamp(&mut buf, in_message, time).ok_or("an answer has no room for its time")?;
                        face.answers.push_back(buf);
                    }
                    _ => arrived(time),
                }
            }
            while let Some(answer) = face.answers.pop_front() {
                if let Err(refused) = face.end.queues.send_rc(SLOT, answer) {
                    face.answers.push_front(refused.buf);
                    break;
                }
                face.end.queues.ring();
            }
            face.eth.rx_burst(&mut face.incoming);
            for frame in face.incoming.drain(..) {
                arrived(stamped(&frame, in_frame)?);
            }
        }
        Ok(())
    }
}
