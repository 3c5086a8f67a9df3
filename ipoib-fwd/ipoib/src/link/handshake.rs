//! The link's side of communication management: what it asks of the connection table, and what it makes of its events.

use std::time::{Duration, Instant};

use cm::connection::{
    AcceptParams, Config, ConnId, ConnectRequest, ConnectionTable, DisconnectCause, Event as CmEvent,
    QpAttributes, ReplyInfo, State as CmState,
};
use hca::{RcToReceive, RcToSend};
use ib_wire::cm::ipoib::{PrivateData, ServiceIdForm};
use ib_wire::cm::{RejectReason, RetryCount, RnrRetry};
use ib_wire::mad::Mad;

use super::action::{Action, ConnKey};
use super::connections::{Side, State};
use super::machine::Link;
use super::settings::LinkSettings;
use super::statistics::CloseReason;
use super::{MAX_MESSAGE, MIN_MESSAGE};

pub(super) type CmId = ConnId;

/// Longest time that a peer can make us wait by what its messages say.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// Our RNR NAK timer: 0.64 ms (IBA table 45), long enough for a refill of the shared queue.
const MIN_RNR_TIMER: u8 = 12;

/// The connection table of the link.
#[derive(Debug)]
pub(super) struct Handshakes {
    table: ConnectionTable,
}

impl Handshakes {
    pub(super) fn new(settings: &LinkSettings, seed: u64) -> Self {
        let slots: usize = settings.workers.iter().map(|w| usize::from(w.slots)).sum();
        let config = Config {
            // Those in TIMEWAIT have no queue pair any more.
            max_connections: slots.saturating_mul(2).clamp(64, 16_384),
            max_listeners: settings.workers.len().saturating_mul(2),
            max_wait: MAX_WAIT,
            ..Config::new(seed, settings.node_guid)
        };
        let mut table = ConnectionTable::new(config);
        for worker in &settings.workers {
            for form in [ServiceIdForm::Linux, ServiceIdForm::Rfc4755] {
                // Two workers with one queue pair would be a mistake of the owner's; the first has it then.
                let _ = table.listen(form.service_id(worker.ud_qpn));
            }
        }
        Self { table }
    }

    pub(super) const fn counters(&self) -> &cm::connection::Counters {
        self.table.counters()
    }
}

impl Link {
    /// Takes what the table has to tell.
    pub(super) fn handshake_events(&mut self, now: Instant) {
        while let Some(event) = self.handshakes.table.poll_event() {
            self.handshake_event(now, event);
        }
    }

    /// The next datagram that the table has to send.
    pub(super) fn handshake_transmit(&mut self) -> Option<Action> {
        self.handshakes.table.poll_transmit().map(Action::SendMad)
    }

    pub(super) fn handshake_mad(&mut self, now: Instant, mad: &Mad) {
        self.handshakes.table.handle_mad(now, mad);
        self.handshake_events(now);
    }

    pub(super) fn handshake_timeout(&self) -> Option<Instant> {
        self.handshakes.table.poll_timeout()
    }

    pub(super) fn handshake_time(&mut self, now: Instant) {
        if self.handshake_timeout().is_some_and(|at| at <= now) {
            self.handshakes.table.handle_timeout(now);
        }
        self.handshake_events(now);
    }

    fn handshake_event(&mut self, now: Instant, event: CmEvent) {
        if let CmEvent::Requested { id, request } = &event {
            self.requested(now, *id, request);
            return;
        }
        let Some(key) = self.conns.by_cm.get(&event.id()).copied() else { return };
        match event {
            CmEvent::Requested { .. } => {}
            CmEvent::Replied { reply, .. } => self.replied(now, key, &reply),
            CmEvent::Established { .. } => self.established(now, key),
            CmEvent::Rejected { reject, .. } => self.dial_rejected(now, key, reject.reason),
            CmEvent::TimedOut { .. } => self.close(now, key, CloseReason::Timeout),
            CmEvent::Disconnected { cause: DisconnectCause::Peer, .. } => {
                self.close(now, key, CloseReason::PeerDisconnected);
            }
            CmEvent::Disconnected { cause: DisconnectCause::Stale, .. } => {
                self.close(now, key, CloseReason::Replaced);
            }
            CmEvent::Disconnected { cause: DisconnectCause::Us, .. } => {}
            CmEvent::Released { id } => self.released(now, id, key),
        }
    }

    /// The last word on a connection: its queue pair's number may be used again (IBA 12.9.8.4).
    fn released(&mut self, now: Instant, id: CmId, key: ConnKey) {
        self.conns.by_cm.remove(&id);
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        if conn.cm == Some(id) {
            conn.cm = None;
            match conn.closing {
                None => self.close(now, key, CloseReason::Timeout),
                Some(_) => self.advance_teardown(now, key),
            }
        }
    }

