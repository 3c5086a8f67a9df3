//! Pools of packet buffers.

use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use arrayvec::ArrayVec;
use dpdk_sys as sys;
use parking_lot::Mutex;

use super::HEADROOM;
use super::mbuf::Mbuf;
use crate::eal::Hold;

/// Why a pool could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A size is out of range.
    #[error("{what}: {value} is out of range ({limit})")]
    Size {
        /// Which size.
        what: &'static str,
        /// What was asked for.
        value: usize,
        /// What would do.
        limit: &'static str,
    },
    /// EAL has not enough memory.
    #[error(
        "no memory for {count} packet buffers of {bytes} bytes: {reason}; reserve more hugepages \
         (scripts/setup --hugepages N), give EAL more memory (-m MEGABYTES), or lower buffers.count"
    )]
    Memory {
        /// How many buffers were asked for.
        count: u32,
        /// Bytes of each, with headroom.
        bytes: usize,
        /// DPDK's word for it.
        reason: String,
    },
    /// EAL has not started, or has ended.
    #[error("EAL does not run: packet buffers need Eal::init")]
    NoEal,
    /// The name cannot be used.
    #[error("pool name {0:?} has a NUL byte or more than 25 characters")]
    Name(String),
}

/// Sizes of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Number of buffers.
    pub count: u32,
    /// Bytes of packet data in one, without headroom.
    pub data_room: u16,
    /// Buffers that each lcore keeps at hand, 0 to 512.
    pub cache: u16,
    /// NUMA node; -1 = any.
    pub socket: i32,
}

/// A contiguous piece of a pool's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
}

#[derive(Debug)]
struct Owner(Option<Mempool>);

/// A mempool, and what keeps EAL's memory under it.
#[derive(Debug)]
struct Mempool {
    pool: NonNull<sys::rte_mempool>,
    size: u32,
    _hold: Arc<Hold>,
}

// SAFETY: a mempool with the default (multi-producer, multi-consumer) ring may be used from any thread; its per-lcore
// caches are indexed by the calling thread's own lcore id.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// Pools whose last handle is gone but which could not be freed then.
static LATE: Mutex<Vec<Mempool>> = Mutex::new(Vec::new());

impl Drop for Owner {
    fn drop(&mut self) {
        LATE.lock().extend(self.0.take());
        free_late();
    }
}

/// Frees pools without handle to which every buffer has come home. Buffers that a port or a program still holds must not
/// lose their memory, and another lcore that is just giving one back must not lose the cache it writes to: such pools stay,
/// for the next try, or until exit.
pub(crate) fn free_late() {
    if !crate::eal::caches_are_still() {
        return;
    }
    LATE.lock().retain(|late| {
        // SAFETY: the pool is valid until freed below.
        let home = unsafe { sys::rte_mempool_avail_count(late.pool.as_ptr()) } >= late.size;
        if home {
            // Behind the count: a buffer counts once its giver is done with the pool's ring.
            fence(Ordering::Acquire);
            // SAFETY: it has no handle, no buffer of it is out, and nobody is inside a cache of it.
            unsafe { sys::rte_mempool_free(late.pool.as_ptr()) };
        }
        !home
    });
}

/// Pools whose last handle is gone but which still have memory, because buffers of theirs are out or were when it went.
#[must_use]
pub fn pools_left() -> usize {
    LATE.lock().len()
}

/// A pool of packet buffers. Clones name the same pool; it is freed with the last one, or later, if buffers are still out
/// then ([`pools_left`]).
#[derive(Clone, Debug)]
pub struct Pool {
    _owner: Arc<Owner>,
    pool: NonNull<sys::rte_mempool>,
    data_room: u16,
    size: u32,
}

