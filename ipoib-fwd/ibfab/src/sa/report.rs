//! Subscriptions and their event reports (IBA 13.4.8, 13.4.11).
//!
//! A subscriber that confirms slowly does not lose reports. At most one window of its reports is unconfirmed,
//! and later events remain in one log for all subscribers. For each GID, a subscriber gets the newest state
//! that it subscribed to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ib_wire::mad::{Mad, MadAddress, Method};
use ib_wire::sa::{InformInfo, Notice, SUBSCRIBE_ALL_LIDS, SaMad, status};
use ib_wire::{Gid, Guid, Lid, Qpn, ServiceLevel, Tid};

use super::event::{Event, EventLog, opposite};
use super::request::{Context, INVALID, Output, Refusal, refuse};
use crate::subnet::{EndPort, SmConfig, Subnet, TransactionIds};

/// "All" in a subscription's type and trap number.
const ALL: u16 = 0xffff;
/// Type of the notices of subnet administration: subnet management (IBA 14.2.5.1).
const SUBNET_MANAGEMENT: u16 = 3;
/// Producer of the notices of subnet administration: class manager.
const CLASS_MANAGER: Qpn = Qpn::new(4);
/// Every producer.
const ALL_PRODUCERS: Qpn = Qpn::new(Qpn::MASK);

#[derive(Clone, Debug)]
struct Subscription {
    /// The request had a GRH, so its reports have one: to the port's GID with this interface ID.
    global: Option<Guid>,
    inform: InformInfo,
    /// Number of the last event before it.
    since: u64,
}

impl Subscription {
    fn is_same(&self, inform: &InformInfo) -> bool {
        let key =
            |i: &InformInfo| (i.gid, i.lid_begin, i.lid_end, i.is_generic, i.kind, i.trap_number, i.producer);
        key(&self.inform) == key(inform)
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

/// An unconfirmed report.
#[derive(Debug)]
struct Report {
    peer: MadAddress,
    trap: u16,
    gid: Gid,
    due: Instant,
    tries: u32,
}

impl Report {
    fn mad(&self, tid: Tid, config: &SmConfig) -> Mad {
        let mut notice = Notice::about_gid(self.trap, config.first_lid, self.gid);
        notice.issuer_gid = Gid::new(config.subnet_prefix, config.port_guid);
        Mad { peer: self.peer, bytes: SaMad::request(Method::Report, tid, 0, &notice).to_bytes() }
    }
}

/// A port with subscriptions.
#[derive(Debug, Default)]
struct Subscriber {
    subscriptions: Vec<Subscription>,
    /// Number of the last event that it was sent or did not subscribe to.
    seen: u64,
    out: BTreeMap<u64, Report>,
}

impl Subscriber {
    /// Returns the subscriptions to which an event with this number is reported.
    fn wanting<'a>(
        &'a self,
        event: &'a Event,
        number: u64,
        issuer: Lid,
    ) -> impl Iterator<Item = &'a Subscription> {
        self.subscriptions.iter().filter(move |s| s.since < number && s.wants(event, issuer))
    }
}

/// Subscriptions, unconfirmed reports, and events that are not reported yet.
#[derive(Debug)]
pub(crate) struct Reports {
    subscribers: BTreeMap<Guid, Subscriber>,
    log: EventLog,
    /// Subscribers that have not been sent all events.
    behind: BTreeSet<Guid>,
    /// The subscriber that is served next.
    next: Guid,
    /// Unconfirmed reports of all subscribers.
    out: usize,
    ids: TransactionIds,
}

impl Reports {
    pub(crate) fn new(config: &SmConfig) -> Self {
        Self {
            subscribers: BTreeMap::new(),
            log: EventLog::default(),
            behind: BTreeSet::new(),
            next: Guid(0),
            out: 0,
            ids: TransactionIds::new(config.seed, 1),
        }
    }

    /// Subscribes, or ends a subscription.
    pub(crate) fn subscribe(
        &mut self,
        context: &Context<'_>,
        mad: &Mad,
        request: &SaMad,
    ) -> Result<InformInfo, Refusal> {
        let mut inform = request.record::<InformInfo>().ok_or(INVALID)?;
        // Reports go to the sender of the request, whatever the request names.
        inform.qpn = mad.peer.qpn;
        let port = context.requester.port.guid;
        let own = self.subscribers.get(&port).map_or(&[][..], |s| &s.subscriptions);
        let at = own.iter().position(|s| s.is_same(&inform));
        let all: usize = self.subscribers.values().map(|s| s.subscriptions.len()).sum();
        let is_full = all >= context.config.max_subscriptions
            || own.len() >= context.config.max_subscriptions_of_a_port;
        match (inform.subscribe, at) {
            (1, None) if is_full => Err(refuse(status::NO_RESOURCES)),
            (1, None) => {
                let (global, since) = (mad.peer.route.map(|route| route.gid.id()), self.log.last());
                let new = || Subscriber { seen: since, ..Subscriber::default() };
                let subscriber = self.subscribers.entry(port).or_insert_with(new);
                subscriber.subscriptions.push(Subscription { global, inform, since });
                Ok(inform)
            }
            (1, Some(_)) => Ok(inform),
            (0, Some(at)) => {
                let left = self.subscribers.get_mut(&port).map(|s| {
                    s.subscriptions.swap_remove(at);
                    s.subscriptions.len()
                });
                if left == Some(0) {
                    self.forget(port);
                }
                Ok(inform)
            }
            _ => Err(INVALID),
        }
    }