    /// The changes of state that a handshake has agreed on.
    pub(super) fn transitions(&self, a: &QpAttributes) -> (RcToReceive, RcToSend) {
        let receive = RcToReceive {
            av: self.address_vector(&a.path),
            dest_qpn: a.dest_qpn,
            rq_psn: a.rq_psn,
            path_mtu: a.path_mtu.min(self.port.mtu),
            min_rnr_timer: MIN_RNR_TIMER,
        };
        let send = RcToSend {
            sq_psn: a.sq_psn,
            timeout: a.ack_timeout.code(),
            retry_count: self.settings.retry_count,
            rnr_retry: self.settings.rnr_retry,
        };
        (receive, send)
    }

    fn private_data(&self, conn_worker: super::WorkerIndex) -> Option<[u8; PrivateData::LEN]> {
        let ud_qpn = self.address(conn_worker)?.qpn;
        Some(PrivateData { ud_qpn, receive_mtu: self.settings.receive_mtu }.to_bytes())
    }

    /// Sends the REQ of an active connection.
    pub(super) fn cm_connect(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let (psn, peer, worker) = (conn.psn, conn.peer, conn.worker);
        let (Side::Active { form, .. }, Some(qpn)) = (conn.side, conn.qpn) else { return };
        let parts = (self.paths.get(peer.gid).copied(), self.port.pkey_index, self.private_data(worker));
        let (Some(path), Some(pkey_index), Some(private)) = parts else {
            self.close(now, key, CloseReason::LinkDown);
            return;
        };
        let request = ConnectRequest {
            starting_psn: psn,
            pkey_index,
            retry_count: RetryCount::new(self.settings.retry_count),
            rnr_retry_count: RnrRetry::new(self.settings.rnr_retry),
            ..ConnectRequest::ipoib(form.service_id(peer.qpn), qpn, path, &private)
        };
        match self.handshakes.table.connect(now, request) {
            Ok(id) => {
                self.conns.by_cm.insert(id, key);
                if let Some(conn) = self.conns.map.get_mut(&key) {
                    conn.cm = Some(id);
                }
            }
            Err(_) => self.close(now, key, CloseReason::Device),
        }
    }

    /// The peer has accepted.
    fn replied(&mut self, now: Instant, key: ConnKey, reply: &ReplyInfo) {
        let (receive, send) = self.transitions(&reply.attributes);
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        if conn.state != State::Dialling || conn.closing.is_some() {
            return;
        }
        // As in ib_ipoib: a peer that takes no more than the header is refused.
        match PrivateData::from_message(&reply.private_data) {
            Some(private) if private.receive_mtu >= MIN_MESSAGE => {
                conn.mtu = private.receive_mtu.min(MAX_MESSAGE);
                conn.receive = Some(receive);
                conn.send = Some(send);
                self.start_receiving(now, key);
            }
            _ => self.close(now, key, CloseReason::PrivateData),
        }
    }

    /// Sends the RTU: our queue pair is in RTS.
    pub(super) fn cm_ready(&mut self, now: Instant, key: ConnKey) {
        if let Some(id) = self.conns.map.get(&key).and_then(|c| c.cm) {
            let _ = self.handshakes.table.ready(now, id);
        }
    }

    /// Sends the REP: our queue pair receives.
    pub(super) fn cm_accept(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.map.get(&key) else { return };
        let parts = (conn.cm, conn.qpn, self.private_data(conn.worker));
        let (Some(id), Some(local_qpn), Some(private)) = parts else { return };
        let params = AcceptParams {
            local_qpn,
            starting_psn: conn.psn,
            private_data: private.to_vec(),
            srq: true,
            responder_resources: 0,
            initiator_depth: 0,
            rnr_retry_count: conn.rnr_retry,
        };
        if self.handshakes.table.accept(now, id, &params).is_err() {
            self.close(now, key, CloseReason::Timeout);
        }
    }

    /// Refuses a peer's request.
    pub(super) fn cm_reject(&mut self, now: Instant, id: CmId, reason: RejectReason) {
        let _ = self.handshakes.table.reject(now, id, reason, &[]);
    }

    /// Data came before the RTU.
    pub(super) fn communication_established(&mut self, now: Instant, key: ConnKey) {
        if let Some(qpn) = self.conns.map.get(&key).and_then(|c| c.qpn) {
            self.handshakes.table.communication_established(now, qpn);
        }
        self.established(now, key);
    }

    /// Ends a connection's handshake in the way that fits how far it has come. Its last event is still to come.
    pub(super) fn cm_close(&mut self, now: Instant, key: ConnKey, reason: CloseReason) {
        let Some(conn) = self.conns.map.get_mut(&key) else { return };
        let Some(id) = conn.cm else { return };
        let table = &mut self.handshakes.table;
        let no_answer_yet = table.state(id) == Some(CmState::ReqRcvd);
        let ended = if no_answer_yet && reason == CloseReason::Device {
            table.reject(now, id, RejectReason::NoResources, &[])
        } else {
            table.abandon(now, id)
        };
        if ended.is_err() {
            conn.cm = None;
            self.conns.by_cm.remove(&id);
        }
    }
}
