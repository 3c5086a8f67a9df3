//! Tables of a port that are divided into blocks: GUIDs and P_Keys (IBA 14.2.5.5, 14.2.5.7).

use crate::layout::Field;
use crate::{Guid, PKey};

/// GUIDs in a block.
pub const GUID_BLOCK_LEN: usize = 8;
/// P_Keys in a block.
pub const PKEY_BLOCK_LEN: usize = 32;

/// Eight GUIDs of a port; the index of the first is 8 times the attribute modifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GuidBlock {
    /// The GUIDs; zero is an unused entry.
    pub guids: [Guid; GUID_BLOCK_LEN],
}

/// 32 P_Keys of a port (see [`PKeyBlock::modifier`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PKeyBlock {
    /// The keys; zero is an unused entry.
    pub keys: [PKey; PKEY_BLOCK_LEN],
}

impl PKeyBlock {
    /// Attribute modifier of a block; `port` is the port of a switch, 0 on other nodes.
    #[must_use]
    pub const fn modifier(block: u16, port: u8) -> u32 {
        block as u32 | (port as u32) << 16
    }

    /// The block and port that a modifier names.
    #[must_use]
    pub const fn place(modifier: u32) -> (u16, u8) {
        (modifier as u16, (modifier >> 16) as u8)
    }
}

macro_rules! block_field {
    ($($name:ident.$field:ident: $len:ident x $bits:literal;)*) => {$(
        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = 64;
        }

        impl Field for $name {
            fn get(bytes: &[u8], at: usize, _width: usize) -> Self {
                let mut block = Self::default();
                for (i, entry) in block.$field.iter_mut().enumerate() {
                    *entry = Field::get(bytes, at + i * $bits, $bits);
                }
                block
            }

            fn put(&self, bytes: &mut [u8], at: usize, _width: usize) {
                for (i, entry) in self.$field.iter().enumerate() {
                    entry.put(bytes, at + i * $bits, $bits);
                }
            }
        }

        const _: () = assert!($len * $bits == $name::LEN * 8);
    )*};
}

block_field! {
    GuidBlock.guids: GUID_BLOCK_LEN x 64;
    PKeyBlock.keys: PKEY_BLOCK_LEN x 16;
}
