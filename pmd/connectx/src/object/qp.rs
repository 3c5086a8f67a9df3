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

/// What a queue pair is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// General services: the world calls it 1.
    Gsi,
    /// Subnet management, beside the firmware's agent: the world calls it 0.
    Smi,
    /// Sending end of an extended reliable connection (IBA annex A14).
    XrcInitiator,
    /// Receiving end of one; [`Engine::create_xrc_target`](crate::engine::Engine::create_xrc_target) makes it.
    XrcTarget,
    /// Nothing goes anywhere: its work requests are about keys, of all domains. A driver has it for itself.
    Umr,
}

impl QpKind {
    /// The number by which the world knows it, if that is not its real one.
    #[must_use]
    pub const fn external(self) -> Option<Qpn> {
        match self {
            Self::Rc | Self::Uc | Self::Ud | Self::XrcInitiator | Self::XrcTarget | Self::Umr => None,
            Self::Gsi => Some(Qpn::GSI),
            Self::Smi => Some(Qpn::SMI),
        }
    }

    /// True for a reliable connection, extended or not.
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

/// What the two ends of a connection may do with each other's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteOperations {
    /// The other end may write.
    pub write: bool,
    /// The other end may read.
    pub read: bool,
    /// The other end may do atomic operations.
    pub atomic: bool,
    /// RDMA READs and atomic operations of the other end that are answered at once; one more ends the connection.
    pub reads_in: u8,
    /// RDMA READs and atomic operations that are under way to the other end at once; others wait. Without any they are errors.
    pub reads_out: u8,
}

impl Default for RemoteOperations {
    /// RDMA WRITE, and nothing that is answered.
    fn default() -> Self {
        Self { write: true, read: false, atomic: false, reads_in: 0, reads_out: 0 }
    }
}

/// Where receives come from.
#[derive(Debug)]
pub(crate) enum Receives {
    Own(ReceiveQueue),
    Shared(u32),
    /// Each request names a shared receive queue.
    Named(Target),
    None,
}

impl Receives {
    /// The shared receive queue that a receive is taken from, or was.
    pub(crate) const fn shared(&self) -> Option<u32> {
        match self {
            Self::Shared(number) => Some(*number),
            Self::Named(target) => target.named,
            Self::Own(_) | Self::None => None,
        }
    }

    /// Its receives are others', too.
    pub(crate) const fn are_shared(&self) -> bool {
        matches!(self, Self::Shared(_) | Self::Named(_))
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    /// Its place in the table.
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
    /// Its domain, and what else it needs to use keys.
    pub(crate) domain: Member,
    pub(crate) remote: RemoteOperations,
    /// What it sends to a group that it is attached to comes to itself, too.
    pub(crate) hears_itself: bool,
    /// Its set of counters.
    pub(crate) counter_set: u8,
    pub(crate) qkey: QKey,
    /// PSN of the next datagram.
    pub(crate) datagram_psn: Psn,
    /// The transport's part of a reliably connected queue pair.
    pub(crate) rc: Option<Box<Connection>>,
    /// The transport's part of an unreliably connected queue pair.
    pub(crate) uc: Option<Box<Unreliable>>,
    /// An event is to tell that its sends are drained.
    pub(crate) tells_drained: bool,
    /// It waits for its turn.
    pub(crate) queued: bool,
    /// When it wants to be looked at.
    pub(crate) deadline: Option<Instant>,
    /// Under which time it stands in the device's list of timers; not later than `deadline`.
    pub(crate) armed: Option<Instant>,
}

impl Qp {
    /// One in RESET, without completion queues.
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
            tells_drained: false,
            queued: false,
            deadline: None,
            armed: None,
        }
    }

    /// The number that packets carry as their source.
    pub(crate) fn wire_qpn(&self) -> Qpn {
        self.kind.external().unwrap_or(self.qpn)
    }

    /// The P_Key it sends with.
    pub(crate) fn pkey(&self, table: &[PKey]) -> PKey {
        table.get(usize::from(self.pkey_index)).copied().unwrap_or(PKey(0))
    }

    /// True if it takes packets in.
    pub(crate) fn receives_packets(&self) -> bool {
        self.state.receives()
    }

    /// True if a send that it began is not done.
    pub(crate) fn has_begun_sends(&self) -> bool {
        self.rc.as_ref().is_some_and(|rc| !rc.requester.begun.is_empty())
            || self.uc.as_ref().is_some_and(|uc| uc.outgoing.is_some())
    }

    /// The XRC shared receive queue of this number is no more, and its receives are not.
    pub(crate) fn forget_named(&mut self, number: u32) {
        if let Receives::Named(target) = &mut self.receives
            && target.named == Some(number)
        {
            target.named = None;
            self.take_begun_receive();
        }
    }

    /// Takes the receive that a message has begun to fill.
    pub(crate) fn take_begun_receive(&mut self) -> Option<u16> {
        match (&mut self.rc, &mut self.uc) {
            (Some(rc), _) => rc.responder.take_receive(),
            (None, Some(uc)) => uc.take_receive(),
            (None, None) => None,
        }
    }
}

/// What a transition asks the device to do beside the change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consequence {
    None,
    /// Complete everything outstanding as flushed.
    Flush,
    /// Complete as flushed what was posted since.
    FlushAgain,
    /// Forget everything outstanding.
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
    /// Takes a transition, if the state and the transport allow it.
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
                self.tells_drained = *notify;
                self.state = QpState::SqDraining;
            }
            (QpState::SqDraining | QpState::SqDrained, QpTransition::ResumeSend) => {
                self.tells_drained = false;
                self.state = QpState::Rts;
            }
            // Receives have no doorbell: what was posted after the first flush is found now.
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
