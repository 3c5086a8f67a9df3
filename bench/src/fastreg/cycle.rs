//! Registration and invalidation of keys.

use std::time::{Duration, Instant};

use pmd::hca::{Backend, Fence, KeyRights, MemoryWork, Outcome, Registration};
use pmd::mem::key::{FreeKey, Memory, PageList, RegisteredKey};
use pmd::mem::{Mbuf, Pool};

use super::link::{End, Patience, SLOT};
use super::text;
use super::transfer::Pools;

/// Maximum of segments of a list within the work request.
pub(super) const INLINE: usize = 52;

/// A list of `pieces` segments. The buffers of `pool` hold the longest one at any offset.
fn list(pool: &Pool, pieces: usize) -> Result<PageList, String> {
    if pieces <= INLINE {
        return Ok(PageList::new(pieces));
    }
    Ok(PageList::in_buffer(pool.alloc().ok_or("the pool is empty")?))
}

/// A chain of `pieces` buffers of `bytes` bytes each, with arbitrary content.
pub(super) fn chain(pool: &Pool, pieces: usize, bytes: usize) -> Result<Mbuf, String> {
    let mut chain: Option<Mbuf> = None;
    for _ in 0..pieces {
        let mut one = pool.alloc().ok_or("the pool is empty")?;
        one.append(bytes).ok_or("a piece is longer than a buffer")?;
        if let Some(tail) = chain.take() {
            one.append_chain(tail);
        }
        chain = Some(one);
    }
    chain.ok_or_else(|| "a chain of nothing".to_owned())
}

/// Keys without memory, and the memory for them.
pub(super) struct Stock {
    free: Vec<(FreeKey, PageList, Mbuf)>,
    /// Registered keys, and their lists.
    pub(super) registered: Vec<(RegisteredKey, PageList)>,
    /// Lists of keys that are being invalidated.
    lists: Vec<PageList>,
    depth: usize,
}

impl Stock {
    /// `depth` keys, for chains of `pieces` buffers of `bytes` bytes each.
    pub(super) fn new<B: Backend>(
        hca: &mut B,
        pools: &Pools,
        depth: usize,
        (pieces, bytes): (usize, usize),
    ) -> Result<Self, String> {
        let each = |_| {
            let key = hca.create_key(pieces as u32).map_err(text)?;
            Ok((key, list(&pools.large, pieces)?, chain(&pools.pages, pieces, bytes)?))
        };
        let free = (0..depth).map(each).collect::<Result<_, String>>()?;
        Ok(Self { free, registered: Vec::with_capacity(depth), lists: Vec::with_capacity(depth), depth })
    }

    /// Posts a registration of each key.
    pub(super) fn register<Q: MemoryWork>(&mut self, queues: &mut Q) -> Result<(), String> {
        for (key, list, memory) in self.free.drain(..) {
            let memory = Memory::Chain(memory);
            let rights = KeyRights { remote_read: true, ..KeyRights::WRITE };
            let work = Registration { key, list, memory, start: 0, len: None, rights };
            queues.register(SLOT, 0, work).map_err(|returned| text(returned.error))?;
        }
        Ok(())
    }

    /// Posts an invalidation of each key.
    pub(super) fn invalidate<Q: MemoryWork>(&mut self, queues: &mut Q) -> Result<(), String> {
        for (key, list) in self.registered.drain(..) {
            self.lists.push(list);
            queues.invalidate(SLOT, 0, key, Fence::None).map_err(|returned| text(returned.error))?;
        }
        Ok(())
    }

    /// Takes completions; returns true if all have arrived.
    pub(super) fn take<B: Backend<Queues: MemoryWork>>(&mut self, end: &mut End<B>) -> Result<bool, String> {
        end.take(|what| {
            match what {
                Outcome::Registered(key, list) => self.registered.push((key, list)),
                Outcome::Invalidated(key, Some(memory)) => {
                    let list = self.lists.pop().ok_or("a key came back twice")?;
                    self.free.push((key, list, memory));
                }
                other => return Err(format!("work came back as {other:?}")),
            }
            Ok(())
        })?;
        Ok(self.free.len() == self.depth || self.registered.len() == self.depth)
    }

    /// Registers all, waits, invalidates all, waits.
    pub(super) fn cycle<B: Backend<Queues: MemoryWork>>(&mut self, end: &mut End<B>) -> Result<(), String> {
        self.register(&mut end.queues)?;
        self.wait(end)?;
        self.invalidate(&mut end.queues)?;
        self.wait(end)
    }

    fn wait<B: Backend<Queues: MemoryWork>>(&mut self, end: &mut End<B>) -> Result<(), String> {
        let mut patience = Patience::default();
        loop {
            end.turn()?;
            if self.take(end)? {
                return Ok(());
            }
            patience.turn()?;
        }
    }

    /// Returns the keys to their device.
    pub(super) fn close<B: Backend>(self, hca: &mut B) -> Result<(), String> {
        self.free.into_iter().try_for_each(|(key, _, _)| hca.destroy_key(key).map_err(text))
    }
}

/// Nanoseconds per cycle, with `depth` cycles at once; without the time of a device in this process, if that
/// is measured.
pub(super) fn cycles<B: Backend<Queues: MemoryWork>>(
    end: &mut End<B>,
    pools: &Pools,
    (pieces, bytes): (usize, usize),
    depth: usize,
    time: Duration,
) -> Result<f64, String> {
    let mut stock = Stock::new(&mut end.hca, pools, depth, (pieces, bytes))?;
    stock.cycle(end)?;
    let clocked = end.device.is_some();
    end.device = clocked.then_some(Duration::ZERO);
    let (begin, mut rounds) = (Instant::now(), 0_u32);
    while begin.elapsed() < time || rounds == 0 {
        stock.cycle(end)?;
        rounds += 1;
    }
    let all = begin.elapsed() - end.device.unwrap_or_default();
    stock.close(&mut end.hca)?;
    Ok(all.as_nanos() as f64 / (f64::from(rounds) * depth as f64))
}
