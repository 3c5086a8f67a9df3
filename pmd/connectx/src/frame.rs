//! Framing: from an address vector to the headers of a packet, and from bytes to what the transports look at. InfiniBand at
//! one kind of port, RoCEv2 (IBA annex A17) at the other.

use ib_wire::packet::{
    Bth, Extended, Grh, Headers, Lrh, Packet, ROCEV2_FLOWS, RoceHeaders, RoceNetwork, RocePacket, Transport,
    VirtualLane,
};
use ib_wire::{Gid, Lid, ServiceLevel};

use super::counters::DropReason;
use super::ethernet::{EthernetHeader, MacAddress, Resolution, is_group, multicast_mac};
use super::port::Port;
use hca::AddressVector;

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Back to this port.
    Ourselves,
    /// To a group, of which this port may be a member.
    Group,
    /// To somebody else.
    Out,
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    InfiniBand(Headers),
    RoceV2(EthernetHeader, RoceHeaders),
}

/// A packet's headers and where it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    framing: Framing,
    pub(crate) way: Way,
    /// It may leave whatever the port's state is.
    pub(crate) management: bool,
}

/// Why a packet has no headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unframed {
    /// The other end's MAC address is being asked for.
    Wait,
    /// It cannot be sent.
    Drop(DropReason),
}

impl Outgoing {
    /// The headers of a packet that leaves `port` for `av`. `management` is for subnet management; all else goes on lane 0.
    /// `flow` keeps the packets of one sender in order on networks with several ways.
    pub(crate) fn new(
        port: &mut Port,
        av: &AddressVector,
        bth: Bth,
        extended: Extended,
        flow: u32,
        management: bool,
    ) -> Result<Self, Unframed> {
        if port.ethernet.is_some() {
            return Self::roce(port, av, bth, extended, flow);
        }
        let grh = av.grh.map(|route| Grh {
            traffic_class: route.traffic_class,
            flow_label: route.flow_label,
            hop_limit: route.hop_limit,
            sgid: port.gids.gid(usize::from(route.sgid_index)),
            dgid: route.dgid,
        });
        let path_mask = (1u16 << port.lmc.min(7)) - 1;
        let nowhere = management && av.dlid == Lid::PERMISSIVE && port.lid.0 == 0;
        let slid = Lid(port.lid.0 | u16::from(av.src_path_bits) & path_mask);
        let lrh = Lrh {
            vl: if management { VirtualLane::MANAGEMENT } else { VirtualLane::new(0) },
            sl: av.sl,
            dlid: av.dlid,
            slid: if nowhere { Lid::PERMISSIVE } else { slid },
        };
        let way = if port.has_lid(av.dlid) {
            Way::Ourselves
        } else if av.dlid.is_multicast() {
            Way::Group
        } else {
            Way::Out
        };
        Ok(Self { framing: Framing::InfiniBand(Headers { lrh, grh, bth, extended }), way, management })
    }

    fn roce(
        port: &mut Port,
        av: &AddressVector,
        bth: Bth,
        extended: Extended,
        flow: u32,
    ) -> Result<Self, Unframed> {
        let no_route = Unframed::Drop(DropReason::NoRoute);
        let route = av.grh.ok_or(no_route)?;
        let sgid = port.gids.rocev2(usize::from(route.sgid_index)).ok_or(no_route)?;
        let ethernet = port.ethernet.as_mut().ok_or(no_route)?;
        let (way, destination) = if is_group(route.dgid) {
            (Way::Group, multicast_mac(route.dgid))
        } else if port.gids.has_rocev2(route.dgid) {
            (Way::Ourselves, ethernet.mac)
        } else {
            match ethernet.neighbours.resolve(sgid, route.dgid) {
                Resolution::Known(mac) => (Way::Out, mac),
                Resolution::Wait => return Err(Unframed::Wait),
                Resolution::Unreachable => return Err(Unframed::Drop(DropReason::NoNeighbour)),
            }
        };
        // 0 is what programs leave there; on Ethernet it would mean "for nobody".
        let hop_limit = if route.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { route.hop_limit };
        let network =
            RoceNetwork::between(sgid, route.dgid, route.traffic_class, route.flow_label, hop_limit);
        let header = EthernetHeader::new(destination, ethernet.mac, &network);
        let headers = RoceHeaders { network, source_port: source_port(flow, &bth), bth, extended };
        Ok(Self { framing: Framing::RoceV2(header, headers), way, management: false })
    }