// SAFETY: the pointer is the owner's, which may be used from any thread.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Makes a pool. EAL must be initialised.
    pub fn create(name: &str, config: &PoolConfig) -> Result<Self, PoolError> {
        let size = |what, value, limit| Err(PoolError::Size { what, value, limit });
        if config.count == 0 {
            return size("buffers", 0, "at least 1");
        }
        let room = usize::from(config.data_room) + HEADROOM;
        let Ok(room16) = u16::try_from(room) else {
            return size("data room", config.data_room.into(), "at most 65,407");
        };
        if config.cache > 512 {
            return size("cache", config.cache.into(), "at most 512");
        }
        // DPDK wants a cache to be at most two thirds of the pool.
        let cache = u32::from(config.cache).min(config.count / 2);
        let c_name = CString::new(name)
            .ok()
            .filter(|n| n.as_bytes().len() <= 25)
            .ok_or_else(|| PoolError::Name(name.to_owned()))?;
        let hold = Hold::take().ok_or(PoolError::NoEal)?;
        // SAFETY: the name is a valid C string; sizes were checked; EAL runs.
        let pool = unsafe {
            sys::rte_pktmbuf_pool_create(c_name.as_ptr(), config.count, cache, 0, room16, config.socket)
        };
        match NonNull::new(pool) {
            Some(pool) => {
                let (data_room, size) = (config.data_room, config.count);
                let owner = Arc::new(Owner(Some(Mempool { pool, size, _hold: hold })));
                Ok(Self { _owner: owner, pool, data_room, size })
            }
            None => {
                Err(PoolError::Memory { count: config.count, bytes: room, reason: crate::eal::last_error() })
            }
        }
    }

    /// A fresh buffer of one empty segment, its data at [`HEADROOM`].
    #[must_use]
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is valid while a handle exists.
        let raw = unsafe { sys::shim_mbuf_alloc(self.pool.as_ptr()) };
        // SAFETY: what the pool gave is ours alone.
        NonNull::new(raw).map(|raw| unsafe { Mbuf::from_raw(raw) })
    }

    /// Adds `count` fresh buffers, but no more than fit; all or none. True if it did.
    pub fn alloc_bulk<const N: usize>(&self, count: usize, into: &mut ArrayVec<Mbuf, N>) -> bool {
        let count = count.min(into.remaining_capacity());
        let behind = into.len();
        // SAFETY: an `Mbuf` is a pointer to a chain, and there is room for `count` of them. The pool, which is valid, gives all of
        // them or none, and what it gave is ours alone.
        unsafe {
            let place = into.as_mut_ptr().add(behind).cast::<*mut sys::rte_mbuf>();
            let given = sys::shim_mbuf_alloc_bulk(self.pool.as_ptr(), place, count as u32) == 0;
            if given {
                into.set_len(behind + count);
            }
            given
        }
    }

    /// The same as they come from the pool, each of one segment: where its data lie, how long they are and what its flags tell is what its last
    /// owner left. For who sets all that anyway: to make `count` of them new, and to look at the second cache line of each, takes longer than to get them.
    pub(super) fn take_bulk<const N: usize>(&self, count: usize, into: &mut ArrayVec<Mbuf, N>) -> bool {
        let count = count.min(into.remaining_capacity());
        let behind = into.len();
        // SAFETY: as in `alloc_bulk`. What lies in a pool has one segment, is direct and has one reference. Of its data nobody reads before he
        // has said where they lie and how long they are, as the caller must.
        unsafe {
            let place = into.as_mut_ptr().add(behind).cast::<*mut sys::rte_mbuf>();
            let given = sys::shim_mbuf_raw_alloc_bulk(self.pool.as_ptr(), place, count as u32) == 0;
            if given {
                into.set_len(behind + count);
            }
            given
        }
    }

    /// A buffer, or a chain of them, with a copy of `bytes`.
    #[must_use]
    pub fn copy_from_slice(&self, bytes: &[u8]) -> Option<Mbuf> {
        let mut parts = bytes.chunks(usize::from(self.data_room).max(1));
        let mut first = self.alloc()?;
        if let Some(part) = parts.next() {
            first.append(part.len())?.copy_from_slice(part);
        }
        let mut tail: Option<Mbuf> = None;
        // From the end, so that each link is made once.
        for part in parts.rev() {
            let mut one = self.alloc()?;
            one.append(part.len())?.copy_from_slice(part);
            if let Some(behind) = tail.take() {
                one.append_chain(behind);
            }
            tail = Some(one);
        }
        if let Some(tail) = tail {
            first.append_chain(tail);
        }
        Some(first)
    }

    /// Buffers that the pool could give at this moment, those in caches included.
    #[must_use]
    pub fn available(&self) -> u32 {
        // SAFETY: the pool is valid while a handle exists.
        unsafe { sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }

    /// Buffers that are out.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.size.saturating_sub(self.available())
    }

    /// Buffers in all.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Bytes of packet data in one buffer, without headroom.
    #[must_use]
    pub fn data_room(&self) -> usize {
        self.data_room.into()
    }

    /// The memory of all buffers, as few zones as possible.
    #[must_use]
    pub fn zones(&self) -> Vec<Zone> {
        unsafe extern "C" fn visit(
            _pool: *mut sys::rte_mempool,
            arg: *mut c_void,
            header: *mut sys::rte_mempool_memhdr,
            _index: u32,
        ) {
            // SAFETY: `arg` is the vector that the call below passed, and `header` is valid during the call.
            let zones = unsafe { &mut *arg.cast::<Vec<Zone>>() };
            // SAFETY: as above.
            let header = unsafe { &*header };
            zones.push(Zone { address: header.addr as u64, length: header.len as u64 });
        }
        let mut zones: Vec<Zone> = Vec::new();
        // SAFETY: the pool is valid, and the vector outlives the call, which is the only time that it is used.
        unsafe {
            sys::rte_mempool_mem_iter(
                self.pool.as_ptr(),
                Some(visit),
                std::ptr::from_mut(&mut zones).cast::<c_void>(),
            )
        };
        zones.sort_by_key(|z| z.address);
        // Neighbouring chunks become one zone.
        zones.dedup_by(|next, last| {
            let joined = last.address + last.length == next.address;
            if joined {
                last.length += next.length;
            }
            joined
        });
        zones
    }

    /// For `rte_eth_rx_queue_setup`.
    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.pool.as_ptr()
    }
}
