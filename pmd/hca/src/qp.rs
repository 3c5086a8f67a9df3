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
    /// A datagram send failed; sends are flushed, receives go on.
    Sqe,
    /// Everything is flushed.
    Err,
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
    /// RESET → INIT of a connected queue pair.
    RcToInit {
        /// Index into the port's P_Key table.
        pkey_index: u16,
    },
    /// INIT → RTR of a datagram queue pair.
    UdToReceive,
    /// INIT → RTR of a connected queue pair.
    RcToReceive(RcToReceive),
    /// RTR → RTS of a datagram queue pair.
    UdToSend {
        /// First PSN to send.
        sq_psn: Psn,
    },
    /// RTR → RTS of a connected queue pair.
    RcToSend(RcToSend),
    /// Change of a datagram queue pair's Q_Key in RTS, as a new broadcast group may need.
    UdQKey(QKey),
    /// SQE → RTS.
    RecoverSend,
    /// Any state but RESET → ERR: flush. In ERR it flushes what was posted to a datagram queue pair since.
    ToError,
    /// Any state → RESET: forget what is outstanding.
    ToReset,
}
