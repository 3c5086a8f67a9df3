//! States of queue pairs and what each change of state needs.

use ib_wire::{Mtu, Psn, QKey, Qpn};

use crate::AddressVector;

/// State of a queue pair (IBA 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Fresh or torn down.
    Reset,
    /// Bound to a port; receives may be posted.
    Init,
    /// Receives.
    Rtr,
    /// Receives and sends.
    Rts,
    /// Receives; of sends only what was begun goes on (SQD, IBA 10.3.1.5).
    SqDraining,
    /// The same, and all that was begun is done.
    SqDrained,
    /// A send of an unreliable queue pair failed; sends are flushed, receives go on.
    Sqe,
    /// Everything is flushed.
    Err,
}

impl QpState {
    /// True if packets are taken in.
    #[must_use]
    pub const fn receives(self) -> bool {
        match self {
            Self::Rtr | Self::Rts | Self::SqDraining | Self::SqDrained | Self::Sqe => true,
            Self::Reset | Self::Init | Self::Err => false,
        }
    }

    /// True if sends that were begun go on.
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
    /// The way to the other end.
    pub av: AddressVector,
    /// The other end's queue pair.
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
    /// First PSN that we send: the one the other end announced.
    pub sq_psn: Psn,
    /// Local ACK timeout code, 5 bits; 0 = never.
    pub timeout: u8,
    /// Retries after timeouts or sequence errors, 0 to 7.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 = for ever.
    pub rnr_retry: u8,
}

/// UC attributes of INIT → RTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UcToReceive {
    /// The way to the other end.
    pub av: AddressVector,
    /// The other end's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN that we expect: the one we announced.
    pub rq_psn: Psn,
    /// Path MTU.
    pub path_mtu: Mtu,
}

/// What the ends of a connection may do with each other's memory (IBA 11.2.4.2). The default is nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteAccess {
    /// The other end may write.
    pub write: bool,
    /// The other end may read.
    pub read: bool,
    /// The other end may do atomic operations.
    pub atomic: bool,
    /// RDMA READs and atomic operations of the other end that are answered at once: its [`RemoteAccess::asked`].
    pub answered: u8,
    /// RDMA READs and atomic operations that are under way to the other end at once; others wait.
    pub asked: u8,
}

/// A change of state of a queue pair, with what it needs (IBA 10.3.1, 11.2.4.2).
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
    /// RTS → SQD: nothing more is begun; the queue pair drains, and then it is drained.
    DrainSend {
        /// An event tells of that.
        notify: bool,
    },
    /// SQD → RTS, drained or not.
    ResumeSend,
    /// Any state but RESET → ERR: flush. In ERR it flushes what was posted since.
    ToError,
    /// Any state → RESET: forget what is outstanding.
    ToReset,
}
