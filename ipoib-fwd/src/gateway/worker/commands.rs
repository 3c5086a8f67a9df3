//! Commands of the control lcore to a worker.

use std::net::Ipv4Addr;
use std::time::Instant;

use arrayvec::ArrayVec;
use pmd::hca::{Checksum, MemoryWork, Source};
use pmd::mem::{FrameFacts, Mbuf};
use tap::{Tap, TapDirection};

use super::faces::EthernetFace;
use super::hands::Hands;
use super::{Common, GatewayNote, GatewayWorker};
use crate::counter::SegmentTraffic;
use crate::forward::{EndpointIndex, FrameHead, SegmentIndex, SegmentTable, Side, own_to_ib};
use crate::gateway::frames::{head, offer};
use crate::gateway::punts::Cause;
use crate::gateway::sighting::Tracer;
use crate::gateway::tag;
use ipoib::drop_reason::DropReason;
use ipoib::net::ethernet::ETHERNET_HEADER_LEN;

/// Most commands that a link takes in one iteration.
const COMMANDS_PER_TURN: usize = 32;

/// A command of the control lcore to a gateway's worker, in addition to the link's commands.
#[derive(Debug)]
pub enum GatewayCommand {
    /// Send an untagged frame of a segment by the Ethernet port.
    SendEthernet(SegmentIndex, Mbuf),
    /// Forward a packet of a segment that waited for its destination, as if it had just arrived. Frames are
    /// untagged.
    Forward(SegmentIndex, Side, Mbuf),
    /// Show frames to this tap; `None`: to none. The worker frees nothing of the previous tap.
    Watch(Option<Tap>),
    /// Sample the checksums of the next few frames of each port. Frees nothing.
    SampleChecksums,
    /// Report traced packets; `None`: stop tracing. Frees nothing, either.
    Trace(Option<Tracer>),
    /// Renew the lease of a segment, whose hello has been sent, until then; `None`: it does not end. For
    /// worker 0 only. Frees nothing.
    Renew(SegmentIndex, Option<Instant>),
    /// Send an IPv4 packet of the gateway itself, with headroom for an Ethernet header, to an InfiniBand host
    /// of a segment.
    SendInfiniBand(SegmentIndex, Ipv4Addr, Mbuf),
}

impl<Q: MemoryWork> GatewayWorker<Q> {
    /// Carries out the commands of an InfiniBand port: its own, and those of its segments.
    pub(super) fn take_commands(&mut self, port: EndpointIndex) -> usize {
        let mut commands: ArrayVec<GatewayCommand, COMMANDS_PER_TURN> = ArrayVec::new();
        let Some(face) = self.infinibands.get_mut(port.at()) else { return 0 };
        let ethernets = &mut self.ethernets;
        let Common { counters, tap, tracer, leases, .. } = &mut self.common;
        let done = face.link.commands(&mut self.service, |command, _| match command {
            GatewayCommand::Watch(new) => {
                *tap = new;
                ethernets.iter_mut().for_each(|face| face.watch(tap.is_some()));
            }
            GatewayCommand::SampleChecksums => ethernets.iter_mut().for_each(EthernetFace::sample_checksums),
            GatewayCommand::Trace(new) => *tracer = new,
            GatewayCommand::Renew(segment, end) => leases.renew(segment, end),
            command => {
                if commands.try_push(command).is_err() {
                    counters.drop(DropReason::NeighbourQueueFull);
                }
            }
        });
        let (tables, mut hands) = self.hands();
        for command in commands {
            let (GatewayCommand::SendEthernet(segment, _)
            | GatewayCommand::Forward(segment, ..)
            | GatewayCommand::SendInfiniBand(segment, ..)) = command
            else {
                continue;
            };
            let Some(table) = tables.segment(segment) else {
                hands.common.counters.drop(DropReason::SegmentGone);
                continue;
            };
            match command {
                GatewayCommand::Watch(_)
                | GatewayCommand::Trace(_)
                | GatewayCommand::Renew(..)
                | GatewayCommand::SampleChecksums => {}
                GatewayCommand::SendEthernet(_, frame) => {
                    hands.push_own_frame(segment, frame, table);
                }
                GatewayCommand::Forward(_, Side::InfiniBand, message) => {
                    if hands.common.tracer.is_some() {
                        let place = (segment, table);
                        hands.trace_message(None, message, &Source::Rc, Checksum::Unknown, None, place);
                    } else {
                        hands.take_message(message, &Source::Rc, Checksum::Unknown, None, segment, table);
                    }
                }
                GatewayCommand::Forward(_, Side::Ethernet, frame) => {
                    match FrameHead::parse(head(&frame), FrameFacts::default()) {
                        Ok(front) if hands.common.tracer.is_some() => {
                            hands.trace_frame(None, frame, &front, segment, table);
                        }
                        Ok(front) => {
                            hands.take_frame(frame, &front, segment, table);
                        }
                        Err(reason) => {
                            hands.drop(segment, reason);
                        }
                    }
                }
                GatewayCommand::SendInfiniBand(_, to, packet) => {
                    let verdict = own_to_ib(head(&packet), packet.len(), to, table, hands.common.worker);
                    hands.carry_out_ethernet(verdict, packet, ETHERNET_HEADER_LEN, segment, table);
                }
            }
        }
        done
    }

