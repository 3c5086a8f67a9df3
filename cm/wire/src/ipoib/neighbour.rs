//! Link-layer address option of neighbor discovery (RFC 4861 section 4.6.1 with RFC 4391 section 9.3).

use super::{HARDWARE_ADDRESS_LEN, HardwareAddress};

/// Bytes of the option: three units of eight.
pub const LINK_OPTION_LEN: usize = 24;

/// Owner of the address in the option.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LinkOptionKind {
    /// The sender of the message.
    Source = 1,
    /// The target of the message.
    Target = 2,
}

/// A link-layer address option of an IPoIB interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkOption {
    /// Owner of the address.
    pub kind: LinkOptionKind,
    /// The address.
    pub address: HardwareAddress,
}

impl LinkOption {
    /// Reads one option from its type to its end. Returns `None` if it is another option or has another
    /// length.
    #[must_use]
    pub fn parse(option: &[u8]) -> Option<Self> {
        let b: &[u8; LINK_OPTION_LEN] = option.try_into().ok()?;
        let kind = match b[0] {
            1 => LinkOptionKind::Source,
            2 => LinkOptionKind::Target,
            _ => return None,
        };
        if usize::from(b[1]) * 8 != LINK_OPTION_LEN {
            return None;
        }
        let mut address = [0; HARDWARE_ADDRESS_LEN];
        address.copy_from_slice(&b[4..]);
        Some(Self { kind, address: HardwareAddress::from_bytes(&address) })
    }

    /// Converts to bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; LINK_OPTION_LEN] {
        let mut out = [0; LINK_OPTION_LEN];
        out[0] = self.kind as u8;
        out[1] = (LINK_OPTION_LEN / 8) as u8;
        out[4..].copy_from_slice(&self.address.to_bytes());
        out
    }
}

/// Iterates over the options of a neighbor discovery message; each item is one option from its type to its
/// end. The iterator stops at the first broken option (length 0, or beyond the message);
/// [`NdOptions::is_sound`] reports that case.
#[derive(Clone, Debug)]
pub struct NdOptions<'a> {
    rest: &'a [u8],
    sound: bool,
}

impl<'a> NdOptions<'a> {
    /// Iterates over `options`, the bytes after a message's fixed part.
    #[must_use]
    pub const fn new(options: &'a [u8]) -> Self {
        Self { rest: options, sound: true }
    }

    /// False once a broken option was found; such a message must be dropped (RFC 4861 section 4.6).
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.sound
    }
}

impl<'a> Iterator for NdOptions<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let len = self.rest.get(1).map_or(0, |&units| usize::from(units) * 8);
        match self.rest.split_at_checked(len) {
            Some((option, rest)) if len > 0 => {
                self.rest = rest;
                Some(option)
            }
            _ => {
                self.sound = false;
                self.rest = &[];
                None
            }
        }
    }
}
