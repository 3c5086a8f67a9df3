//! What the forwarding step looks up.
//!
//! One `Tables` belongs to one worker: connections and prepared destinations are the worker's own. The control lcore
//! keeps a copy, changes it, and publishes clones; a worker only ever reads.

use std::net::Ipv4Addr;

use arrayvec::ArrayVec;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Gid, Lid, Qpn};

use super::routes::{Hop, Prefix, Routes};
use ipoib::link;
use ipoib::link::RcPath;
use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::ethernet::MacAddress;

/// Most neighbours of one side. Addresses come from the network, so tables are bounded and their hash is seeded.
pub const MAX_NEIGHBOURS: usize = 4096;

/// Most workers whose datagram queue pairs a table knows as its own gateway's.
const MAX_WORKERS: usize = 255;

/// Place of a neighbour in its side's table, below [`MAX_NEIGHBOURS`]; it stays as long as the neighbour does. Workers
/// note by it which neighbours they sent to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NeighbourIndex(pub u16);

/// The gateway's own IPv4 address in a segment and the subnet that it lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayAddress {
    address: Ipv4Addr,
    subnet: Prefix,
}

impl GatewayAddress {
    /// An address with the length of its network prefix, 1 to 31; `None` for other lengths.
    #[must_use]
    pub const fn new(address: Ipv4Addr, prefix_len: u8) -> Option<Self> {
        match Prefix::of(address, prefix_len) {
            Some(subnet) if prefix_len >= 1 && prefix_len <= 31 => Some(Self { address, subnet }),
            _ => None,
        }
    }

    /// The gateway's own address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The subnet.
    #[inline]
    #[must_use]
    pub const fn subnet(&self) -> Prefix {
        self.subnet
    }
}

/// What a gateway does with a segment's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// It forwards them.
    #[default]
    Forwarding,
    /// Another gateway does; this one keeps its tables warm.
    Standby,
    /// Nobody may: there is a loop.
    Blocked,
}

/// A host of the InfiniBand side, as one worker sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IbNeighbour<D> {
    /// Where datagrams go; `None` while the path is looked up.
    pub ud: Option<D>,
    /// This worker's connection to it, if it is up.
    pub rc: Option<RcPath>,
    /// True if the worker should tell that it sends to this neighbour without a connection, so that one is dialled.
    pub dial: bool,
}

impl<D: Clone> IbNeighbour<D> {
    /// What `worker` needs to know of a neighbour that the link published.
    #[must_use]
    pub fn of(neighbour: &link::Neighbour<D>, worker: link::WorkerIndex) -> Self {
        Self { ud: neighbour.ud.clone(), rc: neighbour.rc(worker.0), dial: neighbour.dial }
    }
}

/// A host of the Ethernet side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthNeighbour {
    /// Its link-layer address.
    pub mac: MacAddress,
}

/// Another gateway of the segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerGateway {
    /// Its Ethernet address.
    pub mac: MacAddress,
    /// Its InfiniBand port.
    pub lid: Lid,
    /// That port's GID.
    pub gid: Gid,
    /// Its datagram queue pairs there.
    pub qpns: Vec<Qpn>,
}

/// What a table knows beside neighbours.
#[derive(Clone, Debug)]
pub struct Settings<D> {
    /// Ethernet address of the gateway.
    pub mac: MacAddress,
    /// What the gateway does with packets.
    pub role: Role,
    /// Its IPv4 address, if it has one.
    pub address: Option<GatewayAddress>,
    /// Subnets beside that of the address, and routes. With no subnet at all every host is taken to be on the link, and
    /// subnet broadcasts are not known as such.
    pub routes: Routes,
    /// Largest IPv4 packet in an Ethernet frame, bytes.
    pub eth_mtu: u16,
    /// True if the Ethernet port has a link.
    pub eth_up: bool,
    /// Largest datagram of the InfiniBand side, bytes, encapsulation header included: the broadcast group's MTU.
    pub ud_mtu: u16,
    /// The broadcast group; `None` while the InfiniBand side is down.
    pub broadcast: Option<D>,
    /// Other groups that are joined.
    pub groups: Vec<(Ipv4Addr, D)>,
    /// LID of our port, to know our own multicasts when they come back.
    pub own_lid: Lid,
    /// The datagram queue pairs of all workers on it.
    pub own_qpns: ArrayVec<Qpn, MAX_WORKERS>,
    /// Other gateways of the segment: what they sent to a group was on the other side already.
    pub gateways: Vec<PeerGateway>,
}

