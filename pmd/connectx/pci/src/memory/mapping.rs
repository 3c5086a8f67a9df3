//! Files mapped into this process: the only unsafe code of this crate.
#![allow(unsafe_code, reason = "mappings have no safe face")]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use connectx::HostMemory;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// File system type (`f_type`) with huge pages, whose files are mapped and unmapped by whole huge pages.
const HUGETLBFS: u32 = 0x9584_58f6;

/// A range of this process's addresses with memory of the guest.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The part handed over by the client: offset from the base, and length.
    part: (usize, usize),
}

// SAFETY: it owns a range of addresses, whose memory is accessed only by copies and atomics of `HostMemory`.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing changes behind a shared reference.
unsafe impl Sync for Mapping {}

/// Mapping granularity of a file, if it is larger than a page.
fn unit(file: impl AsFd) -> Result<u64, Errno> {
    let system = rustix::fs::fstatfs(file)?;
    let huge = system.f_type as u32 == HUGETLBFS;
    Ok(if huge { u64::try_from(system.f_bsize).map_err(|_| Errno::INVAL)?.max(1) } else { 1 })
}

impl Mapping {
    /// Maps a part of a file. A file that is too short is rejected. One that is truncated later raises
    /// SIGBUS, which is the client's fault, not its guest's.
    pub(super) fn new(file: &OwnedFd, offset: u64, len: u64) -> Result<Self, Errno> {
        let size = u64::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| Errno::INVAL)?;
        let end = offset.checked_add(len).filter(|&end| end <= size && len > 0).ok_or(Errno::INVAL)?;
        // Whole huge pages, whatever part is requested: the kernel maps no less, and unmaps nothing smaller.
        let unit = unit(file)?;
        let from = offset - offset % unit;
        let until = end.checked_next_multiple_of(unit).ok_or(Errno::INVAL)?;
        let in_memory = |bytes: u64| usize::try_from(bytes).map_err(|_| Errno::INVAL);
        let (mapped, part) = (in_memory(until - from)?, (in_memory(offset - from)?, in_memory(len)?));
        // SAFETY: a new range that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                from,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len: mapped, part })
    }

    /// The memory handed over by the client. A caller that passes it to the engine keeps this mapping until
    /// the engine's object is destroyed ([`Lease`](super::Lease)).
    pub(super) fn memory(&self) -> Option<HostMemory> {
        // SAFETY: mapped readable and writable as long as this lives, which is as long as any lease on it; no
        // Rust reference to these bytes is ever created.
        unsafe { HostMemory::new(self.base, self.len) }.part(self.part.0, self.part.1)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this mapping, and nothing uses it any more: leases outlive the
        // engine's objects.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
