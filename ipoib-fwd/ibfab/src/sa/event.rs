//! Subscriptions and the reports that they get (IBA 13.4.8, 13.4.11).

use std::collections::BTreeMap;
use std::time::Instant;

use ib_wire::mad::{Mad, MadAddress, Method};
use ib_wire::sa::{InformInfo, Notice, SUBSCRIBE_ALL_LIDS, SaMad, status, trap};
use ib_wire::{Gid, Guid, Lid, PKey, Qpn, ServiceLevel, Tid};

use super::request::{Context, INVALID, Output, Refusal, refuse};
use crate::subnet::{Port, SmConfig, Subnet, TransactionIds};

/// "All" in a subscription's type and trap number.
const ALL: u16 = 0xffff;
/// Type of the notices of subnet administration: subnet management (IBA 14.2.5.1).
const SUBNET_MANAGEMENT: u16 = 3;
/// Producer of the notices of subnet administration: class manager.
const CLASS_MANAGER: Qpn = Qpn::new(4);
/// Every producer.
const ALL_PRODUCERS: Qpn = Qpn::new(Qpn::MASK);

/// Something that subscribers may want to know.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    trap: u16,
    gid: Gid,
    /// Only those are told who can talk with one of these.
    pkeys: Vec<PKey>,
}

impl Event {
    pub(crate) fn port_in(subnet: &Subnet, guid: Guid) -> Self {
        let port = subnet.by_guid(guid);
        let pkeys = port.map(|e| e.port.pkeys.keys().collect()).unwrap_or_default();
        Self { trap: trap::GID_IN_SERVICE, gid: Gid::new(subnet.prefix, guid), pkeys }
    }

    /// `pkeys` are those that the port had.
    pub(crate) const fn port_out(subnet: &Subnet, guid: Guid, pkeys: Vec<PKey>) -> Self {
        Self { trap: trap::GID_OUT_OF_SERVICE, gid: Gid::new(subnet.prefix, guid), pkeys }
    }

    pub(crate) fn group_created(gid: Gid, pkey: PKey) -> Self {
        Self { trap: trap::GROUP_CREATED, gid, pkeys: vec![pkey] }
    }

    pub(crate) fn group_deleted(gid: Gid, pkey: PKey) -> Self {
        Self { trap: trap::GROUP_DELETED, gid, pkeys: vec![pkey] }
    }

    /// A group's key is a full one, so every member of its partition goes with it.
    fn concerns(&self, port: &Port) -> bool {
        self.pkeys.iter().any(|event| port.pkeys.keys().any(|own| own.matches(*event)))
    }
}

#[derive(Clone, Debug)]
struct Subscription {
    /// Port that subscribed.
    port: Guid,
    /// It came with a GRH, and so do its reports: to the port's GID with this interface id.
    global: Option<Guid>,
    inform: InformInfo,
}

impl Subscription {
    fn is_same(&self, port: Guid, inform: &InformInfo) -> bool {
        let key =
            |i: &InformInfo| (i.gid, i.lid_begin, i.lid_end, i.is_generic, i.kind, i.trap_number, i.producer);
        self.port == port && key(&self.inform) == key(inform)
    }

    fn wants(&self, event: &Event, issuer: Lid) -> bool {
        let i = &self.inform;
        let lid_fits = i.gid != Gid::ZERO
            || i.lid_begin == SUBSCRIBE_ALL_LIDS
            || (i.lid_begin..=i.lid_end.max(i.lid_begin)).contains(&issuer);
        i.is_generic != 0
            && matches!(i.kind, ALL | SUBNET_MANAGEMENT)
            && (i.trap_number == ALL || i.trap_number == event.trap)
            && (i.producer == CLASS_MANAGER || i.producer == ALL_PRODUCERS)
            && (i.gid == Gid::ZERO || i.gid == event.gid)
            && lid_fits
    }
}

#[derive(Debug)]
struct Report {
    mad: Mad,
    port: Guid,
    due: Instant,
    tries: u32,
}

/// Subscriptions, and reports that are not confirmed yet.
#[derive(Debug)]
pub(crate) struct Events {
    subscriptions: Vec<Subscription>,
    reports: BTreeMap<u64, Report>,
    ids: TransactionIds,
}

impl Events {
    pub(crate) fn new(config: &SmConfig) -> Self {
        Self { subscriptions: Vec::new(), reports: BTreeMap::new(), ids: TransactionIds::new(config.seed, 1) }
    }

