//! Keys for workers' messages in many buffers: made on request, made again after an error, destroyed when
//! they are no longer needed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pmd::hca::Backend;
use pmd::mem::key::{KeyPool, PageList};
use pmd::mem::{Pool, PoolConfig};

use super::{Endpoint, EndpointConfig, EndpointError};
use crate::long::{KeyNote, LARGE_BUFFERS, LARGE_ROOM, LIST_ROOM, LongStatistics, most_segments};
use crate::message::{Command, Note};
use ipoib::link::WorkerIndex;

/// Time between two searches for keys that are no longer needed.
const AGE_PERIOD: Duration = Duration::from_secs(15);

/// Number of the next pool; names of pools must be unique in a process.
static POOLS: AtomicU32 = AtomicU32::new(0);

/// Creates and registers large buffers for messages in more buffers than the device sends. `None` if there
/// are no such messages.
pub(super) fn large_buffers<B: Backend>(
    hca: &mut B,
    config: &EndpointConfig,
    pool: &Pool,
) -> Result<Option<Pool>, EndpointError> {
    let most = hca.device().max_send_segments;
    let most = config.sizes.send_segments.map_or(most, |wanted| wanted.min(most));
    if most >= most_segments(pool.data_room()) {
        return Ok(None);
    }
    let number = POOLS.fetch_add(1, Ordering::Relaxed);
    let count = LARGE_BUFFERS * u32::from(config.workers.max(1));
    let sizes = PoolConfig { count, data_room: LARGE_ROOM, cache: 0, socket: -1 };
    let large = Pool::create(&format!("long-messages-{number}"), &sizes)?;
    hca.register_pool(&large)?;
    Ok(Some(large))
}

impl<B: Backend, C, N> Endpoint<B, C, N> {
    pub(super) fn take_key_note(&mut self, worker: WorkerIndex, note: KeyNote) {
        match note {
            KeyNote::Wanted(pieces) => {
                let Some(size) = KeyPool::size_for(pieces) else { return };
                let made = self.hca.create_key(size);
                if let (Some(key), Some(end)) =
                    (self.check(made), self.workers.get_mut(usize::from(worker.0)))
                {
                    // Any list serves any key.
                    end.send(Command::Key(key, PageList::new(LIST_ROOM)));
                }
            }
            // The failure of its connection may have been reported only just now.
            KeyNote::Doubtful(..) => self.doubtful_keys.push((worker, note)),
            KeyNote::Unused(key) => {
                let destroyed = self.hca.destroy_key(key);
                self.check(destroyed);
            }
        }
    }

    /// Makes keys again whose connections have failed. This frees the memory that they named.
    pub(super) fn renew_keys(&mut self) {
        for (worker, note) in std::mem::take(&mut self.doubtful_keys) {
            let KeyNote::Doubtful(key, list) = note else { continue };
            let renewed = self.hca.renew_key(key);
            if let (Some((key, _memory)), Some(end)) =
                (self.check(renewed), self.workers.get_mut(usize::from(worker.0)))
            {
                end.send(Command::Key(key, list));
            }
        }
    }

    /// Requests workers to return keys that are no longer needed.
    pub(super) fn age_keys(&mut self, now: Instant) {
        if self.keeps_keys && now.duration_since(self.keys_aged) >= AGE_PERIOD {
            self.keys_aged = now;
            for end in &mut self.workers {
                end.send(Command::AgeKeys(now));
            }
        }
    }

    /// Takes the keys that are left in the rings when workers have ended.
    pub(super) fn take_last_keys(&mut self) {
        for index in 0..self.workers.len() {
            while let Some(note) = self.workers.get_mut(index).and_then(|w| w.notes.receive()) {
                if let Note::Key(note @ (KeyNote::Doubtful(..) | KeyNote::Unused(_))) = note {
                    self.take_key_note(WorkerIndex(index as u8), note);
                }
            }
        }
        self.renew_keys();
    }

    /// Returns the statistics of messages in more buffers than a send can name.
    #[must_use]
    pub fn long_statistics(&self) -> LongStatistics {
        let mut sum = LongStatistics::default();
        self.workers.iter().for_each(|end| end.long.add_to(&mut sum));
        sum
    }
}
