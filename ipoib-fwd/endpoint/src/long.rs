//! Messages in more buffers than a send on the device can name. The worker sends them all the same, in one of
//! two ways: it copies them into one large buffer, or it sends them as one piece of memory under a key of
//! their own. A key costs the device more and the processor less
//! (`docs/dev/decisions/011-fast-registration.md`).
//!
//! Only the control lcore makes keys. A worker without a key requests one, and copies in the meantime. A key
//! whose connection failed is in doubt, and is returned to be made again. A key that is no longer needed is
//! returned to be destroyed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pmd::hca::{
    ChainSend, DoneBurst, MemoryWork, Outcome, PostError, RcSlot, Refused, Returned, UdSlot, WorkError,
};
use pmd::mem::key::{DoubtfulKey, FreeKey, KeyPool, KeyPoolConfig, PageList};
use pmd::mem::{HEADROOM, Mbuf, Pool};

/// Pieces that a list has room for: the number that fits an mlx5 list entry.
pub(crate) const LIST_ROOM: usize = 52;
/// Largest number of keys of a worker.
pub(crate) const KEYS: usize = 256;
/// Bytes of packet data in a large buffer, which then has no headroom. IPoIB's largest message, 65,524 bytes,
/// fits.
pub(crate) const LARGE_ROOM: u16 = u16::MAX - HEADROOM as u16;
/// Large buffers of a worker: copies that are being sent.
pub(crate) const LARGE_BUFFERS: u32 = 64;
/// Largest number of buffers of a message on a connection whose buffers hold `room` bytes of data each. The
/// header may have a buffer of its own, and so may the bytes before the data.
pub(crate) fn most_segments(room: usize) -> u32 {
    u32::try_from(65_524_usize.div_ceil(room.max(1)) + 2).unwrap_or(u32::MAX)
}

/// How to send messages in more buffers than a send can name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LongMessages {
    /// Copy them into one large buffer.
    #[default]
    Copy,
    /// Send them under a key of their own on devices that register lists of memory from a send queue; copy on
    /// others.
    Key,
}

/// Counters of messages in more buffers than a send can name. Written by one worker, read by the control
/// lcore.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    copied: AtomicU64,
    by_key: AtomicU64,
    waited: AtomicU64,
    doubtful: AtomicU64,
    keys: [AtomicU64; 6],
}

/// Statistics of messages in more buffers than a send can name, and of the pools of keys for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongStatistics {
    /// Messages that were copied into one large buffer.
    pub copied: u64,
    /// Messages that were sent under a key of their own.
    pub by_key: u64,
    /// Times that no large buffer was available; each try is counted.
    pub waited: u64,
    /// Keys that were made again because their connection failed.
    pub doubtful: u64,
    /// Keys in use.
    pub in_use: u64,
    /// Sum over the workers of the most keys that each used at once.
    pub most_in_use: u64,
    /// Idle keys.
    pub idle: u64,
    /// Times that a key was taken.
    pub taken: u64,
    /// Times that no key was available.
    pub missed: u64,
    /// Keys that were destroyed because they were not used for a long time.
    pub aged: u64,
}

