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

/// Reason why a pool could not be created.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A size is out of range.
    #[error("{what}: {value} is out of range ({limit})")]
    Size {
        /// The setting.
        what: &'static str,
        /// Requested value.
        value: usize,
        /// Valid range.
        limit: &'static str,
    },
    /// EAL does not have enough memory.
    #[error(
        "no memory for {count} packet buffers of {bytes} bytes: {reason}; reserve more hugepages \
         (scripts/setup --hugepages N), give EAL more memory (-m MEGABYTES), or lower buffers.count"
    )]
    Memory {
        /// Requested number of buffers.
        count: u32,
        /// Length of each buffer with headroom, in bytes.
        bytes: usize,
        /// DPDK's error text.
        reason: String,
    },
    /// EAL has not started or was cleaned up.
    #[error("EAL is not running: packet buffers need Eal::init")]
    NoEal,
    /// The name is not valid.
    #[error("pool name {0:?} has a NUL byte or more than 25 characters")]
    Name(String),
}

/// Settings of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Number of buffers.
    pub count: u32,
    /// Data room of a buffer without headroom, in bytes.
    pub data_room: u16,
    /// Number of buffers in each lcore's cache, 0 to 512.
    pub cache: u16,
    /// NUMA node; -1 for any.
    pub socket: i32,
}

/// A contiguous range of a pool's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zone {
    /// Start address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
}

#[derive(Debug)]
struct Owner(Option<Mempool>);

/// A mempool and the hold on EAL's memory.
#[derive(Debug)]
struct Mempool {
    pool: NonNull<sys::rte_mempool>,
    size: u32,
    _hold: Arc<Hold>,
}

// SAFETY: a mempool with the default (multi-producer, multi-consumer) ring may be used from any thread. Its
// per-lcore caches are indexed by the calling thread's own lcore id.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

/// Pools whose last handle was dropped but which could not be freed then.
static LATE: Mutex<Vec<Mempool>> = Mutex::new(Vec::new());

impl Drop for Owner {
    fn drop(&mut self) {
        LATE.lock().extend(self.0.take());
        free_late();
    }
}

/// Frees pools without a handle once all their buffers have returned.
///
/// A pool with a buffer in use must keep its memory. So must a pool into whose cache another lcore is
/// returning a buffer. Such pools stay until the next call, or until the process exits.
pub(crate) fn free_late() {
    if !crate::eal::caches_are_still() {
        return;
    }
    LATE.lock().retain(|late| {
        // SAFETY: the pool is valid until freed below.
        let home = unsafe { sys::rte_mempool_avail_count(late.pool.as_ptr()) } >= late.size;
        if home {
            // The acquire pairs with the count: a buffer counts as returned after its lcore has finished with
            // the pool's ring.
            fence(Ordering::Acquire);
            // SAFETY: it has no handle, no buffer of it is in use, and nobody accesses one of its caches.
            unsafe { sys::rte_mempool_free(late.pool.as_ptr()) };
        }
        !home
    });
}

/// Number of pools whose last handle was dropped but which still have memory, because some of their buffers
/// are or were in use.
#[must_use]
pub fn pools_left() -> usize {
    LATE.lock().len()
}

/// A pool of packet buffers. Clones refer to the same pool. It is freed with the last clone, or later if
/// buffers are still in use ([`pools_left`]).
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
    /// Creates a pool. EAL must be initialized.
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
        // DPDK limits a cache to two thirds of the pool.
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

    /// Allocates a buffer with one empty segment, whose data starts at [`HEADROOM`].
    #[must_use]
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is valid while a handle exists.
        let raw = unsafe { sys::shim_mbuf_alloc(self.pool.as_ptr()) };
        // SAFETY: the buffer from the pool has no other owner.
        NonNull::new(raw).map(|raw| unsafe { Mbuf::from_raw(raw) })
    }

    /// Adds `count` fresh buffers, limited to what fits; all or none. Returns true on success.
    pub fn alloc_bulk<const N: usize>(&self, count: usize, into: &mut ArrayVec<Mbuf, N>) -> bool {
        let count = count.min(into.remaining_capacity());
        let behind = into.len();
        // SAFETY: an `Mbuf` is a pointer to a chain, and there is room for `count` of them. The pool is
        // valid. It gives all of them or none, and what it gave is owned here.
        unsafe {
            let place = into.as_mut_ptr().add(behind).cast::<*mut sys::rte_mbuf>();
            let given = sys::shim_mbuf_alloc_bulk(self.pool.as_ptr(), place, count as u32) == 0;
            if given {
                into.set_len(behind + count);
            }
            given
        }
    }

    /// Like [`Pool::alloc_bulk`], but leaves the data range and flags as the last owner set them.
    ///
    /// Use it if the caller sets them anyway. Resetting each buffer touches its second cache line and takes
    /// longer than the allocation.
    pub(super) fn take_bulk<const N: usize>(&self, count: usize, into: &mut ArrayVec<Mbuf, N>) -> bool {
        let count = count.min(into.remaining_capacity());
        let behind = into.len();
        // SAFETY: as in `alloc_bulk`. A buffer in a pool has one segment, is direct and has one reference.
        // Nobody reads its data before the caller has set their offset and length, as the caller must.
        unsafe {
            let place = into.as_mut_ptr().add(behind).cast::<*mut sys::rte_mbuf>();
            let given = sys::shim_mbuf_raw_alloc_bulk(self.pool.as_ptr(), place, count as u32) == 0;
            if given {
                into.set_len(behind + count);
            }
            given
        }
    }

    /// Allocates a buffer, or a chain, with a copy of `bytes`.
    #[must_use]
    pub fn copy_from_slice(&self, bytes: &[u8]) -> Option<Mbuf> {
        let mut parts = bytes.chunks(usize::from(self.data_room).max(1));
        let mut first = self.alloc()?;
        if let Some(part) = parts.next() {
            first.append(part.len())?.copy_from_slice(part);
        }
        let mut tail: Option<Mbuf> = None;
        // From the end, so that each link is set once.
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

    /// Number of buffers that can be allocated now, including those in caches.
    #[must_use]
    pub fn available(&self) -> u32 {
        // SAFETY: the pool is valid while a handle exists.
        unsafe { sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }

    /// Number of buffers in use.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.size.saturating_sub(self.available())
    }

    /// Total number of buffers.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Data room of a buffer without headroom, in bytes.
    #[must_use]
    pub fn data_room(&self) -> usize {
        self.data_room.into()
    }

    /// Returns the memory of all buffers in as few zones as possible.
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
        // SAFETY: the pool is valid, and the vector outlives the call; it is used only during the call.
        unsafe {
            sys::rte_mempool_mem_iter(
                self.pool.as_ptr(),
                Some(visit),
                std::ptr::from_mut(&mut zones).cast::<c_void>(),
            )
        };
        zones.sort_by_key(|z| z.address);
        // Merge adjacent chunks into one zone.
        zones.dedup_by(|next, last| {
            let joined = last.address + last.length == next.address;
            if joined {
                last.length += next.length;
            }
            joined
        });
        zones
    }

    /// Returns the raw pointer for `rte_eth_rx_queue_setup`.
    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.pool.as_ptr()
    }
}
