//! The two CRCs at the end of a packet (IBA 7.8): the invariant CRC (ICRC) covers the fields that no switch
//! may change, the variant CRC (VCRC) covers the whole packet.
//!
//! The ICRC is kept as a running value, so that a packet can be summed piece by piece. The VCRC is summed in
//! one piece, by one of two equivalent methods. Short packets use tables, 16 bytes a step. From `FOLDED_FROM`
//! bytes on, the VCRC is folded with carry-less multiplication. If both CRCs of a long packet are computed or
//! checked, one pass over its payload is enough (`both`).

mod both;

use std::sync::LazyLock;

use crc::{Algorithm, Crc, Table};
use crc_fast::CrcParams;

use crate::packet::{BTH_LEN, GRH_LEN, LRH_LEN, Lnh};

/// IBA 7.8.2: generator 0x100B, sent least significant bit first.
const VCRC_ALGORITHM: Algorithm<u16> = Algorithm {
    width: 16,
    poly: 0x100b,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0,
    residue: 0,
};

/// Sixteen tables of 512 bytes: 16 bytes a step.
static TABLES: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&VCRC_ALGORITHM);

/// The same for processors with carry-less multiplication; the library detects the others.
static FOLDED: LazyLock<CrcParams> = LazyLock::new(|| {
    let Algorithm { poly, init, refin, xorout, .. } = VCRC_ALGORITHM;
    CrcParams::new("VCRC", 16, poly.into(), init.into(), refin, xorout.into(), 0)
});

/// Minimum length, in bytes, for which both CRCs are summed in one pass. One pass has a fixed cost: the
/// states after the headers are joined before the payload and split after it.
const BOTH_FROM: usize = 1536;

/// Minimum length, in bytes, for which folding is faster than tables.
const FOLDED_FROM: usize = 320;

/// Bytes of the invariant CRC.
pub const ICRC_LEN: usize = 4;
/// Bytes of the variant CRC.
pub const VCRC_LEN: usize = 2;

/// The variant CRC of a packet from LRH to ICRC (IBA 7.8.2).
#[must_use]
pub fn vcrc(packet: &[u8]) -> [u8; VCRC_LEN] {
    let crc = if packet.len() < FOLDED_FROM {
        TABLES.checksum(packet)
    } else {
        crc_fast::checksum_with_params(*FOLDED, packet) as u16
    };
    crc.to_le_bytes()
}

/// A running invariant CRC (IBA 7.8.1). The caller starts it with the headers, whose variant fields count as
/// ones, and then adds payload and pad bytes unchanged.
#[derive(Clone, Debug)]
pub struct Icrc(crc32fast::Hasher);

