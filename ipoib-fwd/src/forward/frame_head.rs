//! What stands in front of a frame's packet, with a VLAN tag or without: the one place where tags are read.

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
    /// What is behind the header, and behind a tag if there is one.
    pub ethertype: u16,
    /// VLAN identifier; 0 without a tag, and in a tag that carries a priority only (IEEE 802.1Q 9.6).
    pub vid: u16,
    /// Bytes in front of the packet.
    pub len: usize,
    /// What the port says of the checksum of the packet's header.
    pub checksum: Checksum,
}

/// Ethertypes as they lie in memory.
const PLAIN: u16 = ETHERTYPE_IPV4.to_be();
const TAGGED: u16 = ETHERTYPE_VLAN.to_be();

/// Bytes that a glance wants: a header with a tag, and that of the packet. No wire brings a shorter frame (60 bytes, IEEE 802.3 4A.2.3.2.4).
pub(super) const GLANCED: usize = ETHERNET_HEADER_LEN + VLAN_TAG_LEN + IPV4_HEADER_LEN;
/// Where what tells frames apart stands in them: ethertype, or tag and ethertype.
const KIND: usize = ETHERNET_HEADER_LEN - 2;

/// What stands in front of a frame's packet, where that is soon told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Glance {
    /// As [`FrameHead::vid`].
    pub(super) vid: u16,
    /// There is a tag in the frame.
    pub(super) tagged: bool,
}

impl Glance {
    /// What [`FrameHead::parse`] reads of a frame with IPv4 behind one tag at most; `None` of all others, and of tags that carry a priority only.
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

/// Bytes in front of a packet: made of whether there is a tag, they are known to be no more than that wherever something is asked of them.
#[inline(always)]
const fn front(tagged: bool) -> usize {
    if tagged { ETHERNET_HEADER_LEN + VLAN_TAG_LEN } else { ETHERNET_HEADER_LEN }
}

/// How frames look of which [`Glance::at`] tells the same, if their tags are in them: with them known one comparison of a word tells it of the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    mask: u64,
    kind: u64,
    /// There is a tag.
    tagged: bool,
}

/// What of a word tells VLANs apart: the upper four bits beside the number are priority and drop eligibility.
const VID: u64 = u64::from_ne_bytes([0, 0, 0x0f, 0xff, 0, 0, 0, 0]);
/// What tells in a word that there is a tag with IPv4 behind it.
const KINDS: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0]);
const TAGGED_PLAIN: u64 = {
    let ([tag, also], [a, b]) = (ETHERTYPE_VLAN.to_be_bytes(), ETHERTYPE_IPV4.to_be_bytes());
    u64::from_ne_bytes([tag, also, 0, 0, a, b, 0, 0])
};

/// The word of a frame that tells its looks.
#[inline(always)]
fn word(head: &[u8; GLANCED]) -> Option<u64> {
    Some(u64::from_ne_bytes(*head.get(KIND..)?.first_chunk()?))
}

impl Looks {
    /// Those of no frame.
    pub(super) const NOBODYS: Self = Self { mask: 0, kind: 1, tagged: false };

    /// Those of a frame with IPv4 behind a tag, and its VLAN; `None` of all others, and of tags that carry a priority only. Frames of many
    /// VLANs in turn ask this each: it is one comparison, and the word is the looks.
    #[inline(always)]
    pub(super) fn of_tagged(head: &[u8; GLANCED]) -> Option<(Self, u16)> {
        let word = word(head)?;
        let [_, _, c, d, ..] = (word & VID).to_ne_bytes();
        let vid = u16::from_be_bytes([c, d]);
        (word & KINDS == TAGGED_PLAIN && vid != 0)
            .then_some((Self { mask: KINDS | VID, kind: word & (KINDS | VID), tagged: true }, vid))
    }

    /// Those of frames with IPv4 and no tag.
    pub(super) const fn of_untagged() -> Self {
        let [a, b] = ETHERTYPE_IPV4.to_be_bytes();
        let mask = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
        Self { mask, kind: u64::from_ne_bytes([a, b, 0, 0, 0, 0, 0, 0]), tagged: false }
    }

    /// Bytes in front of the packet.
    #[inline(always)]
    pub(super) const fn len(&self) -> usize {
        front(self.tagged)
    }

    /// The same, if these are the looks of the frame.
    #[inline(always)]
    pub(super) fn front(&self, head: &[u8; GLANCED]) -> Option<usize> {
        (word(head)? & self.mask == self.kind).then_some(self.len())
    }
}

impl FrameHead {
    /// Reads the head of a frame; `facts` is what the port that received it told.
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
