//! What a port tells of a frame that it received, and what it is to do to one that it sends: flags of its buffer.

use ::hca::Checksum;
use dpdk_sys as sys;

use super::mbuf::{Mbuf, raw};

/// The VLAN tag of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FrameTag {
    /// The port took none off: if there is one, it is in the frame.
    #[default]
    InFrame,
    /// The port took one off, with this control information (IEEE 802.1Q 9.6).
    Taken(u16),
    /// There are two at least (IEEE 802.1ad).
    Stacked,
}

/// What a port tells of a received frame beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameFacts {
    /// Its VLAN tag.
    pub tag: FrameTag,
    /// The checksum of its IPv4 header.
    pub checksum: Checksum,
}

/// Flags of a frame that has any facts.
const TOLD: u64 =
    sys::SHIM_RX_QINQ | sys::SHIM_RX_VLAN_STRIPPED | sys::SHIM_RX_IP_CKSUM_GOOD | sys::SHIM_RX_IP_CKSUM_BAD;

impl Mbuf {
    /// What the port that received the frame told of it; nothing of a packet that did not come from one.
    #[inline]
    #[must_use]
    pub fn frame_facts(&self) -> FrameFacts {
        let flags = raw::ol_flags(self.head());
        // Of most ports' frames it told nothing.
        if flags & TOLD == 0 {
            return FrameFacts::default();
        }
        let tag = if flags & sys::SHIM_RX_QINQ != 0 {
            FrameTag::Stacked
        } else if flags & sys::SHIM_RX_VLAN_STRIPPED != 0 {
            FrameTag::Taken(raw::vlan_tci(self.head()))
        } else {
            FrameTag::InFrame
        };
        // Two bits, and both of them say that the checksum is not there.
        let about = flags & (sys::SHIM_RX_IP_CKSUM_GOOD | sys::SHIM_RX_IP_CKSUM_BAD);
        let checksum = if about == 0 || self.is_tunnel(flags) {
            Checksum::Unknown
        } else if about == sys::SHIM_RX_IP_CKSUM_GOOD {
            Checksum::Good
        } else if about == sys::SHIM_RX_IP_CKSUM_BAD {
            // Not every driver tells of the kinds of all tunnels.
            Checksum::Unknown
        } else {
            Checksum::Missing
        };
        FrameFacts { tag, checksum }
    }

    /// True of a packet in a packet (VXLAN, GRE, IP in IP): what ports say of its header is said of the inner one.
    fn is_tunnel(&self, flags: u64) -> bool {
        raw::packet_type(self.head()) & sys::SHIM_PTYPE_TUNNEL != 0
            || flags & sys::SHIM_RX_OUTER_IP_CKSUM_BAD != 0
    }

    /// Wishes that the port puts a VLAN tag with this control information into the frame as it sends it. Only for ports that
    /// do ([`EthQueue::inserts_tags`](crate::eth::EthQueue::inserts_tags)); others ignore it.
    #[inline]
    pub fn wish_tag(&mut self, control: u16) {
        let m = self.head();
        raw::set_vlan_tci(m, control);
        raw::set_ol_flags(m, raw::ol_flags(m) | sys::SHIM_TX_VLAN);
    }

    /// The control information of the tag that [`Mbuf::wish_tag`] asked for.
    #[must_use]
    pub fn wished_tag(&self) -> Option<u16> {
        let m = self.head();
        (raw::ol_flags(m) & sys::SHIM_TX_VLAN != 0).then(|| raw::vlan_tci(m))
    }

    /// Sets the flags as a port would have, for tests of what follows from them.
    #[cfg(test)]
    pub(super) fn set_flags(&mut self, flags: u64, kind: u32, tci: u16) {
        raw::set_packet_type(self.head(), kind);
        raw::set_ol_flags(self.head(), flags);
        raw::set_vlan_tci(self.head(), tci);
    }
}
