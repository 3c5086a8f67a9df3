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
use crate::message::Command;
use ipoib::link::WorkerIndex;

/// Least time between two openings after errors: a device that cannot keep it open is not kept busy with it.
const PAUSE: Duration = Duration::from_secs(1);
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

/// A worker's datagram queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Datagrams {
    state: State,
    /// P_Key index and Q_Key that it is to have; none before the link has said so.
    keys: Option<(u16, QKey)>,
    mended_at: Option<Instant>,
}

impl<B: Backend, C, N> Endpoint<B, C, N> {
    fn datagrams(&mut self, worker: WorkerIndex) -> Option<&mut Datagrams> {
        self.worker(worker).map(|end| &mut end.datagrams)
    }

    /// Opens a datagram queue pair with these keys.
    pub(super) fn open_datagrams(&mut self, now: Instant, worker: WorkerIndex, keys: (u16, QKey)) {
        let (Some(qpn), Some(datagrams)) = (self.ud_qpn(worker), self.datagrams(worker)) else { return };
        datagrams.keys = Some(keys);
        if datagrams.state != State::Open {
            return;
        }
        match self.hca.qp_state(qpn) {
            Ok(QpState::Reset) => {
                let opened = self.bring_up(qpn, keys);
                self.check(opened);
            }
            Ok(_) => self.close_datagrams(now, worker, qpn),
            Err(e) => {
                self.check::<()>(Err(e));
            }
        }
    }

    /// Gives an open one another Q_Key.
    pub(super) fn set_qkey(&mut self, worker: WorkerIndex, qkey: QKey) {
        let (Some(qpn), Some(datagrams)) = (self.ud_qpn(worker), self.datagrams(worker)) else { return };
        if let Some((_, old)) = &mut datagrams.keys {
            *old = qkey;
        }
        if datagrams.state == State::Open {
            let result = self.hca.modify_qp(qpn, &QpTransition::UdQKey(qkey));
            self.check(result);
        }
    }

    fn bring_up(&mut self, qpn: Qpn, (pkey_index, qkey): (u16, QKey)) -> Result<(), HcaError> {
        self.hca.modify_qp(qpn, &QpTransition::UdToInit { pkey_index, qkey })?;
        self.hca.modify_qp(qpn, &QpTransition::UdToReceive)?;
        self.hca.modify_qp(qpn, &QpTransition::UdToSend { sq_psn: Psn::new(0) })
    }

    fn close_datagrams(&mut self, now: Instant, worker: WorkerIndex, qpn: Qpn) {
        let flushed = self.hca.modify_qp(qpn, &QpTransition::ToError);
        if self.check(flushed).is_none() {
            return;
        }
        if let Some(end) = self.worker(worker) {
            end.datagrams.state = State::Closing { since: now, told: false };
            end.send(Command::CloseUd);
        }
    }

    /// The worker has everything back.
    pub(super) fn datagrams_closed(&mut self, worker: WorkerIndex) {
        let (Some(qpn), Some(datagrams)) = (self.ud_qpn(worker), self.datagrams(worker)) else { return };
        let (State::Closing { .. }, Some(keys)) = (datagrams.state, datagrams.keys) else { return };
        datagrams.state = State::Open;
        let opened = self.hca.modify_qp(qpn, &QpTransition::ToReset).and_then(|()| self.bring_up(qpn, keys));
        self.check(opened);
        if let Some(end) = self.worker(worker) {
            end.send(Command::OpenUd);
        }
    }

    /// Something befell this queue pair, perhaps a datagram one.
    pub(super) fn mend_datagrams_of(&mut self, now: Instant, qpn: Qpn) {
        let of = self.link.settings().workers.iter().position(|w| w.ud_qpn == qpn);
        if let Some(index) = of.and_then(|index| u8::try_from(index).ok()) {
            self.mend_datagrams(now, WorkerIndex(index));
        }
    }

    /// A provider whose receive rings have no doorbell does not see what was posted after the flush; this has it look again.
    pub(super) fn flush_closing(&mut self) {
        for index in 0..self.workers.len() {
            let worker = WorkerIndex(index as u8);
            let closing = self.datagrams(worker).is_some_and(|d| d.state != State::Open);
            if let (true, Some(qpn)) = (closing, self.ud_qpn(worker)) {
                let flushed = self.hca.modify_qp(qpn, &QpTransition::ToError);
                self.check(flushed);
            }
        }
    }

    /// Looks after all of them, as not every provider tells of errors.
    pub(super) fn mend_all_datagrams(&mut self, now: Instant) {
        for index in 0..self.workers.len() {
            self.mend_datagrams(now, WorkerIndex(index as u8));
        }
    }

    fn mend_datagrams(&mut self, now: Instant, worker: WorkerIndex) {
        let (Some(qpn), Some(datagrams)) = (self.ud_qpn(worker), self.datagrams(worker)) else { return };
        let Some(keys) = datagrams.keys else { return };
        if let State::Closing { since, told } = &mut datagrams.state {
            if !*told && now.duration_since(*since) >= PATIENCE {
                *told = true;
                tracing::error!(
                    "datagram queue pair {qpn} does not give its buffers back: restart the gateway"
                );
            }
            return;
        }
        let recent = datagrams.mended_at.is_some_and(|at| now.duration_since(at) < PAUSE);
        let result = match self.hca.qp_state(qpn) {
            // A datagram that could not be sent has stopped the send queue.
            Ok(QpState::Sqe) => self.hca.modify_qp(qpn, &QpTransition::RecoverSend),
            Ok(QpState::Err) if !recent => {
                tracing::warn!("datagram queue pair {qpn} is in error: opening it anew");
                self.datagram_reopens += 1;
                if let Some(datagrams) = self.datagrams(worker) {
                    datagrams.mended_at = Some(now);
                }
                self.close_datagrams(now, worker, qpn);
                Ok(())
            }
            // Opening it anew has failed half-way.
            Ok(QpState::Reset) if !recent => {
                if let Some(datagrams) = self.datagrams(worker) {
                    datagrams.mended_at = Some(now);
                }
                self.bring_up(qpn, keys)
            }
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        };
        self.check(result);
    }
}
