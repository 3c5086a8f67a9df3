//! Receives for IPoIB's largest message in buffers of several sizes: what they take of memory, and what a
//! message costs. All sizes take turns, each on a connection between software devices of its own.

use std::time::{Duration, Instant};

use pmd::eal;
use pmd::hca::Queues as _;
use pmd::mem::{HEADROOM, Pool, PoolConfig};

use crate::pair::{Depths, End, PATIENCE, SLOT, end, is_message, message, ns, pair, start_eal, text};
use crate::sample::{Figure, Sample};
use crate::series::Turns;

/// Bytes of a buffer, and buffers per receive; the first shape is the reference.
const SHAPES: [(u16, usize); 5] = [
    (4096, 16),
    (2048, 32),
    (8192, 8),
    (16_384, 4),
    // The maximum size of a buffer.
    (u16::MAX - HEADROOM as u16, 1),
];
/// Bytes of messages: a TCP acknowledgement, an Ethernet packet, and the largest message that fits all
/// shapes.
const SIZES: [usize; 4] = [64, 1500, 9000, 65_400];
const LARGEST: usize = 65_400;
/// The gateway's default.
const RECEIVES: u32 = 512;
const DEPTHS: Depths = Depths { send: 1024, receive: [16, RECEIVES], largest: LARGEST };
/// Messages in flight.
const WINDOW: u64 = 32;
/// Buffers of the sender.
const SENT: u32 = 4096;
/// Duration of a slice of one shape.
const SLICE: Duration = Duration::from_millis(20);

struct Shape {
    name: String,
    into: Pool,
    a: End,
    b: End,
}

impl Shape {
    fn new(from: &Pool, cache: u16, (room, per_receive): (u16, usize)) -> Result<Self, String> {
        // Some more for messages in flight.
        let count = (RECEIVES + 2 * WINDOW as u32) * per_receive as u32 + 512;
        let config = PoolConfig { count, data_room: room, cache, socket: -1 };
        let into = Pool::create(&format!("into-{room}"), &config).map_err(text)?;
        // The sender does not receive, but could.
        let (a, mut b) = pair(&[from], &into, DEPTHS)?;
        b.queues.refill();
        let (_, posted) = b.queues.receives_posted();
        if posted != RECEIVES {
            return Err(format!("{posted} receives of {room} bytes each are posted"));
        }
        Ok(Self { name: format!("{per_receive}x{room}"), into, a, b })
    }

    /// Megabytes of a worker's receives, including DPDK's overhead of each buffer.
    fn megabytes(&self, per_receive: usize) -> f64 {
        let bytes: u64 = self.into.zones().iter().map(|zone| zone.length).sum();
        let each = bytes as f64 / f64::from(self.into.size());
        each * (RECEIVES as usize * per_receive) as f64 / 1e6
    }

    /// Runs one slice; all messages have arrived when it returns.
    fn slice(&mut self, from: &Pool, len: usize, turns: &mut Turns) -> Result<(), String> {
        let Self { a, b, name, .. } = self;
        let (mut sent, mut received, mut cycles) = (0, 0, 0);
        let begin = Instant::now();
        let mut last = begin;
        loop {
            let now = Instant::now();
            let over = now - begin >= SLICE;
            if over && sent == received {
                turns.add(received, now - begin, ns(cycles));
                return Ok(());
            }
            while !over && sent - received < WINDOW {
                let buf = message(from, len, sent).ok_or("the pool is empty")?;
                a.queues.send_rc(SLOT, buf).map_err(|refused| text(refused.error))?;
                sent += 1;
            }
            a.turn()?;
            b.queues.turn();
            let before = eal::tsc();
            b.queues.poll_receive(&mut b.burst, &mut b.events);
            for arrived in b.burst.drain(..) {
                if !is_message(&arrived.buf, len, received) {
                    return Err(format!("{name}: message {received} arrived as {:?}", arrived.buf));
                }
                received += 1;
                last = now;
            }
            b.queues.refill();
            cycles += eal::tsc() - before;
            if now - last > PATIENCE {
                return Err(format!("{name}: message {received} of {len} bytes is lost"));
            }
        }
    }
}

fn measure(from: &Pool, cache: u16, seconds: f64) -> Result<Sample, String> {
    let mut shapes =
        SHAPES.iter().map(|shape| Shape::new(from, cache, *shape)).collect::<Result<Vec<_>, _>>()?;
    let mut sample = Sample::default();
    let peer = |shapes: &[Shape]| shapes.first().map_or_else(String::new, |shape| shape.name.clone());
    let of = peer(&shapes);
    let memory: Vec<f64> =
        shapes.iter().zip(SHAPES).map(|(shape, (_, count))| shape.megabytes(count)).collect();
    for (shape, megabytes) in shapes.iter().zip(&memory) {
        let figure = Figure::new(&format!("{}.memory", shape.name), "MB/worker", *megabytes);
        sample.figures.push(figure.beside(&of, memory.first().copied().unwrap_or_default()));
    }
    for len in SIZES {
        let mut turns: [Turns; SHAPES.len()] = Default::default();
        let round_time = 2.0 * SHAPES.len() as f64 * SLICE.as_secs_f64();
        let rounds = (seconds / SIZES.len() as f64 / round_time).ceil() as u32;
        for round in 0..=rounds {
            if round == 1 {
                // The first pass is the warm-up.
                turns = Default::default();
            }
            // Each shape runs equally often before and after each other one.
            let there = 0..shapes.len();
            for at in there.clone().chain(there.rev()) {
                if let (Some(shape), Some(turns)) = (shapes.get_mut(at), turns.get_mut(at)) {
                    shape.slice(from, len, turns)?;
                }
            }
        }
        let [first, ..] = &turns;
        for (shape, this) in shapes.iter().zip(&turns) {
            let name = format!("{}.{len}", shape.name);
            let all = Figure::new(&name, "messages/s", this.rate());
            let driver = Figure::new(&format!("{name}-driver"), "ns/message", this.time());
            sample.figures.push(all.beside(&of, first.rate()));
            sample.figures.push(driver.beside(&of, first.time()));
        }
    }
    let mut out = 0;
    for Shape { a, b, into, .. } in shapes {
        end(a)?;
        end(b)?;
        out += into.in_use();
    }
    out += from.in_use();
    if out != 0 {
        return Err(format!("{out} buffers are not home"));
    }
    Ok(sample)
}

fn pool(cache: u16) -> Result<Pool, String> {
    let config = PoolConfig { count: SENT, data_room: 4096, cache, socket: -1 };
    Pool::create("sent", &config).map_err(text)
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let _eal = start_eal()?;
    measure(&pool(256)?, 256, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_buffers_of_every_size_and_every_buffer_comes_home() {
        eal::for_tests();
        let sample = measure(&pool(0).unwrap(), 0, 0.1).unwrap();
        assert_eq!(sample.figures.len(), SHAPES.len() * (1 + 2 * SIZES.len()));
        assert!(sample.figures.iter().all(|f| f.value > 0.0), "{sample:?}");
    }
}
