//! A node of the fabric: a link, its port, and the state of its device.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::time::Instant;

use hca::{QpState, RcSlot};
use ib_wire::{Gid, Guid, Lid, QKey, Qpn};

use crate::link::{
    ArpResponder, ConnKey, Event, Link, LinkIndex, LinkSettings, LinkState, Neighbours, PortFacts,
    WorkerIndex,
};
use crate::port::{Port, PortSettings, WorkerSlots};

/// The second link of a port.
pub(super) const BESIDE: LinkIndex = LinkIndex(1);

/// A connected queue pair of a device.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) key: ConnKey,
    pub(super) state: QpState,
    pub(super) passive: bool,
    pub(super) receive: Option<hca::RcToReceive>,
    pub(super) send: Option<hca::RcToSend>,
    pub(super) inserted: Option<(WorkerIndex, RcSlot)>,
}

/// A port with one link that is used like a link; a second link, in another partition, may come and go.
#[derive(Debug)]
pub(super) struct OneLink(pub(super) Port);

impl std::ops::Deref for OneLink {
    type Target = Link;
    fn deref(&self) -> &Link {
        self.0.link(LinkIndex(0)).expect("the link")
    }
}

impl std::ops::DerefMut for OneLink {
    fn deref_mut(&mut self) -> &mut Link {
        self.0.link_mut(LinkIndex(0)).expect("the link")
    }
}

impl OneLink {
    pub(super) fn new(settings: LinkSettings, node_guid: Guid, first: u16, count: u16, now: Instant) -> Self {
        let workers = vec![WorkerSlots { first, count }; settings.workers.len()];
        let mut port = Port::new(&PortSettings { node_guid, workers, seed: settings.seed ^ 0x5eed }, now);
        port.add(now, settings).expect("settings");
        Self(port)
    }

    /// Calls all existing links.
    pub(super) fn each(&mut self, mut call: impl FnMut(&mut Link)) {
        for index in [LinkIndex(0), BESIDE] {
            self.0.link_mut(index).into_iter().for_each(&mut call);
        }
    }

    pub(super) fn handle_created(&mut self, now: Instant, conn: ConnKey, qpn: Option<Qpn>) {
        self.0.handle_created(now, conn, qpn);
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    pub(super) fn cm_counters(&self) -> &cm::connection::Counters {
        self.0.cm_counters()
    }
}

/// Settings of a node: those of its link, and the connection slots of each worker.
pub(super) struct Setup {
    pub(super) link: LinkSettings,
    pub(super) slots: u16,
}

impl std::ops::Deref for Setup {
    type Target = LinkSettings;
    fn deref(&self) -> &LinkSettings {
        &self.link
    }
}

impl std::ops::DerefMut for Setup {
    fn deref_mut(&mut self) -> &mut LinkSettings {
        &mut self.link
    }
}

/// One node: a link and the device under it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) link: OneLink,
    pub(super) facts: PortFacts,
    pub(super) ip: Ipv4Addr,
    pub(super) alive: bool,
    pub(super) qps: BTreeMap<Qpn, Qp>,
    pub(super) slots: HashMap<(WorkerIndex, RcSlot), ConnKey>,
    pub(super) next_qpn: u32,
    pub(super) opened: BTreeMap<WorkerIndex, (u16, QKey)>,
    pub(super) attached: BTreeSet<(Gid, Lid)>,
    /// Groups of the second link.
    pub(super) attached_beside: BTreeSet<(Gid, Lid)>,
    pub(super) table: Neighbours,
    /// Tables that workers may still read.
    pub(super) tables: Vec<(u64, Neighbours)>,
    pub(super) state: Option<LinkState>,
    pub(super) events: Vec<Event>,
    pub(super) responder: ArpResponder,
    pub(super) created: HashSet<ConnKey>,
    pub(super) destroyed: HashSet<ConnKey>,
    /// The device refuses to attach to these groups.
    pub(super) refuse_attach: HashSet<Gid>,
    /// The worker takes no datagrams.
    pub(super) queue_is_full: bool,
    /// The device refuses to create queue pairs.
    pub(super) refuse_create: bool,
    /// The device refuses this kind of transition.
    pub(super) refuse_receive: bool,
    /// Last-WQE events and drains do not come.
    pub(super) mute: bool,
    /// Workers do not take up new tables.
    pub(super) stuck: bool,
    /// Answers come with a delay.
    pub(super) lazy: bool,
}

impl Node {
    /// The queue pair with which a worker sends to `ip`.
    pub(super) fn rc_to(&self, ip: Ipv4Addr, worker: u8) -> Option<&Qp> {
        let path = self.table.get(ip)?.rc(worker)?;
        let key = self.slots.get(&(WorkerIndex(worker), path.slot))?;
        self.qps.values().find(|q| q.key == *key)
    }

    pub(super) fn live(&self, passive: bool) -> usize {
        self.qps.values().filter(|q| q.passive == passive && q.state == QpState::Rts).count()
    }

    /// Connections whose refusal by the device has not been reported to the link yet.
    pub(super) fn refused_pending(&self) -> usize {
        self.destroyed.iter().filter(|key| self.link.conns.map.contains_key(key)).count()
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}
