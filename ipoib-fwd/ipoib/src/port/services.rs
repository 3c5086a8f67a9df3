//! The links' requests to the port's services, and the delivery of the answers to the requesting link.

use std::time::{Duration, Instant};

use cm::connection::{Event as CmEvent, State as CmState};
use cm::port::SaEvent;
use ib_wire::cm::RejectReason;
use ib_wire::cm::ipoib::ServiceIdForm;

use super::Port;
use crate::link::{ConnKey, Link, LinkIndex, Request, WorkerIndex};

/// Longest time that a peer's messages can make us wait.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(20);

const FORMS: [ServiceIdForm; 2] = [ServiceIdForm::Linux, ServiceIdForm::Rfc4755];

impl Port {
    /// Starts to accept peers' connection requests for a link.
    pub(super) fn listen(&mut self, index: LinkIndex, link: &Link) {
        for worker in &link.settings().workers {
            self.by_service.insert(worker.ud_qpn, index);
            for form in FORMS {
                // Two workers with one queue pair would be an error of the owner; the first one gets the
                // requests.
                let _ = self.services.connections.listen(form.service_id(worker.ud_qpn));
            }
        }
    }

    /// Stops accepting them.
    pub(super) fn unlisten(&mut self, index: LinkIndex) {
        let connections = &mut self.services.connections;
        self.by_service.retain(|qpn, of| {
            let gone = *of == index;
            if gone {
                for form in FORMS {
                    connections.unlisten(form.service_id(*qpn));
                }
            }
            !gone
        });
    }

    /// Executes requests and delivers answers until there are none. A link's requests are executed before the
    /// next answer is delivered: they may concern the same connection.
    pub(super) fn serve(&mut self, now: Instant) {
        loop {
            while let Some(request) = self.next_request() {
                self.carry_out(now, request);
            }
            if let Some(event) = self.services.sa.poll_event() {
                self.sa_event(now, event);
            } else if let Some(event) = self.services.connections.poll_event() {
                self.cm_event(now, event);
            } else {
                return;
            }
        }
    }

    fn next_request(&mut self) -> Option<(LinkIndex, Request)> {
        (0u16..).zip(self.links.iter_mut()).find_map(|(index, link)| {
            let request = link.as_mut()?.poll_request()?;
            Some((LinkIndex(index), request))
        })
    }

    fn carry_out(&mut self, now: Instant, (index, request): (LinkIndex, Request)) {
        let sa = &mut self.services.sa;
        let connections = &mut self.services.connections;
        match request {
            Request::Join { group, sm, record, mask } => sa.join(now, (index, group), sm, &record, mask),
            Request::Leave { group, sm, record, mask } => sa.leave(now, (index, group), sm, &record, mask),
            Request::QueryGroup { group, sm, mgid } => sa.query_group(now, (index, group), sm, mgid),
            Request::CancelJoin(group) => sa.cancel_join((index, group)),
            Request::Path { query, ask } => sa.ask_path(now, query, ask),
            Request::ForgetPath(key) => sa.forget_path(now, key),
            Request::Connect { conn, request } => self.connect(now, conn, *request),
            Request::Accept { conn, with } => {
                if let Some(id) = self.by_key.get(&conn)
                    && connections.accept(now, *id, &with).is_err()
                    && let Some(link) = self.link_mut(conn.link)
                {
                    link.accept_failed(now, conn);
                }
            }
            Request::Ready(conn) => {
                if let Some(id) = self.by_key.get(&conn) {
                    let _ = connections.ready(now, *id);
                }
            }
            Request::Data(conn) => {
                if let Some(id) = self.by_key.get(&conn) {
                    connections.data_arrived(now, *id);
                }
            }
            Request::Close { conn, no_resources } => self.close(now, conn, no_resources),
            Request::Departed(conn) => self.holders.remove(conn),
            Request::FreeSlot { worker, slot } => self.slots.put(worker, slot),
        }
    }

