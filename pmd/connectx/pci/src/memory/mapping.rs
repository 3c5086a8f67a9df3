//! Files mapped into this process: the only unsafe code of this crate.
#![allow(unsafe_code, reason = "mappings have no safe face")]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use connectx::HostMemory;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Mappings that views may take.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
}

impl Budget {
    pub(super) fn new(mappings: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(mappings)) }
    }

    fn take(&self, n: usize) -> Option<Taken> {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(n)).ok()?;
        Some(Taken { budget: self.clone(), n })
    }
}

#[derive(Debug)]
struct Taken {
    budget: Budget,
    n: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.n, Ordering::Relaxed);
    }
}

/// A range of addresses of this process with memory of the guest.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    file: Option<Arc<OwnedFd>>,
    offset: u64,
    _taken: Option<Taken>,
}

// SAFETY: it owns a range of addresses; what lies there is reached by copies and atomics of `HostMemory` only.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing changes behind a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A part of a file. A file that is shorter is refused; one that is cut later raises SIGBUS, which is the client's doing,
    /// not its guest's.
    pub(super) fn new(file: OwnedFd, offset: u64, len: u64) -> Result<Self, Errno> {
        let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Errno::INVAL);
        }
        let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
        // SAFETY: a new range that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                offset,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, file: Some(Arc::new(file)), offset, _taken: None })
    }

    /// Runs of other mappings, by offset and length, side by side.
    pub(super) fn gather(runs: &[(&Arc<Self>, u64, u64)], budget: &Budget) -> Result<Self, Errno> {
        let len: u64 = runs.iter().map(|(_, _, len)| len).sum();
        let len = usize::try_from(len).ok().filter(|&len| len > 0).ok_or(Errno::INVAL)?;
        let taken = budget.take(runs.len() + 1).ok_or(Errno::NOMEM)?;
        // SAFETY: a new range that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        // From here on the range goes again whatever fails.
        let whole = Self { base, len, file: None, offset: 0, _taken: Some(taken) };
        let mut at = 0usize;
        for (mapping, offset, run) in runs {
            let file = mapping.file.as_ref().ok_or(Errno::INVAL)?;
            let run = usize::try_from(*run).map_err(|_| Errno::INVAL)?;
            if offset.checked_add(run as u64).is_none_or(|end| end > mapping.len as u64) {
                return Err(Errno::INVAL);
            }
            // SAFETY: `at + run` is at most `len`, the sum of all runs, so that only addresses of the range are replaced,
            // to which nothing points yet; the run lies within a mapping, and with that within its file.
            unsafe {
                rustix::mm::mmap(
                    whole.base.as_ptr().add(at).cast(),
                    run,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::FIXED,
                    file,
                    mapping.offset + offset,
                )?;
            }
            at += run;
        }
        Ok(whole)
    }

    /// All of it. Whoever gives it to the engine keeps this mapping until the engine's object is gone ([`Lease`](super::Lease)).
    pub(super) fn memory(&self) -> HostMemory {
        // SAFETY: mapped readable and writable as long as this lives, which is as long as any lease on it; no Rust reference to
        // these bytes is ever made.
        unsafe { HostMemory::new(self.base, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this one's, and nobody has it any more: leases are kept longer than the engine's objects.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