    /// Drops the subscriptions of a port and its unconfirmed reports.
    pub(crate) fn forget(&mut self, port: Guid) {
        if let Some(subscriber) = self.subscribers.remove(&port) {
            self.out -= subscriber.out.len();
            self.behind.remove(&port);
        }
    }

    /// Reports an event to its subscribers, later to those with a full window.
    pub(crate) fn publish(&mut self, event: Event, subnet: &Subnet, to: &mut Output<'_>) {
        if self.subscribers.is_empty() {
            return;
        }
        let dropped = self.log.push(event, to.config.max_events);
        self.behind.extend(self.subscribers.keys());
        if let Some((number, event)) = dropped {
            for subscriber in self.subscribers.values_mut().filter(|s| s.seen < number) {
                subscriber.seen = number;
                to.counters.reports_lost +=
                    subscriber.wanting(&event, number, to.config.first_lid).count() as u64;
            }
        }
        self.serve_all(subnet, to);
    }

    /// Sends reports as the windows allow to subscribers that are behind, round robin.
    fn serve_all(&mut self, subnet: &Subnet, to: &mut Output<'_>) {
        let later = self.behind.range(self.next..);
        let order: Vec<Guid> = later.chain(self.behind.range(..self.next)).copied().collect();
        for port in order {
            if self.out >= to.config.max_subscriptions {
                self.next = port;
                break;
            }
            self.serve(port, subnet, to);
        }
        let first = self.behind.iter().filter_map(|port| Some(self.subscribers.get(port)?.seen)).min();
        self.log.drop_until(first.unwrap_or(self.log.last()));
    }

    fn serve(&mut self, port: Guid, subnet: &Subnet, to: &mut Output<'_>) {
        let Some(subscriber) = self.subscribers.get_mut(&port) else { return };
        let own = subnet.by_guid(to.config.port_guid);
        let end = subnet
            .by_guid(port)
            .and_then(|end: EndPort<'_>| Some((end.port, own?.port.pkeys.shared_index(&end.port.pkeys)?)));
        let issuer = to.config.first_lid;
        while subscriber.out.len() < to.config.max_subscriptions_of_a_port {
            let Some((number, event)) = self.log.after(subscriber.seen) else {
                self.behind.remove(&port);
                return;
            };
            subscriber.seen = number;
            let Some((end, pkey_index)) = end.filter(|(end, _)| event.concerns(end)) else { continue };
            let is_over = self.log.reversal(number, event).is_some_and(|later| {
                later.concerns(end) && subscriber.wanting(later, number, issuer).next().is_some()
            });
            if is_over {
                continue;
            }
            let addresses: Vec<MadAddress> = subscriber
                .wanting(event, number, issuer)
                .map(|subscription| {
                    let address = MadAddress::gsi(end.lid, ServiceLevel::new(0));
                    let address = match subscription.global {
                        Some(id) => address.with_gid(Gid::new(subnet.prefix, id)),
                        None => address,
                    };
                    MadAddress { qpn: subscription.inform.qpn, pkey_index, ..address }
                })
                .collect();
            if addresses.is_empty() {
                continue;
            }
            // An older report of the same GID is not repeated after this one.
            self.out -= subscriber.out.len();
            subscriber.out.retain(|_, report| {
                report.gid != event.gid || ![event.trap, opposite(event.trap)].contains(&report.trap)
            });
            for peer in addresses {
                let tid = self.ids.next();
                let due = to.now + to.config.report_timeout;
                let report = Report { peer, trap: event.trap, gid: event.gid, due, tries: 1 };
                to.out.push_back(report.mad(tid, to.config));
                subscriber.out.insert(tid.0, report);
            }
            self.out += subscriber.out.len();
        }
    }

    /// Handles the confirmation of a report by the port with this LID. False if it has no such report.
    pub(crate) fn acknowledged(&mut self, tid: Tid, by: Lid, subnet: &Subnet, to: &mut Output<'_>) -> bool {
        let Some(port) = subnet.by_lid(by).map(|end| end.port.guid) else { return false };
        let Some(subscriber) = self.subscribers.get_mut(&port) else { return false };
        if subscriber.out.remove(&tid.0).is_none() {
            return false;
        }
        self.out -= 1;
        if !self.behind.is_empty() {
            self.serve_all(subnet, to);
        }
        true
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.subscribers.values().flat_map(|s| s.out.values()).map(|r| r.due).min()
    }

    /// Sends due reports again, and gives up those that were sent the maximum number of times.
    pub(crate) fn expire(&mut self, subnet: &Subnet, to: &mut Output<'_>) {
        for subscriber in self.subscribers.values_mut() {
            self.out -= subscriber.out.len();
            subscriber.out.retain(|&tid, report| {
                if report.due > to.now {
                    return true;
                }
                if report.tries >= to.config.report_tries {
                    to.counters.reports_lost += 1;
                    return false;
                }
                report.tries += 1;
                report.due = to.now + to.config.report_timeout;
                to.out.push_back(report.mad(Tid(tid), to.config));
                true
            });
            self.out += subscriber.out.len();
        }
        if !self.behind.is_empty() {
            self.serve_all(subnet, to);
        }
    }
}
