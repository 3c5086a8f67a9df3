//! Messages of 64 KiB in many segments: as a gather list, copied together, and read by the other end under a
//! key.

use std::time::{Duration, Instant};

use pmd::hca::{Backend, MemoryWork, Outcome, Queues, RemoteMemory};
use pmd::mem::{Mbuf, Pool};

use super::cycle::{Stock, chain};
use super::link::{Link, MESSAGE, READS, SLOT};
use super::text;

/// Messages in flight.
const WINDOW: u64 = 8;

/// Packet buffers: of 4 KiB, as in the gateway, and of 32 KiB for copies.
pub(super) struct Pools {
    pub(super) pages: Pool,
    pub(super) large: Pool,
}

/// Bytes of a large buffer.
pub(super) const LARGE: usize = MESSAGE / 2;

/// How the segments are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// Sent with an entry of the work request for each segment.
    Gathered,
    /// Copied into large buffers, which are sent.
    Copied,
    /// Registered as one key, which the other end reads, and invalidated.
    Keyed,
}

/// Copies a message's segments into large buffers.
fn copied(pieces: &Mbuf, pool: &Pool) -> Result<Mbuf, String> {
    let mut whole: Option<Mbuf> = None;
    for at in (0..MESSAGE).step_by(LARGE).rev() {
        let mut one = pool.alloc().ok_or("the pool is empty")?;
        pieces.read(at, one.append(LARGE).ok_or("a large buffer is too small")?);
        if let Some(tail) = whole.take() {
            one.append_chain(tail);
        }
        whole = Some(one);
    }
    whole.ok_or_else(|| "a message of nothing".to_owned())
}

fn sent<B: Backend<Queues: MemoryWork>>(
    link: &mut Link<B>,
    mut message: impl FnMut() -> Result<Mbuf, String>,
    time: Duration,
) -> Result<f64, String> {
    let begin = Instant::now();
    let (before, mut posted) = (link.ends[1].messages, 0);
    link.until(|link| {
        let arrived = link.ends[1].messages - before;
        let over = begin.elapsed() >= time && arrived > 0;
        while !over && posted - arrived < WINDOW {
            let refused = link.ends[0].queues.send_rc(SLOT, message()?);
            refused.map_err(|refused| text(refused.error))?;
            posted += 1;
        }
        Ok(over && arrived == posted)
    })?;
    Ok(posted as f64 / begin.elapsed().as_secs_f64())
}

fn keyed<B: Backend<Queues: MemoryWork>>(
    link: &mut Link<B>,
    pools: &Pools,
    (pieces, bytes): (usize, usize),
    time: Duration,
) -> Result<f64, String> {
    let mut stock = Stock::new(&mut link.ends[0].hca, pools, READS, (pieces, bytes))?;
    let mut targets: Vec<Mbuf> =
        (0..READS).map(|_| chain(&pools.pages, MESSAGE / 4096, 4096)).collect::<Result<_, _>>()?;
    let (begin, mut moved) = (Instant::now(), 0);
    while begin.elapsed() < time || moved == 0 {
        stock.register(&mut link.ends[0].queues)?;
        link.until(|link| stock.take(&mut link.ends[0]))?;
        for (key, _) in &stock.registered {
            let from = RemoteMemory { address: key.start(), rkey: key.key() };
            let into = targets.pop().ok_or("too few buffers")?;
            let posted = link.ends[1].queues.read(SLOT, 0, from, into);
            posted.map_err(|returned| text(returned.error))?;
        }
        link.until(|link| {
            link.ends[1].take(|what| match what {
                Outcome::Transferred(buf) => {
                    targets.push(buf);
                    Ok(())
                }
                other => Err(format!("an RDMA READ came back as {other:?}")),
            })?;
            Ok(targets.len() == READS)
        })?;
        moved += READS;
        stock.invalidate(&mut link.ends[0].queues)?;
        link.until(|link| stock.take(&mut link.ends[0]))?;
    }
    let rate = moved as f64 / begin.elapsed().as_secs_f64();
    stock.close(&mut link.ends[0].hca)?;
    Ok(rate)
}

/// Messages per second.
pub(super) fn rate<B: Backend<Queues: MemoryWork>>(
    link: &mut Link<B>,
    pools: &Pools,
    pieces: usize,
    how: How,
    time: Duration,
) -> Result<f64, String> {
    let each = (pieces, MESSAGE / pieces);
    match how {
        How::Gathered => sent(link, || chain(&pools.pages, each.0, each.1), time),
        How::Copied => {
            let from = chain(&pools.pages, each.0, each.1)?;
            sent(link, || copied(&from, &pools.large), time)
        }
        How::Keyed => keyed(link, pools, each, time),
    }
}
