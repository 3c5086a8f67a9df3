//! What a link asks of the services that it shares with the other links of its port, and the answers to that.
//!
//! A link does not call them: it leaves its requests in a queue, in order, and [`crate::port::Port`] carries them out.

use std::net::Ipv4Addr;
use std::time::Instant;

use cm::connection::{AcceptParams, ConnectRequest};
use cm::port::{Ask, Outcome, PathKey, PathQuery};
use hca::RcSlot;
use ib_wire::mad::MadAddress;
use ib_wire::sa::{McMask, McMemberRecord};
use ib_wire::{Gid, PKey};

use super::action::ConnKey;
use super::machine::Link;
use super::settings::WorkerIndex;

/// A request to the port's services.
#[derive(Debug)]
pub(crate) enum Request {
    /// Join a group. Answer: [`Link::join_answered`].
    Join { group: Ipv4Addr, sm: MadAddress, record: McMemberRecord, mask: McMask },
    /// Leave one, joined or asked for. Answer: [`Link::leave_answered`].
    Leave { group: Ipv4Addr, sm: MadAddress, record: McMemberRecord, mask: McMask },
    /// No answer to a join is wanted any more.
    CancelJoin(Ipv4Addr),
    /// Look a path up. Answer: [`Link::path_answered`].
    Path { query: PathQuery, ask: Ask },
    /// The link needs a path no more.
    ForgetPath(PathKey),
    /// Send a REQ. Its handshake's events follow, the last of them [`Link::handshake_over`].
    Connect { conn: ConnKey, request: Box<ConnectRequest> },
    /// Send the REP.
    Accept { conn: ConnKey, with: Box<AcceptParams> },
    /// Send the RTU.
    Ready(ConnKey),
    /// Data came before the RTU.
    Data(ConnKey),
    /// End the handshake in the way that fits how far it has come. [`Link::handshake_over`] follows.
    Close {
        conn: ConnKey,
        /// If the peer has no answer yet: there is nothing to serve it with.
        no_resources: bool,
    },
    /// A connection's place is free again.
    FreeSlot { worker: WorkerIndex, slot: RcSlot },
}

impl Link {
    /// The next thing to ask of the port's services.
    pub(crate) fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Subnet administration, as the port sees it.
    fn sm(&self) -> MadAddress {
        MadAddress::gsi(self.port.sm_lid, self.port.sm_sl)
    }

    /// The partition as paths and groups name it.
    pub(super) fn full_pkey(&self) -> PKey {
        PKey(self.settings.pkey.0 | 0x8000)
    }

    /// The name of the path to a port.
    pub(super) fn path_key(&self, dgid: Gid) -> PathKey {
        PathKey { pkey: self.full_pkey(), dgid }
    }

    pub(super) fn sa_join(&mut self, group: Ipv4Addr, record: McMemberRecord, mask: McMask) {
        let sm = self.sm();
        self.requests.push_back(Request::Join { group, sm, record, mask });
    }

    pub(super) fn sa_leave(&mut self, group: Ipv4Addr, record: McMemberRecord, mask: McMask) {
        let sm = self.sm();
        self.leaving += 1;
        self.requests.push_back(Request::Leave { group, sm, record, mask });
    }

    pub(super) fn sa_path(&mut self, gid: Gid, ask: Ask) {
        let query = PathQuery {
            sm: self.sm(),
            key: self.path_key(gid),
            sgid: self.port.gid,
            traffic_class: self.broadcast().map_or(0, |b| b.traffic_class),
        };
        self.counters.path_queries += 1;
        self.requests.push_back(Request::Path { query, ask });
    }

    /// Answers [`Request::Join`].
    pub(crate) fn join_answered(
        &mut self,
        now: Instant,
        group: Ipv4Addr,
        outcome: Outcome<Option<McMemberRecord>>,
    ) {
        match outcome {
            Outcome::Granted(record) => self.joined(now, group, record, false),
            Outcome::Refused => self.joined(now, group, None, true),
            Outcome::Silence => {
                self.counters.sa_timeouts += 1;
                self.joined(now, group, None, false);
            }
        }
    }

    /// Answers [`Request::Leave`].
    pub(crate) fn leave_answered(&mut self, outcome: Outcome<()>) {
        if outcome == Outcome::Silence {
            self.counters.sa_timeouts += 1;
        }
        self.leaving = self.leaving.saturating_sub(1);
        self.check_left();
    }
}
