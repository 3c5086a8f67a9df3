//! RX offload metadata of received frames, and TX offload requests of frames to send, as flags of their
//! buffers.

use ::hca::Checksum;
use dpdk_sys as sys;

use super::mbuf::{Mbuf, raw};

/// The VLAN tag of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FrameTag {
    /// The port stripped no tag. A tag, if present, is still in the frame.
    #[default]
    InFrame,
    /// The port stripped a tag with this control information (IEEE 802.1Q 9.6).
    Taken(u16),
    /// The frame has at least two tags (IEEE 802.1ad).
    Stacked,
}

/// RX offload metadata of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameFacts {
    /// Its VLAN tag.
    pub tag: FrameTag,
    /// The checksum of its IPv4 header.
    pub checksum: Checksum,
}

/// Flags of a frame with any RX offload metadata.
const METADATA: u64 =
    sys::SHIM_RX_QINQ | sys::SHIM_RX_VLAN_STRIPPED | sys::SHIM_RX_IP_CKSUM_GOOD | sys::SHIM_RX_IP_CKSUM_BAD;

impl Mbuf {
    /// Returns the metadata that the receiving port set. It is empty for a packet that was not received from
    /// a port.
    #[inline]
    #[must_use]
    pub fn frame_facts(&self) -> FrameFacts {
        let flags = raw::ol_flags(self.head());
        // Most ports set no metadata.
        if flags & METADATA == 0 {
            return FrameFacts::default();
        }
        let tag = if flags & sys::SHIM_RX_QINQ != 0 {
            FrameTag::Stacked
        } else if flags & sys::SHIM_RX_VLAN_STRIPPED != 0 {
            FrameTag::Taken(raw::vlan_tci(self.head()))
        } else {
            FrameTag::InFrame
        };
        // If both bits are set, the checksum is missing.
        let about = flags & (sys::SHIM_RX_IP_CKSUM_GOOD | sys::SHIM_RX_IP_CKSUM_BAD);
        let checksum = if about == 0 || self.is_tunnel(flags) {
            Checksum::Unknown
        } else if about == sys::SHIM_RX_IP_CKSUM_GOOD {
            Checksum::Good
        } else if about == sys::SHIM_RX_IP_CKSUM_BAD {
            // Some drivers do not report all kinds of tunnels, so the result may belong to an inner header.
            Checksum::Unknown
        } else {
            Checksum::Missing
        };
        FrameFacts { tag, checksum }
    }

    /// True for an encapsulated packet (VXLAN, GRE, IP in IP). The port's checksum result then belongs to the
    /// inner header.
    fn is_tunnel(&self, flags: u64) -> bool {
        raw::packet_type(self.head()) & sys::SHIM_PTYPE_TUNNEL != 0
            || flags & sys::SHIM_RX_OUTER_IP_CKSUM_BAD != 0
    }

    /// Requests insertion of a VLAN tag with this control information on transmit.
    ///
    /// Ports that do not support it ([`EthQueue::inserts_tags`](crate::eth::EthQueue::inserts_tags)) ignore
    /// the request.
    #[inline]
    pub fn wish_tag(&mut self, control: u16) {
        let m = self.head();
        raw::set_vlan_tci(m, control);
        raw::set_ol_flags(m, raw::ol_flags(m) | sys::SHIM_TX_VLAN);
    }

    /// Returns the control information that [`Mbuf::wish_tag`] set.
    #[must_use]
    pub fn wished_tag(&self) -> Option<u16> {
        let m = self.head();
        (raw::ol_flags(m) & sys::SHIM_TX_VLAN != 0).then(|| raw::vlan_tci(m))
    }

    /// Sets the flags as a port would, for tests.
    #[cfg(test)]
    pub(super) fn set_flags(&mut self, flags: u64, kind: u32, tci: u16) {
        raw::set_packet_type(self.head(), kind);
        raw::set_ol_flags(self.head(), flags);
        raw::set_vlan_tci(self.head(), tci);
    }
}
