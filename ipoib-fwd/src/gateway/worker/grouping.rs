//! Groups the frames of a burst by VLAN.
//!
//! The state of a segment that a lookup touches is on about twelve cache lines. Packets of other segments
//! have evicted some of them by the time its next packet arrives. Grouped, a burst touches each segment's
//! lines once, and looks up each segment once. Frames of one VLAN keep their order, which hosts expect; there
//! is no order between frames of different VLANs. If most frames are the only one of their VLAN, grouping
//! gains nothing: they keep their order, and the next bursts are not examined.

use pmd::eth::{Burst, order};
use pmd::hca::BURST;
use pmd::mem::{FrameTag, Mbuf};

use crate::gateway::tag;
use ipoib::net::ethernet::{ETHERTYPE_VLAN, VLAN_TAG_LEN};

/// Distinguishes most VLANs: the last byte of the VLAN ID, and 0 for untagged frames.
#[inline(always)]
fn kind(frame: &Mbuf) -> u8 {
    match frame.frame_facts().tag {
        FrameTag::Taken(control) => control as u8,
        FrameTag::InFrame | FrameTag::Stacked => {
            let word = frame.data().get(tag::ADDRESSES..).and_then(|rest| rest.first_chunk::<VLAN_TAG_LEN>());
            let [t, y, _, low] = *word.unwrap_or(&[0; VLAN_TAG_LEN]);
            if u16::from_be_bytes([t, y]) == ETHERTYPE_VLAN { low } else { 0 }
        }
    }
}

/// Number of bursts that are not examined after a burst in which grouping gained nothing.
const PAUSE: u8 = 15;

/// Grouping of a port's bursts.
#[derive(Debug, Default)]
pub(super) struct Grouping {
    /// Bursts still to be skipped.
    pause: u8,
}

impl Grouping {
    /// Groups frames by VLAN.
    #[inline(always)]
    pub(super) fn by_vlan(&mut self, burst: &mut Burst) {
        self.pause = match self.pause.checked_sub(1) {
            Some(left) => left,
            None if is_grouped(burst) => 0,
            None => PAUSE,
        };
    }
}

// A function of its own, so that all registers are available.
#[inline(never)]
fn is_grouped(burst: &mut Burst) -> bool {
    let mut kinds = [0; BURST];
    for (kind_of, frame) in kinds.iter_mut().zip(burst.iter()) {
        *kind_of = kind(frame);
    }
    order::group(burst, &kinds)
}
