//! Framing: headers of outgoing packets, and the parts of incoming packets that the transports read.
//! InfiniBand on one kind of port, RoCEv2 (IBA annex A17) on the other.

use ib_wire::packet::{
    Bth, Extended, Headers, Lrh, Packet, RoceHeaders, RoceNetwork, RocePacket, Transport, XrcEth,
};
use ib_wire::{Gid, Lid, ServiceLevel};

use super::cable::Crcs;
use super::ethernet::EthernetHeader;

/// Where a packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// Back to this port.
    Ourselves,
    /// To a multicast group that this port may be a member of.
    Group,
    /// To another port.
    Out,
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    InfiniBand(Headers),
    RoceV2(EthernetHeader, RoceHeaders),
}

/// The headers of a packet and its destination.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    framing: Framing,
    pub(crate) destination: Destination,
    /// It may leave in any state of the port.
    pub(crate) management: bool,
}

impl Outgoing {
    /// Creates a packet with InfiniBand headers.
    pub(crate) const fn infiniband(headers: Headers, destination: Destination, management: bool) -> Self {
        Self { framing: Framing::InfiniBand(headers), destination, management }
    }

    /// Creates a RoCEv2 packet.
    pub(crate) const fn roce(header: EthernetHeader, headers: RoceHeaders, destination: Destination) -> Self {
        Self { framing: Framing::RoceV2(header, headers), destination, management: false }
    }

    /// The headers of an InfiniBand packet.
    pub(crate) const fn headers(&self) -> Option<&Headers> {
        match &self.framing {
            Framing::InfiniBand(headers) => Some(headers),
            Framing::RoceV2(..) => None,
        }
    }

    /// Length in bytes of the complete packet with `payload` bytes of payload.
    #[inline(always)]
    pub(crate) const fn len(&self, payload: usize) -> usize {
        match &self.framing {
            Framing::InfiniBand(headers) => headers.packet_len(payload),
            Framing::RoceV2(_, headers) => EthernetHeader::LEN + headers.packet_len(payload),
        }
    }

    /// Writes the packet. On an InfiniBand port `crcs` selects whether it has CRCs. The code that made the
    /// headers has checked length and layout. A packet that cannot be written leaves the buffer unchanged,
    /// and the receiver drops it.
    #[inline(always)]
    pub(crate) fn write(&self, payload: usize, out: &mut [u8], crcs: Crcs, fill: impl FnOnce(&mut [u8])) {
        match &self.framing {
            Framing::InfiniBand(headers) => {
                if let Ok(mut frame) = headers.write(payload, out) {
                    fill(frame.payload_mut());
                    crcs.end(frame);
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

/// The network header of an incoming packet, which is written to the front of a datagram's receive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NetworkHeader<'a> {
    /// No header.
    None,
    /// A GRH.
    Grh(&'a [u8]),
    /// An IPv6 header.
    Ipv6(&'a [u8]),
    /// An IPv4 header. It is written to the last 20 of the 40 bytes (IBA annex A17).
    Ipv4(&'a [u8]),
}

/// An incoming packet, independent of its framing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    transport: Transport<'a>,
    pub(crate) slid: Lid,
    pub(crate) dlid: Lid,
    pub(crate) sl: ServiceLevel,
    /// Source and destination GID.
    pub(crate) route: Option<(Gid, Gid)>,
    pub(crate) network: NetworkHeader<'a>,
    /// Its XRC header, once it is removed from the packet.
    pub(crate) xrc: Option<XrcEth>,
}

impl<'a> Arrived<'a> {
    #[inline(always)]
    pub(crate) fn infiniband(packet: &Packet<'a>) -> Self {
        let lrh = packet.lrh();
        Self {
            transport: *packet.transport(),
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            route: packet.grh().map(|grh| (grh.sgid, grh.dgid)),
            network: packet.grh_bytes().map_or(NetworkHeader::None, |b| NetworkHeader::Grh(b)),
            xrc: None,
        }
    }

    /// Creates a packet without a GRH.
    #[inline(always)]
    pub(crate) const fn plain(lrh: Lrh, transport: Transport<'a>) -> Self {
        let Lrh { slid, dlid, sl, .. } = lrh;
        Self { transport, slid, dlid, sl, route: None, network: NetworkHeader::None, xrc: None }
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
            xrc: None,
        }
    }

    /// The packet as on a reliable connection, with the XRC header separate.
    pub(crate) fn without_xrc(&self) -> Self {
        let Transport { mut bth, extended, payload, pad } = self.transport;
        bth.opcode = bth.opcode.without_xrc();
        let transport = Transport { bth, extended: extended.without_xrc(), payload, pad };
        Self { transport, xrc: extended.xrc().copied(), ..*self }
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
