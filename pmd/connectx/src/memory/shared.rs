//! Copies between memory of this process and memory that others write concurrently: a guest, another process,
//! another thread.
//!
//! Every access is defined under concurrent writes. It is a relaxed atomic, or an instruction in `asm!` that
//! is equivalent to relaxed atomics on the bytes. A copy of memory that changes meanwhile therefore contains
//! a mixture of old and new bytes, and has no other effect. Small aligned objects (work queue entries,
//! completions, contexts) are copied by words, each of which is old or new.
//!
//! Payloads are copied with wide registers. For some thousand bytes the C library uses `rep movsb` if the
//! processor reports it as fast. It is slow if the bytes begin in the middle of a cache line, as they do in a
//! packet.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();
/// Longest object that is copied by words although wide registers would be faster.
const SMALL: usize = 64;

/// Copies `into.len()` bytes out of shared memory.
///
/// # Safety
/// `into.len()` bytes at `from` are mapped and readable, and no Rust reference to them exists. Others may
/// write them.
#[inline(always)]
pub(crate) unsafe fn load(from: *const u8, into: &mut [u8]) {
    let len = into.len();
    if len <= SMALL && len.is_multiple_of(WORD) && from.cast::<u64>().is_aligned() {
        for (at, word) in into.chunks_exact_mut(WORD).enumerate() {
            // SAFETY: the word lies within the bytes that the caller promises, and is aligned, as `from` is.
            let shared = unsafe { AtomicU64::from_ptr(from.cast_mut().cast::<u64>().add(at)) };
            word.copy_from_slice(&shared.load(Ordering::Relaxed).to_ne_bytes());
        }
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= wide::LEAST {
        // SAFETY: the caller's promise; `into` belongs to this function alone.
        return unsafe { wide::copy(from, into.as_mut_ptr(), len) };
    }
    // SAFETY: the caller's promise.
    unsafe { load_words(from, into) }
}

/// Copies `bytes` into shared memory.
///
/// # Safety
/// `bytes.len()` bytes at `to` are mapped and writable, and no Rust reference to them exists. Others may read
/// and write them.
#[inline(always)]
pub(crate) unsafe fn store(bytes: &[u8], to: *mut u8) {
    let len = bytes.len();
    if len <= SMALL && len.is_multiple_of(WORD) && to.cast::<u64>().is_aligned() {
        for (at, word) in bytes.as_chunks().0.iter().enumerate() {
            // SAFETY: the word lies within the bytes that the caller promises, and is aligned, as `to` is.
            let shared = unsafe { AtomicU64::from_ptr(to.cast::<u64>().add(at)) };
            shared.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        return;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= wide::LEAST {
        // SAFETY: the caller's promise; nothing writes `bytes`.
        return unsafe { wide::copy(bytes.as_ptr(), to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { store_words(bytes, to) }
}

/// As [`load`], with words where the shared memory is aligned, and single bytes before and behind them.
///
/// # Safety
/// As for [`load`].
#[inline(never)]
unsafe fn load_words(from: *const u8, into: &mut [u8]) {
    // SAFETY: each byte lies within what the caller promises.
    let byte = |at| unsafe { AtomicU8::from_ptr(from.cast_mut().add(at)) }.load(Ordering::Relaxed);
    let front = from.align_offset(WORD).min(into.len());
    let (head, rest) = into.split_at_mut(front);
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    let behind = front + words.len() * WORD;
    (0..).zip(head).for_each(|(at, into)| *into = byte(at));
    for (n, word) in words.iter_mut().enumerate() {
        // SAFETY: as above; the word at `front` bytes behind `from` is aligned.
        let shared = unsafe { AtomicU64::from_ptr(from.cast_mut().add(front + n * WORD).cast()) };
        *word = shared.load(Ordering::Relaxed).to_ne_bytes();
    }
    (behind..).zip(tail).for_each(|(at, into)| *into = byte(at));
}

/// As [`store`], with words where the shared memory is aligned, and single bytes before and behind them.
///
/// # Safety
/// As for [`store`].
#[inline(never)]
unsafe fn store_words(bytes: &[u8], to: *mut u8) {
    // SAFETY: each byte lies within what the caller promises.
    let byte = |at, byte| unsafe { AtomicU8::from_ptr(to.add(at)) }.store(byte, Ordering::Relaxed);
    let front = to.align_offset(WORD).min(bytes.len());
    let (head, rest) = bytes.split_at(front);
    let (words, tail) = rest.as_chunks::<WORD>();
    let behind = front + words.len() * WORD;
    (0..).zip(head).for_each(|(at, from)| byte(at, *from));
    for (n, word) in words.iter().enumerate() {
        // SAFETY: as above; the word at `front` bytes behind `to` is aligned.
        let shared = unsafe { AtomicU64::from_ptr(to.add(front + n * WORD).cast()) };
        shared.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
    (behind..).zip(tail).for_each(|(at, from)| byte(at, *from));
}

/// Copies with wide registers. The instructions are opaque to the compiler, which therefore assumes nothing
/// about the bytes except what the copy returned.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    use std::arch::asm;

    /// Shortest copy: two halves of a register, which may overlap.
    pub(super) const LEAST: usize = 16;
    /// Bytes of one block.
    const BLOCK: usize = 256;
    /// Length from which on whole blocks are copied.
    const LARGE: usize = 1024;

    /// # Safety
    /// `len` bytes, at least [`LEAST`], are readable at `from` and writable at `to`, and the two ranges do
    /// not overlap.
    #[inline(always)]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise; the processor supports the registers that are used.
        unsafe {
            if len <= 32 {
                ends::<16>(from, to, len);
            } else if len <= 64 {
                ends::<32>(from, to, len);
            } else if !std::arch::is_x86_feature_detected!("avx") {
                narrow_run(from, to, len);
            } else if len <= 128 {
                wide_ends(from, to, len);
            } else if len < LARGE {
                wide_run(from, to, len);
            } else {
                blocks(from, to, len);
            }
        }
    }

    /// Copies the first and the last `N` bytes, 16 or 32, which may overlap.
    ///
    /// # Safety
    /// As for [`copy`], for `N` to 2 `N` bytes.
    #[inline(always)]
    unsafe fn ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
        const { assert!(N == 16 || N == 32) };
        let behind = len - N;
        // SAFETY: `N` bytes at both ends of the `len` bytes that `from` and `to` are valid for. All are read
        // before any is written.
        unsafe {
            if N == 16 {
                asm!(
                    "movups {a}, [{from}]", "movups {b}, [{from} + {behind}]",
                    "movups [{to}], {a}", "movups [{to} + {behind}], {b}",
                    from = in(reg) from, to = in(reg) to, behind = in(reg) behind,
                    a = out(xmm_reg) _, b = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            } else {
                asm!(
                    "movups {a}, [{from}]", "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + {behind}]", "movups {d}, [{from} + {behind} + 16]",
                    "movups [{to}], {a}", "movups [{to} + 16], {b}",
                    "movups [{to} + {behind}], {c}", "movups [{to} + {behind} + 16], {d}",
                    from = in(reg) from, to = in(reg) to, behind = in(reg) behind,
                    a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    /// The copy for processors without AVX.
    ///
    /// # Safety
    /// As for [`copy`], for more than 64 bytes.
    #[inline(never)]
    pub(super) unsafe fn narrow_run(from: *const u8, to: *mut u8, len: usize) {
        for at in (0..len - 64).step_by(64) {
            // SAFETY: 64 bytes at an offset with more bytes behind them.
            unsafe { ends::<32>(from.add(at), to.add(at), 64) };
        }
        // SAFETY: the last 64 bytes.
        unsafe { ends::<32>(from.add(len - 64), to.add(len - 64), 64) };
    }

    /// Copies the first and the last 64 bytes, which may overlap.
    ///
    /// # Safety
    /// As for [`copy`], for 64 to 128 bytes.
    #[target_feature(enable = "avx")]
    unsafe fn wide_ends(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: as in `ends`.
        unsafe {
            asm!(
                "vmovups {a}, [{from}]", "vmovups {b}, [{from} + 32]",
                "vmovups {c}, [{from} + {behind}]", "vmovups {d}, [{from} + {behind} + 32]",
                "vmovups [{to}], {a}", "vmovups [{to} + 32], {b}",
                "vmovups [{to} + {behind}], {c}", "vmovups [{to} + {behind} + 32], {d}",
                from = in(reg) from, to = in(reg) to, behind = in(reg) len - 64,
                a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _,
                options(nostack, preserves_flags),
            );
        }
        leave_wide();
    }

    /// # Safety
    /// As for [`copy`], for more than 128 bytes.
    #[target_feature(enable = "avx")]
    unsafe fn wide_run(from: *const u8, to: *mut u8, len: usize) {
        for at in (0..len - 128).step_by(128) {
            // SAFETY: 128 bytes at an offset with more bytes behind them.
            unsafe { half(from.add(at), to.add(at)) };
        }
        // SAFETY: the last 128 bytes.
        unsafe { half(from.add(len - 128), to.add(len - 128)) };
        leave_wide();
    }

    /// # Safety
    /// As for [`copy`], for at least [`LARGE`] bytes.
    #[target_feature(enable = "avx")]
    unsafe fn blocks(from: *const u8, to: *mut u8, len: usize) {
        const { assert!(BLOCK <= LARGE) };
        // SAFETY: the block lies within `len` bytes, which are more than a block.
        unsafe { block(from, to) };
        // Then aligned registers of the destination; the last block overlaps the one before it.
        let (mut at, last) = (BLOCK - to.addr() % 32, len - BLOCK);
        while at + BLOCK < last {
            // SAFETY: both blocks begin below `last`, which is followed by one more block.
            unsafe {
                block(from.add(at), to.add(at));
                block(from.add(at + BLOCK), to.add(at + BLOCK));
            }
            at += 2 * BLOCK;
        }
        if at < last {
            // SAFETY: `at` is below `last`, which is followed by one block.
            unsafe { block(from.add(at), to.add(at)) };
        }
        // SAFETY: the block ends with the last byte.
        unsafe { block(from.add(last), to.add(last)) };
        leave_wide();
    }

    /// # Safety
    /// As for [`copy`], for [`BLOCK`] bytes.
    #[target_feature(enable = "avx")]
    #[inline]
    unsafe fn block(from: *const u8, to: *mut u8) {
        // SAFETY: the two halves of a block.
        unsafe {
            half(from, to);
            half(from.add(BLOCK / 2), to.add(BLOCK / 2));
        }
    }

    /// Marks the upper halves of the registers as unused. Otherwise, instructions that use only the lower
    /// halves are slow on some processors. The compiler does this for its own code, but not for `asm!`.
    #[target_feature(enable = "avx")]
    #[inline]
    fn leave_wide() {
        // SAFETY: it changes no memory and only the named registers.
        unsafe {
            asm!(
                "vzeroupper",
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _, out("ymm6") _,
                out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _, out("ymm12") _,
                out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }

    /// # Safety
    /// As for [`copy`], for half of [`BLOCK`] bytes.
    #[target_feature(enable = "avx")]
    #[inline]
    unsafe fn half(from: *const u8, to: *mut u8) {
        // SAFETY: four registers, 128 bytes at each pointer; neither has to be aligned.
        unsafe {
            asm!(
                "vmovups {a}, [{from}]", "vmovups {b}, [{from} + 32]",
                "vmovups {c}, [{from} + 64]", "vmovups {d}, [{from} + 96]",
                "vmovups [{to}], {a}", "vmovups [{to} + 32], {b}",
                "vmovups [{to} + 64], {c}", "vmovups [{to} + 96], {d}",
                from = in(reg) from, to = in(reg) to,
                a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy between two slices of equal length.
    type Copy = fn(&[u8], &mut [u8]);

    #[test]
    fn every_byte_is_copied_and_no_other_is_written() {
        let from: Vec<u8> = (0..6000u32).map(|n| (n * 7 + n / 251) as u8).collect();
        // SAFETY: both slices have that number of bytes, which no other code uses.
        let copies: [Copy; 4] = unsafe {
            [
                |from, to| load(from.as_ptr(), to),
                |from, to| store(from, to.as_mut_ptr()),
                |from, to| load_words(from.as_ptr(), to),
                |from, to| store_words(from, to.as_mut_ptr()),
            ]
        };
        let mut to = vec![0; 6000];
        for len in (0..300).chain(900..1400).chain([4095, 4096, 4097, 5000]) {
            for (a, b) in [(0, 0), (1, 0), (0, 1), (7, 24), (33, 31), (64, 63)] {
                for copy in copies {
                    to.fill(0xee);
                    copy(&from[a..a + len], &mut to[b..b + len]);
                    assert!(to[b..b + len] == from[a..a + len], "{len} bytes from {a} to {b}");
                    assert!(to[..b].iter().chain(&to[b + len..]).all(|byte| *byte == 0xee));
                }
            }
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn a_processor_without_wide_registers_copies_the_same() {
        let from: Vec<u8> = (0..600u32).map(|n| (n * 7 + n / 251) as u8).collect();
        for len in 65..500 {
            let mut to = vec![0xee; 600];
            // SAFETY: both vectors have 600 bytes.
            unsafe { wide::narrow_run(from.as_ptr(), to.as_mut_ptr(), len) };
            assert!(to[..len] == from[..len] && to[len..].iter().all(|byte| *byte == 0xee), "{len}");
        }
    }

    /// Non-atomic accesses to memory through a pointer. The cable within a process has references to memory
    /// that belongs to this process alone (`Trust`).
    const RAW: [&str; 6] = [
        "copy_nonoverlapping",
        "ptr::copy",
        "_volatile",
        "from_raw_parts",
        "read_unaligned",
        "write_unaligned",
    ];
    const OWN_MEMORY: (&str, usize) = ("cable/ring.rs", 2);

    #[test]
    fn no_other_file_of_the_device_reaches_shared_memory_by_a_pointer() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut directories = vec![root.join("src"), root.join("pci/src")];
        let mut seen = 0;
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
                let is_test = entry.file_stem().is_some_and(|name| name == "tests");
                if entry.is_dir() && !is_test {
                    directories.push(entry);
                } else if entry.is_file() && !is_test && !entry.ends_with("memory/shared.rs") {
                    let source = std::fs::read_to_string(&entry).unwrap();
                    let count = RAW.iter().map(|raw| source.matches(raw).count()).sum::<usize>();
                    let allowed = if entry.ends_with(OWN_MEMORY.0) { OWN_MEMORY.1 } else { 0 };
                    assert_eq!(count, allowed, "{}: use HostMemory or `shared`", entry.display());
                    seen += 1;
                }
            }
        }
        assert!(seen > 50, "{seen} files");
    }
}