impl Icrc {
    /// Starts with the headers of a packet: `headers` begins with the LRH and reaches at least to the end of
    /// the BTH. Bytes after the BTH are summed unchanged. If the headers are shorter, those present are
    /// summed.
    #[must_use]
    pub fn new(headers: &[u8]) -> Self {
        // Copied to the stack because the masked image differs from what is sent.
        let mut masked = [0u8; LRH_LEN + GRH_LEN + BTH_LEN];
        let global = headers.get(1).is_some_and(|&b| Lnh::from_bits(b) == Lnh::Global);
        let len = if global { LRH_LEN + GRH_LEN + BTH_LEN } else { LRH_LEN + BTH_LEN };
        let (head, rest) = headers.split_at(len.min(headers.len()));
        if let Some(image) = masked.get_mut(..head.len()) {
            image.copy_from_slice(head);
        }
        if global {
            masked[..LRH_LEN].fill(0xff);
            masked[8] |= 0x0f; // traffic class, upper half
            masked[9..12].fill(0xff); // lower half, flow label
            masked[15] = 0xff; // hop limit
            masked[LRH_LEN + GRH_LEN + 4] = 0xff; // FECN, BECN, reserved
        } else {
            masked[0] |= 0xf0; // virtual lane
            masked[LRH_LEN + 4] = 0xff;
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(masked.get(..head.len()).unwrap_or_default());
        hasher.update(rest);
        Self(hasher)
    }

    /// Starts with the headers of a RoCEv2 packet over IPv4 or IPv6 (IBA annex A17.3.3): `ip` begins with the
    /// IP header and reaches at least to the end of the BTH. Returns `None` if `ip` is too short or has
    /// another version.
    #[must_use]
    pub fn rocev2(ip: &[u8]) -> Option<Self> {
        let mut masked = [0u8; 60 + UDP_LEN + BTH_LEN];
        let version = ip.first()? >> 4;
        let ip_len = match version {
            4 => usize::from(ip.first()? & 0xf) * 4,
            6 => 40,
            _ => return None,
        };
        if version == 4 && ip_len < 20 {
            return None;
        }
        let head = ip.get(..ip_len + UDP_LEN + BTH_LEN)?;
        masked.get_mut(..head.len())?.copy_from_slice(head);
        if version == 4 {
            masked[1] = 0xff; // type of service
            masked[8] = 0xff; // time to live
            masked[10..12].fill(0xff); // header checksum
        } else {
            masked[0] |= 0x0f; // traffic class and flow label
            masked[1..4].fill(0xff);
            masked[7] = 0xff; // hop limit
        }
        masked.get_mut(ip_len + 6..ip_len + 8)?.fill(0xff); // UDP checksum
        *masked.get_mut(ip_len + UDP_LEN + 4)? = 0xff;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&[0xff; LRH_LEN]); // where the LRH would be
        hasher.update(masked.get(..head.len())?);
        hasher.update(ip.get(head.len()..)?);
        Some(Self(hasher))
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The four bytes in wire order.
    #[must_use]
    pub fn finish(self) -> [u8; ICRC_LEN] {
        self.0.finalize().to_le_bytes()
    }
}

const UDP_LEN: usize = 8;

/// The invariant CRC of a packet from LRH to the last pad byte.
#[must_use]
pub fn icrc(packet: &[u8]) -> [u8; ICRC_LEN] {
    Icrc::new(packet).finish()
}

/// The invariant CRC of a RoCEv2 packet from its IP header to the last pad byte.
#[must_use]
pub fn icrc_rocev2(ip: &[u8]) -> Option<[u8; ICRC_LEN]> {
    Icrc::rocev2(ip).map(Icrc::finish)
}

/// The CRC of a packet that is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// The variant CRC, which is checked first.
    Variant,
    /// The invariant CRC.
    Invariant,
}

/// True if the last six bytes of `packet` (LRH to VCRC) are its correct ICRC and VCRC.
#[must_use]
pub fn verify(packet: &[u8]) -> bool {
    check(packet).is_ok()
}

/// Checks both CRCs, the last six bytes of `packet` (LRH to VCRC). The result is that of [`verify_vcrc`] and
/// then [`verify_icrc`], but a long packet takes one pass.
///
/// # Errors
/// Which CRC is wrong.
pub fn check(packet: &[u8]) -> Result<(), Wrong> {
    let sums = packet.split_last_chunk::<VCRC_LEN>().and_then(|(body, vcrc)| {
        let (covered, icrc) = body.split_last_chunk::<ICRC_LEN>()?;
        let (right, state) = both_sums(covered)?;
        Some((ended(state, *icrc) == *vcrc, right == *icrc))
    });
    let (vcrc, icrc) = match sums {
        Some(sums) => sums,
        None if verify_vcrc(packet) => (true, verify_icrc(packet)),
        None => (false, false),
    };
    match (vcrc, icrc) {
        (false, _) => Err(Wrong::Variant),
        (true, false) => Err(Wrong::Invariant),
        (true, true) => Ok(()),
    }
}

