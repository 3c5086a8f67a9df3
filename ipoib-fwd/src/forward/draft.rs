//! Builder of a segment's table: the control lcore's mutable copy.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use dataplane::usage::Usage;

use super::hosts::Hosts;
use super::neighbours::{EthNeighbour, IbNeighbour, NeighbourIndex};
use super::settings::Settings;
use super::tables::{SegmentTable, Used};
use ipoib::link::{NeighbourChange, WorkerIndex};

/// One side of the table is full. Addresses come from the network, so tables are bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table already holds {0} neighbours")]
pub struct TableFull(pub usize);

fn number(side: &mut Usage<Ipv4Addr>, ip: Ipv4Addr) -> Result<NeighbourIndex, TableFull> {
    side.add(ip).map(NeighbourIndex).ok_or_else(|| TableFull(side.most()))
}

/// Builder of the next table to publish. [`Draft::table`] may be handed out at any time: later changes copy
/// on write.
#[derive(Debug)]
pub struct Draft<D> {
    table: Arc<SegmentTable<D>>,
    infiniband: Usage<Ipv4Addr>,
    ethernet: Usage<Ipv4Addr>,
}

impl<D: Clone> Draft<D> {
    /// Creates a table without neighbours and with at most `most` neighbours on each side. `seed` is random
    /// for each start, so that nobody can predict which addresses collide. `workers` is the number of workers
    /// that send with the table.
    #[must_use]
    pub fn new(seed: u64, settings: Settings<D>, most: usize, workers: u8) -> Self {
        // Indices are below twice this number.
        let most = most.min(Hosts::<()>::NUMBERS / 2);
        let (infiniband, ethernet) = (Usage::new(most, workers), Usage::new(most, workers));
        let used =
            Used { infiniband: Arc::clone(infiniband.marks()), ethernet: Arc::clone(ethernet.marks()) };
        Self { table: Arc::new(SegmentTable::new(seed, settings, most, used)), infiniband, ethernet }
    }

    /// The current version of the table.
    #[must_use]
    pub const fn table(&self) -> &Arc<SegmentTable<D>> {
        &self.table
    }

    fn edit(&mut self) -> &mut SegmentTable<D> {
        Arc::make_mut(&mut self.table)
    }

    /// Mutable access to addresses, MTUs, groups and the role.
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

    /// Removes an InfiniBand host. Returns true if it was known.
    pub fn remove_ib(&mut self, ip: Ipv4Addr) -> bool {
        let Some((index, _)) = self.table.ib(ip) else { return false };
        self.infiniband.remove(index.0);
        self.edit().ib.remove(ip.to_bits());
        true
    }

    /// Removes an Ethernet host. Returns true if it was known.
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

    /// Takes the hosts that a worker has sent to since the last call: InfiniBand hosts, then Ethernet hosts.
    #[must_use]
    pub fn take_used(&self, worker: WorkerIndex) -> (Vec<Ipv4Addr>, Vec<Ipv4Addr>) {
        (self.infiniband.take(worker.0), self.ethernet.take(worker.0))
    }

    /// Applies what a link publishes. Destinations are already prepared, and an address occurs at most once.
    /// Removals come first and make room for additions. Returns how many neighbours did not fit and were left
    /// out.
    pub fn apply(&mut self, changes: &[NeighbourChange<D>]) -> usize {
        for change in changes {
            if let NeighbourChange::Remove(IpAddr::V4(ip)) = change {
                self.remove_ib(*ip);
            }
        }
        let mut left_out = 0;
        for change in changes {
            // IPv6 packets are not forwarded and have no table.
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
