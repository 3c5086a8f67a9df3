//! The connection table: its indexes, its transmit queue, and the owner's calls.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ib_wire::cm::{Failover, RejectReason, Reply, Request, Transport};
use ib_wire::mad::Mad;
use ib_wire::{CommId, Guid, Qpn, ServiceId, Tid, TimeoutCode};

use super::entry::{Active, Entry};
use super::state::{Input, State};
use super::{
    AcceptParams, Config, ConnId, ConnectRequest, Counters, DisconnectCause, Dropped, Event, TableError,
};
use crate::random::{Identifiers, Label, Random};
use crate::timers::{Timers, ack_timeout, response_time};
use crate::{Origin, Subnet};

/// All connections of one port.
#[derive(Debug)]
pub struct ConnectionTable {
    pub(super) config: Config,
    pub(super) entries: HashMap<CommId, Entry>,
    pub(super) subnet: Subnet,
    /// (port, CA GUID, communication ID) of the peer. The port does not come from the message, so a peer
    /// cannot claim another's IDs.
    pub(super) by_remote_id: HashMap<(Origin, Guid, CommId), CommId>,
    /// (port, CA GUID, queue pair) of the peer, until TIMEWAIT.
    pub(super) by_remote_qp: HashMap<(Origin, Guid, Qpn), CommId>,
    /// Number of connections that each port has initiated, including TIMEWAIT.
    pub(super) begun_by: HashMap<Origin, usize>,
    /// Number of connections that all peers have initiated.
    pub(super) begun: usize,
    pub(super) by_local_qp: HashMap<Qpn, CommId>,
    pub(super) listeners: HashSet<ServiceId>,
    pub(super) timers: Timers<CommId>,
    pub(super) counters: Counters,
    pub(super) transmit: VecDeque<Mad>,
    events: VecDeque<Event>,
    ids: Identifiers,
    tid_high: u32,
}

