//! The Ethernet header of a frame, with or without a VLAN tag. VLAN tags are read only here.

use ipoib::drop_reason::DropReason;
use ipoib::net::be16;
use ipoib::net::ethernet::{
    ETHERNET_HEADER_LEN, ETHERTYPE_IPV4, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, EthernetHeader,
    VLAN_TAG_LEN, vid_of,
};
use ipoib::net::ipv4::IPV4_HEADER_LEN;
use pmd::hca::Checksum;
use pmd::mem::{FrameFacts, FrameTag};

/// The headers of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// The ethertype behind the header and behind the tag, if there is one.
    pub ethertype: u16,
    /// The VLAN identifier; 0 without a tag or with a priority tag (IEEE 802.1Q 9.6).
    pub vid: u16,
    /// Length of the headers in front of the packet, in bytes.
    pub len: usize,
    /// The port's checksum status of the IP header.
    pub checksum: Checksum,
}

/// Ethertypes in memory order.
const PLAIN: u16 = ETHERTYPE_IPV4.to_be();
const TAGGED: u16 = ETHERTYPE_VLAN.to_be();

/// Bytes that a [`Glance`] needs: an Ethernet header, a tag and an IPv4 header. No wire delivers a shorter
/// frame (60 bytes, IEEE 802.3 4A.2.3.2.4).
pub(super) const GLANCED: usize = ETHERNET_HEADER_LEN + VLAN_TAG_LEN + IPV4_HEADER_LEN;
/// Offset of the bytes that distinguish frames: the ethertype, or the tag and the ethertype.
const KIND: usize = ETHERNET_HEADER_LEN - 2;

/// The headers of a frame in the common cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Glance {
    /// As [`FrameHead::vid`].
    pub(super) vid: u16,
    /// True if there is a tag in the frame.
    pub(super) tagged: bool,
}

impl Glance {
    /// The result of [`FrameHead::parse`] for IPv4 behind at most one tag. `None` for all other frames and
    /// for priority tags.
    #[inline(always)]
    pub(super) fn at(head: &[u8; GLANCED], tag: FrameTag) -> Option<Self> {
        let [a, b, c, d, e, f] = *head.get(KIND..)?.first_chunk()?;
        let ethertype = u16::from_ne_bytes([a, b]);
        match tag {
            FrameTag::InFrame if ethertype == PLAIN => Some(Self { vid: 0, tagged: false }),
            FrameTag::InFrame if ethertype == TAGGED && u16::from_ne_bytes([e, f]) == PLAIN => {
                let vid = vid_of(u16::from_be_bytes([c, d]));
                (vid != 0).then_some(Self { vid, tagged: true })
            }
            FrameTag::Taken(control) if ethertype == PLAIN => {
                Some(Self { vid: vid_of(control), tagged: false })
            }
            FrameTag::InFrame | FrameTag::Taken(_) | FrameTag::Stacked => None,
        }
    }

    /// As [`FrameHead::len`].
    #[inline(always)]
    pub(super) const fn len(self) -> usize {
        front(self.tagged)
    }
}

/// Length of the headers in front of the packet. It is computed from the flag, so the compiler knows its
/// upper bound.
#[inline(always)]
const fn front(tagged: bool) -> usize {
    if tagged { ETHERNET_HEADER_LEN + VLAN_TAG_LEN } else { ETHERNET_HEADER_LEN }
}

/// Signature of the frames that [`Glance::at`] reads in the same way, if their tags are in the frame. One
/// comparison of a word finds whether the next frame has the same signature.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    mask: u64,
    kind: u64,
    /// True if there is a tag.
    tagged: bool,
}

/// Mask of the VLAN identifier in the word. The other four bits of the field are priority and drop
/// eligibility.
const VID: u64 = u64::from_ne_bytes([0, 0, 0x0f, 0xff, 0, 0, 0, 0]);
/// Mask of the bits that identify a tag with IPv4 behind it.
const KINDS: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0]);
const TAGGED_PLAIN: u64 = {
    let ([tag, also], [a, b]) = (ETHERTYPE_VLAN.to_be_bytes(), ETHERTYPE_IPV4.to_be_bytes());
    u64::from_ne_bytes([tag, also, 0, 0, a, b, 0, 0])
};

/// The word of a frame that is compared with a signature.
#[inline(always)]
fn word(head: &[u8; GLANCED]) -> Option<u64> {
    Some(u64::from_ne_bytes(*head.get(KIND..)?.first_chunk()?))
}

impl Looks {
    /// The signature of no frame.
    pub(super) const NO_FRAME: Self = Self { mask: 0, kind: 1, tagged: false };

    /// The signature of a frame with IPv4 behind a tag, and its VLAN. `None` for all other frames and for
    /// priority tags. Bursts with frames of many VLANs call this for each frame, so it costs only one
    /// comparison.
    #[inline(always)]
    pub(super) fn of_tagged(head: &[u8; GLANCED]) -> Option<(Self, u16)> {
        let word = word(head)?;
        let [_, _, c, d, ..] = (word & VID).to_ne_bytes();
        let vid = u16::from_be_bytes([c, d]);
        (word & KINDS == TAGGED_PLAIN && vid != 0)
            .then_some((Self { mask: KINDS | VID, kind: word & (KINDS | VID), tagged: true }, vid))
    }

    /// The signature of frames with IPv4 and no tag.
    pub(super) const fn of_untagged() -> Self {
        let [a, b] = ETHERTYPE_IPV4.to_be_bytes();
        let mask = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
        Self { mask, kind: u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]), tagged: false }
    }

    /// Length of the headers in front of the packet, in bytes.
    #[inline(always)]
    pub(super) const fn len(&self) -> usize {
        front(self.tagged)
    }

    /// The same length, if the frame has this signature.
    #[inline(always)]
    pub(super) fn front(&self, head: &[u8; GLANCED]) -> Option<usize> {
        (word(head)? & self.mask == self.kind).then_some(self.len())
    }
}

impl FrameHead {
    /// Reads the headers of a frame. `facts` is the offload metadata from the port that received it.
    #[inline(always)]
    pub fn parse(frame: &[u8], facts: FrameFacts) -> Result<Self, DropReason> {
        let EthernetHeader { ethertype, .. } = EthernetHeader::parse(frame)?;
        let FrameFacts { tag, checksum } = facts;
        let tagged = matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN);
        let vid = match tag {
            FrameTag::InFrame if tagged => return Self::tagged(frame, ethertype, checksum),
            FrameTag::InFrame => 0,
            FrameTag::Taken(control) if !tagged => vid_of(control),
            FrameTag::Taken(_) | FrameTag::Stacked => return Err(DropReason::VlanStacked),
        };
        Ok(Self { ethertype, vid, len: ETHERNET_HEADER_LEN, checksum })
    }

    #[cold]
    fn tagged(frame: &[u8], outer: u16, checksum: Checksum) -> Result<Self, DropReason> {
        let tag = be16(frame, ETHERNET_HEADER_LEN).ok_or(DropReason::Truncated)?;
        let ethertype = be16(frame, ETHERNET_HEADER_LEN + 2).ok_or(DropReason::Truncated)?;
        let stacked = |kind| matches!(kind, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN);
        if outer == ETHERTYPE_SERVICE_VLAN || stacked(ethertype) {
            return Err(DropReason::VlanStacked);
        }
        let len = ETHERNET_HEADER_LEN + VLAN_TAG_LEN;
        Ok(Self { ethertype, vid: vid_of(tag), len, checksum })
    }
}
