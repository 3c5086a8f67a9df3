//! The link's requests to subnet administration, each for a purpose of groups or paths.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use cm::agent::{Agent, Attempts, Handled, RequestId};
use ib_wire::mad::{Mad, MadAddress, Method, MgmtClass};
use ib_wire::sa::{CLASS_VERSION, McMask, McMemberRecord, PathMask, PathRecord, Record, SaMad};
use ib_wire::{Gid, Tid};

use super::action::Action;
use super::machine::Link;

/// Patience with the subnet manager (Linux's IPoIB asks with 1000 ms).
const ATTEMPTS: Attempts = Attempts { timeout: Duration::from_millis(1000), tries: 3 };

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// To be in a group.
    Join(Ipv4Addr),
    /// To be out of one.
    Leave,
    /// To find a way to a port.
    Path(Gid),
}

/// All requests that are under way.
#[derive(Debug)]
pub(super) struct Subnet {
    agent: Agent,
    pending: BTreeMap<RequestId, Purpose>,
}

impl Subnet {
    /// No requests yet, and at most `most` at once.
    pub(super) fn new(seed: u64, most: usize) -> Self {
        Self { agent: Agent::new(seed, most), pending: BTreeMap::new() }
    }

    fn cancel(&mut self, unwanted: impl Fn(&Purpose) -> bool) {
        let agent = &mut self.agent;
        self.pending.retain(|id, purpose| {
            let unwanted = unwanted(purpose);
            if unwanted {
                agent.cancel(*id);
            }
            !unwanted
        });
    }
}

impl Link {
    pub(super) fn sa_join(&mut self, now: Instant, purpose: Purpose, record: &McMemberRecord, mask: McMask) {
        self.ask(now, purpose, Method::Set, mask.bits(), record);
    }

    pub(super) fn sa_leave(&mut self, now: Instant, record: &McMemberRecord, mask: McMask) {
        self.ask(now, Purpose::Leave, Method::Delete, mask.bits(), record);
    }

    pub(super) fn sa_path(&mut self, now: Instant, purpose: Purpose, record: &PathRecord, mask: PathMask) {
        self.ask(now, purpose, Method::Get, mask.bits(), record);
    }

    fn ask<R: Record>(&mut self, now: Instant, purpose: Purpose, method: Method, mask: u64, record: &R) {
        let bytes = SaMad::request(method, Tid(0), mask, record).to_bytes();
        let peer = MadAddress::gsi(self.port.sm_lid, self.port.sm_sl);
        match self.subnet.agent.request(now, Mad { peer, bytes }, ATTEMPTS) {
            Ok(id) => {
                self.subnet.pending.insert(id, purpose);
            }
            // Tried again like a request that nobody answered.
            Err(_) => match purpose {
                Purpose::Path(gid) => self.hold_lookup(now, gid),
                Purpose::Join(_) | Purpose::Leave => self.answered(now, purpose, None, false),
            },
        }
    }

    /// Takes a management datagram that the port's QP1 received. Returns false if it is of no use to this link.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) -> bool {
        let header = mad.header();
        let taken = match header.class {
            MgmtClass::SubnAdm if header.class_version == CLASS_VERSION => self.subnet_mad(now, mad),
            MgmtClass::ComMgt => {
                self.handshake_mad(now, mad);
                true
            }
            _ => false,
        };
        if !taken {
            self.counters.mads_ignored += 1;
        }
        taken
    }

    fn subnet_mad(&mut self, now: Instant, mad: &Mad) -> bool {
        match self.subnet.agent.handle_mad(mad) {
            Handled::Response(id) => {
                let Some(purpose) = self.subnet.pending.remove(&id) else { return false };
                let answer = SaMad::parse(&mad.bytes);
                let ok = answer.header.status.is_ok();
                self.answered(now, purpose, ok.then_some(&answer), !ok);
                true
            }
            Handled::Busy => true,
            Handled::Unsolicited | Handled::Stray => false,
        }
    }

    fn answered(&mut self, now: Instant, purpose: Purpose, answer: Option<&SaMad>, refused: bool) {
        match purpose {
            Purpose::Join(ip) => self.joined(now, ip, answer.and_then(SaMad::record), refused),
            Purpose::Leave => {}
            Purpose::Path(gid) => self.path_answered(now, gid, answer.and_then(SaMad::record)),
        }
        self.check_left();
    }

    /// The next request, or repetition of one, to send.
    pub(super) fn subnet_transmit(&mut self) -> Option<Action> {
        self.subnet.agent.poll_transmit().map(Action::SendMad)
    }

    pub(super) fn subnet_timeout(&self) -> Option<Instant> {
        self.subnet.agent.poll_timeout()
    }

    pub(super) fn subnet_time(&mut self, now: Instant) {
        self.subnet.agent.handle_timeout(now);
        while let Some(id) = self.subnet.agent.poll_expired() {
            if let Some(purpose) = self.subnet.pending.remove(&id) {
                self.counters.sa_timeouts += 1;
                self.answered(now, purpose, None, false);
            }
        }
    }

    pub(super) fn subnet_is_idle(&self) -> bool {
        self.subnet.pending.is_empty()
    }

    /// Answers to lookups are not wanted any more.
    pub(super) fn sa_cancel_paths(&mut self) {
        self.subnet.cancel(|p| matches!(p, Purpose::Path(_)));
    }

    /// Answers to joins are not wanted any more.
    pub(super) fn sa_cancel_joins(&mut self) {
        self.subnet.cancel(|p| matches!(p, Purpose::Join(_)));
    }
}
