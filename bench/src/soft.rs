//! Messages between two software devices on one connection ([`crate::pair`]). A figure is of both drivers, both devices and the
//! link together.

use std::time::{Duration, Instant};

use dataplane::latency::{Recorder, Summary, empty};
use pmd::hca::Queues;
use pmd::mem::{Pool, PoolConfig};

use crate::pair::{Depths, End, PATIENCE, SLOT, end, is_message, message, pair, start_eal, text};
use crate::sample::{Figure, Sample, times};

/// Sizes of messages, bytes. The last is IPoIB's largest.
const SIZES: [usize; 5] = [64, 1024, 4096, 16_384, 65_524];
const LARGEST: usize = 65_524;
const DATA_ROOM: u16 = 4096;
const SRQ_DEPTH: u32 = 128;
const DEPTHS: Depths = Depths { send: 64, receive: [SRQ_DEPTH; 2], largest: LARGEST };
/// Two shared receive queues, and as much again on its way.
const BUFFERS: u32 = 4 * SRQ_DEPTH * 17;
/// Messages on their way. A receiver that has no buffer is a benchmark of something else.
const WINDOW: u64 = 64;
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

/// All sizes over one connection.
fn measure(pool: &Pool, seconds: f64) -> Result<Sample, String> {
    let (mut a, mut b) = pair(&[pool], pool, DEPTHS)?;
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
    let _eal = start_eal()?;
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