impl ConnectionTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let ids = Identifiers::new(&mut Random::new(config.seed));
        Self {
            entries: HashMap::new(),
            subnet: Subnet::default(),
            begun_by: HashMap::new(),
            begun: 0,
            by_remote_id: HashMap::new(),
            by_remote_qp: HashMap::new(),
            by_local_qp: HashMap::new(),
            listeners: HashSet::new(),
            timers: Timers::new(),
            counters: Counters::default(),
            transmit: VecDeque::new(),
            events: VecDeque::new(),
            tid_high: ids.derive(Label::Connections) as u32,
            ids,
            config,
        }
    }

    /// Sets the local subnet. Existing connections keep their ports.
    pub const fn set_subnet(&mut self, subnet: Subnet) {
        self.subnet = subnet;
    }

    pub(crate) const fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// Sets the maximum number of connections that one port of the fabric may initiate
    /// ([`Config::max_from_port`]).
    pub const fn set_max_from_port(&mut self, most: usize) {
        self.config.max_from_port = most;
    }

    /// Accepts requests for a service ID, which must match exactly.
    pub fn listen(&mut self, service_id: ServiceId) -> Result<(), TableError> {
        if self.listeners.contains(&service_id) {
            return Err(TableError::ServiceTaken(service_id));
        }
        if self.listeners.len() >= self.config.max_listeners {
            return Err(TableError::ListenersFull(self.config.max_listeners));
        }
        self.listeners.insert(service_id);
        Ok(())
    }

    /// Reverts [`ConnectionTable::listen`]. Connections stay.
    pub fn unlisten(&mut self, service_id: ServiceId) {
        self.listeners.remove(&service_id);
    }

    /// Requests a connection from a peer.
    pub fn connect(&mut self, now: Instant, request: ConnectRequest) -> Result<ConnId, TableError> {
        let private_data = private(&request.private_data)?;
        if self.entries.len() >= self.config.max_connections {
            return Err(TableError::Full(self.config.max_connections));
        }
        if self.by_local_qp.contains_key(&request.local_qpn) {
            return Err(TableError::QpInUse(request.local_qpn));
        }
        let id = self.fresh_id();
        let path = request.path;
        let ack = ack_timeout(self.config.ack_delay, path.life_time);
        let message = Request {
            local_comm_id: id,
            service_id: request.service_id,
            ca_guid: self.config.ca_guid,
            local_qpn: request.local_qpn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            remote_response_timeout: request.remote_response_timeout,
            transport: Transport::Rc,
            starting_psn: request.starting_psn,
            local_response_timeout: request.local_response_timeout,
            retry_count: request.retry_count,
            pkey: path.pkey,
            path_mtu: path.mtu.into(),
            rnr_retry_count: request.rnr_retry_count,
            max_cm_retries: request.max_cm_retries,
            srq: request.srq,
            primary: path.to_request(ack),
            private_data,
            ..Request::default()
        };
        let way = response_time(path.life_time.timeout());
        let timeout = self.bounded(response_time(request.remote_response_timeout) + 2 * way);
        let max_retries = request.max_cm_retries.get();
        self.entries.insert(
            id,
            Entry {
                state: State::Idle,
                active: Some(Active {
                    path,
                    starting_psn: request.starting_psn,
                    retry_count: request.retry_count,
                    responder_resources: request.responder_resources,
                    initiator_depth: request.initiator_depth,
                }),
                failover: Failover::Accepted,
                abandoned: false,
                cause: DisconnectCause::Us,
                peer: path.gsi(request.pkey_index, request.sgid_index, request.grh_required),
                origin: self.subnet.destination(&path),
                payer: self.subnet.destination(&path),
                remote_comm_id: CommId(0),
                remote_ca_guid: None,
                remote_qpn: None,
                local_qpn: Some(request.local_qpn),
                peer_tid: Tid(0),
                pending: None,
                service_timeout: TimeoutCode::new(0),
                deadline: None,
                timeout,
                max_retries,
                way: self.bounded(response_time(ack)),
            },
        );
        self.by_local_qp.insert(request.local_qpn, id);
        self.step(now, id, Input::SendReq);
        let tid = self.tid(id);
        self.send_until_answered(now, id, message.into(), tid);
        Ok(ConnId(id))
    }

    /// Accepts a requested connection: sends the REP until the RTU arrives.
    pub fn accept(&mut self, now: Instant, id: ConnId, with: &AcceptParams) -> Result<(), TableError> {
        let private_data = private(&with.private_data)?;
        let entry = self.allowed(id, Input::SendRep)?;
        let (remote_comm_id, tid, failover) = (entry.remote_comm_id, entry.peer_tid, entry.failover);
        if self.by_local_qp.contains_key(&with.local_qpn) {
            return Err(TableError::QpInUse(with.local_qpn));
        }
        self.by_local_qp.insert(with.local_qpn, id.0);
        if let Some(entry) = self.entries.get_mut(&id.0) {
            entry.local_qpn = Some(with.local_qpn);
        }
        let message = Reply {
            local_comm_id: id.0,
            remote_comm_id,
            local_qpn: with.local_qpn,
            starting_psn: with.starting_psn,
            responder_resources: with.responder_resources,
            initiator_depth: with.initiator_depth,
            target_ack_delay: self.config.ack_delay,
            failover,
            rnr_retry_count: with.rnr_retry_count,
            srq: with.srq,
            ca_guid: self.config.ca_guid,
            private_data,
            ..Reply::default()
        };
        self.step(now, id.0, Input::SendRep);
        self.send_until_answered(now, id.0, message.into(), tid);
        Ok(())
    }

    /// Notifies the peer that the response (to a REQ: `accept` or `reject`; to a REP: `ready`) takes up to
    /// this time.
    pub fn delay(
        &mut self,
        now: Instant,
        id: ConnId,
        service_timeout: TimeoutCode,
    ) -> Result<(), TableError> {
        self.allowed(id, Input::SendMra)?;
        let more = self.bounded(response_time(service_timeout));
        if let Some(entry) = self.entries.get_mut(&id.0) {
            entry.service_timeout = service_timeout;
            // The peer now waits for the requested time.
            let until = entry.deadline.map(|at| at + more);
            self.timers.set(id.0, &mut entry.deadline, until);
        }
        self.step(now, id.0, Input::SendMra);
        self.send_mra(id.0);
        Ok(())
    }

    /// Rejects a requested connection, or an unsuitable REP. Only [`Event::Released`] follows.
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), TableError> {
        let private_data = private(private_data)?;
        self.allowed(id, Input::SendRej)?;
        self.give_up(now, id.0, reason, private_data);
        Ok(())
    }

    /// Reports that the queue pair of an active connection is in RTS. Sends the RTU; the connection is
    /// established.
    pub fn ready(&mut self, now: Instant, id: ConnId) -> Result<(), TableError> {
        self.allowed(id, Input::SendRtu)?;
        self.step(now, id.0, Input::SendRtu);
        self.send_rtu(id.0);
        Ok(())
    }

    /// Reports data on a queue pair, which is equivalent to an RTU.
    pub fn communication_established(&mut self, now: Instant, qpn: Qpn) {
        let Some(&id) = self.by_local_qp.get(&qpn) else { return };
        if self.step(now, id, Input::Data) {
            self.established(id);
        }
    }

    /// Reports data on a connection, like [`Self::communication_established`].
    pub fn data_arrived(&mut self, now: Instant, id: ConnId) {
        if self.step(now, id.0, Input::Data) {
            self.established(id.0);
        }
    }

    /// Ends a connection in any state. [`Event::Disconnected`] and [`Event::Released`] follow.
    pub fn disconnect(&mut self, now: Instant, id: ConnId) -> Result<(), TableError> {
        let entry = self.entries.get(&id.0).ok_or(TableError::Unknown(id))?;
        match entry.state {
            State::Established => {
                self.start_disconnect(now, id.0, DisconnectCause::Us);
            }
            State::ReqSent | State::MraReqRcvd => {
                self.event(id.0, Event::Disconnected { id, cause: DisconnectCause::Us });
                self.give_up(now, id.0, RejectReason::Timeout, [0; 148]);
            }
            State::Idle | State::DreqSent | State::DreqRcvd | State::Timewait => {}
            _ => {
                self.event(id.0, Event::Disconnected { id, cause: DisconnectCause::Us });
                self.give_up(now, id.0, RejectReason::Consumer, [0; 148]);
            }
        }
        Ok(())
    }

    /// Like [`ConnectionTable::disconnect`], but only [`Event::Released`] follows.
    pub fn abandon(&mut self, now: Instant, id: ConnId) -> Result<(), TableError> {
        self.entries.get_mut(&id.0).ok_or(TableError::Unknown(id))?.abandoned = true;
        self.disconnect(now, id)
    }

    /// Returns the next datagram to send from QP1.
    pub fn poll_transmit(&mut self) -> Option<Mad> {
        self.transmit.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the time at which [`ConnectionTable::handle_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Returns the state of a connection.
    #[must_use]
    pub fn state(&self, id: ConnId) -> Option<State> {
        self.entries.get(&id.0).map(|e| e.state)
    }

    /// Returns the connection of a local queue pair.
    #[must_use]
    pub fn by_qpn(&self, qpn: Qpn) -> Option<ConnId> {
        self.by_local_qp.get(&qpn).copied().map(ConnId)
    }

    /// Number of connections in the table, including TIMEWAIT.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn allowed(&self, id: ConnId, input: Input) -> Result<&Entry, TableError> {
        let entry = self.entries.get(&id.0).ok_or(TableError::Unknown(id))?;
        entry.state.after(input).map(|_| entry).ok_or(TableError::State(entry.state))
    }

    /// Returns an unused communication ID that cannot be predicted from others; never 0.
    pub(super) fn fresh_id(&mut self) -> CommId {
        loop {
            let id = CommId(self.ids.next());
            if id.0 != 0 && !self.entries.contains_key(&id) {
                return id;
            }
        }
    }

    /// Returns the transaction ID of a local request.
    pub(super) fn tid(&self, id: CommId) -> Tid {
        Tid(u64::from(self.tid_high) << 32 | u64::from(id.0))
    }

    pub(super) fn bounded(&self, time: Duration) -> Duration {
        time.min(self.config.max_wait)
    }

    /// Queues an event unless the owner has abandoned the connection.
    pub(super) fn event(&mut self, id: CommId, event: Event) {
        if self.entries.get(&id).is_some_and(|e| !e.abandoned) {
            self.events.push_back(event);
        }
    }

    /// Checks for room for a connection that a port initiates.
    pub(super) fn check_room(&self, origin: Origin) -> Result<(), Dropped> {
        let most = self.config.max_connections;
        if self.begun_by.get(&origin).is_some_and(|begun| *begun >= self.config.max_from_port) {
            Err(Dropped::OverShare)
        } else if self.entries.len() >= most
            || self.begun >= self.config.max_begun
            || self.events.len() >= most
        {
            Err(Dropped::NoRoom)
        } else {
            Ok(())
        }
    }

    /// Makes a transition with its common effects. Returns false, without changes, if the transition is not
    /// allowed.
    pub(super) fn step(&mut self, now: Instant, id: CommId, input: Input) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        let Some(next) = entry.state.after(input) else { return false };
        entry.state = next;
        match next {
            // The pending message was answered, or is no longer needed.
            State::RepRcvd | State::MraRepSent | State::Established | State::DreqRcvd => {
                entry.pending = None;
                self.timers.set(id, &mut entry.deadline, None);
            }
            State::Timewait => {
                entry.pending = None;
                let until = now + entry.way;
                self.timers.set(id, &mut entry.deadline, Some(until));
                if let Some(key) = entry.remote_qp_key() {
                    remove_own(&mut self.by_remote_qp, &key, id);
                }
            }
            State::Idle => self.release(id),
            _ => {}
        }
        true
    }

    /// Removes a connection.
    fn release(&mut self, id: CommId) {
        let Some(mut entry) = self.entries.remove(&id) else { return };
        self.timers.set(id, &mut entry.deadline, None);
        if let Some(key) = entry.remote_id_key() {
            remove_own(&mut self.by_remote_id, &key, id);
        }
        if let Some(key) = entry.remote_qp_key() {
            remove_own(&mut self.by_remote_qp, &key, id);
        }
        if entry.active.is_none()
            && let Some(begun) = self.begun_by.get_mut(&entry.payer)
        {
            *begun -= 1;
            self.begun -= 1;
            if *begun == 0 {
                self.begun_by.remove(&entry.payer);
            }
        }
        if let Some(qpn) = entry.local_qpn {
            remove_own(&mut self.by_local_qp, &qpn, id);
        }
        self.events.push_back(Event::Released { id: ConnId(id) });
    }

    /// Reports that a passive connection is established.
    pub(super) fn established(&mut self, id: CommId) {
        self.event(id, Event::Established { id: ConnId(id) });
    }

    /// Sizes of the indexes, so that tests can check them for leaks.
    #[cfg(test)]
    pub(super) fn index_sizes(&self) -> [usize; 5] {
        [
            self.begun_by.len(),
            self.by_remote_id.len(),
            self.by_remote_qp.len(),
            self.by_local_qp.len(),
            self.timers.len(),
        ]
    }
}

/// Removes `key` if it refers to `id`.
fn remove_own<K: std::hash::Hash + Eq>(map: &mut HashMap<K, CommId>, key: &K, id: CommId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}

/// Pads private data with zeros.
fn private<const N: usize>(data: &[u8]) -> Result<[u8; N], TableError> {
    let mut out = [0; N];
    out.get_mut(..data.len())
        .ok_or(TableError::PrivateData { len: data.len(), max: N })?
        .copy_from_slice(data);
    Ok(out)
}
