//! Queue pairs: their queues, states and transitions (IBA 10.3.1).

use std::time::Instant;

use ib_wire::{PKey, Psn, QKey, Qpn};

use super::mr::Member;
use super::receive::ReceiveQueue;
use super::send::SendQueue;
use super::table::slot_of;
use super::xrc::Target;
use crate::connection::Connection;
use crate::connection::unreliable::Unreliable;
use hca::{HcaError, QpState, QpTransition};

/// The transport or purpose of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// General services: its external number is 1.
    Gsi,
    /// Subnet management, in addition to the firmware's agent: its external number is 0.
    Smi,
    /// Initiator of an extended reliable connection (IBA annex A14).
    XrcInitiator,
    /// Target of an extended reliable connection. Created by
    /// [`Engine::create_xrc_target`](crate::engine::Engine::create_xrc_target).
    XrcTarget,
    /// Key operations only, on keys of all domains; it sends nothing. A driver keeps it for its own use.
    Umr,
}

impl QpKind {
    /// The number that packets use, if it differs from the real one.
    #[must_use]
    pub const fn external(self) -> Option<Qpn> {
        match self {
            Self::Rc | Self::Uc | Self::Ud | Self::XrcInitiator | Self::XrcTarget | Self::Umr => None,
            Self::Gsi => Some(Qpn::GSI),
            Self::Smi => Some(Qpn::SMI),
        }
    }

    /// True for a reliable connection, including an extended one.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        self.is_xrc() || matches!(self, Self::Rc)
    }

    /// True for an end of an extended reliable connection.
    #[must_use]
    pub const fn is_xrc(self) -> bool {
        matches!(self, Self::XrcInitiator | Self::XrcTarget)
    }

    const fn is_datagram(self) -> bool {
        !self.is_reliable() && !matches!(self, Self::Uc)
    }
}

/// Remote operations that a connection permits and issues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteOperations {
    /// The peer may write.
    pub write: bool,
    /// The peer may read.
    pub read: bool,
    /// The peer may execute atomic operations.
    pub atomic: bool,
    /// Limit of concurrent RDMA READs and atomic operations from the peer. One more ends the connection.
    pub reads_in: u8,
    /// Limit of concurrent RDMA READs and atomic operations to the peer. Others wait. If it is 0, they are
    /// errors.
    pub reads_out: u8,
}

impl Default for RemoteOperations {
    /// RDMA WRITE only.
    fn default() -> Self {
        Self { write: true, read: false, atomic: false, reads_in: 0, reads_out: 0 }
    }
}

/// Source of receives.
#[derive(Debug)]
pub(crate) enum Receives {
    Own(ReceiveQueue),
    Shared(u32),
    /// Each request names a shared receive queue.
    Named(Target),
    None,
}

impl Receives {
    /// The shared receive queue of the next or the last receive.
    pub(crate) const fn shared(&self) -> Option<u32> {
        match self {
            Self::Shared(number) => Some(*number),
            Self::Named(target) => target.named,
            Self::Own(_) | Self::None => None,
        }
    }

    /// True if its receives are shared with other queue pairs.
    pub(crate) const fn are_shared(&self) -> bool {
        matches!(self, Self::Shared(_) | Self::Named(_))
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    /// Its slot in the table.
    pub(crate) slot: u32,
    pub(crate) kind: QpKind,
    /// Index of its port.
    pub(crate) port: u8,
    pub(crate) state: QpState,
    pub(crate) user_index: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) sq: SendQueue,
    pub(crate) receives: Receives,
    pub(crate) pkey_index: u16,
    /// Its domain, and its permissions to use keys.
    pub(crate) domain: Member,
    pub(crate) remote: RemoteOperations,
    /// It receives its own packets to a group that it is attached to.
    pub(crate) hears_itself: bool,
    /// Its set of counters.
    pub(crate) counter_set: u8,
    pub(crate) qkey: QKey,
    /// PSN of the next datagram.
    pub(crate) datagram_psn: Psn,
    /// Transport state of a reliable connection.
    pub(crate) rc: Option<Box<Connection>>,
    /// Transport state of an unreliable connection.
    pub(crate) uc: Option<Box<Unreliable>>,
    /// An event must report that its sends are drained.
    pub(crate) notify_drained: bool,
    /// It is scheduled.
    pub(crate) queued: bool,
    /// Its next deadline.
    pub(crate) deadline: Option<Instant>,
    /// The time of its entry in the device's timer list; not later than `deadline`.
    pub(crate) armed: Option<Instant>,
}

impl Qp {
    /// Creates a queue pair in RESET, without completion queues.
    pub(crate) fn new(
        qpn: Qpn,
        kind: QpKind,
        port: u8,
        sq: SendQueue,
        receives: Receives,
        domain: Member,
    ) -> Self {
        Self {
            qpn,
            slot: slot_of(qpn),
            kind,
            port,
            state: QpState::Reset,
            user_index: 0,
            send_cq: 0,
            recv_cq: 0,
            sq,
            receives,
            pkey_index: 0,
            domain,
            remote: RemoteOperations::default(),
            hears_itself: false,
            counter_set: 0,
            qkey: QKey(0),
            datagram_psn: Psn::default(),
            rc: None,
            uc: None,
            notify_drained: false,
            queued: false,
            deadline: None,
            armed: None,
        }
    }

    /// The source number in its packets.
    pub(crate) fn wire_qpn(&self) -> Qpn {
        self.kind.external().unwrap_or(self.qpn)
    }

    /// The P_Key that it sends with.
    pub(crate) fn pkey(&self, table: &[PKey]) -> PKey {
        table.get(usize::from(self.pkey_index)).copied().unwrap_or(PKey(0))
    }

