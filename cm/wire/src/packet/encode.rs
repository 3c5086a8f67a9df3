//! Writes packets into the caller's memory.

use super::{BTH_LEN, Bth, Extended, GRH_LEN, Grh, LRH_LEN, Lnh, Lrh};
use crate::crc::{self, ICRC_LEN, VCRC_LEN};

/// Reason why a packet cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// The buffer is too small.
    #[error("the packet needs {need} bytes, but the buffer has {have}")]
    NoRoom {
        /// Bytes of the packet.
        need: usize,
        /// Bytes of the buffer.
        have: usize,
    },
    /// The packet is longer than the length field of its LRH or IP header can express.
    #[error("a packet of {0} bytes is too long for the length field of its header")]
    TooLong(usize),
    /// The extended headers do not match the opcode.
    #[error("the extended headers do not match opcode {opcode:#04x}")]
    Layout {
        /// The opcode.
        opcode: u8,
    },
}

/// Writes BTH and extended headers to the front of `out`. Returns `None` if they do not fit.
#[inline(always)]
pub(super) fn write_transport(bth: &Bth, extended: &Extended, payload: usize, out: &mut [u8]) -> Option<()> {
    let (head, rest) = out.split_first_chunk_mut::<BTH_LEN>()?;
    *head = bth.to_bytes((payload.next_multiple_of(4) - payload) as u8);
    // Most packets have no extended header, or that of an acknowledge.
    match extended {
        Extended::Bare => {}
        Extended::Aeth(aeth) => *rest.first_chunk_mut()? = aeth.to_bytes(),
        other => write_extended(*other, rest)?,
    }
    Some(())
}

#[inline(never)]
fn write_extended(extended: Extended, out: &mut [u8]) -> Option<()> {
    let bytes = extended.to_bytes();
    let bytes = bytes.get(..extended.layout().len())?;
    out.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(())
}

/// All headers of a packet. Lengths, LNH and pad count are computed on writing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Headers {
    /// Local route header.
    pub lrh: Lrh,
    /// Global route header, if the packet has one.
    pub grh: Option<Grh>,
    /// Base transport header.
    pub bth: Bth,
    /// Extended headers; they must match the opcode.
    pub extended: Extended,
}

impl Headers {
    /// Maximum bytes of headers before a payload.
    pub const MAX_LEN: usize = LRH_LEN + GRH_LEN + BTH_LEN + Extended::MAX_LEN;

    /// Bytes before the payload.
    #[must_use]
    #[inline]
    pub const fn header_len(&self) -> usize {
        let grh = if self.grh.is_some() { GRH_LEN } else { 0 };
        LRH_LEN + grh + BTH_LEN + self.extended.layout().len()
    }

    /// Bytes of the whole packet, LRH to VCRC, with `payload` bytes of payload.
    #[must_use]
    #[inline]
    pub const fn packet_len(&self, payload: usize) -> usize {
        self.header_len() + payload.next_multiple_of(4) + ICRC_LEN + VCRC_LEN
    }

    /// Writes the headers to the front of `out`. The caller fills [`Frame::payload_mut`] and finishes the
    /// packet with [`Frame::seal`].
    ///
    /// # Errors
    /// If the packet does not fit into `out` or into the LRH's length field, or if the extended headers do
    /// not match the opcode.
    // Inlined into the callers: the headers are then never assembled in memory before they are written.
    #[inline(always)]
    pub fn write<'b>(&self, payload: usize, out: &'b mut [u8]) -> Result<Frame<'b>, EncodeError> {
        let need = self.checked_len(payload)?;
        let have = out.len();
        let no_room = EncodeError::NoRoom { need, have };
        let packet = out.get_mut(..need).ok_or(no_room)?;
        self.write_head(payload, need, packet).ok_or(no_room)?;
        Ok(Frame { packet, header_len: self.header_len(), payload })
    }

    /// Bytes of the whole packet, if a packet can have this length.
    #[inline(always)]
    pub(super) fn checked_len(&self, payload: usize) -> Result<usize, EncodeError> {
        if self.bth.opcode.layout() != self.extended.layout() {
            return Err(EncodeError::Layout { opcode: self.bth.opcode.to_byte() });
        }
        if payload > 0x800 * 4 {
            return Err(EncodeError::TooLong(payload));
        }
        let need = self.packet_len(payload);
        let words = (need - VCRC_LEN) / 4;
        if words > 0x7ff {
            return Err(EncodeError::TooLong(need));
        }
        Ok(need)
    }

    /// Writes the headers of a packet of `need` bytes to the front of `out`. Returns `None` if they do not
    /// fit.
    #[inline(always)]
    pub(super) fn write_head(&self, payload: usize, need: usize, out: &mut [u8]) -> Option<()> {
        let words = (need - VCRC_LEN) / 4;
        let (lrh, rest) = out.split_first_chunk_mut::<LRH_LEN>()?;
        let lnh = if self.grh.is_some() { Lnh::Global } else { Lnh::Local };
        *lrh = self.lrh.to_bytes(lnh, words as u16);
        let rest = match &self.grh {
            None => rest,
            Some(grh) => {
                let (head, rest) = rest.split_first_chunk_mut::<GRH_LEN>()?;
                *head = grh.to_bytes((need - VCRC_LEN - LRH_LEN - GRH_LEN) as u16);
                rest
            }
        };
        write_transport(&self.bth, &self.extended, payload, rest)
    }

    /// Writes a whole packet with `payload` and seals it. Returns its length.
    ///
    /// # Errors
    /// As [`Headers::write`].
    pub fn write_packet(&self, payload: &[u8], out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut frame = self.write(payload.len(), out)?;
        frame.payload_mut().copy_from_slice(payload);
        Ok(frame.seal())
    }
}

/// A packet whose headers are written. The caller fills the payload.
#[derive(Debug)]
#[must_use = "a frame is no packet before it is sealed"]
pub struct Frame<'b> {
    /// LRH to VCRC.
    pub(super) packet: &'b mut [u8],
    pub(super) header_len: usize,
    pub(super) payload: usize,
}

impl Frame<'_> {
    /// The area of the payload.
    #[must_use]
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.packet.get_mut(self.header_len..self.header_len + self.payload).unwrap_or_default()
    }

    /// Writes pad bytes, ICRC and VCRC. Returns the length of the packet, LRH to VCRC.
    #[inline]
    pub fn seal(self) -> usize {
        let len = self.packet.len();
        let Some((body, vcrc)) = self.packet.split_last_chunk_mut::<VCRC_LEN>() else { return len };
        if let Some((covered, icrc)) = body.split_last_chunk_mut::<ICRC_LEN>() {
            covered.get_mut(self.header_len + self.payload..).unwrap_or_default().fill(0);
            (*icrc, *vcrc) = crc::sums(covered);
        }
        len
    }

    /// Writes pad bytes, and zeros instead of the CRCs, for a packet that does not leave its memory.
    /// Otherwise the same as [`Frame::seal`]; [`crc::seal`] can add the CRCs later.
    #[inline]
    pub fn leave_bare(self) -> usize {
        self.packet.get_mut(self.header_len + self.payload..).unwrap_or_default().fill(0);
        self.packet.len()
    }
}
