//! Comparison of several integers at once.

/// Compares eight integers with `word`. Bit `i` of the result is set if `words[i]` is equal.
#[inline(always)]
#[must_use]
pub fn equal(words: &[u32; 8], word: u32) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{
            __m128i, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
            _mm_set1_epi32, _mm_setzero_si128,
        };
        let words = words.as_ptr().cast::<__m128i>();
        // SAFETY: every x86-64 has SSE2; 32 bytes are read where there are eight words, of any alignment.
        let mask = unsafe {
            let word = _mm_set1_epi32(word.cast_signed());
            let low = _mm_cmpeq_epi32(_mm_loadu_si128(words), word);
            let high = _mm_cmpeq_epi32(_mm_loadu_si128(words.add(1)), word);
            _mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128()))
        };
        mask.cast_unsigned()
    }
    #[cfg(not(target_arch = "x86_64"))]
    words.iter().enumerate().fold(0, |all, (at, other)| all | u32::from(*other == word) << at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_bit() {
        let words = [7, u32::MAX, 0, 1 << 31, 0x0a4d_0001, 7, 0x0100_4d0a, 8];
        for word in words.into_iter().chain([1, 9, 0x0a4d_0000]) {
            let expected = (0..8).filter(|at| words[*at] == word).fold(0, |all, at| all | 1 << at);
            assert_eq!(equal(&words, word), expected, "{word:#x}");
        }
        assert_eq!((equal(&words, 7), equal(&[3; 8], 3), equal(&[3; 8], 4)), (0x21, 0xff, 0));
    }
}
