//! Opening the workers' datagram queue pairs, and opening them anew: with another P_Key index, or after an error.
//!
//! RESET is the only way back from ERR (IBA 10.3.1), and it forgets what is posted. So the worker stops posting first and
//! tells when everything has come back, flushed:
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

/// Longest wait for flushed requests before somebody is told.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a worker's datagram queue pair stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    /// In use, or not opened yet.
    #[default]
    Open,
    /// In error; what is posted has to come back.
    Closing {
        since: Instant,
        /// It has been told that this takes long.
        told: bool,
    },
}

/// Datagram queue pairs looked after at a time, as not every provider tells of errors.
const LOOKS: usize = 8;

/// A worker's datagram queue pair for one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagrams {
    qpn: Qpn,
    state: State,
    /// P_Key index and Q_Key that it is to have; none before the link has said so.
    keys: Option<(u16, QKey)>,
    mended_at: Option<Instant>,
    /// Openings that the device has refused: it is not kept busy with what it refuses again and again.
    refused: Backoff,
    /// Its link is being removed, and the worker has been asked for it.
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

    /// Its number.
    pub(super) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// How often the device has refused to open it since it last did.
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

    /// Gives an open one another Q_Key. If the device refuses, it is opened again with that key.
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

    /// One that was flushed is flushed again and again until the worker has everything back: one flush may not do.
    pub(super) fn flush_again(&mut self, now: Instant, link: LinkIndex, worker: WorkerIndex) {
        if let Some(datagrams) = self.datagrams(link, worker) {
            datagrams.state = State::Closing { since: now, told: false };
        }
    }

    /// The worker has everything back.
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

    /// Asks the worker for one whose link is being removed.
    fn take_back(&mut self, link: LinkIndex, worker: WorkerIndex) {
        // Two closings may have been under way.
        let first = self.datagrams(link, worker).is_some_and(|d| !std::mem::replace(&mut d.given_back, true));
        if let (true, Some(end)) = (first, self.worker(worker)) {
            end.send(Command::RemoveUd(link));
        }
    }

    /// From a device that is gone nothing comes back: those of links that are being removed are taken with what is outstanding.
    pub(super) fn take_all_back(&mut self) {
        let all: Vec<_> = self.all_datagrams().map(|(link, worker, _)| (link, worker)).collect();
        for (link, worker) in all {
            if self.takes_datagrams_back(link) {
                self.take_back(link, worker);
            }
        }
    }

    /// Once a queue pair has left RESET the worker may post to it (IBA 10.3.1).
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

    /// Something befell this queue pair, perhaps a datagram one.
    pub(super) fn mend_datagrams_of(&mut self, now: Instant, qpn: Qpn) {
        if let Some((link, worker)) = self.port.datagram_owner(qpn) {
            self.mend_datagrams(now, link, worker);
        }
    }

    /// A provider whose receive rings have no doorbell does not see what was posted after the flush; this has it look again.
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

    /// Looks after some of them in turn.
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
        if let State::Closing { since, told } = &mut datagrams.state {
            if !*told && now.duration_since(*since) >= PATIENCE {
                *told = true;
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
                tracing::warn!("datagram queue pair {qpn} is in error: opening it anew");
                self.datagram_reopens += 1;
                if let Some(datagrams) = self.datagrams(link, worker) {
                    datagrams.mended_at = Some(now);
                }
                self.close_datagrams(now, link, worker);
                Ok(())
            }
            // Opening it has stopped half-way: the worker has not been told, and nothing is posted.
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
