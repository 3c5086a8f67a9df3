//! Traced packets (`ctl trace`). None of this is on the fast path while no packets are traced: a burst checks
//! for that once, when its fast path is prepared. While packets are traced, all of them take the slow path.

use std::time::{SystemTime, UNIX_EPOCH};

use pmd::hca::{Checksum, MemoryWork, Received, Source};
use pmd::mem::{FrameFacts, Mbuf};

use super::hands::Hands;
use super::origin_of;
use crate::forward::{
    EndpointIndex, EthernetIndex, FrameHead, SegmentIndex, SegmentTable, Side, Tables, eth_to_ib, ib_to_eth,
};
use crate::gateway::frames::head;
use crate::gateway::sighting::{AnyPort, Front, Lookup, Outcome, Sighting, Step};
use crate::segment::Origin;
use ipoib::drop_reason::DropReason;

impl<Q: MemoryWork> Hands<'_, Q> {
    /// The slow path of a frame, traced.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_arrived_frame(
        &mut self,
        port: EthernetIndex,
        frame: Mbuf,
        facts: FrameFacts,
        tables: &Tables<Q::Destination>,
    ) {
        let parsed = FrameHead::parse(head(&frame), facts);
        let found = parsed.map(|front| (front, tables.of_vlan(port, front.vid)));
        let reason = match found {
            Ok((front, Some((segment, table)))) => {
                return self.trace_frame(Some(port), frame, &front, segment, table);
            }
            Ok((_, None)) => DropReason::VlanUnknown,
            Err(reason) => reason,
        };
        let mut front = Front::new(Side::Ethernet, head(&frame), frame.len());
        front.port = Some(port.0);
        if let Ok((parsed, _)) = found {
            (front.vlan, front.skip) = (parsed.vid, parsed.len as u8);
        }
        self.note(front, [Some(AnyPort::Ethernet(port)), None], Lookup::Drop(reason), |hands| {
            hands.common.counters.drop(reason);
            Outcome::Dropped(reason)
        });
    }

    /// A frame of a segment that has arrived by a port, or has waited.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_frame(
        &mut self,
        port: Option<EthernetIndex>,
        frame: Mbuf,
        parsed: &FrameHead,
        segment: SegmentIndex,
        table: &SegmentTable<Q::Destination>,
    ) {
        let mut front = Front::new(Side::Ethernet, head(&frame), frame.len());
        (front.port, front.segment) = (port.map(|port| port.0), Some(segment));
        (front.vlan, front.skip) = (table.settings.vlan.unwrap_or_default(), parsed.len as u8);
        let verdict = eth_to_ib(head(&frame), parsed, frame.len(), table, self.common.worker);
        let lookup = Lookup::from(&verdict);
        self.note(front, ports_of(table), lookup, |hands| hands.take_frame(frame, parsed, segment, table));
    }

    /// The slow path of a message, traced.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_arrived_message(
        &mut self,
        port: EndpointIndex,
        received: Received,
        tables: &Tables<Q::Destination>,
    ) {
        let Received { buf, qpn, ud, source, checksum, .. } = received;
        if let Some((segment, table)) = ud.and_then(|ud| tables.of_link(port, ud.0)) {
            let origin = Some(origin_of(&source, qpn));
            return self.trace_message(Some(port), buf, &source, checksum, origin, (segment, table));
        }
        let mut front = Front::new(Side::InfiniBand, head(&buf), buf.len());
        (front.port, front.source) = (Some(port.0), Some(source));
        let reason = DropReason::LinkUnknown;
        self.note(front, [Some(AnyPort::InfiniBand(port)), None], Lookup::Drop(reason), |hands| {
            hands.common.counters.drop(reason);
            Outcome::Dropped(reason)
        });
    }

    /// A message of a segment that has arrived by a port, or has waited.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_message(
        &mut self,
        port: Option<EndpointIndex>,
        message: Mbuf,
        source: &Source,
        checksum: Checksum,
        origin: Option<Origin>,
        (segment, table): (SegmentIndex, &SegmentTable<Q::Destination>),
    ) {
        let mut front = Front::new(Side::InfiniBand, head(&message), message.len());
        (front.port, front.segment) = (port.map(|port| port.0), Some(segment));
        front.vlan = table.settings.vlan.unwrap_or_default();
        front.source = port.map(|_| *source);
        let lookup = Lookup::from(&ib_to_eth(head(&message), message.len(), source, checksum, table));
        self.note(front, ports_of(table), lookup, |hands| {
            hands.take_message(message, source, checksum, origin, segment, table)
        });
    }

    /// Runs the slow path, and reports the packet to the clients that trace it.
    fn note(
        &mut self,
        front: Front,
        ports: [Option<AnyPort>; 2],
        lookup: Lookup,
        work: impl FnOnce(&mut Self) -> Outcome,
    ) {
        let watchers =
            self.common.tracer.as_ref().map_or(0, |tracer| tracer.watchers(&front, ports, &lookup));
        if watchers == 0 {
            work(self);
            return;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
        let unfit = self.unfit(ports);
        let outcome = work(self);
        let outcome = self.taken(outcome, ports, &lookup, unfit);
        if let Some(tracer) = &mut self.common.tracer {
            let step = if front.port.is_some() { Step::Arrived } else { Step::Again };
            tracer.report(Sighting { time, watchers, step, front, lookup, outcome, missed: 0 });
        }
    }

    /// The number of frames that the Ethernet port has dropped so far. It includes other frames, which are
    /// offered to it first.
    fn unfit(&mut self, ports: [Option<AnyPort>; 2]) -> u64 {
        let [Some(AnyPort::Ethernet(port)), _] = ports else { return 0 };
        let Some(face) = self.ethernets.get_mut(port.at()) else { return 0 };
        face.flush(&mut self.common.counters);
        face.unfit()
    }

    /// The outcome of a frame after its port was offered it: a frame that is not accepted waits. `unfit` is
    /// the number of frames that the port could not send before.
    fn taken(
        &mut self,
        outcome: Outcome,
        ports: [Option<AnyPort>; 2],
        lookup: &Lookup,
        unfit: u64,
    ) -> Outcome {
        let [Some(AnyPort::Ethernet(port)), _] = ports else { return outcome };
        let is_queued = matches!(outcome, Outcome::Sent | Outcome::Pieces { dropped: None, .. });
        let Some(face) = self.ethernets.get_mut(port.at()) else { return outcome };
        if !is_queued || !matches!(lookup, Lookup::ToEthernet { .. }) {
            return outcome;
        }
        face.flush(&mut self.common.counters);
        match face.unfit() - unfit {
            0 if face.holds() => Outcome::Waits,
            dropped => outcome.less(dropped, DropReason::TooManySegments),
        }
    }
}

/// The ports of a segment.
fn ports_of<D>(table: &SegmentTable<D>) -> [Option<AnyPort>; 2] {
    let settings = &table.settings;
    [AnyPort::Ethernet(settings.ethernet), AnyPort::InfiniBand(settings.endpoint)].map(Some)
}
