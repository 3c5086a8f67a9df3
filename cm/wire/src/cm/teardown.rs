//! The short messages: MRA (IBA 12.6.6), RTU (12.6.9), DREQ (12.6.10), DREP (12.6.11).

use crate::layout::{layout, open_enum};
use crate::{CommId, Qpn, TimeoutCode};

layout! {
    /// MRA: acknowledges a message whose response will take longer.
    pub struct MessageReceiptAck[232] {
        /// Communication id of the sender.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Communication id of the receiver.
        remote_comm_id: CommId = 4 @ 0, 32;
        /// The message that arrived.
        message: MessageMraed = 8 @ 0, 2;
        /// Maximum time that the response will take.
        service_timeout: TimeoutCode = 9 @ 0, 5;
        /// Private data.
        private_data: [u8; 222] = 10 @ 0, 1776;
    }
}

open_enum! {
    /// The message that an MRA acknowledges, 2 bits.
    pub enum MessageMraed(u8) {
        /// REQ.
        Request = 0,
        /// REP.
        Reply = 1,
        /// LAP.
        LoadAlternatePath = 2,
    }
}

layout! {
    /// RTU: the connection is in use.
    pub struct ReadyToUse[232] {
        /// Communication id of the sender.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Communication id of the receiver.
        remote_comm_id: CommId = 4 @ 0, 32;
        /// Private data.
        private_data: [u8; 224] = 8 @ 0, 1792;
    }
}

layout! {
    /// DREQ: ends a connection.
    pub struct DisconnectRequest[232] {
        /// Communication id of the sender.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Communication id of the receiver.
        remote_comm_id: CommId = 4 @ 0, 32;
        /// The receiver's queue pair.
        remote_qpn: Qpn = 8 @ 0, 24;
        /// Private data.
        private_data: [u8; 220] = 12 @ 0, 1760;
    }
}

layout! {
    /// DREP: the response to DREQ.
    pub struct DisconnectReply[232] {
        /// Communication id of the sender.
        local_comm_id: CommId = 0 @ 0, 32;
        /// Communication id of the receiver.
        remote_comm_id: CommId = 4 @ 0, 32;
        /// Private data.
        private_data: [u8; 224] = 8 @ 0, 1792;
    }
}
