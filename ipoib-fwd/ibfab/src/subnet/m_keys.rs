//! M_Keys of the subnet's ports (IBA 14.2.4), which are known only to the subnet manager.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use ib_wire::Guid;
use ib_wire::smp::{PortInfo, ProtectBits};
use siphasher::sip::SipHasher24;

use super::{Node, PortId};

/// Protection of M_Keys: without the key, every requester may read, but cannot see the key and cannot write
/// (IBA 14.2.4.1).
const PROTECT_WRITES: u8 = 1;

/// Lease of a key in seconds: afterwards the key of a subnet manager that is gone no longer protects a port,
/// and the next one can take the port over (IBA 14.2.4.3). The subnet manager reads every port with its key
/// several times in that time.
const LEASE: u16 = 30;

/// The secret from which each port's M_Key is derived. Every port has a different key: its device sees the
/// key in management packets, and must not be able to change other ports or switches with it.
#[derive(Clone, Copy)]
pub struct MKeys([u8; 16]);

// A key must not appear in logs.
impl fmt::Debug for MKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MKeys(…)")
    }
}

impl MKeys {
    /// Derives M_Keys from these 128 bits.
    #[must_use]
    pub const fn new(secret: [u8; 16]) -> Self {
        Self(secret)
    }

    /// Creates unpredictable M_Keys.
    #[must_use]
    pub fn random() -> Self {
        let half = || RandomState::new().build_hasher().finish();
        Self(((u128::from(half()) << 64) | u128::from(half())).to_be_bytes())
    }

    /// Returns the key of a port with the GUID `port`, of a channel adapter at port `at` of a switch, or of a
    /// switch. It is never 0, which means no key. A node that claims to be another one is at another port,
    /// and gets a different key.
    pub(crate) fn of(self, at: Option<PortId>, node: Guid, port: Guid) -> u64 {
        let (switch, number) = at.unwrap_or_default();
        let mut hasher = SipHasher24::new_with_key(&self.0);
        for guid in [switch, node, port] {
            hasher.write(&guid.0.to_be_bytes());
        }
        hasher.write(&[number]);
        hasher.finish().max(1)
    }

    /// Returns the key of a discovered port. The ports of a switch share one key, that of port 0.
    pub(crate) fn of_port(self, node: &Node, number: u8) -> Option<u64> {
        let port = node.ports.get(&if node.is_switch() { 0 } else { number })?;
        let at = port.peer.filter(|_| !node.is_switch());
        Some(self.of(at, port.node.node_guid, port.guid))
    }

    /// Returns `info` with the key and its protection. `lasts` disables the lease, as for a switch that exits
    /// together with its subnet manager.
    pub(crate) fn protect(info: PortInfo, key: u64, lasts: bool) -> PortInfo {
        let mkey_lease = if lasts { 0 } else { LEASE };
        PortInfo { mkey: key, mkey_protect: ProtectBits::new(PROTECT_WRITES), mkey_lease, ..info }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_and_every_run_has_a_different_key() {
        let (keys, others) = (MKeys::random(), MKeys::random());
        let at = |number| Some((Guid(9), number));
        let key = keys.of(at(1), Guid(1), Guid(2));
        assert_eq!(keys.of(at(1), Guid(1), Guid(2)), key);
        for other in [
            keys.of(at(2), Guid(1), Guid(2)),
            keys.of(None, Guid(1), Guid(2)),
            keys.of(at(1), Guid(3), Guid(2)),
            keys.of(at(1), Guid(1), Guid(3)),
            others.of(at(1), Guid(1), Guid(2)),
        ] {
            assert_ne!(other, key);
        }
        assert_eq!(format!("{keys:?}"), "MKeys(…)");
    }
}
