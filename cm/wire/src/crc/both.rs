//! Both CRCs of a packet in one pass over its payload.
//!
//! The remainder of a message modulo a multiple of both generators determines its remainder modulo each
//! generator. The two CRCs sum the headers differently, so their states after the headers are joined into one
//! state. The payload is then summed once, and the state is split again. The library folds with generators
//! of 64 bits whose last term is 1. The generator here is the ICRC's times the VCRC's twice, which has 64
//! bits.

use std::sync::LazyLock;

use crc_fast::CrcParams;

/// Terms below x^32 of the invariant CRC's generator, and below x^16 of the variant one's (IBA 7.8).
const INVARIANT: u64 = 0x04c1_1db7;
const VARIANT: u64 = 0x100b;
const INVARIANT_BITS: usize = 32;
const VARIANT_BITS: usize = 16;
/// Bits of both states.
const BITS: usize = INVARIANT_BITS + VARIANT_BITS;
/// Terms below x^64 of the product.
const PRODUCT: u64 = product(product(INVARIANT | 1 << INVARIANT_BITS));
const PRODUCT_BITS: usize = 64;

/// `a` times the variant CRC's generator, carry-less, without the terms from x^64 on.
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

/// The state of `bits` bits after one more message bit, least significant bit first.
const fn step(state: u64, generator: u64, bits: usize, bit: u64) -> u64 {
    let turned = generator.reverse_bits() >> (64 - bits);
    let next = state ^ bit;
    next >> 1 ^ (if next & 1 == 1 { turned } else { 0 })
}

/// The linear map between two kinds of states: for each single bit of a state of the first kind, the state of
/// the second kind.
///
/// `from[n]` and `to[n]` are the two states of one message. The `from` states must be linearly independent.
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

/// One row for each four bits of a state, indexed by their value.
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

/// States after messages of `N` bits of which one bit is set: the states of both CRCs, the variant one in the
/// upper bits, and the state of the product.
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

/// Maps the states of both CRCs to the joint state.
static JOIN: Table<{ BITS / 4 }> = {
    let (apart, joint) = states::<BITS>();
    table(inverted(apart, joint))
};
/// Maps the joint state to the states of both CRCs.
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

/// True if one pass is faster than two, which needs carry-less multiplication.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn is_fast() -> bool {
    // The library requires both features.
    std::arch::is_x86_feature_detected!("pclmulqdq") && std::arch::is_x86_feature_detected!("sse4.1")
}

/// False on other architectures, for which there is no measurement.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const fn is_fast() -> bool {
    false
}

/// Advances the states of both CRCs over `bytes`. The states are raw: without initial or final inversion.
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
