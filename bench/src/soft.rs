//! Messages between two software devices on one connection: the mlx5 driver at both ends, a link within the process, and
//! one thread that gives everybody turns. So a figure is of both drivers, both devices and the link together.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use connectx::cable::CableEnd;
use dataplane::latency::{Recorder, Summary, empty};
use ib_wire::{Guid, Lid, Mtu, Psn, Qpn, Rate, ServiceLevel};
use pmd::eal::Eal;
use pmd::hca::{
    AddressVector, Backend, Control as _, PortNumber, QpTransition, Queues, QueuesConfig, QueuesId, RcConfig,
    RcSlot, RcToReceive, RcToSend, RxBurst, UdSlot,
};
use pmd::mem::{Mbuf, Pool, PoolConfig};
use pmd::soft::{SoftConfig, SoftHca};

use crate::machine;
use crate::sample::{Figure, Sample, times};

/// Sizes of messages, bytes. The last is IPoIB's largest.
const SIZES: [usize; 5] = [64, 1024, 4096, 16_384, 65_524];
const LARGEST: usize = 65_524;
const DATA_ROOM: u16 = 4096;
const SEND_DEPTH: u32 = 64;
const SRQ_DEPTH: u32 = 128;
/// Two shared receive queues, and as much again on its way.
const BUFFERS: u32 = 4 * SRQ_DEPTH * 17;
/// Messages on their way. A receiver that has no buffer is a benchmark of something else.
const WINDOW: u64 = 64;
const PORT: PortNumber = PortNumber(1);
const SLOT: RcSlot = RcSlot(0);
/// A message that takes longer than this has been lost.
const PATIENCE: Duration = Duration::from_secs(5);

type DriverQueues = <SoftHca as Backend>::Queues;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A device, its queues, and its end of the connection.
struct End {
    hca: SoftHca,
    queues: DriverQueues,
    qpn: Qpn,
    burst: RxBurst,
    events: ArrayVec<pmd::hca::QpEvent, { pmd::hca::BURST }>,
}

impl End {
    fn new(lid: Lid, link: CableEnd, pool: &Pool) -> Result<Self, String> {
        let mut hca = SoftHca::new(&SoftConfig {
            name: format!("soft{}", lid.0),
            node_guid: Guid(0x1000 + u64::from(lid.0)),
            port_guids: vec![Guid(0x2000 + u64::from(lid.0))],
            max_mtu: Mtu::B4096,
            gid_table: 8,
            seed: lid.0.into(),
        })
        .map_err(text)?;
        hca.set_cable(PORT, Some(link)).map_err(text)?;
        hca.engine().lock().activate(PORT, lid, Mtu::B4096).map_err(text)?;
        hca.register_pool(pool).map_err(text)?;
        let config = QueuesConfig {
            id: QueuesId(0),
            ud_recv_depth: 64,
            ud_recv_most: u32::MAX,
            srq_depth: SRQ_DEPTH,
            srq_message: LARGEST,
            srq_limit: 0,
            max_ud: 0,
            likely_ud: 1,
            max_rc: 1,
            max_sends: 4096,
            signal_every: 16,
        };
        let mut queues = hca.create_queues(&config, pool).map_err(text)?;
        let rc = RcConfig {
            queues: QueuesId(0),
            port: PORT,
            beside: UdSlot(0),
            send_depth: SEND_DEPTH,
            passive: false,
        };
        let rc = hca.create_rc(&rc).map_err(text)?;
        let qpn = SoftHca::rc_qpn(&rc);
        queues.insert_rc(SLOT, rc).map_err(|_| "the slot is taken")?;
        queues.refill();
        Ok(Self { hca, queues, qpn, burst: RxBurst::new(), events: ArrayVec::new() })
    }

    fn connect(&mut self, lid: Lid, qpn: Qpn) -> Result<(), String> {
        let av = AddressVector {
            dlid: lid,
            sl: ServiceLevel::new(0),
            src_path_bits: 0,
            rate: Rate::default(),
            grh: None,
        };
        let path_mtu = Mtu::B4096;
        let receive = RcToReceive { av, dest_qpn: qpn, rq_psn: Psn::new(100), path_mtu, min_rnr_timer: 12 };
        let send = RcToSend { sq_psn: Psn::new(100), timeout: 14, retry_count: 7, rnr_retry: 7 };
        let init = QpTransition::RcToInit { pkey_index: 0 };
        for to in [init, QpTransition::RcToReceive(receive), QpTransition::RcToSend(send)] {
            self.hca.modify_qp(self.qpn, &to).map_err(text)?;
        }
        Ok(())
    }

    /// A turn as a worker takes it.
    fn turn(&mut self) -> Result<(), String> {
        self.queues.ring();
        self.queues.turn();
        self.queues.poll_receive(&mut self.burst, &mut self.events);
        self.queues.poll_send(&mut self.events);
        self.queues.refill();
        match self.events.first() {
            Some(event) => Err(format!("queue pair {}: {:?}", event.qpn, event.fault)),
            None => Ok(()),
        }
    }
}

/// A message with a number; what follows the number is whatever the buffers held.
fn message(pool: &Pool, len: usize, number: u64) -> Option<Mbuf> {
    let mut chain: Option<Mbuf> = None;
    let mut left = len;
    while left > 0 {
        let piece = match left % usize::from(DATA_ROOM) {
            0 => usize::from(DATA_ROOM),
            rest => rest,
        };
        let mut one = pool.alloc()?;
        one.append(piece)?;
        left -= piece;
        if let Some(tail) = chain.take() {
            one.append_chain(tail);
        }
        chain = Some(one);
    }
    let mut chain = chain?;
    chain.data_mut().get_mut(..8)?.copy_from_slice(&number.to_le_bytes());
    Some(chain)
}

