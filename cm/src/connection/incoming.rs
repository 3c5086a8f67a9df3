//! Processing of received datagrams.

use std::time::Instant;

use ib_wire::cm::{
    AlternatePathResponse, AprStatus, DisconnectReply, DisconnectRequest, Failover, Message, MessageMraed,
    MessageReceiptAck, MessageRejected, Reject, RejectReason, Reply, Request, SidrReply, SidrStatus,
    Transport,
};
use ib_wire::mad::{Mad, MadAddress};
use ib_wire::{CommId, Guid, QKey, Qpn, Tid, TimeoutCode};

use super::entry::Entry;
use super::state::{Input, State};
use super::{
    ConnId, ConnectionTable, DisconnectCause, Dropped, Event, QpAttributes, RejectInfo, ReplyInfo,
    RequestInfo,
};
use crate::timers::{ack_timeout, response_time};
use crate::{Origin, Path};

/// True if a connected queue pair can have this number.
fn connectable(qpn: Qpn) -> bool {
    qpn != Qpn::SMI && qpn != Qpn::GSI && qpn != Qpn::MULTICAST
}

/// Maximum accepted ACK delay of a peer, 1.07 s. A peer that never acknowledges must not block sends for
/// hours.
const MAX_ACK_DELAY: u8 = 18;

