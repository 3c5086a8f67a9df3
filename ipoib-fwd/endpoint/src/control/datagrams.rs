//! Opens the workers' datagram queue pairs, and reopens them with another P_Key index or after an error.
//!
//! RESET is the only transition out of ERR (IBA 10.3.1), and it discards posted requests. So the worker stops
//! posting first, and reports when all requests have come back, flushed:
//!
//! ```text
//!   Open ── → ERR, CloseUd ──> Closing ── UdClosed: RESET → INIT → RTR → RTS, OpenUd ──> Open
//! ```

use std::time::{Duration, Instant};

use ib_wire::{Psn, QKey, Qpn};
use pmd::hca::{Backend, HcaError, QpState, QpTransition};

use super::Endpoint;
use crate::backoff::Backoff;
use crate::message::Command;
use ipoib::link::{LinkIndex, WorkerIndex};

/// Longest wait for flushed requests before an error is logged.
const PATIENCE: Duration = Duration::from_secs(5);

/// State of a worker's datagram queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// In use, or not opened yet.
    #[default]
    Open,
    /// In error; posted requests have not all come back.
    Closing {
        since: Instant,
        /// The delay has been logged.
        logged: bool,
    },
}

/// Datagram queue pairs that are checked at a time: not every provider reports errors.
const LOOKS: usize = 8;

/// A worker's datagram queue pair for one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagrams {
    qpn: Qpn,
    state: State,
    /// Requested P_Key index and Q_Key; `None` until the link has set them.
    keys: Option<(u16, QKey)>,
    mended_at: Option<Instant>,
    /// Backoff after openings that the device refused, so that repeated tries do not keep it busy.
    refused: Backoff,
    /// Its link is being removed, and the worker has been requested to return it.
    given_back: bool,
}

impl Datagrams {
    pub(super) const fn new(qpn: Qpn) -> Self {
        Self {
            qpn,
            state: State::Open,
            keys: None,
            mended_at: None,
            refused: Backoff::new(),
            given_back: false,
        }
    }

    /// Returns its number.
    pub(super) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns how often the device has refused to open it since the last success.
    pub(super) const fn refusals(&self) -> u32 {
        self.refused.failures()
    }
}

impl<B: Backend, C, N> Endpoint<B, C, N> {
    fn datagrams(&mut self, link: LinkIndex, worker: WorkerIndex) -> Option<&mut Datagrams> {
        self.links.get_mut(usize::from(link.0))?.as_mut()?.datagrams.get_mut(usize::from(worker.0))
    }

    /// All links' datagram queue pairs.
    fn all_datagrams(&self) -> impl Iterator<Item = (LinkIndex, WorkerIndex, &Datagrams)> {
        (0u16..).zip(&self.links).filter_map(|(link, end)| Some((LinkIndex(link), end.as_ref()?))).flat_map(
            |(link, end)| (0u8..=u8::MAX).zip(&end.datagrams).map(move |(w, d)| (link, WorkerIndex(w), d)),
        )
    }

    /// Opens a datagram queue pair with these keys.
    pub(super) fn open_datagrams(
        &mut self,
        now: Instant,
        link: LinkIndex,
        worker: WorkerIndex,
        keys: (u16, QKey),
    ) {
        let Some(datagrams) = self.datagrams(link, worker) else { return };
        let qpn = datagrams.qpn;
        datagrams.keys = Some(keys);
        if datagrams.state != State::Open {
            return;
        }
        match self.hca.qp_state(qpn) {
            Ok(QpState::Reset) => {
                let opened = self.bring_up(qpn, keys);
                self.open_by_worker(link, worker, opened);
            }
            Ok(_) => self.close_datagrams(now, link, worker),
            Err(e) => {
                self.check::<()>(Err(e));
            }
        }
    }

    /// Sets another Q_Key on an open queue pair. If the device refuses, the queue pair is reopened with that
    /// key.
    pub(super) fn set_qkey(&mut self, now: Instant, link: LinkIndex, worker: WorkerIndex, qkey: QKey) {
        let Some(datagrams) = self.datagrams(link, worker) else { return };
        let qpn = datagrams.qpn;
        if let Some((_, old)) = &mut datagrams.keys {
            *old = qkey;
        }
        if datagrams.state == State::Open {
            let result = self.hca.modify_qp(qpn, &QpTransition::UdQKey(qkey));
            if self.check(result).is_none() {
                self.close_datagrams(now, link, worker);
            }
        }
    }

    fn bring_up(&mut self, qpn: Qpn, (pkey_index, qkey): (u16, QKey)) -> Result<(), HcaError> {
        self.hca.modify_qp(qpn, &QpTransition::UdToInit { pkey_index, qkey })?;
        self.hca.modify_qp(qpn, &QpTransition::UdToReceive)?;
        self.hca.modify_qp(qpn, &QpTransition::UdToSend { sq_psn: Psn::new(0) })
    }

    fn close_datagrams(&mut self, now: Instant, link: LinkIndex, worker: WorkerIndex) {
        let Some(qpn) = self.datagrams(link, worker).map(|d| d.qpn) else { return };
        let flushed = self.hca.modify_qp(qpn, &QpTransition::ToError);
        if self.check(flushed).is_none() {
            return;
        }
        self.flush_again(now, link, worker);
        if let Some(end) = self.worker(worker) {
            end.send(Command::CloseUd(link));
        }
    }

    /// Flushes a queue pair repeatedly until the worker has everything back: one flush may not suffice.
    pub(super) fn flush_again(&mut self, now: Instant, link: LinkIndex, worker: WorkerIndex) {
        if let Some(datagrams) = self.datagrams(link, worker) {
            datagrams.state = State::Closing { since: now, logged: false };
        }
    }