impl<D> Settings<D> {
    /// A gateway with this Ethernet address, Ethernet MTU 1500, and the InfiniBand side down.
    #[must_use]
    pub fn new(mac: MacAddress) -> Self {
        Self {
            mac,
            role: Role::default(),
            address: None,
            routes: Routes::default(),
            eth_mtu: 1500,
            eth_up: true,
            ud_mtu: 2048,
            broadcast: None,
            groups: Vec::new(),
            own_lid: Lid(0),
            own_qpns: ArrayVec::new(),
            gateways: Vec::new(),
        }
    }

    /// True if a frame is from another gateway of the segment.
    #[must_use]
    pub fn is_gateway_mac(&self, source: MacAddress) -> bool {
        self.gateways.iter().any(|g| g.mac == source)
    }

    /// True if it is the link-layer address of another gateway of the segment.
    #[must_use]
    pub fn is_gateway_address(&self, address: HardwareAddress) -> bool {
        self.gateways.iter().any(|g| g.gid == address.gid && g.qpns.contains(&address.qpn))
    }

    /// True if a datagram is from another gateway of the segment.
    #[must_use]
    pub fn is_gateway_port(&self, lid: Lid, qpn: Qpn) -> bool {
        self.gateways.iter().any(|g| g.lid == lid && g.qpns.contains(&qpn))
    }

    /// The subnet in which an address lies, and where packets for it go if it is in none.
    #[inline]
    #[must_use]
    pub fn hop(&self, ip: Ipv4Addr) -> Option<Hop> {
        match &self.address {
            Some(own) if own.subnet.contains(ip) => Some(Hop::OnLink(own.subnet)),
            _ => self.routes.get(ip),
        }
    }

    /// True if the segment has no subnet: then every address is on the link.
    #[inline]
    #[must_use]
    pub const fn knows_no_subnet(&self) -> bool {
        self.address.is_none() && self.routes.is_empty()
    }

    /// The neighbour that a packet for this host goes to: the host itself, or a router; `None` if no route leads there.
    #[must_use]
    pub fn next_hop(&self, host: Ipv4Addr) -> Option<Ipv4Addr> {
        match self.hop(host) {
            Some(Hop::OnLink(_)) => Some(host),
            Some(Hop::Via(router)) => Some(router),
            None => self.knows_no_subnet().then_some(host),
        }
    }

    /// True if a host of this segment can have the address, as far as its subnets tell.
    #[must_use]
    pub fn is_on_link(&self, host: Ipv4Addr) -> bool {
        match self.hop(host) {
            Some(Hop::OnLink(subnet)) => !subnet.is_broadcast(host) && !subnet.is_network(host),
            Some(Hop::Via(_)) => false,
            None => self.knows_no_subnet(),
        }
    }

    /// Largest IPv4 packet in a datagram.
    #[inline]
    #[must_use]
    pub const fn ud_ip_mtu(&self) -> u16 {
        self.ud_mtu.saturating_sub(IPOIB_HEADER_LEN as u16)
    }
}

/// The table of a side is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table holds {MAX_NEIGHBOURS} neighbours already")]
pub struct TableFull;

/// All that a worker looks up.
#[derive(Clone, Debug)]
pub struct Tables<D> {
    /// Addresses, MTUs, groups.
    pub settings: Settings<D>,
    ib: Side<IbNeighbour<D>>,
    eth: Side<EthNeighbour>,
}

impl<D> Tables<D> {
    /// No neighbours yet. `seed` is drawn at start, so that nobody can know which addresses collide.
    #[must_use]
    pub fn new(seed: u64, settings: Settings<D>) -> Self {
        Self { settings, ib: Side::new(seed), eth: Side::new(seed.rotate_left(32)) }
    }

