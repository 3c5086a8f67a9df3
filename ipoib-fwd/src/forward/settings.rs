//! What a segment's table knows beside neighbours.

use std::net::Ipv4Addr;
use std::ops::Range;

use arrayvec::ArrayVec;
use ib_wire::ipoib::HardwareAddress;
use ib_wire::{Gid, Lid, Qpn};

use super::routes::{Hop, Prefix, Routes};
use super::tables::{EndpointIndex, EthernetIndex};
use ipoib::net::IPOIB_HEADER_LEN;
use ipoib::net::ethernet::MacAddress;
use ipoib::net::ipv4;

/// Most workers whose datagram queue pairs a table knows as its own gateway's.
const MAX_WORKERS: usize = 255;

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
    /// Another gateway does; this one forwards what hosts that have not heard of that yet send to one host.
    HandingOver,
    /// Another gateway does; this one keeps its tables warm.
    Standby,
    /// Nobody may: there is a loop.
    Blocked,
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

/// Where a segment's messages leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// The InfiniBand port.
    pub endpoint: EndpointIndex,
    /// The link there.
    pub link: u8,
}

/// What a table knows beside neighbours.
#[derive(Clone, Debug)]
pub struct Settings<D> {
    /// Ethernet address of the gateway.
    pub mac: MacAddress,
    /// Its Ethernet port.
    pub ethernet: EthernetIndex,
    /// The VLAN identifier of its frames; `None` if they carry no tag.
    pub vlan: Option<u16>,
    /// Its InfiniBand port.
    pub endpoint: EndpointIndex,
    /// Its link: the place of its datagram queue pair in each worker's queues on that port.
    pub link: u8,
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
            ethernet: EthernetIndex(0),
            vlan: None,
            endpoint: EndpointIndex(0),
            link: 0,
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

    /// Where the segment's messages leave.
    #[inline]
    #[must_use]
    pub const fn uplink(&self) -> Uplink {
        Uplink { endpoint: self.endpoint, link: self.link }
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

    /// True for a host's address outside of the segment's subnets, which nobody on either side has to have.
    #[must_use]
    pub fn is_off_subnet(&self, host: Ipv4Addr) -> bool {
        let is_inside =
            self.hop(host).map_or_else(|| self.knows_no_subnet(), |hop| matches!(hop, Hop::OnLink(_)));
        ipv4::is_unicast(host) && !is_inside
    }

    /// The addresses of the segment's own subnet; none, if it has none.
    pub(super) fn own_addresses(&self) -> Range<u64> {
        let Some(own) = &self.address else { return 0..0 };
        let (first, last) = own.subnet().hosts();
        first.to_bits().into()..u64::from(last.to_bits()) + 1
    }

    /// Largest IPv4 packet in a datagram.
    #[inline]
    #[must_use]
    pub const fn ud_ip_mtu(&self) -> u16 {
        self.ud_mtu.saturating_sub(IPOIB_HEADER_LEN as u16)
    }
}
