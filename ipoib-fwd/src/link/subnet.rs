//! The link's requests to subnet administration: each is repeated until its answer comes or patience ends.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ib_wire::mad::{Mad, MadAddress, Method, MgmtClass};
use ib_wire::sa::{McMask, McMemberRecord, PathMask, PathRecord, Record, SaMad};
use ib_wire::{Gid, Lid, Tid};

use super::action::Action;
use super::machine::Link;

/// How long one request waits for its answer (Linux's IPoIB asks with 1000 ms).
const TIMEOUT: Duration = Duration::from_millis(1000);
/// How often a request is sent, the first time included.
const TRIES: u8 = 3;

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

/// A request that is under way.
#[derive(Debug)]
struct Pending {
    purpose: Purpose,
    request: SaMad,
    tries: u8,
    deadline: Instant,
}

/// All requests that are under way.
#[derive(Debug)]
pub(super) struct Subnet {
    pending: BTreeMap<u32, Pending>,
    /// Upper half of our transaction ids. A kernel's user MAD service puts its own there, so it is not compared.
    high: u32,
    next: u32,
}

impl Subnet {
    pub(super) fn new(seed: u64) -> Self {
        Self { pending: BTreeMap::new(), high: (seed >> 32) as u32, next: seed as u32 }
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
        self.subnet.next = self.subnet.next.wrapping_add(1);
        let id = self.subnet.next;
        let tid = Tid(u64::from(self.subnet.high) << 32 | u64::from(id));
        let request = SaMad::request(method, tid, mask, record);
        self.subnet.pending.insert(id, Pending { purpose, request, tries: 1, deadline: now + TIMEOUT });
        self.send_request(&request);
    }

    fn send_request(&mut self, request: &SaMad) {
        // Without a subnet manager there is nobody to ask; the repetitions may find one.
        if self.port.sm_lid != Lid(0) {
            let peer = MadAddress::gsi(self.port.sm_lid, self.port.sm_sl);
            self.actions.push_back(Action::SendMad(Mad { peer, bytes: request.to_bytes() }));
        }
    }

    /// Takes a management datagram that the port's QP1 received. Returns false if it is of no use to this link.
    pub fn handle_mad(&mut self, now: Instant, mad: &Mad) -> bool {
        let header = mad.header();
        let taken = match header.class {
            MgmtClass::SubnAdm => self.subnet_mad(now, mad),
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
        let answer = SaMad::parse(&mad.bytes);
        let id = answer.header.tid.0 as u32;
        let Some(pending) = self.subnet.pending.get(&id) else { return false };
        let asked = &pending.request.header;
        let fits = mad.peer.lid == self.port.sm_lid
            && answer.header.base_version == asked.base_version
            && answer.header.class_version == asked.class_version
            && answer.header.attribute == asked.attribute
            && asked.method.response() == Some(answer.header.method);
        // Whoever is busy is asked again when the time for an answer is over.
        if !fits || answer.header.status.is_busy() {
            return fits;
        }
        let purpose = pending.purpose;
        self.subnet.pending.remove(&id);
        let ok = answer.header.status.is_ok();
        self.answered(now, purpose, ok.then_some(&answer), !ok);
        true
    }

    fn answered(&mut self, now: Instant, purpose: Purpose, answer: Option<&SaMad>, refused: bool) {
        match purpose {
            Purpose::Join(ip) => self.joined(now, ip, answer.and_then(SaMad::record), refused),
            Purpose::Leave => {}
            Purpose::Path(gid) => self.path_answered(now, gid, answer.and_then(SaMad::record)),
        }
        self.check_left();
    }

    pub(super) fn subnet_timeout(&self) -> Option<Instant> {
        // No more than the path lookups' limit, the groups and what is being left.
        self.subnet.pending.values().map(|p| p.deadline).min()
    }

    pub(super) fn subnet_time(&mut self, now: Instant) {
        let due: Vec<_> =
            self.subnet.pending.iter().filter(|(_, p)| p.deadline <= now).map(|(id, _)| *id).collect();
        for id in due {
            let Some(pending) = self.subnet.pending.get_mut(&id) else { continue };
            if pending.tries < TRIES {
                pending.tries += 1;
                pending.deadline = now + TIMEOUT;
                let request = pending.request;
                self.send_request(&request);
            } else if let Some(pending) = self.subnet.pending.remove(&id) {
                self.answered(now, pending.purpose, None, false);
            }
        }
    }

    pub(super) fn subnet_is_idle(&self) -> bool {
        self.subnet.pending.is_empty()
    }

    /// Answers to lookups are not wanted any more.
    pub(super) fn sa_cancel_paths(&mut self) {
        self.subnet.pending.retain(|_, p| !matches!(p.purpose, Purpose::Path(_)));
    }

    /// Answers to joins are not wanted any more.
    pub(super) fn sa_cancel_joins(&mut self) {
        self.subnet.pending.retain(|_, p| !matches!(p.purpose, Purpose::Join(_)));
    }
}
