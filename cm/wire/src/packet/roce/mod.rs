//! RoCEv2: the InfiniBand transport in UDP (IBA annex A17).

mod encode;
mod network;
#[cfg(test)]
mod tests;

pub use encode::{RoceFrame, RoceHeaders};
pub use network::RoceNetwork;

use super::{ParseError, Transport};
use crate::Gid;
use crate::crc::{self, ICRC_LEN};

/// UDP destination port of RoCEv2.
pub const ROCEV2_PORT: u16 = 4791;
/// First UDP source port of RoCEv2: the lower 14 bits distinguish flows (IBA annex A17).
pub const ROCEV2_FLOWS: u16 = 0xc000;
/// Bytes of the UDP header.
const UDP_LEN: usize = 8;

/// A checked view over a RoCEv2 packet, IP header to ICRC. Versions, lengths, port and the checksum of an
/// IPv4 header are checked; the ICRC is not. Options, extension headers and fragments are refused, because no
/// sender makes them (IBA annex A17). The UDP checksum is ignored, because the ICRC covers more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RocePacket<'a> {
    bytes: &'a [u8],
    network: RoceNetwork,
    source_port: u16,
    transport: Transport<'a>,
}

impl<'a> RocePacket<'a> {
    /// Reads one packet that starts with its IP header. Bytes after the IP length (Ethernet's padding) are
    /// ignored.
    ///
    /// # Errors
    /// If the bytes are not a valid RoCEv2 packet.
    pub fn parse(ip: &'a [u8]) -> Result<Self, ParseError> {
        let too_short = ParseError::TooShort(ip.len());
        let (network, total) = RoceNetwork::parse(ip)?;
        let bytes = ip.get(..total).ok_or(too_short)?;
        let udp = bytes.get(network.header_len()..).and_then(|b| b.split_first_chunk::<UDP_LEN>());
        let Some((udp, body)) = udp else { return Err(too_short) };
        if u16::from_be_bytes([udp[2], udp[3]]) != ROCEV2_PORT {
            return Err(ParseError::OtherTraffic);
        }
        if usize::from(u16::from_be_bytes([udp[4], udp[5]])) != body.len() + UDP_LEN {
            return Err(ParseError::NotRoce("UDP length"));
        }
        let (body, _) = body.split_last_chunk::<ICRC_LEN>().ok_or(too_short)?;
        // Pad bytes fill the last word (IBA 9.2.5). On InfiniBand the LRH enforces this, because it counts
        // words.
        if !body.len().is_multiple_of(4) {
            return Err(ParseError::NotRoce("transport length, no multiple of four"));
        }
        let source_port = u16::from_be_bytes([udp[0], udp[1]]);
        Ok(Self { bytes, network, source_port, transport: Transport::parse(body)? })
    }

    /// The fields of the IP header.
    #[must_use]
    pub const fn network(&self) -> &RoceNetwork {
        &self.network
    }

    /// UDP source port.
    #[must_use]
    pub const fn source_port(&self) -> u16 {
        self.source_port
    }

    /// GID of the sender.
    #[must_use]
    pub const fn sgid(&self) -> Gid {
        self.network.sgid()
    }

    /// GID of the receiver.
    #[must_use]
    pub const fn dgid(&self) -> Gid {
        self.network.dgid()
    }

    /// The IP header as received: 40 bytes of IPv6 or 20 of IPv4.
    #[must_use]
    pub fn network_bytes(&self) -> &'a [u8] {
        self.bytes.get(..self.network.header_len()).unwrap_or_default()
    }

    /// BTH, extended headers, payload.
    #[must_use]
    pub const fn transport(&self) -> &Transport<'a> {
        &self.transport
    }

    /// The headers as a value. With the payload they make the same packet again, except for reserved bits and
    /// the UDP checksum.
    #[must_use]
    pub const fn headers(&self) -> RoceHeaders {
        RoceHeaders {
            network: self.network,
            source_port: self.source_port,
            bth: self.transport.bth,
            extended: self.transport.extended,
        }
    }

    /// All bytes, IP header to ICRC.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// True if the invariant CRC is correct.
    #[must_use]
    pub fn icrc_is_right(&self) -> bool {
        crc::verify_icrc_rocev2(self.bytes)
    }
}
