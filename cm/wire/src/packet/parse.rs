//! Parses packets.

use super::{BTH_LEN, Bth, Extended, GRH_LEN, GRH_NEXT_HEADER, Grh, Headers, LRH_LEN, Lnh, Lrh};
use crate::crc::{self, ICRC_LEN, VCRC_LEN};

/// Reason why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the shortest packet.
    #[error("{0} bytes are too few for a packet")]
    TooShort(usize),
    /// LVER is not 0.
    #[error("link version {0} is not 0")]
    LinkVersion(u8),
    /// A raw packet; this crate knows only IBA transport.
    #[error("raw packet (LNH {0:?})")]
    Raw(Lnh),
    /// The LRH's length differs from the number of bytes.
    #[error("the LRH gives {said} bytes up to the VCRC, but the packet has {have}")]
    Length {
        /// Bytes from LRH to VCRC according to the LRH.
        said: usize,
        /// Bytes present.
        have: usize,
    },
    /// The GRH's version is not 6.
    #[error("GRH version {0} is not 6")]
    GrhVersion(u8),
    /// The GRH's next header is not a BTH.
    #[error("GRH next header {0:#04x} is not a BTH")]
    GrhNextHeader(u8),
    /// The GRH's length differs from the number of bytes after it.
    #[error("the GRH gives {said} bytes, but the packet has {have}")]
    GrhLength {
        /// Bytes from BTH to ICRC according to the GRH.
        said: usize,
        /// Bytes present.
        have: usize,
    },
    /// TVer is not 0.
    #[error("transport version {0} is not 0")]
    TransportVersion(u8),
    /// The headers that the opcode requires do not fit.
    #[error("opcode {opcode:#04x}: the packet ends within its headers")]
    Truncated {
        /// The opcode.
        opcode: u8,
    },
    /// More pad bytes than payload.
    #[error("{pad} pad bytes in a payload of {have}")]
    Pad {
        /// Pad count of the BTH.
        pad: u8,
        /// Bytes present.
        have: usize,
    },
    /// Not UDP to port 4791 (RoCEv2 only).
    #[error("not UDP to port 4791")]
    OtherTraffic,
    /// Not IPv4 or IPv6 in the form that RoCEv2 requires, or contradictory lengths (RoCEv2 only).
    #[error("not a RoCEv2 packet: {0}")]
    NotRoce(&'static str),
}

/// BTH, extended headers and payload: the part that InfiniBand and RoCEv2 packets share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transport<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extended headers.
    pub extended: Extended,
    /// Payload without pad bytes.
    pub payload: &'a [u8],
    /// The pad bytes, 0 to 3.
    pub pad: &'a [u8],
}

impl<'a> Transport<'a> {
    /// Reads `bytes`, from the BTH to the last pad byte.
    ///
    /// # Errors
    /// If the bytes are not a valid transport part.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Some((head, rest)) = bytes.split_first_chunk::<BTH_LEN>() else {
            return Err(ParseError::TooShort(bytes.len()));
        };
        let (bth, pad, version) = Bth::from_bytes(head);
        if version != 0 {
            return Err(ParseError::TransportVersion(version));
        }
        let layout = bth.opcode.layout();
        // Most packets have no extended headers.
        let split =
            if layout.is_empty() { Some((Extended::Bare, rest)) } else { Extended::split(layout, rest) };
        let Some((extended, body)) = split else {
            return Err(ParseError::Truncated { opcode: bth.opcode.to_byte() });
        };
        let split = body.len().checked_sub(usize::from(pad)).and_then(|n| body.split_at_checked(n));
        let Some((payload, pad)) = split else {
            return Err(ParseError::Pad { pad, have: body.len() });
        };
        Ok(Self { bth, extended, payload, pad })
    }
}

/// A checked view over a whole packet, LRH to VCRC. Lengths and versions are checked, the CRCs are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    lrh: Lrh,
    grh: Option<Grh>,
    transport: Transport<'a>,
}