/// True if this is message `number`, whole.
fn is_message(buf: &Mbuf, len: usize, number: u64) -> bool {
    buf.len() == len && buf.data().first_chunk() == Some(&number.to_le_bytes())
}

/// Sends as much as goes for a while. Returns messages a second.
fn stream(a: &mut End, b: &mut End, pool: &Pool, len: usize, duration: Duration) -> Result<f64, String> {
    let (mut sent, mut received) = (0, 0);
    let begin = Instant::now();
    let (mut end, mut last) = (begin, begin);
    while end - begin < duration || received < sent {
        // Time is looked at once a round, behind which nothing new is sent.
        while end - begin < duration && sent - received < WINDOW {
            let Some(buf) = message(pool, len, sent) else { break };
            if a.queues.send_rc(SLOT, buf).is_err() {
                break;
            }
            sent += 1;
        }
        a.turn()?;
        b.turn()?;
        end = Instant::now();
        for arrived in b.burst.drain(..) {
            if !is_message(&arrived.buf, len, received) {
                return Err(format!("message {received} of {len} bytes arrived as {:?}", arrived.buf));
            }
            received += 1;
            last = end;
        }
        if end - last > PATIENCE {
            return Err(format!("message {received} of {len} bytes is lost"));
        }
    }
    Ok(received as f64 / (end - begin).as_secs_f64())
}

/// One message there and back again, and again for a while. The times are of there and back.
fn ping_pong(
    a: &mut End,
    b: &mut End,
    pool: &Pool,
    len: usize,
    duration: Duration,
) -> Result<Summary, String> {
    let mut times = Recorder::default();
    let begin = Instant::now();
    for number in 0.. {
        let sent = Instant::now();
        if sent - begin >= duration {
            break;
        }
        let buf = message(pool, len, number).ok_or("the pool is empty")?;
        a.queues.send_rc(SLOT, buf).map_err(|r| text(r.error))?;
        loop {
            a.turn()?;
            b.turn()?;
            for arrived in b.burst.drain(..) {
                b.queues.send_rc(SLOT, arrived.buf).map_err(|r| text(r.error))?;
            }
            if let Some(back) = a.burst.pop() {
                if !is_message(&back.buf, len, number) {
                    return Err(format!("message {number} of {len} bytes came back as {:?}", back.buf));
                }
                break;
            }
            if sent.elapsed() > PATIENCE {
                return Err(format!("message {number} of {len} bytes is lost"));
            }
        }
        times.record(sent.elapsed().as_nanos() as u64);
    }
    Ok(Summary::of(&times.swap(empty())))
}

fn pair(pool: &Pool) -> Result<(End, End), String> {
    let (here, there) = CableEnd::pair().map_err(text)?;
    let (mut a, mut b) = (End::new(Lid(1), here, pool)?, End::new(Lid(2), there, pool)?);
    a.connect(Lid(2), b.qpn)?;
    b.connect(Lid(1), a.qpn)?;
    Ok((a, b))
}

fn end(mut this: End) -> Result<(), String> {
    if let Some(rc) = this.queues.remove_rc(SLOT) {
        this.hca.destroy_rc(rc).map_err(text)?;
    }
    this.hca.destroy_queues(this.queues).map_err(text)
}

/// All sizes over one connection.
fn measure(pool: &Pool, seconds: f64) -> Result<Sample, String> {
    let (mut a, mut b) = pair(pool)?;
    let share = |part: f64| Duration::from_secs_f64(seconds * part / SIZES.len() as f64);
    let mut sample = Sample::default();
    for len in SIZES {
        stream(&mut a, &mut b, pool, len, share(0.1))?;
        let rate = stream(&mut a, &mut b, pool, len, share(0.6))?;
        let round = ping_pong(&mut a, &mut b, pool, len, share(0.3))?;
        let gbps = rate * len as f64 * 8.0 / 1e9;
        sample.figures.extend([
            Figure::new(&format!("{len}.messages"), "messages/s", rate),
            Figure::new(&format!("{len}.throughput"), "Gbit/s", gbps),
            Figure::new(&format!("{len}.ping-pong"), "ns", round.p50 as f64),
            Figure::new(&format!("{len}.ping-pong-99"), "ns", round.p99 as f64),
        ]);
        sample.notes.push(times(&format!("{len} bytes there and back"), &round));
    }
    for this in [a, b] {
        end(this)?;
    }
    let outstanding = pool.in_use();
    if outstanding != 0 {
        return Err(format!("{outstanding} buffers are not home"));
    }
    Ok(sample)
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let words = ["bench", "--no-pci", "--no-telemetry", "--log-level=error", "--lcores"];
    let arguments = words.into_iter().map(str::to_owned).chain([machine::one_lcore()]);
    let _eal = Eal::init(arguments.chain(machine::memory_arguments())).map_err(text)?;
    let config = PoolConfig { count: BUFFERS, data_room: DATA_ROOM, cache: 256, socket: -1 };
    let pool = Pool::create("messages", &config).map_err(text)?;
    measure(&pool, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_size_arrive_in_order_and_every_buffer_comes_home() {
        pmd::eal::for_tests();
        let config = PoolConfig { count: BUFFERS, data_room: DATA_ROOM, cache: 0, socket: -1 };
        let pool = Pool::create("rc-soft", &config).unwrap();
        let sample = measure(&pool, 0.3).unwrap();
        assert_eq!(sample.figures.len(), 4 * SIZES.len());
        assert!(sample.figures.iter().all(|f| f.value > 0.0), "{sample:?}");
        assert_eq!(pool.in_use(), 0);
    }
}
