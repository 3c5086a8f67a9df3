//! Types of configuration keys: their TOML form, valid values, and formatting.

use std::num::NonZeroU32;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;

/// An invalid value, with the location if only a part is invalid.
pub(crate) struct Fault {
    pub(crate) what: String,
    pub(crate) remedy: String,
    pub(crate) span: Option<Range<usize>>,
}

impl Fault {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), span: None }
    }
}

/// A type of a key.
pub(crate) trait Value: Sized {
    /// TOML form.
    type Raw: Clone;
    /// Limit of valid values, in addition to those of the type.
    type Legal;

    /// Parses a valid value.
    fn read(key: &str, raw: Self::Raw, legal: Option<Self::Legal>) -> Result<Self, Fault>;

    /// Formats the value in TOML, or returns `None` if only an omitted key has this meaning.
    fn toml(&self) -> Option<String>;

    /// True if objects created for this value also suit `other`.
    fn holds(&self, _other: &Self) -> bool {
        false
    }

    /// Describes the limit.
    fn range(_legal: Option<Self::Legal>) -> Option<String> {
        None
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Value for $type {
            type Raw = i64;
            type Legal = RangeInclusive<Self>;

            fn read(key: &str, raw: i64, legal: Option<Self::Legal>) -> Result<Self, Fault> {
                let legal = legal.unwrap_or(Self::MIN..=Self::MAX);
                Self::try_from(raw).ok().filter(|v| legal.contains(v)).ok_or_else(|| {
                    Fault::new(
                        format!("{key} = {raw} is out of range"),
                        format!("write a number from {} to {}", legal.start(), legal.end()),
                    )
                })
            }

            fn toml(&self) -> Option<String> {
                Some(self.to_string())
            }

            fn holds(&self, other: &Self) -> bool {
                other <= self
            }

            fn range(legal: Option<Self::Legal>) -> Option<String> {
                legal.map(|l| format!("{} to {}", l.start(), l.end()))
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

impl Value for bool {
    type Raw = Self;
    type Legal = ();

    fn read(_: &str, raw: Self, _: Option<()>) -> Result<Self, Fault> {
        Ok(raw)
    }

    fn toml(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// A type whose value may be absent, expressed by omitting the key.
pub(crate) trait MayLack: Value {}

impl MayLack for u32 {}
impl MayLack for u64 {}

impl<T: MayLack> Value for Option<T> {
    type Raw = T::Raw;
    type Legal = T::Legal;

    fn read(key: &str, raw: T::Raw, legal: Option<T::Legal>) -> Result<Self, Fault> {
        T::read(key, raw, legal).map(Some)
    }

    fn toml(&self) -> Option<String> {
        self.as_ref().and_then(T::toml)
    }

    fn range(legal: Option<T::Legal>) -> Option<String> {
        T::range(legal)
    }
}

/// Zero means none.
impl Value for Option<NonZeroU32> {
    type Raw = i64;
    type Legal = RangeInclusive<u32>;

    fn read(key: &str, raw: i64, legal: Option<Self::Legal>) -> Result<Self, Fault> {
        u32::read(key, raw, legal).map(NonZeroU32::new)
    }

    fn toml(&self) -> Option<String> {
        Some(self.map_or(0, NonZeroU32::get).to_string())
    }
}

impl Value for String {
    type Raw = Self;
    type Legal = ();

    fn read(_: &str, raw: Self, _: Option<()>) -> Result<Self, Fault> {
        Ok(raw)
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{self}\""))
    }
}

/// An empty string means none.
impl Value for Option<String> {
    type Raw = String;
    type Legal = ();

    fn read(_: &str, raw: String, _: Option<()>) -> Result<Self, Fault> {
        Ok(Some(raw).filter(|text| !text.is_empty()))
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{}\"", self.as_deref().unwrap_or_default()))
    }
}

/// An empty string means none.
impl Value for Option<PathBuf> {
    type Raw = String;
    type Legal = ();

    fn read(_: &str, raw: String, _: Option<()>) -> Result<Self, Fault> {
        Ok(Some(raw).filter(|text| !text.is_empty()).map(Into::into))
    }

    fn toml(&self) -> Option<String> {
        Some(format!("\"{}\"", self.as_deref().unwrap_or("".as_ref()).display()))
    }
}
