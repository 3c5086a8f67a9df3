//! Inspection of received frames before they are forwarded: by a tap, or by the sampling of checksums. For a
//! port without either, it costs one test a burst.

use pmd::eth::Burst;
use pmd::hca::{Checksum, MemoryWork};
use pmd::mem::{FrameTag, Mbuf};
use tap::{Tap, TapDirection};

use super::GatewayNote;
use super::hands::Hands;
use crate::forward::{EthernetIndex, FrameHead, Side, Tables};
use crate::gateway::frames::{head, offer};
use crate::gateway::partial_checksum::{is_for, is_suspect};
use crate::gateway::punts::{self, Cause};
use ipoib::net::ethernet::ETHERTYPE_IPV4;

impl<Q: MemoryWork> Hands<'_, Q> {
    /// Shows a burst of a port to the tap, and samples its checksums.
    #[cold]
    #[inline(never)]
    pub(super) fn watch(&mut self, port: EthernetIndex, burst: &Burst, tables: &Tables<Q::Destination>) {
        if let Some(tap) = &mut self.common.tap {
            show(tap, burst);
        }
        let Some(face) = self.ethernets.get_mut(port.at()) else { return };
        let samples = face.take_samples(burst.len());
        // One suspect frame a second is enough.
        if burst.iter().take(samples).any(|frame| self.sample(port, frame, tables))
            && let Some(face) = self.ethernets.get_mut(port.at())
        {
            face.end_samples();
        }
    }

    /// Hands a copy of a frame that will be forwarded to the control lcore if its checksum looks incomplete;
    /// true if so. Without room for the copy, nothing is dropped: the frame itself is forwarded.
    fn sample(&mut self, port: EthernetIndex, frame: &Mbuf, tables: &Tables<Q::Destination>) -> bool {
        let facts = frame.frame_facts();
        let Ok(front) = FrameHead::parse(head(frame), facts) else { return false };
        let packet = head(frame).get(front.len..).unwrap_or_default();
        // The gateway completes checksums that the port reports as missing.
        if front.ethertype != ETHERTYPE_IPV4
            || facts.checksum == Checksum::Missing
            || frame.data().len() != frame.len()
            || !is_suspect(packet, frame.len() - front.len)
        {
            return false;
        }
        let Some((segment, table)) = tables.of_vlan(port, front.vid) else { return false };
        if !is_for(head(frame), table.settings.mac) {
            return false;
        }
        let Some(face) = self.infinibands.get_mut(table.settings.endpoint.at()) else { return false };
        let cause = Cause::PartialChecksum(port);
        let (_, notes) = face.link.parts();
        if !punts::may_hold(&cause, 1, self.pool) {
            return false;
        }
        let Some(packet) = self.pool.copy_from_slice(frame.data()) else { return false };
        let note = GatewayNote { cause, segment, side: Side::Ethernet, origin: None, packet };
        punts::hand_over(notes, &cause, note).is_ok()
    }
}

/// Shows received frames to a tap.
fn show(tap: &mut Tap, burst: &Burst) {
    for frame in burst {
        let tag = if let FrameTag::Taken(control) = frame.frame_facts().tag { Some(control) } else { None };
        offer(tap, TapDirection::Received, frame, tag);
    }
}
