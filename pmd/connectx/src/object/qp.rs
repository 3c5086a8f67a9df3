//! Queue pairs: their queues, states and transitions (IBA 10.3.1).

use std::time::Instant;

use ib_wire::{PKey, Psn, QKey, Qpn};

use super::mr::ProtectionDomain;
use super::receive::ReceiveQueue;
use super::send::SendQueue;
use crate::connection::Connection;
use hca::{HcaError, QpState, QpTransition};

/// What a queue pair is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable datagram.
    Ud,
    /// General services: the world calls it 1.
    Gsi,
    /// Subnet management, beside the firmware's agent: the world calls it 0.
    Smi,
}

impl QpKind {
    /// The number by which the world knows it, if that is not its real one.
    #[must_use]
    pub const fn external(self) -> Option<Qpn> {
        match self {
            Self::Rc | Self::Ud => None,
            Self::Gsi => Some(Qpn::GSI),
            Self::Smi => Some(Qpn::SMI),
        }
    }

    const fn is_datagram(self) -> bool {
        !matches!(self, Self::Rc)
    }
}

/// What the two ends of a connection may do with each other's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteOperations {
    /// The other end may write.
    pub write: bool,
    /// The other end may read.
    pub read: bool,
    /// RDMA READs of the other end that are answered at once; one more ends the connection.
    pub reads_in: u8,
    /// RDMA READs that are under way to the other end at once; others wait. Without any they are errors.
    pub reads_out: u8,
}

impl Default for RemoteOperations {
    /// RDMA WRITE, no RDMA READ.
    fn default() -> Self {
        Self { write: true, read: false, reads_in: 0, reads_out: 0 }
    }
}

/// Where receives come from.
#[derive(Debug)]
pub(crate) enum Receives {
    Own(ReceiveQueue),
    Shared(u32),
    None,
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
    pub(crate) domain: ProtectionDomain,
    pub(crate) remote: RemoteOperations,
    /// What it sends to a group that it is attached to comes to itself, too.
    pub(crate) hears_itself: bool,
    pub(crate) qkey: QKey,
    /// PSN of the next datagram.
    pub(crate) datagram_psn: Psn,
    /// The transport's part of a connected queue pair.
    pub(crate) rc: Option<Box<Connection>>,
    /// It waits for its turn.
    pub(crate) queued: bool,
    /// When it wants to be looked at.
    pub(crate) deadline: Option<Instant>,
    /// Under which time it stands in the device's list of timers; not later than `deadline`.
    pub(crate) armed: Option<Instant>,
}

impl Qp {
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
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqe)
    }
}

/// What a transition asks the device to do beside the change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Consequence {
    None,
    /// Complete everything outstanding as flushed.
    Flush,
    /// Forget everything outstanding.
    Reset,
}

const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

const fn transition_name(to: &QpTransition) -> &'static str {
    match to {
        QpTransition::UdToInit { .. } => "UD to INIT",
        QpTransition::RcToInit { .. } => "RC to INIT",
        QpTransition::UdToReceive => "UD to RTR",
        QpTransition::RcToReceive(_) => "RC to RTR",
        QpTransition::UdToSend { .. } => "UD to RTS",
        QpTransition::RcToSend(_) => "RC to RTS",
        QpTransition::UdQKey(_) => "change of Q_Key",
        QpTransition::RecoverSend => "SQE to RTS",
        QpTransition::ToError => "ERR",
        QpTransition::ToReset => "RESET",
    }
}

impl Qp {
    /// Takes a transition, if the state and the transport allow it.
    pub(crate) fn transition(&mut self, to: &QpTransition) -> Result<Consequence, HcaError> {
        let datagram = self.kind.is_datagram();
        let mut consequence = Consequence::None;
        match (self.state, to) {
            (QpState::Reset, QpTransition::UdToInit { pkey_index, qkey }) if datagram => {
                self.pkey_index = *pkey_index;
                self.qkey = *qkey;
                self.state = QpState::Init;
            }
            (QpState::Reset, QpTransition::RcToInit { pkey_index }) if !datagram => {
                self.pkey_index = *pkey_index;
                self.state = QpState::Init;
            }
            (QpState::Init, QpTransition::UdToReceive) if datagram => self.state = QpState::Rtr,
            (QpState::Init, QpTransition::RcToReceive(how)) if !datagram => {
                self.rc = Some(Box::new(Connection::new(how)));
                self.state = QpState::Rtr;
            }
            (QpState::Rtr, QpTransition::UdToSend { sq_psn }) if datagram => {
                self.datagram_psn = *sq_psn;
                self.state = QpState::Rts;
            }
            (QpState::Rtr, QpTransition::RcToSend(how)) if !datagram => {
                if let Some(rc) = &mut self.rc {
                    rc.requester.start(how);
                }
                self.state = QpState::Rts;
            }
            (QpState::Rts, QpTransition::UdQKey(qkey)) if datagram => self.qkey = *qkey,
            (QpState::Sqe, QpTransition::RecoverSend) if datagram => self.state = QpState::Rts,
            // Receives have no doorbell: what was posted after the first flush is found now.
            (QpState::Err, QpTransition::ToError) if datagram => consequence = Consequence::Flush,
            (QpState::Err, QpTransition::ToError) => {}
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
