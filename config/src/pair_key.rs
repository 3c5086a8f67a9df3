//! The shared secret of the gateways of a segment.

use std::fmt;

use crate::value::{Fault, MayLack, Value};

/// A 128-bit key with which gateways authenticate each other's messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PairKey([u8; 16]);

impl PairKey {
    /// Returns the bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }
}

// Keep the key out of logs.
impl fmt::Debug for PairKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairKey(…)")
    }
}

impl MayLack for PairKey {}

impl Value for PairKey {
    type Raw = String;
    type Legal = ();

    fn read(key: &str, raw: String, _: Option<()>) -> Result<Self, Fault> {
        let digits = raw.len() == 32 && raw.bytes().all(|digit| digit.is_ascii_hexdigit());
        let bits = u128::from_str_radix(&raw, 16).ok().filter(|_| digits);
        bits.map(|bits| Self(bits.to_be_bytes())).ok_or_else(|| {
            // Keep an invalid key out of logs too.
            Fault::new(
                format!("{key} is not a key"),
                "write 32 hexadecimal digits, the same on all gateways of a segment: openssl rand -hex 16",
            )
        })
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{:032x}\"", u128::from_be_bytes(self.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<PairKey> {
        PairKey::read("gateway.pair-key", text.to_owned(), None).ok()
    }

    #[test]
    fn a_key_is_thirty_two_digits_and_no_text_for_logs() {
        let key = read("000102030405060708090a0b0c0d0e0F");
        assert_eq!(key.map(PairKey::bytes), Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]));
        assert_eq!(key.and_then(|k| k.toml()).as_deref(), Some("\"000102030405060708090a0b0c0d0e0f\""));
        assert_eq!(format!("{key:?}"), "Some(PairKey(…))");
        for wrong in ["", "00", "+00102030405060708090a0b0c0d0e0f", "000102030405060708090a0b0c0d0e0f0"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