fn add(cell: &AtomicU64) {
    // There is one writer, so a load and a store suffice.
    cell.store(cell.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl Counters {
    /// Adds the counters of this worker to `sum`.
    pub(crate) fn add_to(&self, sum: &mut LongStatistics) {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let [in_use, most, idle, taken, missed, aged] = self.keys.each_ref().map(get);
        sum.copied += get(&self.copied);
        sum.by_key += get(&self.by_key);
        sum.waited += get(&self.waited);
        sum.doubtful += get(&self.doubtful);
        sum.in_use += in_use;
        sum.most_in_use += most;
        sum.idle += idle;
        sum.taken += taken;
        sum.missed += missed;
        sum.aged += aged;
    }
}

/// A worker's requests to its control lcore about keys.
#[derive(Debug)]
pub enum KeyNote {
    /// Make another key, with room for this number of pieces.
    Wanted(u32),
    /// Make this key again: its connection failed.
    Doubtful(DoubtfulKey, PageList),
    /// Destroy this key: it is no longer needed.
    Unused(FreeKey),
}

/// A worker's keys.
#[derive(Debug)]
struct Keys {
    pool: KeyPool,
    /// One for each free key.
    lists: Vec<PageList>,
    /// Keys in use, with the messages that they send.
    outstanding: usize,
    /// A key is requested, and has not arrived yet.
    requested: bool,
    /// Notes that are not sent yet.
    notes: Vec<KeyNote>,
}

/// Sends a worker's messages in more buffers than a send can name.
#[derive(Debug, Default)]
pub(crate) struct Long {
    large: Option<Pool>,
    keys: Option<Box<Keys>>,
    counters: Arc<Counters>,
}

impl Long {
    /// Copies into buffers of `large`; with `by_key`, only if no key is available.
    pub(crate) fn new(large: Pool, by_key: bool, counters: Arc<Counters>) -> Self {
        let keys = by_key.then(|| {
            Box::new(Keys {
                pool: KeyPool::new(KeyPoolConfig { most: KEYS, ..KeyPoolConfig::default() }),
                lists: Vec::with_capacity(KEYS),
                outstanding: 0,
                requested: false,
                notes: Vec::with_capacity(2 * KEYS + 1),
            })
        });
        Self { large: Some(large), keys, counters }
    }

    /// Sends a message that a connection refused for its number of segments.
    #[cold]
    pub(crate) fn send_rc<Q: MemoryWork>(
        &mut self,
        queues: &mut Q,
        slot: RcSlot,
        buf: Mbuf,
    ) -> Result<(), Refused> {
        let buf = match self.by_key(queues, slot, buf) {
            Ok(()) => return Ok(()),
            Err(Refused { buf, error: PostError::TooManySegments }) => buf,
            Err(refused) => return Err(refused),
        };
        // A connection that holds more large buffers than are left waits, so that the others need not wait
        // for it.
        let left = self.large.as_ref().map_or(0, |large| large.available() as usize);
        if queues.rc_outstanding(slot) > left {
            add(&self.counters.waited);
            return Err(Refused { buf, error: PostError::Full });
        }
        self.copied(buf, |one| queues.send_rc(slot, one))
    }

    /// Sends a datagram that was refused for its number of segments.
    #[cold]
    pub(crate) fn send_ud<Q: MemoryWork>(
        &mut self,
        queues: &mut Q,
        slot: UdSlot,
        to: &Q::Destination,
        buf: Mbuf,
    ) -> Result<(), Refused> {
        self.copied(buf, |one| queues.send_ud(slot, to, one))
    }

    /// Copies and sends a message. Returns it unchanged if it was not sent.
    fn copied(&self, buf: Mbuf, send: impl FnOnce(Mbuf) -> Result<(), Refused>) -> Result<(), Refused> {
        let Some(large) = self.large.as_ref() else {
            return Err(Refused { buf, error: PostError::TooManySegments });
        };
        let Some(mut one) = large.alloc() else {
            add(&self.counters.waited);
            return Err(Refused { buf, error: PostError::Full });
        };
        if !one.set_data(0, buf.len()) || buf.read(0, one.data_mut()) != buf.len() {
            return Err(Refused { buf, error: PostError::TooManySegments });
        }
        match send(one) {
            Ok(()) => {
                add(&self.counters.copied);
                Ok(())
            }
            Err(Refused { error, .. }) => Err(Refused { buf, error }),
        }
    }

    /// Sends a message under a key. Returns [`PostError::TooManySegments`] if that is not possible.
    fn by_key<Q: MemoryWork>(&mut self, queues: &mut Q, slot: RcSlot, buf: Mbuf) -> Result<(), Refused> {
        let many = |buf| Refused { buf, error: PostError::TooManySegments };
        let Some(keys) = self.keys.as_mut() else { return Err(many(buf)) };
        let pieces = u32::try_from(buf.segment_count()).unwrap_or(u32::MAX);
        let Some((key, list)) = keys.take(pieces) else {
            self.publish();
            return Err(many(buf));
        };
        let sent = match queues.send_chain(slot, 0, ChainSend { key, list, buf }) {
            Ok(()) => {
                keys.outstanding += 1;
                add(&self.counters.by_key);
                Ok(())
            }
            Err(Returned { work: ChainSend { key, list, buf }, error }) => {
                keys.give_back(key, list);
                let error = match error {
                    WorkError::Post(error) => error,
                    _ => PostError::TooManySegments,
                };
                Err(Refused { buf, error })
            }
        };
        self.publish();
        sent
    }

    /// True if there is anything for [`Long::settle`].
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.outstanding > 0 || !keys.notes.is_empty())
    }

    /// Takes back what was sent under keys. Passes notes to `notify`, which returns a note that it has no
    /// room for.
    #[cold]
    pub(crate) fn settle<Q: MemoryWork>(
        &mut self,
        queues: &mut Q,
        mut notify: impl FnMut(KeyNote) -> Result<(), KeyNote>,
    ) {
        let Some(keys) = self.keys.as_mut() else { return };
        let mut done = DoneBurst::new();
        queues.take_done(&mut done);
        let any = !done.is_empty();
        for done in done {
            match done.what {
                Outcome::ChainSent(ChainSend { key, list, .. }) => {
                    keys.outstanding = keys.outstanding.saturating_sub(1);
                    keys.give_back(key, list);
                }
                Outcome::ChainNotSent(key, list) => {
                    keys.outstanding = keys.outstanding.saturating_sub(1);
                    keys.pool.forget();
                    keys.notes.push(KeyNote::Doubtful(key, list));
                    add(&self.counters.doubtful);
                }
                // No other work is posted.
                _ => {}
            }
        }
        while let Some(note) = keys.notes.pop() {
            if let Err(note) = notify(note) {
                keys.notes.push(note);
                break;
            }
        }
        if any {
            self.publish();
        }
    }

    /// Adds a key that the control lcore made.
    pub(crate) fn take_key(&mut self, key: FreeKey, list: PageList) {
        let Some(keys) = self.keys.as_mut() else { return };
        keys.requested = false;
        match keys.pool.add(key) {
            Ok(()) => keys.lists.push(list),
            Err(key) => keys.notes.push(KeyNote::Unused(key)),
        }
        self.publish();
    }

    /// Returns keys that are no longer needed.
    pub(crate) fn age(&mut self, now: Instant) {
        let Some(keys) = self.keys.as_mut() else { return };
        // A request that failed may succeed by now.
        keys.requested = false;
        let Keys { pool, lists, notes, .. } = &mut **keys;
        pool.age(now, |key| {
            lists.pop();
            notes.push(KeyNote::Unused(key));
        });
        self.publish();
    }

    fn publish(&self) {
        let Some(keys) = &self.keys else { return };
        let s = keys.pool.statistics();
        let values = [s.in_use as u64, s.most_in_use as u64, s.idle as u64, s.taken, s.missed, s.aged];
        for (cell, value) in self.counters.keys.iter().zip(values) {
            cell.store(value, Ordering::Relaxed);
        }
    }
}

