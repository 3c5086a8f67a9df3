//! Compares three ways to send a message in many buffers: as a gather list in the entry, registered under its
//! own memory key and sent as one segment, or copied into one large buffer. The three alternate on one
//! connection between software devices.

use std::time::{Duration, Instant};

use pmd::eal;
use pmd::hca::{Backend as _, ChainSend, DoneBurst, MemoryWork as _, Outcome, Queues as _};
use pmd::mem::key::{FreeKey, PageList};
use pmd::mem::{HEADROOM, Mbuf, Pool, PoolConfig};

use crate::pair::{Depths, End, PATIENCE, SLOT, end, is_message, message, ns, pair, start_eal, text};
use crate::sample::{Figure, Sample};
use crate::series::Turns;

/// Bytes of messages: in two, five and seventeen buffers. The last is IPoIB's largest.
const SIZES: [usize; 3] = [8192, 20_000, 65_524];
const LARGEST: usize = 65_524;
const DATA_ROOM: u16 = 4096;
/// The whole largest message, after a headroom that a copy does not need.
const LARGE_ROOM: u16 = u16::MAX - HEADROOM as u16;
const DEPTHS: Depths = Depths { send: 1024, receive: [16, 128], largest: LARGEST };
/// Buffers of two shared receive queues, and the same number in flight.
const BUFFERS: u32 = 4 * 128 * 17;
/// Messages in flight.
const WINDOW: usize = 32;
/// Segments of a key.
const PIECES: u32 = 20;
/// Duration of a slice of one method.
const SLICE: Duration = Duration::from_millis(20);

/// How a chain is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Gather,
    Key,
    Copy,
}

/// Each method runs equally often before and after each other one.
const TURNS: [Way; 6] = [Way::Gather, Way::Key, Way::Copy, Way::Copy, Way::Key, Way::Gather];

/// The source of copies and keys.
struct Sender {
    large: Pool,
    keys: Vec<(FreeKey, PageList)>,
    done: DoneBurst,
}

impl Sender {
    fn new(a: &mut End, large: Pool) -> Result<Self, String> {
        let key = |a: &mut End| a.hca.create_key(PIECES).map(|key| (key, PageList::new(PIECES as usize)));
        let keys = (0..WINDOW).map(|_| key(a)).collect::<Result<_, _>>().map_err(text)?;
        Ok(Self { large, keys, done: DoneBurst::new() })
    }

    fn copy(&self, chain: &Mbuf) -> Option<Mbuf> {
        let mut one = self.large.alloc()?;
        if !one.set_data(0, chain.len()) {
            return None;
        }
        chain.read(0, one.data_mut());
        Some(one)
    }

    fn send(&mut self, a: &mut End, way: Way, buf: Mbuf) -> Result<(), String> {
        let sent = match way {
            Way::Gather => a.queues.send_rc(SLOT, buf).map_err(|refused| text(refused.error)),
            Way::Copy => {
                let one = self.copy(&buf).ok_or("no large buffer")?;
                a.queues.send_rc(SLOT, one).map_err(|refused| text(refused.error))
            }
            Way::Key => {
                let (key, list) = self.keys.pop().ok_or("no key")?;
                let work = ChainSend { key, list, buf };
                a.queues.send_chain(SLOT, 0, work).map_err(|returned| text(returned.error))
            }
        };
        sent.map_err(|e| format!("{way:?}: {e}"))
    }

    fn finish(&mut self, a: &mut End) -> Result<(), String> {
        a.queues.take_done(&mut self.done);
        for done in self.done.drain(..) {
            match done.what {
                Outcome::ChainSent(ChainSend { key, list, .. }) => self.keys.push((key, list)),
                other => return Err(format!("{:?}: {other:?}", done.status)),
            }
        }
        Ok(())
    }
}

