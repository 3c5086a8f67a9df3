//! The frames of a burst, those of a VLAN behind each other.
//!
//! What is looked up of a segment lies on some twelve cache lines, and other segments' packets have put some of them out by the time its
//! next one comes. Grouped, a burst looks at each segment's lines once, and asks for its segment as often. Frames of one VLAN stay in their
//! order, which hosts expect; those of several have none among each other. Where most frames are alone nothing is won: they stay as they came,
//! and the next bursts are not looked at.

use pmd::eth::{Burst, order};
use pmd::hca::BURST;
use pmd::mem::{FrameTag, Mbuf};

use crate::gateway::tag;
use ipoib::net::ethernet::{ETHERTYPE_VLAN, VLAN_TAG_LEN};

/// What tells a frame's VLAN from others, mostly: the last byte of its number, and 0 without a tag.
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

/// So many bursts are not looked at behind one in which nothing was won.
const PAUSE: u8 = 15;

/// Of a port's bursts.
#[derive(Debug, Default)]
pub(super) struct Grouping {
    /// Bursts that are still not to be looked at.
    pause: u8,
}

impl Grouping {
    /// Puts frames of the same VLAN behind each other.
    #[inline(always)]
    pub(super) fn by_vlan(&mut self, burst: &mut Burst) {
        self.pause = match self.pause.checked_sub(1) {
            Some(left) => left,
            None if is_grouped(burst) => 0,
            None => PAUSE,
        };
    }
}

// A function of its own has the registers for itself.
#[inline(never)]
fn is_grouped(burst: &mut Burst) -> bool {
    let mut kinds = [0; BURST];
    for (kind_of, frame) in kinds.iter_mut().zip(burst.iter()) {
        *kind_of = kind(frame);
    }
    order::group(burst, &kinds)
}
