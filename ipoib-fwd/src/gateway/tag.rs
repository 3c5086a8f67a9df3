//! VLAN tags of frames in buffers, in place (IEEE 802.1Q 9.3).

use ipoib::net::ethernet::{ETHERTYPE_VLAN, VLAN_TAG_LEN};
use pmd::mem::Mbuf;

/// Bytes of the two addresses, which precede the tag.
pub(super) const ADDRESSES: usize = 12;

/// A tag on the wire.
pub(super) const fn bytes(control: u16) -> [u8; VLAN_TAG_LEN] {
    let [k0, k1] = ETHERTYPE_VLAN.to_be_bytes();
    let [v0, v1] = control.to_be_bytes();
    [k0, k1, v0, v1]
}

/// Inserts a tag with this VLAN identifier and priority 0 into an untagged frame. False if there is no
/// headroom.
#[inline]
pub(super) fn insert(frame: &mut Mbuf, vid: u16) -> bool {
    if frame.prepend(VLAN_TAG_LEN).is_none() {
        return false;
    }
    let data = frame.data_mut();
    let Some(front) = data.get_mut(..ADDRESSES + VLAN_TAG_LEN) else { return false };
    front.copy_within(VLAN_TAG_LEN.., 0);
    if let Some(tag) = front.last_chunk_mut() {
        *tag = bytes(vid);
    }
    true
}

/// Removes the tag of a tagged frame. False if the frame is too short.
#[must_use]
pub(super) fn remove(frame: &mut Mbuf) -> bool {
    let Some(front) = frame.data_mut().get_mut(..ADDRESSES + VLAN_TAG_LEN) else { return false };
    front.copy_within(..ADDRESSES, VLAN_TAG_LEN);
    frame.trim_front(VLAN_TAG_LEN)
}
