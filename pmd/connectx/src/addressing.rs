//! Builds the headers of a packet from an address vector and the port's own addresses. On an Ethernet port it
//! also needs the peer's MAC address.

use ib_wire::Lid;
use ib_wire::packet::{
    Bth, Extended, Grh, Headers, Lrh, ROCEV2_FLOWS, RoceHeaders, RoceNetwork, VirtualLane,
};

use super::counters::DropReason;
use super::ethernet::{EthernetHeader, Resolution, is_group, multicast_mac};
use super::frame::{Destination, Outgoing};
use super::port::Port;
use hca::AddressVector;

/// Why no headers could be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unframed {
    /// The peer's MAC address is being resolved.
    Wait,
    /// The packet cannot be sent.
    Drop(DropReason),
}

/// Builds the headers of a packet that leaves `port` for `av`. `management` is for subnet management; all
/// other packets go on lane 0. `flow` keeps the packets of one sender in order on multipath networks.
#[inline(always)]
pub(crate) fn address(
    port: &mut Port,
    av: &AddressVector,
    bth: &Bth,
    extended: &Extended,
    flow: u32,
    management: bool,
) -> Result<Outgoing, Unframed> {
    if port.ethernet.is_some() {
        let outgoing = roce(port, av, bth, extended, flow)?;
        return Ok(outgoing);
    }
    let vl = if management { VirtualLane::MANAGEMENT } else { port.lanes.lane(av.sl) };
    // There is one lane for data.
    if !management && vl != VirtualLane::default() {
        return Err(Unframed::Drop(DropReason::ServiceLevel));
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
    let lrh = Lrh { vl, sl: av.sl, dlid: av.dlid, slid: if nowhere { Lid::PERMISSIVE } else { slid } };
    let destination = if port.has_lid(av.dlid) {
        Destination::Ourselves
    } else if av.dlid.is_multicast() {
        Destination::Group
    } else {
        Destination::Out
    };
    Ok(Outgoing::infiniband(Headers { lrh, grh, bth: *bth, extended: *extended }, destination, management))
}

#[inline(never)]
fn roce(
    port: &mut Port,
    av: &AddressVector,
    bth: &Bth,
    extended: &Extended,
    flow: u32,
) -> Result<Outgoing, Unframed> {
    let no_route = Unframed::Drop(DropReason::NoRoute);
    let route = av.grh.ok_or(no_route)?;
    let sgid = port.gids.rocev2(usize::from(route.sgid_index)).ok_or(no_route)?;
    let ethernet = port.ethernet.as_mut().ok_or(no_route)?;
    let (destination, dmac) = if is_group(route.dgid) {
        (Destination::Group, multicast_mac(route.dgid))
    } else if port.gids.has_rocev2(route.dgid) {
        (Destination::Ourselves, ethernet.mac)
    } else {
        match ethernet.neighbours.resolve(sgid, route.dgid) {
            Resolution::Known(mac) => (Destination::Out, mac),
            Resolution::Wait => return Err(Unframed::Wait),
            Resolution::Unreachable => return Err(Unframed::Drop(DropReason::NoNeighbour)),
        }
    };
    // Programs leave 0 here; on Ethernet it would mean "for nobody".
    let hop_limit = if route.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { route.hop_limit };
    let network = RoceNetwork::between(sgid, route.dgid, route.traffic_class, route.flow_label, hop_limit);
    let header = EthernetHeader::new(dmac, ethernet.mac, &network);
    let headers =
        RoceHeaders { network, source_port: source_port(flow, bth), bth: *bth, extended: *extended };
    Ok(Outgoing::roce(header, headers, destination))
}

/// Hop limit if the address vector has none.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// One UDP source port for the packets from one queue pair to another.
const fn source_port(flow: u32, bth: &Bth) -> u16 {
    let mixed = (flow ^ bth.dest_qpn.get().rotate_left(8)).wrapping_mul(0x9e37_79b1) >> 18;
    ROCEV2_FLOWS | mixed as u16
}
