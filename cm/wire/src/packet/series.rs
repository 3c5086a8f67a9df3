//! Packets whose headers differ only in PSN and acknowledge request.

use super::{BTH_LEN, EncodeError, Frame, GRH_LEN, Headers, LRH_LEN};
use crate::Psn;

/// Headers that are built once, for packets with payloads of one length and without extended headers.
#[derive(Clone, Debug)]
pub struct Series {
    /// LRH to BTH.
    bytes: [u8; LRH_LEN + GRH_LEN + BTH_LEN],
    header_len: usize,
    payload: usize,
    packet_len: usize,
}

impl Series {
    /// Prepares packets with these headers and `payload` bytes of payload.
    ///
    /// # Errors
    /// If no such packet is possible, or the headers include extended headers.
    pub fn new(headers: &Headers, payload: usize) -> Result<Self, EncodeError> {
        let packet_len = headers.checked_len(payload)?;
        let header_len = headers.header_len();
        let mut bytes = [0; LRH_LEN + GRH_LEN + BTH_LEN];
        let written =
            headers.extended.layout().is_empty().then(|| headers.write_head(payload, packet_len, &mut bytes));
        written.flatten().ok_or(EncodeError::Layout { opcode: headers.bth.opcode.to_byte() })?;
        Ok(Self { bytes, header_len, payload, packet_len })
    }

    /// Bytes of each packet, LRH to VCRC.
    #[must_use]
    #[inline]
    pub const fn packet_len(&self) -> usize {
        self.packet_len
    }

    /// Writes the headers of the packet with this PSN to the front of `out`, as [`Headers::write`] does.
    /// Returns `None` if the packet does not fit.
    #[inline(always)]
    pub fn write<'b>(&self, psn: Psn, ack_request: bool, out: &'b mut [u8]) -> Option<Frame<'b>> {
        const LOCAL: usize = LRH_LEN + BTH_LEN;
        let Self { header_len, payload, .. } = *self;
        let packet = out.get_mut(..self.packet_len)?;
        // Most packets have no GRH: copy their headers with a fixed length.
        match (packet.first_chunk_mut::<LOCAL>(), self.bytes.first_chunk::<LOCAL>()) {
            (Some(head), Some(bytes)) if header_len == LOCAL => *head = *bytes,
            _ => packet.get_mut(..header_len)?.copy_from_slice(self.bytes.get(..header_len)?),
        }
        let number = (ack_request as u32) << 31 | psn.get();
        *packet.get_mut(..header_len)?.last_chunk_mut()? = number.to_be_bytes();
        Some(Frame { packet, header_len, payload })
    }
}