/// Both CRCs of a packet from LRH to the last pad byte.
#[must_use]
pub fn sums(covered: &[u8]) -> ([u8; ICRC_LEN], [u8; VCRC_LEN]) {
    if let Some((icrc, state)) = both_sums(covered) {
        return (icrc, ended(state, icrc));
    }
    let icrc = icrc(covered);
    if covered.len() < FOLDED_FROM {
        let mut digest = TABLES.digest();
        digest.update(covered);
        digest.update(&icrc);
        return (icrc, digest.finalize().to_le_bytes());
    }
    (icrc, ended(!(crc_fast::checksum_with_params(*FOLDED, covered) as u16), icrc))
}

/// The invariant CRC of a packet from LRH to the last pad byte, and the state of the variant CRC after the
/// same bytes. Returns `None` if the packet is too short for one pass to be faster, or has no invariant CRC.
#[inline]
fn both_sums(covered: &[u8]) -> Option<([u8; ICRC_LEN], u16)> {
    let len = match Lnh::from_bits(*covered.get(1)?) {
        Lnh::Local => LRH_LEN + BTH_LEN,
        Lnh::Global => LRH_LEN + GRH_LEN + BTH_LEN,
        Lnh::Raw | Lnh::RawIpv6 => return None,
    };
    if covered.len() < BOTH_FROM || !both::is_fast() {
        return None;
    }
    let (head, rest) = covered.split_at_checked(len)?;
    let states = (!Icrc::new(head).0.finalize(), !TABLES.checksum(head));
    let (invariant, variant) = both::update(states, rest);
    Some(((!invariant).to_le_bytes(), variant))
}

/// The variant CRC of a packet, continued over the invariant CRC from its `state` before it.
fn ended(state: u16, icrc: [u8; ICRC_LEN]) -> [u8; VCRC_LEN] {
    let mut digest = TABLES.digest_with_initial(state.reverse_bits());
    digest.update(&icrc);
    digest.finalize().to_le_bytes()
}

/// True if the last two bytes of `packet` (LRH to VCRC) are its correct VCRC.
#[must_use]
pub fn verify_vcrc(packet: &[u8]) -> bool {
    packet.split_last_chunk().is_some_and(|(covered, sent)| vcrc(covered) == *sent)
}

/// True if the four bytes before the last two of `packet` (LRH to VCRC) are its correct ICRC.
#[must_use]
pub fn verify_icrc(packet: &[u8]) -> bool {
    packet
        .split_last_chunk::<VCRC_LEN>()
        .and_then(|(rest, _)| rest.split_last_chunk())
        .is_some_and(|(covered, sent)| icrc(covered) == *sent)
}

/// Writes the correct CRCs to the end of `packet` (LRH to VCRC). A raw packet has no invariant CRC and gets
/// only the variant one. A packet that is too short for its CRCs stays unchanged.
pub fn seal(packet: &mut [u8]) {
    let Some((body, last)) = packet.split_last_chunk_mut::<VCRC_LEN>() else { return };
    let transport =
        body.get(1).map(|&b| Lnh::from_bits(b)).is_some_and(|lnh| matches!(lnh, Lnh::Local | Lnh::Global));
    if transport && let Some((covered, sum)) = body.split_last_chunk_mut::<ICRC_LEN>() {
        if covered.len() >= BOTH_FROM {
            (*sum, *last) = sums(covered);
            return;
        }
        *sum = icrc(covered);
    }
    *last = vcrc(body);
}