    /// Bytes of the whole packet with `payload` bytes of payload.
    pub(crate) const fn len(&self, payload: usize) -> usize {
        match &self.framing {
            Framing::InfiniBand(headers) => headers.packet_len(payload),
            Framing::RoceV2(_, headers) => EthernetHeader::LEN + headers.packet_len(payload),
        }
    }

    /// Writes the packet. Length and layout were checked by who made the headers; a packet that cannot be stays as it was,
    /// and the receiver drops it.
    pub(crate) fn write(&self, payload: usize, out: &mut [u8], fill: impl FnOnce(&mut [u8])) {
        match &self.framing {
            Framing::InfiniBand(headers) => {
                if let Ok(mut frame) = headers.write(payload, out) {
                    fill(frame.payload_mut());
                    frame.seal();
                }
            }
            Framing::RoceV2(header, headers) => {
                let Some((front, rest)) = out.split_first_chunk_mut() else { return };
                *front = header.to_bytes();
                if let Ok(mut frame) = headers.write(payload, rest) {
                    fill(frame.payload_mut());
                    frame.seal();
                }
            }
        }
    }
}

/// Hop limit where the address vector has none.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// One UDP source port for the packets from one queue pair to another.
const fn source_port(flow: u32, bth: &Bth) -> u16 {
    let mixed = (flow ^ bth.dest_qpn.get().rotate_left(8)).wrapping_mul(0x9e37_79b1) >> 18;
    ROCEV2_FLOWS | mixed as u16
}

/// The network header of a packet that came in, as it goes to the front of a datagram's receive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NetworkHeader<'a> {
    /// None.
    None,
    /// A GRH.
    Grh(&'a [u8]),
    /// An IPv6 header.
    Ipv6(&'a [u8]),
    /// An IPv4 header; it goes to the last 20 of the 40 bytes (IBA annex A17).
    Ipv4(&'a [u8]),
}

/// A packet that came in, whatever framed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    transport: Transport<'a>,
    pub(crate) slid: Lid,
    pub(crate) dlid: Lid,
    pub(crate) sl: ServiceLevel,
    /// Source and destination GID.
    pub(crate) route: Option<(Gid, Gid)>,
    pub(crate) network: NetworkHeader<'a>,
}

impl<'a> Arrived<'a> {
    pub(crate) fn infiniband(packet: &Packet<'a>) -> Self {
        let lrh = packet.lrh();
        Self {
            transport: *packet.transport(),
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            route: packet.grh().map(|grh| (grh.sgid, grh.dgid)),
            network: packet.grh_bytes().map_or(NetworkHeader::None, |b| NetworkHeader::Grh(b)),
        }
    }

    pub(crate) fn roce(packet: &RocePacket<'a>) -> Self {
        let bytes = packet.network_bytes();
        Self {
            transport: *packet.transport(),
            slid: Lid(0),
            dlid: Lid(0),
            sl: ServiceLevel::default(),
            route: Some((packet.sgid(), packet.dgid())),
            network: match packet.network() {
                RoceNetwork::V4 { .. } => NetworkHeader::Ipv4(bytes),
                RoceNetwork::V6 { .. } => NetworkHeader::Ipv6(bytes),
            },
        }
    }

    pub(crate) const fn bth(&self) -> &Bth {
        &self.transport.bth
    }

    pub(crate) const fn extended(&self) -> &Extended {
        &self.transport.extended
    }

    /// Payload without pad bytes.
    pub(crate) const fn payload(&self) -> &'a [u8] {
        self.transport.payload
    }
}

impl EthernetHeader {
    fn new(destination: MacAddress, source: MacAddress, network: &RoceNetwork) -> Self {
        let ethertype = match network {
            RoceNetwork::V4 { .. } => Self::IPV4,
            RoceNetwork::V6 { .. } => Self::IPV6,
        };
        Self { destination, source, ethertype }
    }
}
