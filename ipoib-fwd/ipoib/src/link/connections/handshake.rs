//! The link's side of communication management: its requests to the connection table, and the handling of the
//! table's events.

use std::time::Instant;

use cm::connection::{
    AcceptParams, ConnectRequest, DisconnectCause, Event as CmEvent, QpAttributes, ReplyInfo,
};
use hca::{RcToReceive, RcToSend};
use ib_wire::cm::ipoib::PrivateData;
use ib_wire::cm::{RetryCount, RnrRetry};

use super::state::{Input, State};
use super::{Side, Work};
use crate::link::action::ConnKey;
use crate::link::request::Request;
use crate::link::settings::WorkerIndex;
use crate::link::statistics::CloseReason;
use crate::link::{MAX_MESSAGE, MIN_MESSAGE};

/// Our RNR NAK timer: 0.64 ms (IBA table 45), long enough for a refill of the shared queue.
const MIN_RNR_TIMER: u8 = 12;

impl Work<'_> {
    /// Handles an event of the port's connection table about a connection; requests and ends have their own
    /// calls ([`Work::accept`], [`Work::released`]).
    pub(in crate::link) fn handshake(&mut self, now: Instant, key: ConnKey, event: CmEvent) {
        match event {
            CmEvent::Requested { .. } | CmEvent::Released { .. } => {}
            CmEvent::Replied { reply, .. } => self.replied(now, key, &reply),
            CmEvent::Established { .. } => {
                self.step(now, key, Input::Established, CloseReason::Timeout);
            }
            CmEvent::Rejected { reject, .. } => self.rejected(now, key, reject.reason),
            CmEvent::TimedOut { .. } => self.close(now, key, CloseReason::Timeout),
            CmEvent::Disconnected { cause: DisconnectCause::Peer, .. } => {
                self.close(now, key, CloseReason::PeerDisconnected);
            }
            CmEvent::Disconnected { cause: DisconnectCause::Stale, .. } => {
                self.close(now, key, CloseReason::Replaced);
            }
            CmEvent::Disconnected { cause: DisconnectCause::Us, .. } => {}
        }
    }

    /// Handles the end of a connection's handshake: its queue pair's number may be reused (IBA 12.9.8.4).
    pub(in crate::link) fn released(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        conn.handshake = false;
        self.step(now, key, Input::Released, CloseReason::Timeout);
    }

    /// Handles the failure to send the REQ, for lack of room among the port's connections.
    pub(in crate::link) fn connect_failed(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        conn.handshake = false;
        self.close(now, key, CloseReason::Full);
        self.step(now, key, Input::Released, CloseReason::Full);
    }

    /// Handles the failure to send the REP: the peer has given up in the meantime.
    pub(in crate::link) fn accept_failed(&mut self, now: Instant, key: ConnKey) {
        self.close(now, key, CloseReason::Timeout);
    }

    /// The queue pair transitions that a handshake has agreed on.
    pub(super) fn transitions(&self, a: &QpAttributes) -> (RcToReceive, RcToSend) {
        let receive = RcToReceive {
            av: self.ground.address_vector(&a.path),
            dest_qpn: a.dest_qpn,
            rq_psn: a.rq_psn,
            path_mtu: a.path_mtu.min(self.ground.port.mtu),
            min_rnr_timer: MIN_RNR_TIMER,
        };
        let send = RcToSend {
            sq_psn: a.sq_psn,
            timeout: a.ack_timeout.code(),
            retry_count: self.ground.settings.retry_count,
            rnr_retry: self.ground.settings.rnr_retry,
        };
        (receive, send)
    }

    fn private_data(&self, worker: WorkerIndex) -> Option<[u8; PrivateData::LEN]> {
        let ud_qpn = self.ground.address(worker)?.qpn;
        Some(PrivateData { ud_qpn, receive_mtu: self.ground.settings.receive_mtu }.to_bytes())
    }

    /// Sends the REQ of an active connection.
    pub(super) fn cm_connect(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let (psn, peer, worker) = (conn.psn, conn.peer, conn.worker);
        let (Side::Active { form, .. }, Some(qpn)) = (conn.side, conn.qpn) else { return };
        let parts =
            (self.paths.get(peer.gid).copied(), self.ground.port.pkey_index, self.private_data(worker));
        let (Some(path), Some(pkey_index), Some(private)) = parts else {
            self.close(now, key, CloseReason::LinkDown);
            return;
        };
        let request = ConnectRequest {
            starting_psn: psn,
            pkey_index,
            grh_required: self.ground.port.grh_required,
            retry_count: RetryCount::new(self.ground.settings.retry_count),
            rnr_retry_count: RnrRetry::new(self.ground.settings.rnr_retry),
            ..ConnectRequest::ipoib(form.service_id(peer.qpn), qpn, path, &private)
        };
        if let Some(conn) = self.conns.map.get_mut(&key) {
            conn.handshake = true;
            self.out.requests.push_back(Request::Connect { conn: key, request: Box::new(request) });
        }
    }

    /// Handles the peer's REP.
    fn replied(&mut self, now: Instant, key: ConnKey, reply: &ReplyInfo) {
        let (receive, send) = self.transitions(&reply.attributes);
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        // As in ib_ipoib: a peer that accepts no more than the header is refused.
        match PrivateData::from_message(&reply.private_data) {
            Some(private) if private.receive_mtu >= MIN_MESSAGE => {
                if conn.state == State::Dialling {
                    conn.mtu = private.receive_mtu.min(MAX_MESSAGE);
                    (conn.receive, conn.send) = (Some(receive), Some(send));
                }
                self.step(now, key, Input::Replied, CloseReason::PrivateData);
            }
            _ => self.close(now, key, CloseReason::PrivateData),
        }
    }

    /// Sends the REP: our queue pair can receive.
    pub(super) fn cm_accept(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.map.get(&key).filter(|c| c.handshake) else { return };
        let parts = (conn.qpn, self.private_data(conn.worker));
        let (Some(local_qpn), Some(private)) = parts else { return };
        let with = AcceptParams {
            local_qpn,
            starting_psn: conn.psn,
            private_data: private.to_vec(),
            srq: true,
            responder_resources: 0,
            initiator_depth: 0,
            rnr_retry_count: conn.rnr_retry,
        };
        self.out.requests.push_back(Request::Accept { conn: key, with: Box::new(with) });
    }
}
