//! RoCEv2: the same transport in UDP (IBA annex A17).

use super::{ParseError, Transport};
use crate::crc::{self, ICRC_LEN};

/// UDP destination port of RoCEv2.
pub const ROCEV2_PORT: u16 = 4791;

/// A checked view over a RoCEv2 packet, IP header to ICRC. Options and extension headers are not supported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RocePacket<'a> {
    bytes: &'a [u8],
    transport: Transport<'a>,
}

impl<'a> RocePacket<'a> {
    /// Reads one packet from its IP header on; bytes behind the IP length (Ethernet's padding) are ignored.
    ///
    /// # Errors
    /// Says what is wrong with the bytes.
    pub fn parse(ip: &'a [u8]) -> Result<Self, ParseError> {
        let too_short = ParseError::TooShort(ip.len());
        let (header, total, protocol) = match ip.first().ok_or(too_short)? >> 4 {
            4 => {
                let head = ip.first_chunk::<20>().ok_or(too_short)?;
                if head[0] != 0x45 {
                    return Err(ParseError::NotRoce("IPv4 options"));
                }
                (20, usize::from(u16::from_be_bytes([head[2], head[3]])), head[9])
            }
            6 => {
                let head = ip.first_chunk::<40>().ok_or(too_short)?;
                (40, 40 + usize::from(u16::from_be_bytes([head[4], head[5]])), head[6])
            }
            _ => return Err(ParseError::NotRoce("IP version")),
        };
        if protocol != 17 {
            return Err(ParseError::NotRoce("not UDP"));
        }
        let bytes = ip.get(..total).ok_or(too_short)?;
        let udp = bytes.get(header..).and_then(|b| b.split_first_chunk::<8>());
        let Some((udp, body)) = udp else { return Err(too_short) };
        if u16::from_be_bytes([udp[2], udp[3]]) != ROCEV2_PORT {
            return Err(ParseError::NotRoce("UDP port"));
        }
        if usize::from(u16::from_be_bytes([udp[4], udp[5]])) != body.len() + 8 {
            return Err(ParseError::NotRoce("UDP length"));
        }
        let (body, _) = body.split_last_chunk::<ICRC_LEN>().ok_or(too_short)?;
        Ok(Self { bytes, transport: Transport::parse(body)? })
    }

    /// BTH, extended headers, payload.
    #[must_use]
    pub const fn transport(&self) -> &Transport<'a> {
        &self.transport
    }

    /// All bytes, IP header to ICRC.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// True if the invariant CRC is right.
    #[must_use]
    pub fn icrc_is_right(&self) -> bool {
        crc::verify_icrc_rocev2(self.bytes)
    }
}
