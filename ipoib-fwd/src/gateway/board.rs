//! The tables of the gateway's workers, as the control lcore keeps and publishes them.

use std::net::Ipv4Addr;

use dataplane::table::{Publisher, Reader};
use ib_wire::{Lid, Qpn};

use crate::forward::{EthNeighbour, PeerGateway, Role, Settings, Side, Tables};
use endpoint::{Board, LinkUpdate, Peer};
use ipoib::link::{NeighbourChange, WorkerIndex};
use ipoib::net::ethernet::MacAddress;

/// A change without the marks of use that hosts count by; the gateway's workers have [`super::usage`].
fn plain<D: Clone>(change: &NeighbourChange<Peer<D>>) -> NeighbourChange<D> {
    match change {
        NeighbourChange::Set(n) => NeighbourChange::Set(n.map(|peer| peer.to.clone())),
        NeighbourChange::Remove(ip) => NeighbourChange::Remove(*ip),
    }
}

/// One worker's tables: connections are the worker's own, all else is the same for all.
#[derive(Debug)]
struct Sheet<D> {
    tables: Tables<D>,
    publisher: Publisher<Tables<D>>,
}

/// All workers' tables.
#[derive(Debug)]
pub(super) struct GatewayBoard<D> {
    sheets: Vec<Sheet<D>>,
    /// Neighbours that found a table full, since the start.
    left_out: u64,
    /// True if something changed that is not published.
    dirty: bool,
    /// InfiniBand hosts that have been published with a way since somebody asked.
    reachable: Vec<Ipv4Addr>,
}

impl<D: Clone> GatewayBoard<D> {
    /// Tables for `workers` workers. `seed` is drawn at start: the network must not know which addresses collide.
    #[must_use]
    pub(super) fn new(workers: u8, seed: u64, settings: &Settings<D>) -> Self {
        let sheets = (0..workers)
            .map(|_| {
                let tables = Tables::new(seed, settings.clone());
                Sheet { publisher: Publisher::new(tables.clone()), tables }
            })
            .collect();
        Self { sheets, left_out: 0, dirty: false, reachable: Vec::new() }
    }

    /// Each worker's reader.
    #[must_use]
    pub(super) fn readers(&self) -> Vec<Reader<Tables<D>>> {
        self.sheets.iter().map(|s| s.publisher.reader()).collect()
    }

    /// The tables of the first worker: what is the same for all may be read from here.
    #[must_use]
    pub(super) fn first(&self) -> Option<&Tables<D>> {
        self.sheets.first().map(|s| &s.tables)
    }

    /// The tables of a worker.
    #[must_use]
    pub(super) fn tables(&self, worker: usize) -> Option<&Tables<D>> {
        self.sheets.get(worker).map(|s| &s.tables)
    }

    /// Neighbours that found a table full, since the start.
    #[must_use]
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// InfiniBand hosts that have been published with a way to them since the last call.
    pub(super) fn take_reachable(&mut self) -> Vec<Ipv4Addr> {
        std::mem::take(&mut self.reachable)
    }

    /// True if a worker's newest tables have a way to a host for packets from `side`.
    #[must_use]
    pub(super) fn has_way(&self, side: Side, worker: WorkerIndex, ip: Ipv4Addr) -> bool {
        let Some(tables) = self.tables(usize::from(worker.0)) else { return false };
        match side {
            Side::Ethernet => tables.ib(ip).is_some_and(|(_, n)| n.ud.is_some() || n.rc.is_some()),
            Side::InfiniBand => tables.eth(ip).is_some(),
        }
    }

    fn change(&mut self, mut change: impl FnMut(&mut Tables<D>)) {
        for sheet in &mut self.sheets {
            change(&mut sheet.tables);
        }
        self.dirty = true;
    }

    /// Adds or changes an Ethernet host.
    pub(super) fn set_ethernet(&mut self, ip: Ipv4Addr, mac: MacAddress) {
        let mut full = false;
        self.change(|t| full |= t.set_eth(ip, EthNeighbour { mac }).is_err());
        self.left_out += u64::from(full);
    }

    /// Forgets an Ethernet host.
    pub(super) fn remove_ethernet(&mut self, ip: Ipv4Addr) {
        self.change(|t| {
            t.remove_eth(ip);
        });
    }

    /// Our place in the fabric: to know our own multicasts when they come back.
    pub(super) fn set_own(&mut self, lid: Lid, qpns: &[Qpn]) {
        if self.first().is_some_and(|t| t.settings.own_lid == lid) {
            return;
        }
        self.change(|t| {
            t.settings.own_lid = lid;
            t.settings.own_qpns = qpns.iter().copied().take(t.settings.own_qpns.capacity()).collect();
        });
    }

    /// What is the same for all workers.
    #[must_use]
    pub(super) fn settings(&self) -> Option<&Settings<D>> {
        self.first().map(|t| &t.settings)
    }

    /// What the gateway does with packets.
    pub(super) fn set_role(&mut self, role: Role) {
        if self.first().is_some_and(|t| t.settings.role != role) {
            self.change(|t| t.settings.role = role);
        }
    }

    /// The other gateways of the segment. True if that is news.
    pub(super) fn set_gateways(&mut self, gateways: &[PeerGateway]) -> bool {
        let news = self.first().is_some_and(|t| t.settings.gateways != gateways);
        if news {
            self.change(|t| t.settings.gateways = gateways.to_vec());
        }
        news
    }

    /// Tells whether the Ethernet port has a link.
    pub(super) fn set_ethernet_up(&mut self, up: bool) {
        if self.first().is_some_and(|t| t.settings.eth_up != up) {
            self.change(|t| t.settings.eth_up = up);
        }
    }

    /// Publishes what changed since the last time, and frees what no worker holds any more.
    pub(super) fn flush(&mut self) {
        for sheet in &mut self.sheets {
            if self.dirty {
                sheet.publisher.publish(sheet.tables.clone());
            } else {
                sheet.publisher.collect();
            }
        }
        self.dirty = false;
    }
}

impl<D: Clone> Board<D> for GatewayBoard<D> {
    fn publish(&mut self, update: LinkUpdate<D>) {
        let mut left_out = 0;
        self.reachable.extend(update.changes.iter().filter_map(|change| match change {
            NeighbourChange::Set(n) if n.ud.is_some() || n.rc.iter().any(Option::is_some) => Some(n.ip),
            NeighbourChange::Set(_) | NeighbourChange::Remove(_) => None,
        }));
        for (index, sheet) in self.sheets.iter_mut().enumerate() {
            let settings = &mut sheet.tables.settings;
            // A link that is down has no way to anybody.
            settings.broadcast = update.broadcast.clone().filter(|_| update.state.up);
            settings.groups.clone_from(&update.groups);
            settings.ud_mtu = u16::try_from(update.state.ud_mtu).unwrap_or(u16::MAX);
            let changes = update.changes.iter().map(plain);
            left_out = sheet.tables.apply(WorkerIndex(index as u8), changes);
        }
        self.left_out += left_out as u64;
        self.dirty = true;
        // The promise to the endpoint: a worker that refreshes now sees it.
        self.flush();
    }
}