impl Keys {
    fn take(&mut self, pieces: u32) -> Option<(FreeKey, PageList)> {
        if let Some(key) = self.pool.take(pieces) {
            if let Some(list) = self.lists.pop() {
                return Some((key, list));
            }
            let _ = self.pool.put(key);
        } else if !self.requested && self.pool.has_room() {
            self.requested = true;
            self.notes.push(KeyNote::Wanted(pieces));
        }
        None
    }

    fn give_back(&mut self, key: FreeKey, list: PageList) {
        self.lists.push(list);
        // The key is from this pool.
        let _ = self.pool.put(key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pmd::hca::MemoryKey;

    use super::*;

    fn key(index: u32) -> FreeKey {
        FreeKey::new(MemoryKey::new(index << 8), 64)
    }

    /// Keys without large buffers: no message is sent.
    fn long() -> Long {
        let pool = KeyPool::new(KeyPoolConfig { most: 4, ..KeyPoolConfig::default() });
        let keys = Keys { pool, lists: Vec::new(), outstanding: 0, requested: false, notes: Vec::new() };
        Long { large: None, keys: Some(Box::new(keys)), counters: Arc::default() }
    }

    fn statistics(long: &Long) -> LongStatistics {
        let mut sum = LongStatistics::default();
        long.counters.add_to(&mut sum);
        sum
    }

    #[test]
    fn keys_that_are_not_used_are_returned_and_that_is_counted() {
        let (mut long, start) = (long(), Instant::now());
        let period = KeyPoolConfig::default().idle;
        (1..=3).for_each(|n| long.take_key(key(n), PageList::new(LIST_ROOM)));
        let ages = |long: &mut Long, periods: u32, moment: Duration| {
            long.age(start + period * periods + moment);
            let Some(keys) = long.keys.as_mut() else { panic!() };
            let gone: Vec<u32> = std::mem::take(&mut keys.notes)
                .into_iter()
                .map(|note| match note {
                    KeyNote::Unused(key) => key.key().index(),
                    other => panic!("{other:?}"),
                })
                .collect();
            (gone, keys.lists.len())
        };
        // The period starts at the first check.
        assert_eq!(ages(&mut long, 0, Duration::ZERO), (vec![], 3));
        assert_eq!(ages(&mut long, 1, Duration::ZERO), (vec![], 3), "they may just have been used");
        // One key is used, and comes back.
        let Some((used, list)) = long.keys.as_mut().and_then(|keys| keys.take(64)) else { panic!() };
        let name = used.key().index();
        if let Some(keys) = long.keys.as_mut() {
            keys.give_back(used, list);
        }
        assert_eq!(ages(&mut long, 1, period / 2), (vec![], 3), "it is not time yet");
        let (mut gone, lists) = ages(&mut long, 2, Duration::ZERO);
        gone.push(name);
        gone.sort_unstable();
        assert_eq!((gone, lists), (vec![1, 2, 3], 1), "a key each, and its list");
        let s = statistics(&long);
        assert_eq!((s.aged, s.idle, s.in_use, s.taken, s.most_in_use), (2, 1, 0, 1, 1));
        assert_eq!(ages(&mut long, 3, Duration::ZERO), (vec![name], 0));
        assert_eq!((statistics(&long).aged, statistics(&long).idle), (3, 0));
    }

    #[test]
    fn a_surplus_key_is_returned_and_a_missing_one_is_requested_once() {
        let mut long = long();
        let notes = |long: &mut Long| {
            long.keys.as_mut().map(|keys| std::mem::take(&mut keys.notes)).unwrap_or_default()
        };
        for _ in 0..2 {
            assert!(long.keys.as_mut().is_some_and(|keys| keys.take(40).is_none()));
        }
        assert!(matches!(notes(&mut long)[..], [KeyNote::Wanted(40)]));
        (1..=5).for_each(|n| long.take_key(key(n), PageList::new(LIST_ROOM)));
        let returned = notes(&mut long);
        assert!(matches!(&returned[..], [KeyNote::Unused(key)] if key.key().index() == 5));
        assert_eq!((statistics(&long).idle, statistics(&long).missed), (4, 2));
    }
}