impl<'a> Packet<'a> {
    /// Minimum bytes of a packet: LRH, BTH, ICRC, VCRC.
    pub const MIN_LEN: usize = LRH_LEN + BTH_LEN + ICRC_LEN + VCRC_LEN;

    /// Reads exactly one packet, LRH to VCRC.
    ///
    /// # Errors
    /// If the bytes are not a valid packet.
    // Inlined into the callers: a header that is read at once need not be assembled in memory.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let too_short = ParseError::TooShort(bytes.len());
        if bytes.len() < Self::MIN_LEN {
            return Err(too_short);
        }
        let (head, rest) = bytes.split_first_chunk::<LRH_LEN>().ok_or(too_short)?;
        let version = head[0] & 0xf;
        if version != 0 {
            return Err(ParseError::LinkVersion(version));
        }
        let (lrh, lnh, words) = Lrh::from_bytes(head);
        let said = usize::from(words) * 4 + VCRC_LEN;
        if said != bytes.len() {
            return Err(ParseError::Length { said, have: bytes.len() });
        }
        // The first check guarantees LRH and both CRCs.
        let (rest, _) = rest.split_last_chunk::<{ ICRC_LEN + VCRC_LEN }>().ok_or(too_short)?;
        let (grh, rest) = match lnh {
            Lnh::Local => (None, rest),
            Lnh::Global => {
                let (grh, rest) = parse_grh(rest)?;
                (Some(grh), rest)
            }
            Lnh::Raw | Lnh::RawIpv6 => return Err(ParseError::Raw(lnh)),
        };
        let transport = Transport::parse(rest)?;
        Ok(Self { bytes, lrh, grh, transport })
    }

    /// All bytes, LRH to VCRC.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Local route header.
    #[must_use]
    pub const fn lrh(&self) -> &Lrh {
        &self.lrh
    }

    /// Global route header, if there is one.
    #[must_use]
    pub const fn grh(&self) -> Option<&Grh> {
        self.grh.as_ref()
    }

    /// The forty received bytes of the GRH, if there is one.
    #[must_use]
    pub fn grh_bytes(&self) -> Option<&'a [u8; GRH_LEN]> {
        self.grh?;
        self.bytes.get(LRH_LEN..)?.first_chunk()
    }

    /// BTH, extended headers, payload.
    #[must_use]
    pub const fn transport(&self) -> &Transport<'a> {
        &self.transport
    }

    /// Base transport header.
    #[must_use]
    pub const fn bth(&self) -> &Bth {
        &self.transport.bth
    }

    /// Extended transport headers.
    #[must_use]
    pub const fn extended(&self) -> &Extended {
        &self.transport.extended
    }

    /// Payload without pad bytes.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.transport.payload
    }

    /// The headers as a value; with the payload they make the same packet again.
    #[must_use]
    pub const fn headers(&self) -> Headers {
        Headers { lrh: self.lrh, grh: self.grh, bth: self.transport.bth, extended: self.transport.extended }
    }

    /// True if the invariant CRC is correct.
    #[must_use]
    pub fn icrc_is_right(&self) -> bool {
        crc::verify_icrc(self.bytes)
    }

    /// True if the variant CRC is correct.
    #[must_use]
    pub fn vcrc_is_right(&self) -> bool {
        crc::verify_vcrc(self.bytes)
    }
}

/// Parses a GRH; `bytes` reach from the GRH to the last pad byte.
fn parse_grh(bytes: &[u8]) -> Result<(Grh, &[u8]), ParseError> {
    let Some((head, rest)) = bytes.split_first_chunk::<GRH_LEN>() else {
        return Err(ParseError::TooShort(bytes.len()));
    };
    let version = head[0] >> 4;
    if version != 6 {
        return Err(ParseError::GrhVersion(version));
    }
    if head[6] != GRH_NEXT_HEADER {
        return Err(ParseError::GrhNextHeader(head[6]));
    }
    let (grh, said) = Grh::from_bytes(head);
    let have = rest.len() + ICRC_LEN;
    if usize::from(said) != have {
        return Err(ParseError::GrhLength { said: usize::from(said), have });
    }
    Ok((grh, rest))
}
