//! Messages between two software devices, on one connection or as datagrams ([`crate::pair`]). A figure is of both drivers, both devices and the
//! link together, beside what the processor copies in the same turns.

use std::hint::black_box;
use std::time::{Duration, Instant};

use connectx::cable::CableEnd;

use dataplane::latency::{Recorder, Summary, empty};
use pmd::mem::{Pool, PoolConfig};

use crate::fabric::Fabric;
use crate::pair::{
    Depths, End, Manager, PATIENCE, Service, end, is_message, message, pair_over, start_eal, text,
};
use crate::sample::{Figure, Sample, times};

const LARGEST: usize = 65_524;
const DATA_ROOM: u16 = 4096;
const SRQ_DEPTH: u32 = 128;
const DEPTHS: Depths = Depths { send: 64, receive: [SRQ_DEPTH; 2], largest: LARGEST };
/// Sizes of messages, bytes: up to IPoIB's largest on a connection, and to what fits a packet as datagrams.
const fn sizes(service: Service) -> &'static [usize] {
    match service {
        Service::Connection => &[64, 1024, 4096, 16_384, LARGEST],
        Service::Datagrams => &[64, 256, 1024, 2048, 4096],
    }
}

/// For each connection two shared receive queues, and as much again on its way.
const BUFFERS: u32 = 4 * SRQ_DEPTH * 17 * Between::ALL.len() as u32;
/// Messages on their way. A receiver that has no buffer is a benchmark of something else.
const WINDOW: u64 = 64;
/// Turns of each kind there, and as many back again.
const ROUNDS: usize = 8;

