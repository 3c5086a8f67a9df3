//! GUIDs, as a number or a string.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::value::{Fault, MayLack, Value};

/// A 64-bit identifier of a node or port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guid(pub u64);

impl MayLack for Guid {}

impl Value for Guid {
    type Raw = Self;
    type Legal = ();

    fn read(_: &str, raw: Self, _: Option<()>) -> Result<Self, Fault> {
        Ok(raw)
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{:#018x}\"", self.0))
    }
}

/// Parses a number, or hexadecimal digits with `0x` or colons.
impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct GuidVisitor;

        impl Visitor<'_> for GuidVisitor {
            type Value = Guid;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a GUID such as \"0x0002c90300a1b2c3\"")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Guid, E> {
                u64::try_from(value)
                    .ok()
                    .filter(|v| *v != 0)
                    .map(Guid)
                    .ok_or_else(|| E::custom("a GUID must be positive"))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Guid, E> {
                match value {
                    0 => Err(E::custom("a GUID must not be zero")),
                    value => Ok(Guid(value)),
                }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Guid, E> {
                let digits = match text.strip_prefix("0x") {
                    Some(digits) => digits.to_owned(),
                    None if text.split(':').count() == 4 && text.split(':').all(|p| p.len() == 4) => {
                        text.replace(':', "")
                    }
                    None => String::new(),
                };
                if digits.len() > 16 || !digits.chars().all(|c| c.is_ascii_hexdigit()) {
                    return Err(E::custom(format!("`{text}` is not a GUID such as \"0x0002c90300a1b2c3\"")));
                }
                match u64::from_str_radix(&digits, 16) {
                    Ok(value) if value != 0 => Ok(Guid(value)),
                    _ => Err(E::custom(format!("`{text}` is not a GUID such as \"0x0002c90300a1b2c3\""))),
                }
            }
        }

        deserializer.deserialize_any(GuidVisitor)
    }
}
