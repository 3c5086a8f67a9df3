//! Copies of payloads. The C library takes `rep movsb` for some thousand bytes where the processor says that it is fast, which it is not where
//! the bytes begin in the middle of a cache line, as they do in a packet.

/// Bytes from which on they are copied here.
const LARGE: usize = 1024;

/// Copies `len` bytes.
///
/// # Safety
/// As of [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= LARGE && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise; the processor has what it takes.
        return unsafe { wide::copy(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};

    const WORD: usize = size_of::<__m256i>();
    const BLOCK: usize = 8 * WORD;
    const _: () = assert!(BLOCK <= super::LARGE);

    /// # Safety
    /// As of [`std::ptr::copy_nonoverlapping`], for [`super::LARGE`] bytes and more.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: all of it lies within `len` bytes, which are more than a block.
        unsafe { block(from, to) };
        // Then whole words of the destination; the last block overlaps the one before it.
        let (mut at, last) = (BLOCK - to.addr() % WORD, len - BLOCK);
        while at + BLOCK < last {
            // SAFETY: both blocks begin below `last`, behind which there is one more.
            unsafe {
                block(from.add(at), to.add(at));
                block(from.add(at + BLOCK), to.add(at + BLOCK));
            }
            at += 2 * BLOCK;
        }
        if at < last {
            // SAFETY: `at` is below `last`, behind which there is one block.
            unsafe { block(from.add(at), to.add(at)) };
        }
        // SAFETY: it ends with the last byte.
        unsafe { block(from.add(last), to.add(last)) };
    }

    /// # Safety
    /// As of [`std::ptr::copy_nonoverlapping`], for [`BLOCK`] bytes.
    #[target_feature(enable = "avx")]
    #[inline]
    unsafe fn block(from: *const u8, to: *mut u8) {
        let (from, to) = (from.cast::<__m256i>(), to.cast::<__m256i>());
        // SAFETY: four words at a time, eight in all, of each; neither is asked to be aligned.
        unsafe {
            let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            let (c, d) = (_mm256_loadu_si256(from.add(2)), _mm256_loadu_si256(from.add(3)));
            _mm256_storeu_si256(to, a);
            _mm256_storeu_si256(to.add(1), b);
            _mm256_storeu_si256(to.add(2), c);
            _mm256_storeu_si256(to.add(3), d);
            let (a, b) = (_mm256_loadu_si256(from.add(4)), _mm256_loadu_si256(from.add(5)));
            let (c, d) = (_mm256_loadu_si256(from.add(6)), _mm256_loadu_si256(from.add(7)));
            _mm256_storeu_si256(to.add(4), a);
            _mm256_storeu_si256(to.add(5), b);
            _mm256_storeu_si256(to.add(6), c);
            _mm256_storeu_si256(to.add(7), d);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_is_copied_and_none_beside_them() {
        let from: Vec<u8> = (0..6000u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut to = vec![0; 6000];
        for len in (0..64).chain(900..1400).chain([4095, 4096, 4097, 5000]) {
            for (a, b) in [(0, 0), (1, 0), (0, 1), (7, 24), (33, 31), (64, 63)] {
                to.fill(0xee);
                // SAFETY: both vectors have 6000 bytes.
                unsafe { super::copy(from.as_ptr().add(a), to.as_mut_ptr().add(b), len) };
                assert!(to[b..b + len] == from[a..a + len], "{len} bytes from {a} to {b}");
                assert!(to[..b].iter().chain(&to[b + len..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
