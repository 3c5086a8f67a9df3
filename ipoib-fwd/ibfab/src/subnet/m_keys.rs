//! M_Keys of the subnet's ports (IBA 14.2.4), which only the subnet manager knows.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use ib_wire::Guid;
use siphasher::sip::SipHasher24;

/// The secret from which each port's M_Key follows. Every port has another one: its device sees it in management
/// packets, and must not change other ports or switches with it.
#[derive(Clone, Copy)]
pub struct MKeys([u8; 16]);

// A key is no text for logs.
impl fmt::Debug for MKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MKeys(…)")
    }
}

impl MKeys {
    /// M_Keys of these 128 bits.
    #[must_use]
    pub const fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    /// M_Keys that nobody can guess.
    #[must_use]
    pub fn random() -> Self {
        let half = || RandomState::new().build_hasher().finish();
        Self(((u128::from(half()) << 64) | u128::from(half())).to_be_bytes())
    }

    /// The key of the port with this GUID; never 0, which is no key.
    pub(crate) fn of(self, guid: Guid) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&guid.0.to_be_bytes());
        hasher.finish().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_and_every_run_has_another_key() {
        let (keys, others) = (MKeys::random(), MKeys::random());
        assert_eq!(keys.of(Guid(1)), keys.of(Guid(1)));
        assert_ne!(keys.of(Guid(1)), keys.of(Guid(2)));
        assert_ne!(keys.of(Guid(1)), others.of(Guid(1)));
        assert_eq!(format!("{keys:?}"), "MKeys(…)");
    }
}
