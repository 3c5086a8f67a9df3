//! A segment's table as the control lcore keeps and changes it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use dataplane::usage::Usage;

use super::hosts::Hosts;
use super::neighbours::{EthNeighbour, IbNeighbour, NeighbourIndex};
use super::settings::Settings;
use super::tables::{SegmentTable, Used};
use ipoib::link::{NeighbourChange, WorkerIndex};

/// A side of the table is full. Addresses come from the network, so tables are bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table holds {0} neighbours already")]
pub struct TableFull(pub usize);

fn number(side: &mut Usage<Ipv4Addr>, ip: Ipv4Addr) -> Result<NeighbourIndex, TableFull> {
    side.add(ip).map(NeighbourIndex).ok_or_else(|| TableFull(side.most()))
}

/// What is to be published next. [`Draft::table`] may be handed out at any time: a change after that copies what it changes.
#[derive(Debug)]
pub struct Draft<D> {
    table: Arc<SegmentTable<D>>,
    infiniband: Usage<Ipv4Addr>,
    ethernet: Usage<Ipv4Addr>,
}

impl<D: Clone> Draft<D> {
    /// No neighbours yet, and at most `most` on each side. `seed` is drawn at start, so that nobody can know which addresses
    /// collide. `workers` send by the table.
    #[must_use]
    pub fn new(seed: u64, settings: Settings<D>, most: usize, workers: u8) -> Self {
        // Numbers are below twice that.
        let most = most.min(Hosts::<()>::NUMBERS / 2);
        let (infiniband, ethernet) = (Usage::new(most, workers), Usage::new(most, workers));
        let used =
            Used { infiniband: Arc::clone(infiniband.marks()), ethernet: Arc::clone(ethernet.marks()) };
        Self { table: Arc::new(SegmentTable::new(seed, settings, most, used)), infiniband, ethernet }
    }

    /// The table as it is now.
    #[must_use]
    pub const fn table(&self) -> &Arc<SegmentTable<D>> {
        &self.table
    }

    fn edit(&mut self) -> &mut SegmentTable<D> {
        Arc::make_mut(&mut self.table)
    }

    /// Addresses, MTUs, groups, the role, to be changed.
    pub fn settings(&mut self) -> &mut Settings<D> {
        &mut self.edit().settings
    }

    /// Adds or changes an InfiniBand host.
    pub fn set_ib(&mut self, ip: Ipv4Addr, neighbour: IbNeighbour<D>) -> Result<NeighbourIndex, TableFull> {
        let index = match self.table.ib(ip) {
            Some((index, _)) => index,
            None => number(&mut self.infiniband, ip)?,
        };
        let table = self.edit();
        table.ib.set(table.settings.own_addresses(), ip.to_bits(), index, neighbour);
        Ok(index)
    }

    /// Adds or changes an Ethernet host.
    pub fn set_eth(&mut self, ip: Ipv4Addr, neighbour: EthNeighbour) -> Result<NeighbourIndex, TableFull> {
        let index = match self.table.eth(ip) {
            Some((index, _)) => index,
            None => number(&mut self.ethernet, ip)?,
        };
        let table = self.edit();
        table.eth.set(table.settings.own_addresses(), ip.to_bits(), index, neighbour);
        Ok(index)
    }

    /// Forgets an InfiniBand host; true if it was known.
    pub fn remove_ib(&mut self, ip: Ipv4Addr) -> bool {
        let Some((index, _)) = self.table.ib(ip) else { return false };
        self.infiniband.remove(index.0);
        self.edit().ib.remove(ip.to_bits());
        true
    }

    /// Forgets an Ethernet host; true if it was known.
    pub fn remove_eth(&mut self, ip: Ipv4Addr) -> bool {
        let Some((index, _)) = self.table.eth(ip) else { return false };
        self.ethernet.remove(index.0);
        self.edit().eth.remove(ip.to_bits());
        true
    }

    /// The InfiniBand host at an index.
    #[must_use]
    pub fn ib_at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.infiniband.at(index.0)
    }

    /// The Ethernet host at an index.
    #[must_use]
    pub fn eth_at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.ethernet.at(index.0)
    }

    /// The hosts that a worker has sent to since the last time: of InfiniBand, of Ethernet.
    #[must_use]
    pub fn take_used(&self, worker: WorkerIndex) -> (Vec<Ipv4Addr>, Vec<Ipv4Addr>) {
        (self.infiniband.take(worker.0), self.ethernet.take(worker.0))
    }

    /// Takes over what a link publishes, an address at most once, with destinations already prepared. Who goes makes room for
    /// who comes. Neighbours for which there is no room are left out; the number of these is returned.
    pub fn apply(&mut self, changes: &[NeighbourChange<D>]) -> usize {
        for change in changes {
            if let NeighbourChange::Remove(IpAddr::V4(ip)) = change {
                self.remove_ib(*ip);
            }
        }
        let mut left_out = 0;
        for change in changes {
            // Packets of IPv6 are not forwarded, and have no table.
            if let NeighbourChange::Set(neighbour) = change
                && let IpAddr::V4(ip) = neighbour.ip
                && self.set_ib(ip, IbNeighbour::of(neighbour)).is_err()
            {
                left_out += 1;
            }
        }
        left_out
    }
}