/// True if the last four bytes of a RoCEv2 packet, from its IP header to the ICRC, are its correct ICRC.
#[must_use]
pub fn verify_icrc_rocev2(ip: &[u8]) -> bool {
    ip.split_last_chunk().is_some_and(|(covered, sent)| icrc_rocev2(covered) == Some(*sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds one byte by the rule of IBA 7.8.2, bit by bit, without a table.
    fn bit_by_bit(mut crc: u16, byte: u8) -> u16 {
        crc ^= u16::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xd008 } else { crc >> 1 };
        }
        crc
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(8))]
        #[test]
        fn vcrc_is_the_polynomial_at_every_length(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 4200),
            from in 0usize..64,
        ) {
            let bytes = &bytes[from..];
            let mut crc = 0xffffu16;
            for len in 0..=bytes.len() {
                let expected = (crc ^ 0xffff).to_le_bytes();
                proptest::prop_assert_eq!(vcrc(&bytes[..len]), expected, "{} bytes", len);
                proptest::prop_assert_eq!(TABLES.checksum(&bytes[..len]).to_le_bytes(), expected);
                proptest::prop_assert_eq!((crc_fast::checksum_with_params(*FOLDED, &bytes[..len]) as u16).to_le_bytes(), expected);
                crc = bytes.get(len).map_or(crc, |byte| bit_by_bit(crc, *byte));
            }
        }
    }

    #[test]
    fn running_values_do_not_depend_on_the_cut() {
        let mut packet: Vec<u8> = (0..120u32).map(|i| (i * 31) as u8).collect();
        for lnh in [2, 3] {
            packet[1] = lnh;
            for cut in [60, 61, 80, 119] {
                let mut i = Icrc::new(&packet[..cut]);
                i.update(&packet[cut..]);
                assert_eq!(i.finish(), icrc(&packet));
            }
        }
    }

    #[test]
    fn one_pass_finds_what_two_find() {
        for (lnh, len) in [(2u8, 26), (2, 511), (2, 518), (2, 4122), (3, 600), (3, 4162), (0, 600)] {
            let mut packet: Vec<u8> = (0..len).map(|i| (i * 13 + i / 256) as u8).collect();
            packet[1] = lnh;
            packet[0] |= 0x0f;
            seal(&mut packet);
            let whole = packet.clone();
            let body = len - VCRC_LEN;
            let is_right = lnh >= 2;
            assert_eq!(check(&packet), if is_right { Ok(()) } else { Err(Wrong::Invariant) }, "{lnh} {len}");
            assert_eq!(vcrc(&packet[..body]), packet[body..]);
            for at in [0, 1, 4, 12, 19, 20, len / 2, len - 7, len - 6, len - 3, len - 2, len - 1] {
                packet[at] ^= 0x14;
                assert_eq!(check(&packet), Err(Wrong::Variant), "{lnh} {len}: byte {at}");
                assert!(!verify_vcrc(&packet));
                // The invariant CRC alone.
                let right = vcrc(&packet[..body]);
                packet[body..].copy_from_slice(&right);
                assert_eq!(check(&packet).is_ok(), verify_icrc(&packet), "{lnh} {len}: byte {at}");
                packet.copy_from_slice(&whole);
            }
        }
    }

    #[test]
    fn a_seal_makes_both_sums_right_and_leaves_what_a_raw_packet_ends_with() {
        for (lnh, len) in [(0u8, 64), (1, 64), (2, 64), (3, 84), (2, 4122)] {
            let mut packet: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            packet[1] = lnh;
            let before = packet.clone();
            seal(&mut packet);
            assert!(verify_vcrc(&packet));
            assert_eq!(verify_icrc(&packet), lnh >= 2, "{lnh}");
            let kept = if lnh >= 2 { len - 6 } else { len - 2 };
            assert_eq!(packet[..kept], before[..kept]);
        }
        for len in 0..12 {
            let mut short = vec![2; len];
            seal(&mut short);
            assert_eq!(verify_vcrc(&short), len >= VCRC_LEN);
        }
    }

    #[test]
    fn variant_fields_do_not_count_and_others_do() {
        let mut packet = vec![0u8; 64];
        packet[1] = 2;
        let sum = icrc(&packet);
        packet[0] = 0x30;
        packet[12] = 0xc0;
        assert_eq!(icrc(&packet), sum);
        packet[2] = 1;
        assert_ne!(icrc(&packet), sum);
    }
}