/// Runs one slice of a method; all messages have arrived when it returns.
fn slice(
    (a, b): (&mut End, &mut End),
    pool: &Pool,
    sender: &mut Sender,
    (way, len): (Way, usize),
    turns: &mut Turns,
) -> Result<(), String> {
    let (mut sent, mut received, mut cycles) = (0, 0, 0);
    let begin = Instant::now();
    let mut last = begin;
    loop {
        let now = Instant::now();
        let over = now - begin >= SLICE;
        if over && sent == received && sender.keys.len() == WINDOW {
            turns.add(received, now - begin, ns(cycles));
            return Ok(());
        }
        while !over && ((sent - received) as usize) < WINDOW && (way != Way::Key || !sender.keys.is_empty()) {
            let buf = message(pool, len, sent).ok_or("the pool is empty")?;
            let before = eal::tsc();
            sender.send(a, way, buf)?;
            cycles += eal::tsc() - before;
            sent += 1;
        }
        a.queues.ring();
        a.queues.turn();
        let before = eal::tsc();
        a.queues.poll_send(&mut a.events);
        sender.finish(a)?;
        cycles += eal::tsc() - before;
        b.turn()?;
        for arrived in b.burst.drain(..) {
            if !is_message(&arrived.buf, len, received) {
                return Err(format!("{way:?}: message {received} arrived as {:?}", arrived.buf));
            }
            received += 1;
            last = now;
        }
        if now - last > PATIENCE {
            return Err(format!("{way:?}: message {received} of {len} bytes is lost"));
        }
    }
}

fn measure(pool: &Pool, large: Pool, seconds: f64) -> Result<Sample, String> {
    let (mut a, mut b) = pair(&[pool, &large], pool, DEPTHS)?;
    let mut sender = Sender::new(&mut a, large)?;
    let mut sample = Sample::default();
    for len in SIZES {
        let mut turns: [Turns; 3] = Default::default();
        let rounds = (seconds / SIZES.len() as f64 / (TURNS.len() as f64 * SLICE.as_secs_f64())).ceil();
        for round in 0..=rounds as u32 {
            if round == 1 {
                // The first pass is the warm-up.
                turns = Default::default();
            }
            for way in TURNS {
                if let Some(turns) = turns.get_mut(way as usize) {
                    slice((&mut a, &mut b), pool, &mut sender, (way, len), turns)?;
                }
            }
        }
        let [gather, key, copy] = &turns;
        for (name, this) in [("gather", gather), ("key", key), ("copy", copy)] {
            let all = Figure::new(&format!("{len}.{name}"), "messages/s", this.rate());
            let driver = Figure::new(&format!("{len}.{name}-driver"), "ns/message", this.time());
            sample.figures.push(all.beside("gather", gather.rate()));
            sample.figures.push(driver.beside("gather", gather.time()));
        }
    }
    for (key, _) in sender.keys.drain(..) {
        a.hca.destroy_key(key).map_err(text)?;
    }
    for this in [a, b] {
        end(this)?;
    }
    let outstanding = pool.in_use() + sender.large.in_use();
    if outstanding != 0 {
        return Err(format!("{outstanding} buffers are not home"));
    }
    Ok(sample)
}

/// Buffers for copies in flight, for copies that have arrived but not completed, and for earlier ones without
/// a completion.
fn pools(cache: u16) -> Result<[Pool; 2], String> {
    let pool = |name, count, data_room| {
        Pool::create(name, &PoolConfig { count, data_room, cache, socket: -1 }).map_err(text)
    };
    Ok([pool("chains", BUFFERS, DATA_ROOM)?, pool("copies", 4 * WINDOW as u32, LARGE_ROOM)?])
}

/// Runs the benchmark once in this process, which must not have started EAL.
pub(crate) fn run(seconds: f64) -> Result<Sample, String> {
    let _eal = start_eal()?;
    let [pool, large] = pools(256)?;
    measure(&pool, large, seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_arrive_every_way_and_every_buffer_and_key_comes_home() {
        eal::for_tests();
        let [pool, large] = pools(0).unwrap();
        let sample = measure(&pool, large, 0.1).unwrap();
        assert_eq!(sample.figures.len(), 6 * SIZES.len());
        assert!(sample.figures.iter().all(|f| f.value > 0.0), "{sample:?}");
    }
}
