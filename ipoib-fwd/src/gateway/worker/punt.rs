//! Handover of packets from a worker to the control lcore.

use pmd::hca::MemoryWork;
use pmd::mem::Mbuf;

use super::hands::Hands;
use super::{Common, GatewayNote};
use crate::counter::{SegmentTraffic, Traffic};
use crate::forward::{Punt, SegmentIndex, SegmentTable, Side};
use crate::gateway::punts::{self, Cause};
use crate::gateway::sighting::Outcome;
use crate::gateway::tag;
use crate::segment::Origin;
use ipoib::drop_reason::DropReason;
use ipoib::net::ethernet::ETHERNET_HEADER_LEN;

impl<Q: MemoryWork> Hands<'_, Q> {
    /// Hands over a frame whose headers are `front` bytes long, without its tag.
    pub(super) fn punt_frame(
        &mut self,
        cause: Cause,
        segment: SegmentIndex,
        front: usize,
        mut packet: Mbuf,
        table: &SegmentTable<Q::Destination>,
    ) -> Outcome {
        if front > ETHERNET_HEADER_LEN && !tag::remove(&mut packet) {
            return self.drop(segment, DropReason::Truncated);
        }
        self.punt(GatewayNote { cause, segment, side: Side::Ethernet, origin: None, packet }, table)
    }

    pub(super) fn punt_message(
        &mut self,
        cause: Cause,
        segment: SegmentIndex,
        origin: Option<Origin>,
        packet: Mbuf,
        table: &SegmentTable<Q::Destination>,
    ) -> Outcome {
        self.punt(GatewayNote { cause, segment, side: Side::InfiniBand, origin, packet }, table)
    }

    /// Hands over a packet through the ring of the segment's InfiniBand port.
    pub(super) fn punt(&mut self, what: GatewayNote, table: &SegmentTable<Q::Destination>) -> Outcome {
        let segment = what.segment;
        match self.hand_over(what, table) {
            Ok(()) => Outcome::HandedOver,
            Err(reason) => self.drop(segment, reason),
        }
    }

    /// The same, but does not count a packet that is not handed over as dropped.
    pub(super) fn hand_over(
        &mut self,
        what: GatewayNote,
        table: &SegmentTable<Q::Destination>,
    ) -> Result<(), DropReason> {
        let (segment, bytes, cause) = (what.segment, what.packet.len(), what.cause);
        let Some(face) = self.infinibands.get_mut(table.settings.endpoint.at()) else {
            return Err(DropReason::SegmentGone);
        };
        let Common { hellos, shared_storm, .. } = &mut *self.common;
        if cause == Cause::Punt(Punt::Hello) && !hellos.admits(shared_storm.period(), segment, what.side) {
            return Err(DropReason::PuntQueueFull);
        }
        if !punts::may_hold(&cause, what.packet.segment_count(), self.pool) {
            return Err(punts::full(&cause));
        }
        let (_, notes) = face.link.parts();
        punts::hand_over(notes, &cause, what)?;
        let counters = &mut self.common.counters;
        counters.packet(Traffic::Punt, bytes);
        counters.of_segment(segment, SegmentTraffic::Punt, bytes);
        Ok(())
    }
}