    /// Returns queries that waited for a port, and were dropped, to the control lcore.
    #[cold]
    pub(super) fn report_unsent(&mut self) {
        let (tables, mut hands) = self.hands();
        for port in 0..hands.ethernets.len() {
            while let Some((segment, frame)) =
                hands.ethernets.get_mut(port).and_then(EthernetFace::take_unsent)
            {
                if let Some(table) = tables.segment(segment) {
                    hands.give_back(segment, frame, table);
                }
            }
        }
    }
}

impl<Q: MemoryWork> Hands<'_, Q> {
    /// Queues a frame of the control lcore for its segment's Ethernet port, with the tag of its VLAN. A frame
    /// that would be dropped is returned to the control lcore.
    fn push_own_frame(
        &mut self,
        segment: SegmentIndex,
        mut frame: Mbuf,
        table: &SegmentTable<Q::Destination>,
    ) {
        let settings = &table.settings;
        let Some(face) = self.ethernets.get_mut(settings.ethernet.at()) else {
            self.drop(segment, DropReason::SegmentGone);
            return;
        };
        let inserted = settings.vlan.filter(|_| !face.queue.inserts_tags());
        match (settings.vlan, inserted) {
            (_, Some(vid)) if !tag::insert(&mut frame, vid) => {
                self.drop(segment, DropReason::NoBuffers);
                return self.give_back(segment, frame, table);
            }
            (Some(vid), None) => frame.wish_tag(vid),
            _ => {}
        }
        if let Some(tap) = &mut self.common.tap {
            offer(tap, TapDirection::Sent, &frame, frame.wished_tag());
        }
        let (bytes, has_wish) = (frame.len(), frame.wished_tag().is_some());
        match face.push_own(frame, &mut self.common.counters) {
            Ok(()) => self.common.counters.forwarded(segment, SegmentTraffic::ToEthernet, None, bytes),
            Err(mut frame) => {
                self.drop(segment, DropReason::EthQueueFull);
                // A driver may have inserted the tag although it did not accept the frame.
                let is_tagged = inserted.is_some() || (has_wish && frame.wished_tag().is_none());
                if !is_tagged || tag::remove(&mut frame) {
                    self.give_back(segment, frame, table);
                }
            }
        }
    }

    /// Returns a frame of the control lcore, without its tag.
    fn give_back(&mut self, segment: SegmentIndex, frame: Mbuf, table: &SegmentTable<Q::Destination>) {
        let (cause, side) = (Cause::Unsent, Side::Ethernet);
        let note = GatewayNote { cause, segment, side, origin: None, packet: frame };
        // Its drop has already been counted.
        let _ = self.hand_over(note, table);
    }
}