    /// Reopens a queue pair after the worker has everything back.
    pub(super) fn datagrams_closed(&mut self, link: LinkIndex, worker: WorkerIndex) {
        if self.takes_datagrams_back(link) {
            return self.take_back(link, worker);
        }
        let Some(datagrams) = self.datagrams(link, worker) else { return };
        let qpn = datagrams.qpn;
        let (State::Closing { .. }, Some(keys)) = (datagrams.state, datagrams.keys) else { return };
        datagrams.state = State::Open;
        let opened = self.hca.modify_qp(qpn, &QpTransition::ToReset).and_then(|()| self.bring_up(qpn, keys));
        self.open_by_worker(link, worker, opened);
    }

    /// Requests a queue pair whose link is being removed from the worker.
    fn take_back(&mut self, link: LinkIndex, worker: WorkerIndex) {
        // Two closings may have been under way.
        let first = self.datagrams(link, worker).is_some_and(|d| !std::mem::replace(&mut d.given_back, true));
        if let (true, Some(end)) = (first, self.worker(worker)) {
            end.send(Command::RemoveUd(link));
        }
    }

    /// Takes back the queue pairs of links that are being removed, with their outstanding requests: nothing
    /// comes back from a device that is gone.
    pub(super) fn take_all_back(&mut self) {
        let all: Vec<_> = self.all_datagrams().map(|(link, worker, _)| (link, worker)).collect();
        for (link, worker) in all {
            if self.takes_datagrams_back(link) {
                self.take_back(link, worker);
            }
        }
    }

    /// Reports an opening. Once a queue pair has left RESET, the worker may post to it (IBA 10.3.1).
    fn open_by_worker(&mut self, link: LinkIndex, worker: WorkerIndex, opened: Result<(), HcaError>) {
        let refused = opened.as_ref().err().map(ToString::to_string);
        let opened = self.check(opened).is_some();
        if let Some(datagrams) = self.datagrams(link, worker) {
            if opened { datagrams.refused.succeeded() } else { _ = datagrams.refused.failed() }
        }
        if let Some(end) = self.links.get_mut(usize::from(link.0)).and_then(Option::as_mut) {
            end.note_refusal(refused);
        }
        if opened && let Some(end) = self.worker(worker) {
            end.send(Command::OpenUd(link));
        }
    }

    /// Checks a queue pair after an event, if it is a datagram queue pair.
    pub(super) fn mend_datagrams_of(&mut self, now: Instant, qpn: Qpn) {
        if let Some((link, worker)) = self.port.datagram_owner(qpn) {
            self.mend_datagrams(now, link, worker);
        }
    }

    /// Flushes closing queue pairs again. A provider whose receive rings have no doorbell does not see
    /// requests that were posted after a flush; this makes it check again.
    pub(super) fn flush_closing(&mut self) {
        let closing: Vec<Qpn> = self
            .all_datagrams()
            .map(|(_, _, d)| d)
            .filter(|d| d.state != State::Open && !d.given_back)
            .map(|d| d.qpn)
            .collect();
        for qpn in closing {
            let flushed = self.hca.modify_qp(qpn, &QpTransition::ToError);
            self.check(flushed);
        }
    }

    /// Checks some of the datagram queue pairs, round robin.
    pub(super) fn look_after_datagrams(&mut self, now: Instant) {
        let all: Vec<_> = self.all_datagrams().map(|(link, worker, _)| (link, worker)).collect();
        for step in 0..all.len().min(LOOKS) {
            if let Some((link, worker)) = all.get((self.next_look + step) % all.len()) {
                self.mend_datagrams(now, *link, *worker);
            }
        }
        self.next_look = (self.next_look + LOOKS) % all.len().max(1);
    }

    fn mend_datagrams(&mut self, now: Instant, link: LinkIndex, worker: WorkerIndex) {
        let takes_back = self.takes_datagrams_back(link);
        let Some(datagrams) = self.datagrams(link, worker) else { return };
        let qpn = datagrams.qpn;
        if let State::Closing { since, logged } = &mut datagrams.state {
            if !*logged && now.duration_since(*since) >= PATIENCE {
                *logged = true;
                tracing::error!(
                    "datagram queue pair {qpn} does not give its buffers back: restart the gateway"
                );
            }
            return;
        }
        let Some(keys) = datagrams.keys.filter(|_| !takes_back) else { return };
        let (pause, was_refused) = (datagrams.refused.pause(), datagrams.refused.failures() > 0);
        let recent = datagrams.mended_at.is_some_and(|at| now.duration_since(at) < pause);
        let result = match self.hca.qp_state(qpn) {
            // A datagram that could not be sent has stopped the send queue.
            Ok(QpState::Sqe) => self.hca.modify_qp(qpn, &QpTransition::RecoverSend),
            Ok(QpState::Err) if !recent => {
                tracing::warn!("datagram queue pair {qpn} is in error: reopening it");
                self.datagram_reopens += 1;
                if let Some(datagrams) = self.datagrams(link, worker) {
                    datagrams.mended_at = Some(now);
                }
                self.close_datagrams(now, link, worker);
                Ok(())
            }
            // The opening failed half-way: the worker has not been notified, and nothing is posted.
            Ok(state @ (QpState::Reset | QpState::Init | QpState::Rtr))
                if !recent && (was_refused || state == QpState::Reset) =>
            {
                if let Some(datagrams) = self.datagrams(link, worker) {
                    datagrams.mended_at = Some(now);
                }
                let reset = match state {
                    QpState::Reset => Ok(()),
                    _ => self.hca.modify_qp(qpn, &QpTransition::ToReset),
                };
                let opened = reset.and_then(|()| self.bring_up(qpn, keys));
                self.open_by_worker(link, worker, opened);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        };
        self.check(result);
    }
}
