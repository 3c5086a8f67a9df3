//! The tables of the gateway's workers: the control lcore keeps and publishes one copy for all workers.

use std::net::{IpAddr, Ipv4Addr};

use dataplane::quiescence::Grace;
use dataplane::table::{Publisher, Reader};
use ib_wire::{Lid, Qpn};

use crate::forward::{
    Draft, EndpointIndex, EthNeighbour, GatewayAddress, MAX_NEIGHBOURS, NeighbourIndex, PeerGateway, Role,
    Routes, SegmentIndex, SegmentTable, Settings, Side, Tables,
};
use endpoint::{Board, LinkUpdate};
use ipoib::link::{LinkIndex, NeighbourChange, WorkerIndex};
use ipoib::net::ethernet::MacAddress;

/// One segment's table, with changes that are not published yet.
#[derive(Debug)]
pub(super) struct SegmentBoard<D> {
    draft: Draft<D>,
    /// Neighbors that found a table full, since the start.
    left_out: u64,
    /// True if something changed that is not published.
    dirty: bool,
    /// InfiniBand hosts that have been published with a TX path since the last
    /// [`SegmentBoard::take_reachable`].
    reachable: Vec<IpAddr>,
}

/// The tables of all segments, with changes that are not published yet.
#[derive(Debug)]
pub(super) struct GatewayBoard<D> {
    workers: u8,
    /// Indexed by [`SegmentIndex`].
    segments: Vec<Option<SegmentBoard<D>>>,
    tables: Tables<D>,
    publisher: Publisher<Tables<D>>,
}

impl<D: Clone> GatewayBoard<D> {
    /// Creates tables for `workers` workers, without segments.
    #[must_use]
    pub(super) fn new(workers: u8) -> Self {
        let tables = Tables::default();
        Self { workers, segments: Vec::new(), publisher: Publisher::new(tables.clone()), tables }
    }

    /// Adds a segment at a free index below [`crate::forward::MAX_SEGMENTS`]. Workers see it after the next
    /// publication. `seed` is random: the network must not know which addresses collide.
    pub(super) fn add(&mut self, index: SegmentIndex, settings: Settings<D>, seed: u64) {
        self.tables.join_vlan(settings.ethernet, settings.vlan.unwrap_or_default(), Some(index));
        self.tables.join_link(settings.endpoint, settings.link, Some(index));
        let at = usize::from(index.0);
        if at >= self.segments.len() {
            self.segments.resize_with(at + 1, || None);
        }
        let draft = Draft::new(seed, settings, MAX_NEIGHBOURS, self.workers);
        if let Some(place) = self.segments.get_mut(at) {
            *place = Some(SegmentBoard { draft, left_out: 0, dirty: true, reachable: Vec::new() });
        }
    }

    /// Takes a segment out of the directory: after the next publication, it receives no packets. Its
    /// table stays for the last messages to its hosts, and follows its link until the link is gone.
    pub(super) fn unjoin(&mut self, index: SegmentIndex) {
        let Some(segment) = self.at(index) else { return };
        segment.dirty = true;
        let settings = segment.settings();
        let (ethernet, vlan) = (settings.ethernet, settings.vlan.unwrap_or_default());
        let (endpoint, link) = (settings.endpoint, settings.link);
        // Another segment may have the VLAN by now.
        if self.tables.vlan(ethernet, vlan) == Some(index) {
            self.tables.join_vlan(ethernet, vlan, None);
        }
        self.tables.join_link(endpoint, link, None);
    }

    /// Removes a segment whose link is gone. Its index may be reused after the grace period.
    pub(super) fn remove(&mut self, index: SegmentIndex) -> Grace {
        if let Some(place) = self.segments.get_mut(usize::from(index.0)) {
            *place = None;
        }
        self.tables.set_segment(index, None);
        self.publisher.publish(self.tables.clone())
    }

    /// True once the grace period has passed: no worker reads older tables.
    pub(super) fn passed(&self, grace: Grace) -> bool {
        self.publisher.passed(grace)
    }

    /// The publisher to the workers.
    pub(super) const fn publisher(&mut self) -> &mut Publisher<Tables<D>> {
        &mut self.publisher
    }

    /// The tables as seen by an endpoint.
    pub(super) const fn of_endpoint(&mut self, endpoint: EndpointIndex) -> EndpointBoard<'_, D> {
        EndpointBoard { board: self, endpoint }
    }

    /// A worker's reader.
    #[must_use]
    pub(super) fn reader(&mut self) -> Reader<Tables<D>> {
        self.publisher.reader()
    }

    /// A segment's table.
    pub(super) fn at(&mut self, segment: SegmentIndex) -> Option<&mut SegmentBoard<D>> {
        self.segments.get_mut(usize::from(segment.0))?.as_mut()
    }

    /// Publishes the changes since the last call, and frees tables that no worker uses any more.
    pub(super) fn flush(&mut self) {
        let mut changed = false;
        for (segment, index) in self.segments.iter_mut().zip((0..).map(SegmentIndex)) {
            let Some(segment) = segment else { continue };
            if std::mem::take(&mut segment.dirty) {
                self.tables.set_segment(index, Some(segment.draft.table().clone()));
                changed = true;
            }
        }
        if changed {
            self.publisher.publish(self.tables.clone());
        } else {
            self.publisher.collect();
        }
    }
}

impl<D: Clone> SegmentBoard<D> {
    /// The segment's table, with changes that are not published yet.
    #[must_use]
    pub(super) fn table(&self) -> &SegmentTable<D> {
        self.draft.table()
    }

    /// Properties of the segment other than its neighbors.
    #[must_use]
    pub(super) fn settings(&self) -> &Settings<D> {
        &self.table().settings
    }

