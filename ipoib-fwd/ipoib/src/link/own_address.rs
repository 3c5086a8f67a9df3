//! Changes of our own link-layer address: the subnet manager gave the subnet another prefix, or the port
//! another GUID.
//!
//! Peers know us by the GID. State that was agreed under the old GID ends:
//!
//! - Connections of both directions are closed, and those in use are reopened.
//! - Lookups are repeated, and groups are joined with the new GID.
//!
//! Datagrams continue on the existing paths, because within a subnet they travel by LID. Peers are therefore
//! notified ([`super::Event::Readdressed`]) only after subnet administration has confirmed the new address.
//! They are then queried for their own addresses.

use ib_wire::Gid;

/// The GID by which peers know us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct OwnAddress {
    /// The port's last known GID; `None` before it had any.
    gid: Option<Gid>,
    /// The previous GID: packets that we sent from it may still come back to us.
    former: Option<Gid>,
    /// Peers must be notified after the broadcast group is joined with the new GID.
    pub(super) unannounced: bool,
}

impl OwnAddress {
    /// True if the GID is ours, or was before the last change.
    pub(super) fn is(&self, gid: Gid) -> bool {
        self.gid == Some(gid) || self.former == Some(gid)
    }

    /// True for a GID with the subnet's former prefix: a peer whose new GID we do not know yet.
    pub(super) fn is_left_behind(&self, peer: Gid) -> bool {
        let is = |gid: Option<Gid>| gid.is_some_and(|gid| gid.prefix() == peer.prefix());
        is(self.former) && !is(self.gid)
    }

    /// Records the port's present GID. Returns the old one if it differs.
    pub(super) fn see(&mut self, gid: Gid) -> Option<Gid> {
        // A port that cannot be queried has not changed its address.
        if gid == Gid::ZERO {
            return None;
        }
        let old = self.gid.replace(gid).filter(|old| *old != gid)?;
        self.former = Some(old);
        self.unannounced = true;
        Some(old)
    }
}