/// Sends as much as goes for a while. Returns messages a second.
fn stream(a: &mut End, b: &mut End, pool: &Pool, len: usize, duration: Duration) -> Result<f64, String> {
    let (mut sent, mut received) = (0, 0);
    let begin = Instant::now();
    let (mut end, mut last) = (begin, begin);
    while end - begin < duration || received < sent {
        // Time is looked at once a round, behind which nothing new is sent.
        while end - begin < duration && sent - received < WINDOW {
            let Some(buf) = message(pool, len, sent) else { break };
            if a.send(buf).is_err() {
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
        let mut buf = message(pool, len, number).ok_or("the pool is empty")?;
        // The last acknowledges of a stream may still be on their way.
        while let Err(refused) = a.send(buf) {
            if sent.elapsed() > PATIENCE {
                return Err(text(refused.error));
            }
            buf = refused.buf;
            a.turn()?;
            b.turn()?;
        }
        loop {
            a.turn()?;
            b.turn()?;
            while let Some(arrived) = b.burst.pop() {
                b.send(arrived.buf).map_err(|r| text(r.error))?;
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

/// What is between the two devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Between {
    /// Memory of this process, where packets need no CRCs.
    Memory,
    /// The same with CRCs, made and checked.
    MemoryWithCrcs,
    /// `ibfab`, a process of its own, and memory shared with it.
    Fabric,
    /// The same with CRCs.
    FabricWithCrcs,
}

impl Between {
    const ALL: [Self; 4] = [Self::Memory, Self::MemoryWithCrcs, Self::Fabric, Self::FabricWithCrcs];

    /// In front of the names of its figures.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Memory => "",
            Self::MemoryWithCrcs => "crc.",
            Self::Fabric => "ibfab.",
            Self::FabricWithCrcs => "ibfab-crc.",
        }
    }

    const fn keeps_crcs(self) -> bool {
        matches!(self, Self::MemoryWithCrcs | Self::FabricWithCrcs)
    }

    /// Makes what is between them; `None` where there is no `ibfab`.
    fn middle(self) -> Result<Option<Middle>, String> {
        let fabric = match self {
            Self::Memory | Self::MemoryWithCrcs => None,
            Self::Fabric | Self::FabricWithCrcs => match Fabric::start(self.keeps_crcs())? {
                Some(fabric) => Some(fabric),
                None => return Ok(None),
            },
        };
        Ok(Some(Middle { between: self, fabric }))
    }
}

/// What is between two devices, there before they are.
struct Middle {
    between: Between,
    fabric: Option<Fabric>,
}

impl Middle {
    fn connection(self, service: Service, pool: &Pool) -> Result<Connection, String> {
        let Self { between, fabric } = self;
        let (cables, manager) = match &fabric {
            Some(fabric) => (fabric.cables()?, Manager::Fabric),
            None => {
                let (mut here, there) = CableEnd::pair().map_err(text)?;
                if between.keeps_crcs() {
                    here.keep_crcs();
                }
                ((here, there), Manager::Nobody)
            }
        };
        let (a, b) = pair_over(cables, manager, service, &[pool], pool, DEPTHS)?;
        Ok(Connection { between, a, b, _fabric: fabric })
    }
}

/// Both ends, and what is between them.
struct Connection {
    between: Between,
    a: End,
    b: End,
    _fabric: Option<Fabric>,
}

/// Copies blocks of a window's memory for a while. Returns blocks a second.
fn copy(from: &[u8], to: &mut [u8], len: usize, duration: Duration) -> f64 {
    let (mut blocks, begin) = (0, Instant::now());
    let mut end = begin;
    while end - begin < duration {
        for (from, to) in from.chunks_exact(len).zip(to.chunks_exact_mut(len)).take(WINDOW as usize) {
            black_box(&mut *to).copy_from_slice(black_box(from));
            blocks += 1;
        }
        end = Instant::now();
    }
    f64::from(blocks) / (end - begin).as_secs_f64()
}

/// All sizes over a connection of each kind. The kinds take turns of a few milliseconds, there and back again, so that what happens
/// on the machine happens to all.
fn measure(service: Service, pool: &Pool, middles: Vec<Middle>, seconds: f64) -> Result<Sample, String> {
    let sizes = sizes(service);
    let mut sample = Sample::default();
    if !middles.iter().any(|middle| middle.fabric.is_some()) {
        sample.notes.push("without ibfab: it is not beside this program".to_owned());
    }
    let all = middles.into_iter().map(|middle| middle.connection(service, pool));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    let n = all.len();
    let (from, mut to) = (vec![1; LARGEST * WINDOW as usize], vec![2; LARGEST * WINDOW as usize]);
    for len in sizes.iter().copied() {
        let share = Duration::from_secs_f64(seconds / sizes.len() as f64);
        let turn = share.mul_f64(0.7 / (2 * ROUNDS * (n + 1)) as f64);
        let (mut rates, mut copied) = (vec![0.0; n], 0.0);
        for round in 0..2 * ROUNDS {
            for at in 0..n {
                let at = if round % 2 == 0 { at } else { n - 1 - at };
                if let (Some(Connection { a, b, .. }), Some(sum)) = (all.get_mut(at), rates.get_mut(at)) {
                    *sum += stream(a, b, pool, len, turn)? / (2 * ROUNDS) as f64;
                }
            }
            copied += copy(&from, &mut to, len, turn) / (2 * ROUNDS) as f64;
        }
        let gbps = |rate: f64| rate * len as f64 * 8.0 / 1e9;
        for (Connection { between, a, b, .. }, rate) in all.iter_mut().zip(rates) {
            let round = ping_pong(a, b, pool, len, share.mul_f64(0.3 / n as f64))?;
            let name = |figure: &str| format!("{}{len}.{figure}", between.prefix());
            sample.figures.extend([
                Figure::new(&name("messages"), "messages/s", rate),
                Figure::new(&name("throughput"), "Gbit/s", gbps(rate)).beside("memory copy", gbps(copied)),
                Figure::new(&name("ping-pong"), "ns", round.p50 as f64),
                Figure::new(&name("ping-pong-99"), "ns", round.p99 as f64),
            ]);
            sample.notes.push(times(&format!("{}{len} bytes there and back", between.prefix()), &round));
        }
    }
    for Connection { a, b, .. } in all {
        end(a)?;
        end(b)?;
    }
    let outstanding = pool.in_use();
    if outstanding != 0 {
        return Err(format!("{outstanding} buffers are not home"));
    }
    Ok(sample)
}

/// What there is of these kinds. A process that EAL's thread starts would have to share its one core with it: they start before.
fn middles(kinds: &[Between]) -> Result<Vec<Middle>, String> {
    kinds.iter().filter_map(|kind| kind.middle().transpose()).collect()
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(service: Service, seconds: f64) -> Result<Sample, String> {
    let middles = middles(&Between::ALL)?;
    let _eal = start_eal()?;
    let config = PoolConfig { count: BUFFERS, data_room: DATA_ROOM, cache: 256, socket: -1 };
    let pool = Pool::create("messages", &config).map_err(text)?;
    measure(service, &pool, middles, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_size_arrive_in_order_and_every_buffer_comes_home() {
        pmd::eal::for_tests();
        for service in [Service::Connection, Service::Datagrams] {
            let config = PoolConfig { count: BUFFERS, data_room: DATA_ROOM, cache: 0, socket: -1 };
            let pool = Pool::create(&format!("soft-{service:?}"), &config).unwrap();
            let kinds = [Between::Memory, Between::MemoryWithCrcs];
            let sample = measure(service, &pool, middles(&kinds).unwrap(), 0.3).unwrap();
            assert_eq!(sample.figures.len(), 4 * sizes(service).len() * kinds.len());
            assert!(sample.figures.iter().all(|f| f.value > 0.0), "{sample:?}");
            assert_eq!(pool.in_use(), 0);
        }
    }
}