    /// The InfiniBand host with this address.
    #[inline]
    #[must_use]
    pub fn ib(&self, ip: Ipv4Addr) -> Option<(NeighbourIndex, &IbNeighbour<D>)> {
        self.ib.get(ip)
    }

    /// The Ethernet host with this address.
    #[inline]
    #[must_use]
    pub fn eth(&self, ip: Ipv4Addr) -> Option<(NeighbourIndex, &EthNeighbour)> {
        self.eth.get(ip)
    }

    /// Adds or changes an InfiniBand host.
    pub fn set_ib(&mut self, ip: Ipv4Addr, neighbour: IbNeighbour<D>) -> Result<NeighbourIndex, TableFull> {
        self.ib.set(ip, neighbour)
    }

    /// Adds or changes an Ethernet host.
    pub fn set_eth(&mut self, ip: Ipv4Addr, neighbour: EthNeighbour) -> Result<NeighbourIndex, TableFull> {
        self.eth.set(ip, neighbour)
    }

    /// Forgets an InfiniBand host.
    pub fn remove_ib(&mut self, ip: Ipv4Addr) -> Option<IbNeighbour<D>> {
        self.ib.remove(ip)
    }

    /// Forgets an Ethernet host.
    pub fn remove_eth(&mut self, ip: Ipv4Addr) -> Option<EthNeighbour> {
        self.eth.remove(ip)
    }

    /// The InfiniBand host at an index.
    #[must_use]
    pub fn ib_at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.ib.at(index)
    }

    /// The Ethernet host at an index.
    #[must_use]
    pub fn eth_at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.eth.at(index)
    }

    /// Takes over what a link publishes, with destinations already prepared for `worker`'s device. Neighbours for
    /// which there is no room are left out; the number of these is returned.
    pub fn apply(
        &mut self,
        worker: link::WorkerIndex,
        changes: impl IntoIterator<Item = link::NeighbourChange<D>>,
    ) -> usize
    where
        D: Clone,
    {
        let mut left_out = 0;
        for change in changes {
            match change {
                link::NeighbourChange::Set(neighbour) => {
                    if self.set_ib(neighbour.ip, IbNeighbour::of(&neighbour, worker)).is_err() {
                        left_out += 1;
                    }
                }
                link::NeighbourChange::Remove(ip) => {
                    self.remove_ib(ip);
                }
            }
        }
        left_out
    }
}

/// Neighbours of one side, with an index each that lasts.
#[derive(Clone, Debug)]
struct Side<N> {
    entries: HashMap<u32, (NeighbourIndex, N), FixedState>,
    names: Vec<Option<Ipv4Addr>>,
    free: Vec<NeighbourIndex>,
}

impl<N> Side<N> {
    fn new(seed: u64) -> Self {
        Self {
            entries: HashMap::with_hasher(FixedState::with_seed(seed)),
            names: Vec::new(),
            free: Vec::new(),
        }
    }

    #[inline]
    fn get(&self, ip: Ipv4Addr) -> Option<(NeighbourIndex, &N)> {
        self.entries.get(&ip.to_bits()).map(|(index, n)| (*index, n))
    }

    fn set(&mut self, ip: Ipv4Addr, neighbour: N) -> Result<NeighbourIndex, TableFull> {
        if let Some((index, entry)) = self.entries.get_mut(&ip.to_bits()) {
            *entry = neighbour;
            return Ok(*index);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.names.len() < MAX_NEIGHBOURS => {
                self.names.push(None);
                NeighbourIndex((self.names.len() - 1) as u16)
            }
            None => return Err(TableFull),
        };
        if let Some(name) = self.names.get_mut(usize::from(index.0)) {
            *name = Some(ip);
        }
        self.entries.insert(ip.to_bits(), (index, neighbour));
        Ok(index)
    }

    fn remove(&mut self, ip: Ipv4Addr) -> Option<N> {
        let (index, neighbour) = self.entries.remove(&ip.to_bits())?;
        if let Some(name) = self.names.get_mut(usize::from(index.0)) {
            *name = None;
        }
        self.free.push(index);
        Some(neighbour)
    }

    fn at(&self, index: NeighbourIndex) -> Option<Ipv4Addr> {
        self.names.get(usize::from(index.0)).copied().flatten()
    }
}
