//! Our own link-layer address is another one: the subnet manager gave the subnet another prefix, or the port another GUID.
//!
//! Peers know us by the GID. What was agreed under the old one ends: connections of both directions are closed and those in use opened
//! anew, lookups are repeated, groups joined by the new one. Datagrams go on by the paths that there are, for within a subnet they travel
//! by LID; so peers are told ([`super::Event::Readdressed`]) once the subnet administration has confirmed the new address, and asked for theirs.

use ib_wire::Gid;

/// The GID by which peers know us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct OwnAddress {
    /// The port's, last seen; none before it had any.
    gid: Option<Gid>,
    /// The one before: what we sent from it may still come back to us.
    former: Option<Gid>,
    /// Peers are to be told when the broadcast group is joined by the new one.
    pub(super) untold: bool,
}

impl OwnAddress {
    /// True if the GID is ours, or was before the last change.
    pub(super) fn is(&self, gid: Gid) -> bool {
        self.gid == Some(gid) || self.former == Some(gid)
    }

    /// True for a GID of the subnet as it was called before: a peer whose new GID we do not know yet.
    pub(super) fn is_left_behind(&self, peer: Gid) -> bool {
        let is = |gid: Option<Gid>| gid.is_some_and(|gid| gid.prefix() == peer.prefix());
        is(self.former) && !is(self.gid)
    }

    /// Notes what the port has now. The old GID, if that is another.
    pub(super) fn see(&mut self, gid: Gid) -> Option<Gid> {
        // A port that cannot be asked has not changed its address.
        if gid == Gid::ZERO {
            return None;
        }
        let old = self.gid.replace(gid).filter(|old| *old != gid)?;
        self.former = Some(old);
        self.untold = true;
        Some(old)
    }
}
