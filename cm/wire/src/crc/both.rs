//! Both CRCs of a packet in one pass over its payload.
//!
//! What a message leaves when it is divided by a multiple of both generators tells what it leaves when it is divided by either. So the states of
//! both CRCs behind the headers, which the two sum differently, become one state, the payload is summed once, and the state is taken apart again.
//! Folding knows 64 bits and generators that end with 1: this one is the product of the invariant one and, twice, the variant one.

use std::sync::LazyLock;

use crc_fast::CrcParams;

/// Terms below x^32 of the invariant CRC's generator, and below x^16 of the variant one's (IBA 7.8).
const INVARIANT: u64 = 0x04c1_1db7;
const VARIANT: u64 = 0x100b;
const INVARIANT_BITS: usize = 32;
const VARIANT_BITS: usize = 16;
/// Bits of both.
const BITS: usize = INVARIANT_BITS + VARIANT_BITS;
/// Terms below x^64 of the product.
const PRODUCT: u64 = product(product(INVARIANT | 1 << INVARIANT_BITS));
const PRODUCT_BITS: usize = 64;

/// Times the variant CRC's generator, without carry and without what is x^64 and above.
const fn product(a: u64) -> u64 {
    let (mut sum, mut n) = (a << VARIANT_BITS, 0);
    while n < VARIANT_BITS {
        if VARIANT >> n & 1 == 1 {
            sum ^= a << n;
        }
        n += 1;
    }
    sum
}

/// What one bit more makes of a state of so many bits, least significant bit first.
const fn step(state: u64, generator: u64, bits: usize, bit: u64) -> u64 {
    let turned = generator.reverse_bits() >> (64 - bits);
    let next = state ^ bit;
    next >> 1 ^ (if next & 1 == 1 { turned } else { 0 })
}

/// What each bit of a state, apart from the others, is as the other kind of state. `from` and `to` are the same states as both kinds, and enough of
/// them to tell.
const fn inverted<const N: usize>(mut from: [u64; N], mut to: [u64; N]) -> [u64; N] {
    let mut bit = 0;
    while bit < N {
        let mut pivot = bit;
        while from[pivot] >> bit & 1 == 0 {
            pivot += 1;
        }
        (from[bit], from[pivot]) = (from[pivot], from[bit]);
        (to[bit], to[pivot]) = (to[pivot], to[bit]);
        let mut row = 0;
        while row < N {
            if row != bit && from[row] >> bit & 1 == 1 {
                from[row] ^= from[bit];
                to[row] ^= to[bit];
            }
            row += 1;
        }
        bit += 1;
    }
    to
}

/// By each four bits of a state.
type Table<const N: usize> = [[u64; 16]; N];

const fn table<const BITS: usize, const N: usize>(bits: [u64; BITS]) -> Table<N> {
    let mut table = [[0; 16]; N];
    let mut at = 0;
    while at < N {
        let mut value = 0;
        while value < 16 {
            let mut bit = 0;
            while bit < 4 {
                if value >> bit & 1 == 1 {
                    table[at][value] ^= bits[4 * at + bit];
                }
                bit += 1;
            }
            value += 1;
        }
        at += 1;
    }
    table
}

/// States behind messages of `N` bits of which one is set: those of both CRCs, the variant one above, and that of the product.
const fn states<const N: usize>() -> ([u64; N], [u64; N]) {
    let (mut apart, mut joint) = ([0; N], [0; N]);
    let mut message = 0;
    while message < N {
        let (mut invariant, mut variant) = (0, 0);
        let mut n = 0;
        while n < N {
            let bit = (n == message) as u64;
            invariant = step(invariant, INVARIANT, INVARIANT_BITS, bit);
            variant = step(variant, VARIANT, VARIANT_BITS, bit);
            joint[message] = step(joint[message], PRODUCT, PRODUCT_BITS, bit);
            n += 1;
        }
        apart[message] = invariant | variant << INVARIANT_BITS;
        message += 1;
    }
    (apart, joint)
}

/// From both states to one.
static JOIN: Table<{ BITS / 4 }> = {
    let (apart, joint) = states::<BITS>();
    table(inverted(apart, joint))
};
/// And back.
static PART: Table<{ PRODUCT_BITS / 4 }> = {
    let (apart, joint) = states::<PRODUCT_BITS>();
    table(inverted(joint, apart))
};

static FOLDED: LazyLock<CrcParams> =
    LazyLock::new(|| CrcParams::new("ICRC and VCRC", PRODUCT_BITS as u8, PRODUCT, 0, true, 0, 0));

#[inline]
fn mapped<const N: usize>(table: &Table<N>, state: u64) -> u64 {
    table.iter().enumerate().fold(0, |sum, (at, row)| {
        sum ^ row.get((state >> (4 * at) & 0xf) as usize).copied().unwrap_or_default()
    })
}

/// True if one pass is faster than two: where there is multiplication without carry.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn is_fast() -> bool {
    // The library asks for both.
    std::arch::is_x86_feature_detected!("pclmulqdq") && std::arch::is_x86_feature_detected!("sse4.1")
}

/// Elsewhere it was not measured.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const fn is_fast() -> bool {
    false
}

/// The states of both CRCs, without what is done to them at the end, behind `bytes`, from those ahead of them on.
pub(super) fn update((invariant, variant): (u32, u16), bytes: &[u8]) -> (u32, u16) {
    let mut params = *FOLDED;
    params.init_algorithm = mapped(&JOIN, u64::from(invariant) | u64::from(variant) << INVARIANT_BITS);
    let apart = mapped(&PART, crc_fast::checksum_with_params(params, bytes));
    (apart as u32, (apart >> INVARIANT_BITS) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit_by_bit(mut state: u64, generator: u64, bits: usize, bytes: &[u8]) -> u64 {
        for byte in bytes {
            for n in 0..8 {
                state = step(state, generator, bits, u64::from(byte >> n & 1));
            }
        }
        state
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn one_pass_is_both(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..4200),
            from in proptest::prelude::any::<(u32, u16)>(),
        ) {
            let expected = (
                bit_by_bit(from.0.into(), INVARIANT, INVARIANT_BITS, &bytes) as u32,
                bit_by_bit(from.1.into(), VARIANT, VARIANT_BITS, &bytes) as u16,
            );
            proptest::prop_assert_eq!(update(from, &bytes), expected);
        }
    }

    #[test]
    fn states_of_either_kind_are_the_same() {
        for n in 0..48 {
            let state = 0x1234_5678_9abc ^ 1 << n;
            assert_eq!(mapped(&PART, mapped(&JOIN, state)), state);
        }
    }
}
