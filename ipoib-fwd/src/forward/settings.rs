//! Settings of a segment's table: all of it except neighbors.

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

/// Maximum number of workers whose datagram queue pairs are known as the gateway's own.
const MAX_WORKERS: usize = 255;

/// The gateway's own IPv4 address in a segment and the subnet that it lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatewayAddress {
    address: Ipv4Addr,
    subnet: Prefix,
}

impl GatewayAddress {
    /// Creates an address with its prefix length, 1 to 31; `None` for other lengths.
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

/// The role of a gateway in a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// This gateway forwards.
    #[default]
    Forwarding,
    /// Another gateway forwards. This one still forwards unicast packets of hosts that have not yet learned
    /// of the change.
    HandingOver,
    /// Another gateway forwards. This one keeps its tables synchronized.
    Standby,
    /// No gateway may forward: there is a loop.
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
    /// Its datagram queue pairs on that port.
    pub qpns: Vec<Qpn>,
}

/// The InfiniBand port and link that a segment's messages are sent from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// The InfiniBand port.
    pub endpoint: EndpointIndex,
    /// The link there.
    pub link: u8,
}

/// Settings of a segment.
#[derive(Clone, Debug)]
pub struct Settings<D> {
    /// Ethernet address of the gateway.
    pub mac: MacAddress,
    /// Its Ethernet port.
    pub ethernet: EthernetIndex,
    /// The VLAN identifier of its frames; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// Its InfiniBand port.
    pub endpoint: EndpointIndex,
    /// Its link: the index of its datagram queue pair in each worker's queues on that port.
    pub link: u8,
    /// Its role.
    pub role: Role,
    /// Its IPv4 address, if it has one.
    pub address: Option<GatewayAddress>,
    /// Subnets in addition to that of the address, and routes. Without any subnet, every host is on the link
    /// and subnet broadcasts are not recognized.
    pub routes: Routes,
    /// Largest IPv4 packet in an Ethernet frame, bytes.
    pub eth_mtu: u16,
    /// True if the Ethernet port has a link.
    pub eth_up: bool,
    /// Largest datagram of the InfiniBand side in bytes, encapsulation header included: the broadcast group's
    /// MTU.
    pub ud_mtu: u16,
    /// The broadcast group; `None` while the InfiniBand side is down.
    pub broadcast: Option<D>,
    /// Other joined groups.
    pub groups: Vec<(Ipv4Addr, D)>,
    /// LID of the own port, to recognize own multicasts that come back.
    pub own_lid: Lid,
    /// The datagram queue pairs of all workers on that port.
    pub own_qpns: ArrayVec<Qpn, MAX_WORKERS>,
    /// Other gateways of the segment. Packets that they send to a group have already been on the other side.
    pub gateways: Vec<PeerGateway>,
}

impl<D> Settings<D> {
    /// Settings for this Ethernet address, with Ethernet MTU 1500 and the InfiniBand side down.
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

    /// The port and link that the segment's messages are sent from.
    #[inline]
    #[must_use]
    pub const fn uplink(&self) -> Uplink {
        Uplink { endpoint: self.endpoint, link: self.link }
    }

    /// True if `source` is another gateway of the segment.
    #[must_use]
    pub fn is_gateway_mac(&self, source: MacAddress) -> bool {
        self.gateways.iter().any(|g| g.mac == source)
    }

    /// True if `address` is the link-layer address of another gateway of the segment.
    #[must_use]
    pub fn is_gateway_address(&self, address: HardwareAddress) -> bool {
        self.gateways.iter().any(|g| g.gid == address.gid && g.qpns.contains(&address.qpn))
    }

    /// True if the datagram's sender is another gateway of the segment.
    #[must_use]
    pub fn is_gateway_port(&self, lid: Lid, qpn: Qpn) -> bool {
        self.gateways.iter().any(|g| g.lid == lid && g.qpns.contains(&qpn))
    }

    /// The subnet of an address, or the router for it if it is in no subnet.
    #[inline]
    #[must_use]
    pub fn hop(&self, ip: Ipv4Addr) -> Option<Hop> {
        match &self.address {
            Some(own) if own.subnet.contains(ip) => Some(Hop::OnLink(own.subnet)),
            _ => self.routes.get(ip),
        }
    }

    /// True if the segment has no subnet: every address is then on the link.
    #[inline]
    #[must_use]
    pub const fn knows_no_subnet(&self) -> bool {
        self.address.is_none() && self.routes.is_empty()
    }

    /// The next hop for a host: the host itself or a router; `None` if there is no route.
    #[must_use]
    pub fn next_hop(&self, host: Ipv4Addr) -> Option<Ipv4Addr> {
        match self.hop(host) {
            Some(Hop::OnLink(_)) => Some(host),
            Some(Hop::Via(router)) => Some(router),
            None => self.knows_no_subnet().then_some(host),
        }
    }

    /// True if a host of this segment can have the address, according to its subnets.
    #[must_use]
    pub fn is_on_link(&self, host: Ipv4Addr) -> bool {
        match self.hop(host) {
            Some(Hop::OnLink(subnet)) => !subnet.is_broadcast(host) && !subnet.is_network(host),
            Some(Hop::Via(_)) => false,
            None => self.knows_no_subnet(),
        }
    }

    /// True for a host address outside the segment's subnets, which neither side needs to have.
    #[must_use]
    pub fn is_off_subnet(&self, host: Ipv4Addr) -> bool {
        let is_inside =
            self.hop(host).map_or_else(|| self.knows_no_subnet(), |hop| matches!(hop, Hop::OnLink(_)));
        ipv4::is_unicast(host) && !is_inside
    }

    /// The addresses of the subnet of the gateway's own address; empty if there is none.
    pub(super) fn own_addresses(&self) -> Range<u64> {
        let Some(own) = &self.address else { return 0..0 };
        let (first, last) = own.subnet().hosts();
        first.to_bits().into()..u64::from(last.to_bits()) + 1
    }

    /// Largest IPv4 packet in a datagram, in bytes.
    #[inline]
    #[must_use]
    pub const fn ud_ip_mtu(&self) -> u16 {
        self.ud_mtu.saturating_sub(IPOIB_HEADER_LEN as u16)
    }
}
