//! A segment's table as the control lcore keeps and changes it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::tables::{EthNeighbour, IbNeighbour, NeighbourIndex, SegmentTable, Settings};
use ipoib::link::NeighbourChange;

/// A side of the table is full. Addresses come from the network, so tables are bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table holds {0} neighbours already")]
pub struct TableFull(pub usize);

/// Which address has which index, of one side.
#[derive(Debug)]
struct Names {
    most: usize,
    by_index: Vec<Option<Ipv4Addr>>,
    free: Vec<NeighbourIndex>,
}

impl Names {
    const fn new(most: usize) -> Self {
        Self { most, by_index: Vec::new(), free: Vec::new() }
    }

    fn add(&mut self, ip: Ipv4Addr) -> Result<NeighbourIndex, TableFull> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.by_index.len() < self.most => {
                self.by_index.push(None);
                NeighbourIndex(self.by_index.len() as u32 - 1)
            }
            None => return Err(TableFull(self.most)),
        };
        if let Some(name) = self.by_index.get_mut(index.0 as usize) {
            *name = Some(ip);
        }
        Ok(index)
    }

    fn remove(&mut self, index: NeighbourIndex) {
        if let Some(name) = self.by_index.get_mut(index.0 as usize) {
            *name = None;
        }
        self.free.push(index);
    }

    fn at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.by_index.get(index.0 as usize).copied().flatten()
    }
}

/// What is to be published next. [`Draft::table`] may be handed out at any time: a change after that copies what it changes.
#[derive(Debug)]
pub struct Draft<D> {
    table: Arc<SegmentTable<D>>,
    infiniband: Names,
    ethernet: Names,
}

impl<D: Clone> Draft<D> {
    /// No neighbours yet, and at most `most` on each side. `seed` is drawn at start, so that nobody can know which addresses
    /// collide. `workers` send by the table.
    #[must_use]
    pub fn new(seed: u64, settings: Settings<D>, most: usize, workers: u8) -> Self {
        let table = Arc::new(SegmentTable::new(seed, settings, most, workers));
        Self { table, infiniband: Names::new(most), ethernet: Names::new(most) }
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
            None => self.infiniband.add(ip)?,
        };
        self.edit().ib.set(ip.to_bits(), index, neighbour);
        Ok(index)
    }

    /// Adds or changes an Ethernet host.
    pub fn set_eth(&mut self, ip: Ipv4Addr, neighbour: EthNeighbour) -> Result<NeighbourIndex, TableFull> {
        let index = match self.table.eth(ip) {
            Some((index, _)) => index,
            None => self.ethernet.add(ip)?,
        };
        self.edit().eth.set(ip.to_bits(), index, neighbour);
        Ok(index)
    }

    /// Forgets an InfiniBand host; true if it was known.
    pub fn remove_ib(&mut self, ip: Ipv4Addr) -> bool {
        let Some((index, _)) = self.table.ib(ip) else { return false };
        self.infiniband.remove(index);
        self.edit().ib.remove(ip.to_bits());
        true
    }

    /// Forgets an Ethernet host; true if it was known.
    pub fn remove_eth(&mut self, ip: Ipv4Addr) -> bool {
        let Some((index, _)) = self.table.eth(ip) else { return false };
        self.ethernet.remove(index);
        self.edit().eth.remove(ip.to_bits());
        true
    }

    /// The InfiniBand host at an index.
    #[must_use]
    pub fn ib_at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.infiniband.at(index)
    }

    /// The Ethernet host at an index.
    #[must_use]
    pub fn eth_at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.ethernet.at(index)
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