    /// The InfiniBand host at an index of the table.
    #[must_use]
    pub(super) fn ib_at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.draft.ib_at(index)
    }

    /// The Ethernet host at an index of the table.
    #[must_use]
    pub(super) fn eth_at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.draft.eth_at(index)
    }

    /// Neighbors that found a table full, since the start.
    #[must_use]
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// InfiniBand hosts that have been published with a TX path since the last call.
    pub(super) fn take_reachable(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.reachable)
    }

    /// True if the newest published tables have a path to a host for packets from `side`.
    #[must_use]
    pub(super) fn has_way(&self, side: Side, worker: WorkerIndex, ip: Ipv4Addr) -> bool {
        match side {
            Side::Ethernet => {
                self.table().ib(ip).is_some_and(|(_, n)| n.ud.is_some() || n.rc.of(worker).is_some())
            }
            Side::InfiniBand => self.table().eth(ip).is_some(),
        }
    }

    fn change(&mut self) -> &mut Draft<D> {
        self.dirty = true;
        &mut self.draft
    }

    /// Adds or changes an Ethernet host.
    pub(super) fn set_ethernet(&mut self, ip: Ipv4Addr, mac: MacAddress) {
        let full = self.change().set_eth(ip, EthNeighbour { mac }).is_err();
        self.left_out += u64::from(full);
    }

    /// Removes an Ethernet host.
    pub(super) fn remove_ethernet(&mut self, ip: Ipv4Addr) {
        self.change().remove_eth(ip);
    }

    /// Sets our LID and QPNs in the fabric, by which our own multicasts are recognized when they come back.
    pub(super) fn set_own(&mut self, lid: Lid, qpns: &[Qpn]) {
        let known = self.settings();
        let most = known.own_qpns.capacity().min(qpns.len());
        if known.own_lid == lid && known.own_qpns.get(..) == qpns.get(..most) {
            return;
        }
        let settings = self.change().settings();
        settings.own_lid = lid;
        settings.own_qpns = qpns.iter().copied().take(most).collect();
    }

    /// Sets the address, the subnets and routes, and the MTU of the Ethernet side.
    pub(super) fn set_networks(&mut self, address: Option<GatewayAddress>, routes: Routes, eth_mtu: u16) {
        let settings = self.change().settings();
        (settings.address, settings.routes, settings.eth_mtu) = (address, routes, eth_mtu);
    }

    /// Sets the role: whether the gateway forwards packets.
    pub(super) fn set_role(&mut self, role: Role) {
        if self.settings().role != role {
            self.change().settings().role = role;
        }
    }

    /// Sets the other gateways of the segment. Returns true if they changed.
    pub(super) fn set_gateways(&mut self, gateways: &[PeerGateway]) -> bool {
        let news = self.settings().gateways != gateways;
        if news {
            self.change().settings().gateways = gateways.to_vec();
        }
        news
    }

    /// Sets whether the Ethernet port has a link.
    pub(super) fn set_ethernet_up(&mut self, up: bool) {
        if self.settings().eth_up != up {
            self.change().settings().eth_up = up;
        }
    }

    /// Takes a worker's accessed bits: the InfiniBand and the Ethernet hosts to which it has sent since the
    /// last call.
    pub(super) fn take_used(&self, worker: WorkerIndex) -> (Vec<Ipv4Addr>, Vec<Ipv4Addr>) {
        self.draft.take_used(worker)
    }

    /// Applies an update from a link.
    fn take(&mut self, update: LinkUpdate<D>) {
        self.reachable.extend(update.changes.iter().filter_map(|change| match change {
            NeighbourChange::Set(n) if n.ud.is_some() || n.rc.iter().any(Option::is_some) => Some(n.ip),
            NeighbourChange::Set(_) | NeighbourChange::Remove(_) => None,
        }));
        self.left_out += self.change().apply(&update.changes) as u64;
        let settings = self.change().settings();
        // A link that is down has no path to any host.
        settings.broadcast = update.broadcast.filter(|_| update.state.up);
        settings.groups = update.groups;
        settings.ud_mtu = u16::try_from(update.state.ud_mtu).unwrap_or(u16::MAX);
    }
}

/// The tables as seen by one endpoint, which numbers only its own links.
#[derive(Debug)]
pub(super) struct EndpointBoard<'a, D> {
    board: &'a mut GatewayBoard<D>,
    endpoint: EndpointIndex,
}

impl<D: Clone> Board<D> for EndpointBoard<'_, D> {
    fn publish(&mut self, update: LinkUpdate<D>) -> Grace {
        let Self { board, endpoint } = self;
        let link = (*endpoint, update.link);
        let of_link = |segment: &&mut SegmentBoard<D>| {
            let settings = segment.settings();
            (settings.endpoint, LinkIndex(settings.link.into())) == link
        };
        if let Some(segment) = board.segments.iter_mut().flatten().find(of_link) {
            segment.take(update);
        }
        // The endpoint relies on this: a worker that refreshes now sees the update.
        board.flush();
        board.publisher.newest()
    }

    fn passed(&self, grace: Grace) -> bool {
        self.board.passed(grace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_whose_lid_is_0_has_a_slot_too() {
        let mut board = GatewayBoard::<()>::new(1);
        let at = SegmentIndex(0);
        board.add(at, Settings::new(MacAddress([2; 6])), 1);
        let segment = board.at(at).unwrap();
        let own = [Qpn::new(0x48), Qpn::new(0x49)];
        segment.set_own(Lid(0), &own);
        assert_eq!(segment.settings().own_qpns[..], own);
        segment.set_own(Lid(0), &own[1..]);
        assert_eq!(segment.settings().own_qpns[..], own[1..]);
        segment.dirty = false;
        segment.set_own(Lid(0), &own[1..]);
        assert!(!segment.dirty, "nothing new");
    }
}
