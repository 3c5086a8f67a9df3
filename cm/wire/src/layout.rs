//! Bit fields of management datagrams. The specification gives every layout as (offset, width) pairs, and the
//! declarations in this crate do the same. One macro generates the reader, the writer and the check of the
//! bounds.

use crate::{CommId, Gid, Guid, Lid, PKey, Psn, QKey, Qpn, Rate, ServiceId, ServiceLevel, Tid, TimeoutCode};

/// Reads `width` (at most 128) bits at bit `at`, most significant first. Bits outside of `bytes` read as 0.
pub(crate) fn get_bits(bytes: &[u8], at: usize, width: usize) -> u128 {
    let mut value = 0u128;
    let mut bit = at;
    let end = at + width;
    while bit < end {
        let byte = bytes.get(bit / 8).copied().unwrap_or(0);
        let take = (8 - bit % 8).min(end - bit);
        let part = (byte >> (8 - bit % 8 - take)) & low_mask(take);
        value = (value << take) | u128::from(part);
        bit += take;
    }
    value
}

/// Writes the lower `width` bits of `value` at bit `at`; neighboring bits do not change.
pub(crate) fn put_bits(bytes: &mut [u8], at: usize, width: usize, value: u128) {
    let mut bit = at;
    let end = at + width;
    while bit < end {
        let take = (8 - bit % 8).min(end - bit);
        let shift = 8 - bit % 8 - take;
        let part = ((value >> (end - bit - take)) as u8) & low_mask(take);
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte = (*byte & !(low_mask(take) << shift)) | (part << shift);
        }
        bit += take;
    }
}

const fn low_mask(bits: usize) -> u8 {
    if bits >= 8 { 0xff } else { (1 << bits) - 1 }
}

/// A value that a layout can contain.
pub(crate) trait Field: Sized {
    /// Reads the value from `width` bits at bit `at`.
    fn get(bytes: &[u8], at: usize, width: usize) -> Self;
    /// Writes the value to `width` bits at bit `at`.
    fn put(&self, bytes: &mut [u8], at: usize, width: usize);
}

/// Implements [`Field`] for types that convert from and to an integer.
macro_rules! integer_field {
    ($($ty:ty: |$v:ident| $get:expr, |$s:ident| $put:expr;)*) => {$(
        impl $crate::layout::Field for $ty {
            fn get(bytes: &[u8], at: usize, width: usize) -> Self {
                let $v = $crate::layout::get_bits(bytes, at, width);
                $get
            }
            fn put(&self, bytes: &mut [u8], at: usize, width: usize) {
                let $s = *self;
                $crate::layout::put_bits(bytes, at, width, ($put) as u128);
            }
        }
    )*};
}
pub(crate) use integer_field;

integer_field! {
    u8: |v| v as Self, |s| s;
    u16: |v| v as Self, |s| s;
    u32: |v| v as Self, |s| s;
    u64: |v| v as Self, |s| s;
    bool: |v| v != 0, |s| s;
    CommId: |v| Self(v as u32), |s| s.0;
    ServiceId: |v| Self(v as u64), |s| s.0;
    Guid: |v| Self(v as u64), |s| s.0;
    Tid: |v| Self(v as u64), |s| s.0;
    QKey: |v| Self(v as u32), |s| s.0;
    PKey: |v| Self(v as u16), |s| s.0;
    Lid: |v| Self(v as u16), |s| s.0;
    Qpn: |v| Self::new(v as u32), |s| s.get();
    Psn: |v| Self::new(v as u32), |s| s.get();
    Rate: |v| Self::new(v as u8), |s| s.code();
    ServiceLevel: |v| Self::new(v as u8), |s| s.get();
    TimeoutCode: |v| Self::new(v as u8), |s| s.code();
    Gid: |v| Self(v.to_be_bytes()), |s| u128::from_be_bytes(s.0);
}

impl<const N: usize> Field for [u8; N] {
    fn get(bytes: &[u8], at: usize, _width: usize) -> Self {
        let mut out = [0; N];
        if let Some(from) = bytes.get(at / 8..at / 8 + N) {
            out.copy_from_slice(from);
        }
        out
    }

