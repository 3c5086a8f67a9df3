//! Messages sent by the table.

use std::time::{Duration, Instant};

use ib_wire::cm::{
    DisconnectRequest, InfoLength, Message, MessageMraed, MessageReceiptAck, MessageRejected, ReadyToUse,
    Reject, RejectReason,
};
use ib_wire::mad::{Mad, MadAddress};
use ib_wire::{CommId, Tid};

use super::entry::Pending;
use super::state::{Input, State};
use super::{ConnectionTable, DisconnectCause, Dropped};

/// Maximum interval between two DREQs to a peer that initiated the connection, regardless of its handshake
/// times.
const DREQ_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of their retransmissions while the table is filling up.
const DREQ_RETRIES: u8 = 1;

impl ConnectionTable {
    /// Sends a DREQ on an established connection.
    pub(super) fn start_disconnect(&mut self, now: Instant, id: CommId, cause: DisconnectCause) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.cause = cause;
        if entry.active.is_none() {
            entry.timeout = entry.timeout.min(DREQ_TIMEOUT);
            if self.begun > self.config.max_begun / 2 {
                entry.max_retries = entry.max_retries.min(DREQ_RETRIES);
            }
        }
        let message = DisconnectRequest {
            local_comm_id: id,
            remote_comm_id: entry.remote_comm_id,
            remote_qpn: entry.remote_qpn.unwrap_or_default(),
            private_data: [0; 220],
        };
        if self.step(now, id, Input::SendDreq) {
            let tid = self.tid(id);
            self.send_until_answered(now, id, message.into(), tid);
        }
    }

    /// Sends the REJ for the current state and leaves that state.
    pub(super) fn give_up(
        &mut self,
        now: Instant,
        id: CommId,
        reason: RejectReason,
        private_data: [u8; 148],
    ) {
        if let Some((peer, message, tid)) = self.reject_message(id, reason, private_data) {
            self.send_reject(peer, message, tid);
        }
        self.step(now, id, Input::SendRej);
    }

    /// Builds the REJ for a connection's state.
    pub(super) fn reject_message(
        &self,
        id: CommId,
        reason: RejectReason,
        private_data: [u8; 148],
    ) -> Option<(MadAddress, Reject, Tid)> {
        let entry = self.entries.get(&id)?;
        let message = match entry.state {
            State::ReqRcvd | State::MraReqSent => MessageRejected::Request,
            State::RepRcvd | State::MraRepSent => MessageRejected::Reply,
            _ => MessageRejected::NoMessage,
        };
        let mut reject = Reject {
            // Before any response the peer knows no local ID.
            local_comm_id: if entry.state == State::ReqRcvd { CommId(0) } else { id },
            remote_comm_id: entry.remote_comm_id,
            message,
            reason,
            private_data,
            ..Reject::default()
        };
        if reason == RejectReason::Timeout {
            // The peer finds the connection by the local GUID, because its ID may not be known yet.
            if let Some(to) = reject.info.first_chunk_mut() {
                *to = self.config.ca_guid.0.to_be_bytes();
            }
            reject.info_length = InfoLength::new(8);
        }
        let tid = match message {
            MessageRejected::Request | MessageRejected::Reply => entry.peer_tid,
            _ => self.tid(id),
        };
        Some((entry.peer, reject, tid))
    }

    pub(super) fn send_reject(&mut self, to: MadAddress, reject: Reject, tid: Tid) {
        self.counters.count_reject_sent(reject.reason);
        self.send(to, &reject.into(), tid);
    }

    /// Sends the MRA for a connection's state again.
    pub(super) fn send_mra(&mut self, id: CommId) {
        let Some(entry) = self.entries.get(&id) else { return };
        let message = MessageReceiptAck {
            local_comm_id: id,
            remote_comm_id: entry.remote_comm_id,
            message: if entry.active.is_some() { MessageMraed::Reply } else { MessageMraed::Request },
            service_timeout: entry.service_timeout,
            private_data: [0; 222],
        };
        let (peer, tid) = (entry.peer, entry.peer_tid);
        self.send(peer, &message.into(), tid);
    }

    /// Sends the RTU, initially or again.
    pub(super) fn send_rtu(&mut self, id: CommId) {
        let Some(entry) = self.entries.get(&id) else { return };
        let message =
            ReadyToUse { local_comm_id: id, remote_comm_id: entry.remote_comm_id, private_data: [0; 224] };
        let (peer, tid) = (entry.peer, entry.peer_tid);
        self.send(peer, &message.into(), tid);
    }

    /// Sends a message now, and repeatedly until the connection leaves its current state.
    pub(super) fn send_until_answered(&mut self, now: Instant, id: CommId, message: Message, tid: Tid) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.pending = Some(Box::new(Pending { message, tid, retries: entry.max_retries }));
        let at = now + entry.timeout;
        self.timers.set(id, &mut entry.deadline, Some(at));
        let peer = entry.peer;
        self.send(peer, &message, tid);
    }

    pub(super) fn send(&mut self, peer: MadAddress, message: &Message, tid: Tid) {
        if self.transmit.len() >= self.config.max_transmit {
            self.counters.count_dropped(Dropped::TransmitFull);
            return;
        }
        self.counters.count_sent(message.attribute());
        self.transmit.push_back(Mad { peer, bytes: message.to_bytes(tid) });
    }
}
