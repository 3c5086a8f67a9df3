//! The Internet checksum (RFC 1071).

/// One's complement sum of `bytes` as 16-bit big-endian words; an odd last byte is padded with zero.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> u16 {
    fold(raw(bytes))
}

/// The value for the checksum field of `bytes`, in which that field is zero.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    !sum(bytes)
}

/// True if `bytes`, including their checksum field, have the sum that RFC 1071 requires.
#[inline]
#[must_use]
pub fn is_valid(bytes: &[u8]) -> bool {
    sum(bytes) == 0xffff
}

/// [`is_valid`] for a header without options, which nearly every packet has.
#[inline(always)]
#[must_use]
pub fn is_valid_20(bytes: &[u8; 20]) -> bool {
    // RFC 1071 2.B: a sum in the machine's byte order differs only in that order, and 0xffff is the same in
    // both.
    let (words, _) = bytes.as_chunks::<4>();
    fold(words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum()) == 0xffff
}

#[inline]
fn raw(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    // 32-bit words: their halves fold together at the end, and 2^32 of them fit without a carry.
    let mut total: u64 = words.iter().map(|w| u64::from(u32::from_be_bytes(*w))).sum();
    let (halves, odd) = rest.as_chunks::<2>();
    for half in halves {
        total += u64::from(u16::from_be_bytes(*half));
    }
    if let [last] = odd {
        total += u64::from(*last) << 8;
    }
    total
}

#[inline]
const fn fold(mut total: u64) -> u16 {
    total = (total & 0xffff_ffff) + (total >> 32);
    total = (total & 0xffff) + ((total >> 16) & 0xffff) + (total >> 32);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    total as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn check_of_20_bytes_agrees_with_the_general_check(mut header: [u8; 20], bit in 0..320_usize) {
            assert_eq!(is_valid_20(&header), is_valid(&header));
            header[10..12].fill(0);
            let sum = checksum(&header).to_be_bytes();
            header[10..12].copy_from_slice(&sum);
            assert!(is_valid(&header) && is_valid_20(&header));
            if bit < 160 {
                header[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(is_valid_20(&header), is_valid(&header));
            }
        }
    }
}