    fn connect(&mut self, now: Instant, conn: ConnKey, request: cm::connection::ConnectRequest) {
        let Some(link) = self.links.get_mut(usize::from(conn.link.0)).and_then(Option::as_mut) else {
            return;
        };
        if !link.wants_handshake(conn) {
            link.handshake_over(now, conn);
            return;
        }
        if !self.dials.take(now) {
            // The back-off repeats the dial.
            link.connect_failed(now, conn);
            return;
        }
        match self.services.connections.connect(now, request) {
            Ok(id) => {
                // An earlier dial of the same connection, with the other form of service ID, reports nothing
                // more.
                if let Some(old) = self.by_key.insert(conn, id) {
                    self.by_id.remove(&old);
                }
                self.by_id.insert(id, conn);
            }
            Err(_) => link.connect_failed(now, conn),
        }
    }

    fn close(&mut self, now: Instant, conn: ConnKey, no_resources: bool) {
        let connections = &mut self.services.connections;
        let ended = self.by_key.get(&conn).is_some_and(|id| {
            let unanswered = connections.state(*id) == Some(CmState::ReqRcvd);
            if no_resources && unanswered {
                connections.reject(now, *id, RejectReason::NoResources, &[]).is_ok()
            } else {
                connections.abandon(now, *id).is_ok()
            }
        });
        if !ended && let Some(link) = self.link_mut(conn.link) {
            link.handshake_over(now, conn);
        }
    }

    fn sa_event(&mut self, now: Instant, event: SaEvent<(LinkIndex, std::net::Ipv4Addr)>) {
        match event {
            SaEvent::Joined { user: (index, group), outcome } => {
                if let Some(link) = self.link_mut(index) {
                    link.join_answered(now, group, outcome);
                }
            }
            SaEvent::Group { user: (index, group), outcome } => {
                if let Some(link) = self.link_mut(index) {
                    link.group_answered(group, outcome);
                }
            }
            SaEvent::Left { user: (index, _), outcome } => {
                if let Some(link) = self.link_mut(index) {
                    link.leave_answered(outcome);
                }
            }
            SaEvent::Path { key, outcome } => {
                let links = self.links.iter_mut().flatten();
                for link in links.filter(|link| link.settings().pkey.base() == key.pkey.base()) {
                    link.path_answered(now, key.dgid, outcome);
                }
            }
        }
    }

    fn cm_event(&mut self, now: Instant, event: CmEvent) {
        let id = event.id();
        if let CmEvent::Requested { request, .. } = &event {
            match self.admit(now, request) {
                Ok(key) => {
                    self.by_id.insert(id, key);
                    self.by_key.insert(key, id);
                }
                Err(reason) => {
                    let _ = self.services.connections.reject(now, id, reason, &[]);
                }
            }
            return;
        }
        let Some(key) = self.by_id.get(&id).copied() else { return };
        let over = matches!(event, CmEvent::Released { .. });
        if over {
            self.by_id.remove(&id);
            self.by_key.remove(&key);
        }
        let Some(link) = self.link_mut(key.link) else { return };
        if over {
            link.handshake_over(now, key);
        } else {
            link.handle_handshake(now, key, event);
        }
    }

    /// Assigns a slot to a new connection. If there is none, the connection that is out of use for the
    /// longest time is closed, for the peer's next attempt; connections in use take precedence over a new
    /// one.
    pub(super) fn assign_slot(
        &mut self,
        now: Instant,
        conn: ConnKey,
        worker: WorkerIndex,
        passive: bool,
    ) -> bool {
        let slot = self.slots.take(worker);
        if slot.is_none() && passive {
            self.evict(now, |link| link.out_of_use(now));
        }
        let Some(link) = self.link_mut(conn.link) else { return false };
        match slot {
            Some(slot) => link.lend_slot(now, conn, slot),
            None => link.no_slot(now, conn),
        }
        slot.is_some()
    }
}
