//! Writes RoCEv2 packets into the caller's memory.

use super::{ROCEV2_PORT, RoceNetwork, UDP_LEN};
use crate::crc::{ICRC_LEN, Icrc};
use crate::packet::encode::write_transport;
use crate::packet::{BTH_LEN, Bth, EncodeError, Extended};

/// All headers of a RoCEv2 packet. Lengths, checksums and pad count are computed on writing. The UDP checksum
/// is 0 ("none"), because the ICRC covers more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RoceHeaders {
    /// IP header.
    pub network: RoceNetwork,
    /// UDP source port: one number per flow, from 0xC000 on (IBA annex A17).
    pub source_port: u16,
    /// Base transport header.
    pub bth: Bth,
    /// Extended headers; they must match the opcode.
    pub extended: Extended,
}

impl RoceHeaders {
    /// Maximum bytes of headers before a payload.
    pub const MAX_LEN: usize = 40 + UDP_LEN + BTH_LEN + Extended::MAX_LEN;

    /// Bytes before the payload.
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.network.header_len() + UDP_LEN + BTH_LEN + self.extended.layout().len()
    }

    /// Bytes of the whole packet, IP header to ICRC, with `payload` bytes of payload.
    #[must_use]
    pub const fn packet_len(&self, payload: usize) -> usize {
        self.header_len() + payload.next_multiple_of(4) + ICRC_LEN
    }

    /// Writes the headers to the front of `out`. The caller fills [`RoceFrame::payload_mut`] and finishes the
    /// packet with [`RoceFrame::seal`].
    ///
    /// # Errors
    /// If the packet does not fit into `out` or into an IP packet, or if the extended headers do not match
    /// the opcode.
    #[inline]
    pub fn write<'b>(&self, payload: usize, out: &'b mut [u8]) -> Result<RoceFrame<'b>, EncodeError> {
        if self.bth.opcode.layout() != self.extended.layout() {
            return Err(EncodeError::Layout { opcode: self.bth.opcode.to_byte() });
        }
        if payload > usize::from(u16::MAX) - Self::MAX_LEN - ICRC_LEN - 3 {
            return Err(EncodeError::TooLong(payload));
        }
        let (header_len, need) = (self.header_len(), self.packet_len(payload));
        let no_room = EncodeError::NoRoom { need, have: out.len() };
        let packet = out.get_mut(..need).ok_or(no_room)?;
        let ip_len = self.network.header_len();
        if !self.network.write(need, packet) {
            return Err(no_room);
        }
        let rest = packet.get_mut(ip_len..).ok_or(no_room)?;
        let (udp, rest) = rest.split_first_chunk_mut::<UDP_LEN>().ok_or(no_room)?;
        udp[..2].copy_from_slice(&self.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&ROCEV2_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&((need - ip_len) as u16).to_be_bytes());
        udp[6..].fill(0);
        write_transport(&self.bth, &self.extended, payload, rest).ok_or(no_room)?;
        Ok(RoceFrame { packet, header_len, payload })
    }

    /// Writes a whole packet with `payload` and seals it. Returns its length.
    ///
    /// # Errors
    /// As [`RoceHeaders::write`].
    pub fn write_packet(&self, payload: &[u8], out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut frame = self.write(payload.len(), out)?;
        frame.payload_mut().copy_from_slice(payload);
        Ok(frame.seal())
    }
}

/// A packet whose headers are written. The caller fills the payload.
#[derive(Debug)]
#[must_use = "a frame is no packet before it is sealed"]
pub struct RoceFrame<'b> {
    /// IP header to ICRC.
    packet: &'b mut [u8],
    header_len: usize,
    payload: usize,
}

impl RoceFrame<'_> {
    /// The area of the payload.
    #[must_use]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.packet.get_mut(self.header_len..self.header_len + self.payload).unwrap_or_default()
    }

    /// Writes pad bytes and ICRC. Returns the length of the packet, IP header to ICRC.
    #[inline]
    pub fn seal(self) -> usize {
        let len = self.packet.len();
        if let Some((covered, icrc)) = self.packet.split_last_chunk_mut::<ICRC_LEN>() {
            covered.get_mut(self.header_len + self.payload..).unwrap_or_default().fill(0);
            if let Some(sum) = Icrc::rocev2(covered) {
                *icrc = sum.finish();
            }
        }
        len
    }
}