    /// Subscribes, or ends a subscription.
    pub(crate) fn subscribe(
        &mut self,
        context: &Context<'_>,
        mad: &Mad,
        request: &SaMad,
    ) -> Result<InformInfo, Refusal> {
        let mut inform = request.record::<InformInfo>().ok_or(INVALID)?;
        // Reports go to where the request came from, whatever it says.
        inform.qpn = mad.peer.qpn;
        let port = context.requester.port.guid;
        let at = self.subscriptions.iter().position(|s| s.is_same(port, &inform));
        let own = self.subscriptions.iter().filter(|s| s.port == port).count();
        let is_full = self.subscriptions.len() >= context.config.max_subscriptions
            || own >= context.config.max_subscriptions_of_a_port;
        match (inform.subscribe, at) {
            (1, None) if is_full => Err(refuse(status::NO_RESOURCES)),
            (1, None) => {
                let global = mad.peer.route.map(|route| route.gid.id());
                self.subscriptions.push(Subscription { port, global, inform });
                Ok(inform)
            }
            (1, Some(_)) => Ok(inform),
            (0, Some(at)) => {
                self.subscriptions.swap_remove(at);
                Ok(inform)
            }
            _ => Err(INVALID),
        }
    }

    /// Drops the subscriptions of a port, and what was on its way to it.
    pub(crate) fn forget(&mut self, port: Guid) {
        self.subscriptions.retain(|s| s.port != port);
        self.reports.retain(|_, r| r.port != port);
    }

    /// Tells subscribers.
    pub(crate) fn publish(&mut self, event: &Event, subnet: &Subnet, to: &mut Output<'_>) {
        let issuer = to.config.first_lid;
        let mut notice = Notice::about_gid(event.trap, issuer, event.gid);
        notice.issuer_gid = Gid::new(to.config.subnet_prefix, to.config.port_guid);
        let own = subnet.by_guid(to.config.port_guid);
        let mut waiting: BTreeMap<Guid, usize> = BTreeMap::new();
        for report in self.reports.values() {
            *waiting.entry(report.port).or_default() += 1;
        }
        for subscription in &self.subscriptions {
            let Some(port) = subnet.by_guid(subscription.port) else { continue };
            if !event.concerns(port.port) || !subscription.wants(event, issuer) {
                continue;
            }
            let Some(pkey_index) = own.and_then(|own| own.port.pkeys.shared_index(&port.port.pkeys)) else {
                continue;
            };
            let share = waiting.entry(subscription.port).or_default();
            if self.reports.len() >= to.config.max_subscriptions
                || *share >= to.config.max_subscriptions_of_a_port
            {
                to.counters.reports_lost += 1;
                continue;
            }
            *share += 1;
            let tid = self.ids.next();
            let report = SaMad::request(Method::Report, tid, 0, &notice);
            let address = MadAddress::gsi(port.port.lid, ServiceLevel::new(0));
            let address = match subscription.global {
                Some(id) => address.with_gid(Gid::new(subnet.prefix, id)),
                None => address,
            };
            let peer = MadAddress { qpn: subscription.inform.qpn, pkey_index, ..address };
            let mad = Mad { peer, bytes: report.to_bytes() };
            to.out.push_back(mad.clone());
            let due = to.now + to.config.report_timeout;
            self.reports.insert(tid.0, Report { mad, port: subscription.port, due, tries: 1 });
        }
    }

    /// A report was confirmed by the port with this LID. False if none was out to it.
    pub(crate) fn acknowledged(&mut self, tid: Tid, by: Lid) -> bool {
        let fits = self.reports.get(&tid.0).is_some_and(|report| report.mad.peer.lid == by);
        fits && self.reports.remove(&tid.0).is_some()
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.reports.values().map(|r| r.due).min()
    }

    /// Sends due reports again, and gives up those that were sent often enough.
    pub(crate) fn expire(&mut self, to: &mut Output<'_>) {
        self.reports.retain(|_, report| {
            if report.due > to.now {
                return true;
            }
            if report.tries >= to.config.report_tries {
                to.counters.reports_lost += 1;
                return false;
            }
            report.tries += 1;
            report.due = to.now + to.config.report_timeout;
            to.out.push_back(report.mad.clone());
            true
        });
    }
}
