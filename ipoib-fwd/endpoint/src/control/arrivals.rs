//! Inputs of the control lcore: workers' notes, the device's events, management datagrams.

use std::time::{Duration, Instant};

use ib_wire::Qpn;
use ib_wire::mad::Mad;
use pmd::hca::{AsyncEvent, Backend, HcaError, QpFault};

use super::Endpoint;
use crate::message::Note;
use ipoib::link::{PortEvent, WorkerIndex, WorkerNote};

/// Most notes, MADs and events that are taken in one tick, so that no kind starves the others.
const PER_TICK: usize = 1024;
/// Shortest time between two warnings of a shared receive queue that runs low.
const LOW_SRQ_PAUSE: Duration = Duration::from_secs(10);

impl<B: Backend, C, N> Endpoint<B, C, N> {
    pub(super) fn take_notes(
        &mut self,
        now: Instant,
        latency: &mut impl FnMut(Box<hdrhistogram::Histogram<u32>>),
    ) -> bool {
        let mut any = false;
        for index in 0..self.workers.len() {
            for _ in 0..PER_TICK {
                let Some(note) = self.workers.get_mut(index).and_then(|w| w.notes.receive()) else { break };
                any = true;
                self.take_note(now, WorkerIndex(index as u8), note, latency);
            }
        }
        any
    }

    fn take_note(
        &mut self,
        now: Instant,
        worker: WorkerIndex,
        note: Note<B::Queues, N>,
        latency: &mut impl FnMut(Box<hdrhistogram::Histogram<u32>>),
    ) {
        match note {
            Note::Inserted { conn, refused } => {
                let ok = refused.is_none();
                if let Some(rc) = refused {
                    self.rcs.insert(conn, rc);
                }
                self.port.handle_done(now, conn, ok);
            }
            Note::Removed { conn, rc } => {
                let ok = rc.is_some();
                if let Some(rc) = rc {
                    self.rcs.insert(conn, rc);
                }
                self.port.handle_done(now, conn, ok);
            }
            Note::DrainRefused { conn } => self.port.handle_done(now, conn, false),
            Note::Qp(event) => self.take_qp_event(now, event.qpn, event.fault),
            Note::UdInserted { refused } => self.datagrams_inserted(refused),
            Note::UdRemoved { link, ud } => self.datagrams_removed(link, ud),
            Note::UdClosed(link) => self.datagrams_closed(link, worker),
            Note::Wanted(link, ip) => {
                if let Some(link) = self.port.link_mut(link) {
                    link.handle_used(now, worker, &[], &[ip]);
                }
            }
            Note::Refused { link, buf, error } => {
                self.losses.count(error);
                self.note_unsent(link, buf.data());
            }
            Note::EventsLost(n) => self.losses.events += n,
            Note::Latency(histogram) => latency(histogram),
            Note::Key(note) => self.take_key_note(worker, note),
            Note::App(note) => self.app_notes.push_back((worker, note)),
        }
    }

    fn take_qp_event(&mut self, now: Instant, qpn: Qpn, fault: QpFault) {
        let ours = self.note(now, qpn, WorkerNote::from_fault(fault));
        if !ours && matches!(fault, QpFault::Send(_) | QpFault::Receive(_)) {
            self.mend_datagrams_of(now, qpn);
        }
    }

    pub(super) fn take_device_events(&mut self, now: Instant) -> bool {
        let mut any = false;
        for _ in 0..PER_TICK {
            let Some(event) = self.hca.next_event() else { break };
            any = true;
            self.gid_news |= pmd::gids::concerns_gids(&event);
            if let Some((port, event)) = PortEvent::from_async(&event) {
                if port == self.number {
                    let facts = self.facts(now);
                    self.port.handle_port_event(now, event, facts);
                }
            } else if let Some((qpn, note)) = WorkerNote::from_async(&event) {
                if !self.note(now, qpn, Some(note)) {
                    self.mend_datagrams_of(now, qpn);
                }
            } else if let AsyncEvent::SrqLimitReached(queues) = event {
                // The device may have other users.
                let mut ours =
                    (0..self.workers.len() as u8).map(|worker| self.queues_id(WorkerIndex(worker)));
                if ours.any(|id| id == queues) {
                    self.srq_low += 1;
                    self.warn_of_low_srq(now);
                }
            } else if matches!(event, AsyncEvent::Fatal) {
                let gone = HcaError::Gone(self.hca.device().name);
                self.lose_device(now, gone);
            }
        }
        any
    }

    /// Logs a warning, at a limited rate: under load it may happen many times a second.
    fn warn_of_low_srq(&mut self, now: Instant) {
        if self.srq_low_reported.is_some_and(|at| now < at + LOW_SRQ_PAUSE) {
            return;
        }
        self.srq_low_reported = Some(now);
        tracing::warn!(
            "{} port {}: a shared receive queue ran low, {} time(s) so far: connections of peers break if it runs dry; raise \
             infiniband.srq-depth",
            self.hca.device().name,
            self.number.0,
            self.srq_low
        );
    }

    pub(super) fn take_mads(&mut self, now: Instant) -> bool {
        let mut any = false;
        if self.is_gone() {
            return any;
        }
        for _ in 0..PER_TICK {
            match self.hca.receive_mad(self.number) {
                Ok(Some(mad)) => {
                    any = true;
                    self.port.handle_mad(now, &mad);
                }
                Ok(None) => break,
                Err(gone @ HcaError::Gone(_)) => {
                    self.lose_device(now, gone);
                    break;
                }
                Err(e) => {
                    self.check::<()>(Err(e));
                    break;
                }
            }
        }
        any
    }

    /// Sends a management datagram, or keeps it until the device has room: its sender would retransmit it
    /// only seconds later.
    pub(super) fn send_mad(&mut self, mad: Mad) {
        if self.is_gone() {
            return;
        }
        let taken = self.mads.push(mad);
        self.check(taken);
        self.flush_mads();
    }

    pub(super) fn flush_mads(&mut self) {
        let Self { mads, hca, number, .. } = self;
        for error in mads.flush(|mad| hca.send_mad(*number, mad)) {
            self.check::<()>(Err(error));
        }
    }
}