    /// True if it receives packets.
    pub(crate) fn receives_packets(&self) -> bool {
        self.state.receives()
    }

    /// True if a send has started and not completed.
    pub(crate) fn has_begun_sends(&self) -> bool {
        self.rc.as_ref().is_some_and(|rc| !rc.requester.begun.is_empty())
            || self.uc.as_ref().is_some_and(|uc| uc.outgoing.is_some())
    }

    /// Detaches the queue pair from a destroyed XRC shared receive queue. Receives of that queue are gone as
    /// well.
    pub(crate) fn forget_named(&mut self, number: u32) {
        if let Receives::Named(target) = &mut self.receives
            && target.named == Some(number)
        {
            target.named = None;
            self.take_begun_receive();
        }
    }

    /// Takes the receive that a message has partly filled.
    pub(crate) fn take_begun_receive(&mut self) -> Option<u16> {
        match (&mut self.rc, &mut self.uc) {
            (Some(rc), _) => rc.responder.take_receive(),
            (None, Some(uc)) => uc.take_receive(),
            (None, None) => None,
        }
    }
}

/// What a transition requires of the device in addition to the change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consequence {
    None,
    /// Complete all outstanding work requests as flushed.
    Flush,
    /// Complete as flushed the work requests posted since the last flush.
    FlushAgain,
    /// Discard all outstanding work requests.
    Reset,
}

pub(crate) const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::SqDraining | QpState::SqDrained => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

const fn transition_name(to: &QpTransition) -> &'static str {
    match to {
        QpTransition::UdToInit { .. } => "UD to INIT",
        QpTransition::RcToInit { .. } => "RC to INIT",
        QpTransition::UcToInit { .. } => "UC to INIT",
        QpTransition::UdToReceive => "UD to RTR",
        QpTransition::RcToReceive(_) => "RC to RTR",
        QpTransition::UcToReceive(_) => "UC to RTR",
        QpTransition::UdToSend { .. } => "UD to RTS",
        QpTransition::RcToSend(_) => "RC to RTS",
        QpTransition::UcToSend { .. } => "UC to RTS",
        QpTransition::UdQKey(_) => "change of Q_Key",
        QpTransition::RecoverSend => "SQE to RTS",
        QpTransition::DrainSend { .. } => "SQD",
        QpTransition::ResumeSend => "SQD to RTS",
        QpTransition::ToError => "ERR",
        QpTransition::ToReset => "RESET",
    }
}

impl Qp {
    /// Makes a transition, if the state and the transport allow it.
    pub(crate) fn transition(&mut self, to: &QpTransition) -> Result<Consequence, HcaError> {
        let (reliable, unreliable) = (self.kind.is_reliable(), self.kind == QpKind::Uc);
        let datagram = self.kind.is_datagram();
        let mut consequence = Consequence::None;
        match (self.state, to) {
            (QpState::Reset, QpTransition::UdToInit { pkey_index, qkey }) if datagram => {
                self.pkey_index = *pkey_index;
                self.qkey = *qkey;
                self.state = QpState::Init;
            }
            (QpState::Reset, QpTransition::RcToInit { pkey_index }) if reliable => {
                self.pkey_index = *pkey_index;
                self.state = QpState::Init;
            }
            (QpState::Reset, QpTransition::UcToInit { pkey_index }) if unreliable => {
                self.pkey_index = *pkey_index;
                self.state = QpState::Init;
            }
            (QpState::Init, QpTransition::UdToReceive) if datagram => self.state = QpState::Rtr,
            (QpState::Init, QpTransition::RcToReceive(how)) if reliable => {
                self.rc = Some(Box::new(Connection::new(how)));
                self.state = QpState::Rtr;
            }
            (QpState::Init, QpTransition::UcToReceive(how)) if unreliable => {
                self.uc = Some(Box::new(Unreliable::new(how)));
                self.state = QpState::Rtr;
            }
            (QpState::Rtr, QpTransition::UdToSend { sq_psn }) if datagram => {
                self.datagram_psn = *sq_psn;
                self.state = QpState::Rts;
            }
            (QpState::Rtr, QpTransition::UcToSend { sq_psn }) if unreliable => {
                if let Some(uc) = &mut self.uc {
                    uc.next = *sq_psn;
                }
                self.state = QpState::Rts;
            }
            (QpState::Rtr, QpTransition::RcToSend(how)) if reliable => {
                if let Some(rc) = &mut self.rc {
                    rc.requester.start(how);
                }
                self.state = QpState::Rts;
            }
            (QpState::Rts, QpTransition::UdQKey(qkey)) if datagram => self.qkey = *qkey,
            (QpState::Sqe, QpTransition::RecoverSend) if !reliable => self.state = QpState::Rts,
            (QpState::Rts, QpTransition::DrainSend { notify }) => {
                self.notify_drained = *notify;
                self.state = QpState::SqDraining;
            }
            (QpState::SqDraining | QpState::SqDrained, QpTransition::ResumeSend) => {
                self.notify_drained = false;
                self.state = QpState::Rts;
            }
            // Receives have no doorbell: those posted after the first flush are found now.
            (QpState::Err, QpTransition::ToError) => consequence = Consequence::FlushAgain,
            (from, QpTransition::ToError) if from != QpState::Reset => {
                consequence = Consequence::Flush;
                self.state = QpState::Err;
            }
            (_, QpTransition::ToReset) => {
                consequence = Consequence::Reset;
                self.state = QpState::Reset;
            }
            (from, to) => {
                return Err(HcaError::BadTransition {
                    qpn: self.qpn,
                    from: state_name(from),
                    to: transition_name(to),
                });
            }
        }
        Ok(consequence)
    }
}
