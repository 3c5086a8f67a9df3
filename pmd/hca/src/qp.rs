//! States of queue pairs and the attributes of their transitions.

use ib_wire::{Mtu, Psn, QKey, Qpn};

use crate::AddressVector;

/// State of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// New, or reset.
    Reset,
    /// Bound to a port; receives may be posted.
    Init,
    /// Receives packets.
    Rtr,
    /// Receives and sends packets.
    Rts,
    /// Receives packets; completes only sends already started (SQD, IBA 10.3.1.5).
    SqDraining,
    /// As `SqDraining`, with all started sends complete.
    SqDrained,
    /// A send of an unreliable queue pair failed; sends are flushed, receives continue.
    Sqe,
    /// All work requests are flushed.
    Err,
}

impl QpState {
    /// True if the queue pair accepts packets.
    #[must_use]
    pub const fn receives(self) -> bool {
        match self {
            Self::Rtr | Self::Rts | Self::SqDraining | Self::SqDrained | Self::Sqe => true,
            Self::Reset | Self::Init | Self::Err => false,
        }
    }

    /// True if started sends continue.
    #[must_use]
    pub const fn goes_on_sending(self) -> bool {
        match self {
            Self::Rts | Self::SqDraining => true,
            Self::Reset | Self::Init | Self::Rtr | Self::SqDrained | Self::Sqe | Self::Err => false,
        }
    }
}

/// RC attributes of INIT → RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcToReceive {
    /// The path to the peer.
    pub av: AddressVector,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN that we expect: the one we announced.
    pub rq_psn: Psn,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// RNR NAK timer code, 5 bits; 0 = 655.36 ms, the longest.
    pub min_rnr_timer: u8,
}

/// RC attributes of RTR → RTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcToSend {
    /// First PSN that we send: the one the peer announced.
    pub sq_psn: Psn,
    /// Local ACK timeout code, 5 bits; 0 = never.
    pub timeout: u8,
    /// Retries after timeouts or sequence errors, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 = unlimited.
    pub rnr_retry: u8,
}

/// UC attributes of INIT → RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UcToReceive {
    /// The path to the peer.
    pub av: AddressVector,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN that we expect: the one we announced.
    pub rq_psn: Psn,
    /// Path MTU.
    pub path_mtu: Mtu,
}

/// Remote operations that the ends of a connection permit each other (IBA 11.2.4.2). The default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteAccess {
    /// The peer may write.
    pub write: bool,
    /// The peer may read.
    pub read: bool,
    /// The peer may execute atomic operations.
    pub atomic: bool,
    /// Limit of concurrent RDMA READs and atomic operations from the peer: its [`RemoteAccess::asked`].
    pub answered: u8,
    /// Limit of concurrent RDMA READs and atomic operations to the peer; others wait.
    pub asked: u8,
}

/// A transition of a queue pair, with its attributes (IBA 10.3.1, 11.2.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpTransition {
    /// RESET → INIT of a datagram queue pair.
    UdToInit {
        /// Index into the port's P_Key table.
        pkey_index: u16,
        /// Its Q_Key.
        qkey: QKey,
    },
    /// RESET → INIT of a reliably connected queue pair.
    RcToInit {
        /// Index into the port's P_Key table.
        pkey_index: u16,
    },
    /// RESET → INIT of an unreliably connected queue pair.
    UcToInit {
        /// Index into the port's P_Key table.
        pkey_index: u16,
    },
    /// INIT → RTR of a datagram queue pair.
    UdToReceive,
    /// INIT → RTR of a reliably connected queue pair.
    RcToReceive(RcToReceive),
    /// INIT → RTR of an unreliably connected queue pair.
    UcToReceive(UcToReceive),
    /// RTR → RTS of a datagram queue pair.
    UdToSend {
        /// First PSN to send.
        sq_psn: Psn,
    },
    /// RTR → RTS of a reliably connected queue pair.
    RcToSend(RcToSend),
    /// RTR → RTS of an unreliably connected queue pair.
    UcToSend {
        /// First PSN to send.
        sq_psn: Psn,
    },
    /// Change of a datagram queue pair's Q_Key in RTS, as a new broadcast group may need.
    UdQKey(QKey),
    /// SQE → RTS of an unreliable queue pair.
    RecoverSend,
    /// RTS → SQD: no more sends are started; the queue pair drains.
    DrainSend {
        /// Raise an event when it is drained.
        notify: bool,
    },
    /// SQD → RTS, drained or not.
    ResumeSend,
    /// Any state but RESET → ERR: flush. In ERR it flushes requests posted since the last flush.
    ToError,
    /// Any state → RESET: discard outstanding requests.
    ToReset,
}