    fn put(&self, bytes: &mut [u8], at: usize, _width: usize) {
        if let Some(to) = bytes.get_mut(at / 8..at / 8 + N) {
            to.copy_from_slice(self);
        }
    }
}

/// Declares a structure by the offsets of its fields: `name: Type = byte @ bit, width;`. Bytes count from the
/// start of the structure; bit 0 is the most significant of its byte.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident[$len:expr] {
            $($(#[$fmeta:meta])* $field:ident: $ty:ty = $byte:literal @ $bit:literal, $width:expr;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$fmeta])* pub $field: $ty,)*
        }

        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// Reads the structure. Every bit pattern is valid; reserved bits are dropped.
            #[must_use]
            pub fn parse(bytes: &[u8; $len]) -> Self {
                <Self as $crate::layout::Field>::get(bytes, 0, Self::LEN * 8)
            }

            /// Writes the structure; reserved bits of `bytes` do not change.
            pub fn write(&self, bytes: &mut [u8; $len]) {
                $crate::layout::Field::put(self, bytes, 0, Self::LEN * 8);
            }
        }

        impl $crate::layout::Field for $name {
            fn get(bytes: &[u8], at: usize, _width: usize) -> Self {
                Self {
                    $($field: <$ty as $crate::layout::Field>::get(bytes, at + $byte * 8 + $bit, $width),)*
                }
            }

            fn put(&self, bytes: &mut [u8], at: usize, _width: usize) {
                $($crate::layout::Field::put(&self.$field, bytes, at + $byte * 8 + $bit, $width);)*
            }
        }

        // Fields stay inside the structure and do not overlap.
        const _: () = {
            let mut end = 0;
            $(
                assert!($byte * 8 + $bit >= end, concat!("overlap at ", stringify!($field)));
                end = $byte * 8 + $bit + $width;
            )*
            assert!(end <= $len * 8, "too long");
        };
    };
}
pub(crate) use layout;

/// Declares an enum of wire codes that also keeps codes without a name.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident($int:ty) {
            $($(#[$vmeta:meta])* $variant:ident = $code:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $($(#[$vmeta])* $variant,)*
            /// A code without a name in this crate.
            Other($int),
        }

        impl $name {
            /// Every code that has a name.
            pub const NAMED: &'static [Self] = &[$(Self::$variant,)*];

            /// Converts from the wire code.
            #[must_use]
            pub const fn from_code(code: $int) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    other => Self::Other(other),
                }
            }

            /// The wire code.
            #[must_use]
            pub const fn code(self) -> $int {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(other) => other,
                }
            }
        }

        $crate::layout::integer_field! { $name: |v| Self::from_code(v as $int), |s| s.code(); }
    };
}
pub(crate) use open_enum;

/// Declares a number that is narrower than its integer type.
macro_rules! narrow_number {
    ($(#[$meta:meta])* $name:ident($int:ty, $bits:literal)) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name($int);

        impl $name {
            /// The largest value.
            pub const MAX: $int = (1 << $bits) - 1;

            /// Keeps the lower bits of `value` that fit into the field.
            #[must_use]
            pub const fn new(value: $int) -> Self {
                Self(value & Self::MAX)
            }

            /// The value.
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        $crate::layout::integer_field! { $name: |v| Self::new(v as $int), |s| s.get(); }
    };
}
pub(crate) use narrow_number;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_most_significant() {
        let bytes = [0b1010_0101, 0b1100_0011, 0xff];
        assert_eq!(get_bits(&bytes, 0, 4), 0b1010);
        assert_eq!(get_bits(&bytes, 5, 6), 0b10_1110);
        assert_eq!(get_bits(&bytes, 16, 16), 0xff00, "outside reads as zero");
    }

    #[test]
    fn put_leaves_neighbours() {
        let mut bytes = [0xff; 3];
        put_bits(&mut bytes, 5, 6, 0);
        assert_eq!(bytes, [0b1111_1000, 0b0001_1111, 0xff]);
        put_bits(&mut bytes, 5, 6, 0b10_1110);
        assert_eq!(get_bits(&bytes, 5, 6), 0b10_1110);
        put_bits(&mut bytes, 20, 16, 0xffff);
        assert_eq!(bytes[2], 0xff);
    }
}
