//! Secrets, which neither logs nor errors show.

use std::fmt;

use crate::value::{Fault, MayLack, Value};

/// What gateways share that nobody else knows: 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl Secret {
    /// The bits, the first digit's first.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl MayLack for Secret {}

impl Value for Secret {
    type Raw = String;
    type Legal = ();

    fn read(key: &str, text: String, _: Option<()>) -> Result<Self, Fault> {
        let digits = Some(text).filter(|t| t.len() == 32 && t.bytes().all(|c| c.is_ascii_hexdigit()));
        digits
            .and_then(|t| u128::from_str_radix(&t, 16).ok())
            .map(|bits| Self(bits.to_be_bytes()))
            .ok_or_else(|| {
                Fault::new(
                    format!("{key} is not 32 hexadecimal digits"),
                    "write what `openssl rand -hex 16` prints",
                )
            })
    }

    /// None is ever a default.
    fn toml(&self) -> Option<String> {
        None
    }
}