impl ConnectionTable {
    /// Handles a datagram of class CM. An invalid one is only counted.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) {
        self.handle_mad_for(now, mad, self.subnet.origin(&mad.peer));
    }

    /// Like [`Self::handle_mad`], but connections that the datagram initiates count against the share of
    /// `payer`.
    pub fn handle_mad_for(&mut self, now: Instant, mad: &Mad, payer: Origin) {
        let Ok((header, message)) = Message::parse(&mad.bytes) else {
            self.counters.count_dropped(Dropped::Malformed);
            return;
        };
        self.counters.count_received(message.attribute());
        let from = mad.peer;
        let tid = header.tid;
        let done = match &message {
            Message::Request(m) => self.on_request(now, from, tid, m, payer),
            Message::Reply(m) => self.on_reply(now, from, tid, m),
            Message::MessageReceiptAck(m) => self.on_mra(now, from, m),
            Message::Reject(m) => self.on_reject(now, from, m),
            Message::ReadyToUse(m) => {
                self.find(&from, m.remote_comm_id, m.local_comm_id).and_then(|id| self.on_rtu(now, id))
            }
            Message::DisconnectRequest(m) => self.on_dreq(now, from, tid, m),
            Message::DisconnectReply(m) => {
                self.find(&from, m.remote_comm_id, m.local_comm_id).and_then(|id| self.on_drep(now, id))
            }
            Message::LoadAlternatePath(m) => self.find(&from, m.remote_comm_id, m.local_comm_id).map(|id| {
                let answer = AlternatePathResponse {
                    local_comm_id: id,
                    remote_comm_id: m.local_comm_id,
                    info_length: 0,
                    status: AprStatus::Unsupported,
                    info: [0; 72],
                    private_data: [0; 148],
                };
                self.send(from.reply(), &answer.into(), tid);
            }),
            Message::SidrRequest(m) => {
                let answer = SidrReply {
                    request_id: m.request_id,
                    status: SidrStatus::Unsupported,
                    info_length: 0,
                    qpn: Qpn::default(),
                    service_id: m.service_id,
                    qkey: QKey(0),
                    info: [0; 72],
                    private_data: [0; 136],
                };
                self.send(from.reply(), &answer.into(), tid);
                Ok(())
            }
            Message::AlternatePathResponse(_) | Message::SidrReply(_) => Err(Dropped::State),
        };
        if let Err(why) = done {
            self.counters.count_dropped(why);
        }
    }

    /// True for a datagram that is answered for any sender: a request, or the end of a connection unknown to
    /// the sender.
    #[must_use]
    pub fn is_unsolicited(&self, mad: &Mad) -> bool {
        match Message::parse(&mad.bytes) {
            Ok((_, Message::Request(_) | Message::SidrRequest(_) | Message::LoadAlternatePath(_))) => true,
            Ok((_, Message::DisconnectRequest(m))) => {
                self.find(&mad.peer, m.remote_comm_id, m.local_comm_id).is_err()
            }
            _ => false,
        }
    }

    /// Finds the connection with these local and remote IDs, if the message comes from the peer.
    fn find(&self, from: &MadAddress, ours: CommId, theirs: CommId) -> Result<CommId, Dropped> {
        match self.entries.get(&ours) {
            Some(e)
                if e.remote_ca_guid.is_some()
                    && e.remote_comm_id == theirs
                    && e.is_from(self.subnet, from) =>
            {
                Ok(ours)
            }
            _ => Err(Dropped::UnknownConnection),
        }
    }

    pub(super) fn state_of(&self, id: CommId) -> State {
        self.entries.get(&id).map_or(State::Idle, |e| e.state)
    }

    /// Rejects a message that belongs to no connection.
    fn refuse(
        &mut self,
        to: MadAddress,
        tid: Tid,
        theirs: CommId,
        message: MessageRejected,
        reason: RejectReason,
    ) {
        let reject = Reject { remote_comm_id: theirs, message, reason, ..Reject::default() };
        self.send_reject(to, reject, tid);
    }

    fn on_request(
        &mut self,
        now: Instant,
        from: MadAddress,
        tid: Tid,
        m: &Request,
        payer: Origin,
    ) -> Result<(), Dropped> {
        let to = from.reply();
        let refuse = |table: &mut Self, reason| {
            table.refuse(to, tid, m.local_comm_id, MessageRejected::Request, reason);
            Ok(())
        };
        let origin = self.subnet.origin(&from);
        if let Some(&known) = self.by_remote_id.get(&(origin, m.ca_guid, m.local_comm_id)) {
            return match self.state_of(known) {
                State::MraReqSent => {
                    self.send_mra(known);
                    Ok(())
                }
                State::Timewait => refuse(self, RejectReason::StaleConnection),
                _ => Err(Dropped::Duplicate),
            };
        }
        if let Some(&old) = self.by_remote_qp.get(&(origin, m.ca_guid, m.local_qpn)) {
            self.end_stale(now, old, from);
            return refuse(self, RejectReason::StaleConnection);
        }
        if !self.listeners.contains(&m.service_id) {
            return refuse(self, RejectReason::InvalidServiceId);
        }
        if m.transport != Transport::Rc {
            return refuse(self, RejectReason::InvalidTransport);
        }
        let Some(mtu) = m.path_mtu.mtu() else {
            return refuse(self, RejectReason::InvalidMtu);
        };
        if !connectable(m.local_qpn) {
            return refuse(self, RejectReason::Unsupported);
        }
        self.check_room(payer)?;
        let path = Path::of_request(&m.primary, m.pkey, mtu, from.lid);
        let request = RequestInfo {
            service_id: m.service_id,
            remote_comm_id: m.local_comm_id,
            remote_ca_guid: m.ca_guid,
            remote_qpn: m.local_qpn,
            remote_starting_psn: m.starting_psn,
            path,
            pkey: m.pkey,
            pkey_index: from.pkey_index,
            source_lid: from.lid,
            source_gid: from.route.map(|route| route.gid),
            payer,
            srq: m.srq,
            retry_count: m.retry_count,
            rnr_retry_count: m.rnr_retry_count,
            responder_resources: m.responder_resources,
            initiator_depth: m.initiator_depth,
            ack_timeout: TimeoutCode::new((path.life_time.get() + 1).min(31)),
            private_data: m.private_data,
        };
        let id = self.fresh_id();
        let timeout = self.bounded(response_time(m.local_response_timeout));
        let most = self.config.max_repeating.as_millis() / timeout.as_millis().max(1);
        let max_retries = m.max_cm_retries.get().min(u8::try_from(most).unwrap_or(u8::MAX));
        let peer_timeout = response_time(m.remote_response_timeout);
        let entry = Entry {
            state: State::Idle,
            active: None,
            // Alternate paths are not accepted; "accepted" is for requests without one.
            failover: if m.alternate.is_none() { Failover::Accepted } else { Failover::NotSupported },
            abandoned: false,
            cause: DisconnectCause::Peer,
            peer: to,
            origin,
            payer,
            remote_comm_id: m.local_comm_id,
            remote_ca_guid: Some(m.ca_guid),
            remote_qpn: Some(m.local_qpn),
            local_qpn: None,
            peer_tid: tid,
            pending: None,
            service_timeout: TimeoutCode::new(0),
            deadline: None,
            timeout,
            max_retries,
            way: response_time(request.ack_timeout).min(self.config.max_timewait),
        };
        self.entries.insert(id, entry);
        *self.begun_by.entry(payer).or_default() += 1;
        self.begun += 1;
        self.by_remote_id.insert((origin, m.ca_guid, m.local_comm_id), id);
        self.by_remote_qp.insert((origin, m.ca_guid, m.local_qpn), id);
        self.step(now, id, Input::RecvReq);
        // The peer has given up by then. The local end does too if the owner has not responded.
        let patience = self.bounded(peer_timeout * (u32::from(max_retries) + 1));
        self.set_deadline(now + patience, id);
        self.event(id, Event::Requested { id: ConnId(id), request: Box::new(request) });
        Ok(())
    }

    fn set_deadline(&mut self, at: Instant, id: CommId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            self.timers.set(id, &mut entry.deadline, Some(at));
        }
    }

    fn on_reply(&mut self, now: Instant, from: MadAddress, tid: Tid, m: &Reply) -> Result<(), Dropped> {
        let id = m.remote_comm_id;
        let entry = self.entries.get(&id).ok_or(Dropped::UnknownConnection)?;
        let active = entry.active.ok_or(Dropped::State)?;
        if !entry.is_from(self.subnet, &from) {
            return Err(Dropped::UnknownConnection);
        }
        if !matches!(entry.state, State::ReqSent | State::MraReqRcvd) {
            // A duplicate: the response was lost.
            if entry.remote_ca_guid.is_none() || entry.remote_comm_id != m.local_comm_id {
                return Err(Dropped::UnknownConnection);
            }
            match entry.state {
                State::Established => self.send_rtu(id),
                State::MraRepSent => self.send_mra(id),
                _ => return Err(Dropped::Duplicate),
            }
            return Ok(());
        }
        let origin = entry.origin;
        if !connectable(m.local_qpn) || self.by_remote_id.contains_key(&(origin, m.ca_guid, m.local_comm_id))
        {
            return Err(Dropped::State);
        }
        let stale = self.by_remote_qp.get(&(origin, m.ca_guid, m.local_qpn)).copied();
        if let Some(old) = stale {
            return self.refuse_stale_reply(now, from, tid, id, m, old);
        }
        let attributes = QpAttributes {
            path: active.path,
            path_mtu: active.path.mtu,
            dest_qpn: m.local_qpn,
            rq_psn: active.starting_psn,
            min_rnr_timer: 0,
            max_dest_rd_atomic: active.responder_resources.min(m.initiator_depth),
            sq_psn: m.starting_psn,
            ack_timeout: ack_timeout(
                TimeoutCode::new(m.target_ack_delay.code().min(MAX_ACK_DELAY)),
                active.path.life_time,
            ),
            retry_count: active.retry_count.get(),
            rnr_retry: m.rnr_retry_count.get(),
            max_rd_atomic: active.initiator_depth.min(m.responder_resources),
        };
        let way = self.bounded(response_time(attributes.ack_timeout));
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.remote_comm_id = m.local_comm_id;
            entry.remote_ca_guid = Some(m.ca_guid);
            entry.remote_qpn = Some(m.local_qpn);
            entry.peer_tid = tid;
            entry.way = way;
        }
        self.by_remote_id.insert((origin, m.ca_guid, m.local_comm_id), id);
        self.by_remote_qp.insert((origin, m.ca_guid, m.local_qpn), id);
        self.step(now, id, Input::RecvRep);
        let reply = ReplyInfo {
            remote_comm_id: m.local_comm_id,
            remote_ca_guid: m.ca_guid,
            srq: m.srq,
            attributes,
            private_data: m.private_data,
        };
        self.event(id, Event::Replied { id: ConnId(id), reply: Box::new(reply) });
        Ok(())
    }

    /// Ends a connection whose queue pair starts another one (IBA 12.9.8.3), if the request comes from the
    /// same port. Others could name any queue pair.
    fn end_stale(&mut self, now: Instant, old: CommId, from: MadAddress) {
        let Some(entry) = self.entries.get(&old) else { return };
        if entry.state == State::Established && entry.is_from(self.subnet, &from) {
            self.start_disconnect(now, old, DisconnectCause::Stale);
        }
    }

    /// Rejects a REP from a queue pair that an older connection uses, and ends both.
    fn refuse_stale_reply(
        &mut self,
        now: Instant,
        from: MadAddress,
        tid: Tid,
        id: CommId,
        m: &Reply,
        old: CommId,
    ) -> Result<(), Dropped> {
        let reject = Reject {
            local_comm_id: id,
            remote_comm_id: m.local_comm_id,
            message: MessageRejected::Reply,
            reason: RejectReason::StaleConnection,
            ..Reject::default()
        };
        self.send_reject(from.reply(), reject, tid);
        self.end_stale(now, old, from);
        let info = RejectInfo {
            reason: RejectReason::StaleConnection,
            message: MessageRejected::Reply,
            info: Vec::new(),
            private_data: [0; 148],
        };
        self.event(id, Event::Rejected { id: ConnId(id), reject: Box::new(info) });
        self.step(now, id, Input::SendRej);
        Ok(())
    }

    fn on_mra(&mut self, now: Instant, from: MadAddress, m: &MessageReceiptAck) -> Result<(), Dropped> {
        let id = m.remote_comm_id;
        let entry = self.entries.get(&id).ok_or(Dropped::UnknownConnection)?;
        let is_known = entry.remote_ca_guid.is_none() || entry.remote_comm_id == m.local_comm_id;
        if !is_known || !entry.is_from(self.subnet, &from) {
            return Err(Dropped::UnknownConnection);
        }
        let input = match m.message {
            MessageMraed::Request => Input::RecvMraReq,
            MessageMraed::Reply => Input::RecvMraRep,
            _ => return Err(Dropped::State),
        };
        if matches!(entry.state, State::MraReqRcvd | State::MraRepRcvd) {
            return Err(Dropped::Duplicate);
        }
        let wait = self.bounded(response_time(m.service_timeout) + entry.way);
        if !self.step(now, id, input) {
            return Err(Dropped::State);
        }
        self.set_deadline(now + wait, id);
        Ok(())
    }

    fn on_reject(&mut self, now: Instant, from: MadAddress, m: &Reject) -> Result<(), Dropped> {
        self.counters.count_reject_received(m.reason);
        let id = self.rejected(from, m).ok_or(Dropped::UnknownConnection)?;
        let stale = m.reason == RejectReason::StaleConnection;
        let before = self.state_of(id);
        let input = if stale { Input::RecvRejStale } else { Input::RecvRej };
        if before.after(input).is_none() {
            return Err(Dropped::State);
        }
        if before == State::DreqSent {
            self.disconnected(id);
        } else {
            let info = RejectInfo {
                reason: m.reason,
                message: m.message,
                info: m.used_info().to_vec(),
                private_data: m.private_data,
            };
            self.event(id, Event::Rejected { id: ConnId(id), reject: Box::new(info) });
        }
        self.step(now, id, input);
        Ok(())
    }

    /// Finds the connection that a REJ refers to.
    fn rejected(&self, from: MadAddress, m: &Reject) -> Option<CommId> {
        if m.reason == RejectReason::Timeout
            && let Some(guid) = m.used_info().first_chunk()
            && let guid = Guid(u64::from_be_bytes(*guid))
            && let Some(&id) = self.by_remote_id.get(&(self.subnet.origin(&from), guid, m.local_comm_id))
            && self.entries.get(&id).is_some_and(|entry| entry.is_from(self.subnet, &from))
        {
            return Some(id);
        }
        let entry = self.entries.get(&m.remote_comm_id)?;
        // Before the REP the peer's ID is unknown, or the peer may have none.
        let is_known = entry.remote_ca_guid.is_none() || entry.remote_comm_id == m.local_comm_id;
        (is_known && entry.is_from(self.subnet, &from)).then_some(m.remote_comm_id)
    }

    fn on_rtu(&mut self, now: Instant, id: CommId) -> Result<(), Dropped> {
        if self.step(now, id, Input::RecvRtu) {
            self.established(id);
            return Ok(());
        }
        Err(if self.state_of(id) == State::Established { Dropped::Duplicate } else { Dropped::State })
    }

    fn on_dreq(
        &mut self,
        now: Instant,
        from: MadAddress,
        tid: Tid,
        m: &DisconnectRequest,
    ) -> Result<(), Dropped> {
        let answer = |ours| DisconnectReply {
            local_comm_id: ours,
            remote_comm_id: m.local_comm_id,
            private_data: [0; 224],
        };
        let Ok(id) = self.find(&from, m.remote_comm_id, m.local_comm_id) else {
            // The sender has no such connection, or no longer.
            self.send(from.reply(), &answer(m.remote_comm_id).into(), tid);
            return Err(Dropped::UnknownConnection);
        };
        let entry = self.entries.get(&id).ok_or(Dropped::UnknownConnection)?;
        if entry.local_qpn != Some(m.remote_qpn) {
            return Err(Dropped::WrongQp);
        }
        let peer = entry.peer;
        match entry.state {
            State::Timewait => self.send(peer, &answer(id).into(), tid),
            state if state.after(Input::RecvDreq).is_some() => {
                // If a DREQ was sent first, the local end is the cause.
                if state != State::DreqSent
                    && let Some(entry) = self.entries.get_mut(&id)
                {
                    entry.cause = DisconnectCause::Peer;
                }
                self.step(now, id, Input::RecvDreq);
                self.send(peer, &answer(id).into(), tid);
                self.disconnected(id);
                self.step(now, id, Input::SendDrep);
            }
            _ => return Err(Dropped::State),
        }
        Ok(())
    }

    fn on_drep(&mut self, now: Instant, id: CommId) -> Result<(), Dropped> {
        if self.state_of(id).after(Input::RecvDrep).is_none() {
            return Err(Dropped::State);
        }
        self.disconnected(id);
        self.step(now, id, Input::RecvDrep);
        Ok(())
    }

    pub(super) fn disconnected(&mut self, id: CommId) {
        let cause = self.entries.get(&id).map_or(DisconnectCause::Us, |e| e.cause);
        self.event(id, Event::Disconnected { id: ConnId(id), cause });
    }
}
