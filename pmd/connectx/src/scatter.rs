//! Laying received bytes down in the memory that a receive names.

use zerocopy::FromBytes;

use super::object::mr::{Member, MrTable, Use};
use super::object::receive::MAX_STRIDE;
use prm::{DataSegment, INVALID_LKEY};

/// Why a receive cannot take the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScatterError {
    /// It is too short.
    Length,
    /// A key does not allow it.
    Protection,
}

/// A copy of a receive's data segments.
#[derive(Debug)]
pub(crate) struct ReceiveWqe {
    bytes: Box<[u8; MAX_STRIDE]>,
    len: usize,
    domain: Member,
}

impl Default for ReceiveWqe {
    fn default() -> Self {
        Self { bytes: Box::new([0; MAX_STRIDE]), len: 0, domain: Member::default() }
    }
}

impl ReceiveWqe {
    /// Copies the segments out of their ring, which is of a domain: `read` fills the front, and says how far.
    pub(crate) fn load(&mut self, domain: Member, read: impl FnOnce(&mut [u8; MAX_STRIDE]) -> Option<usize>) {
        self.domain = domain;
        self.len = read(&mut self.bytes).unwrap_or(0);
    }

    fn segments(&self) -> impl Iterator<Item = DataSegment> {
        let bytes = self.bytes.get(..self.len).unwrap_or_default();
        bytes
            .chunks_exact(size_of::<DataSegment>())
            .filter_map(|chunk| DataSegment::read_from_bytes(chunk).ok())
            .take_while(|s| s.lkey.get() != INVALID_LKEY)
    }

    /// Bytes it can take.
    pub(crate) fn capacity(&self) -> u64 {
        self.segments().map(|s| u64::from(s.byte_count.get())).sum()
    }

    /// Writes `data` from byte `offset` of the receive on. What fits is written even where the rest does not.
    pub(crate) fn write(&self, mrs: &MrTable, offset: u64, mut data: &[u8]) -> Result<(), ScatterError> {
        let mut skip = offset;
        for segment in self.segments() {
            if data.is_empty() {
                return Ok(());
            }
            let size = u64::from(segment.byte_count.get());
            if skip >= size {
                skip -= size;
                continue;
            }
            let n = (size - skip).min(data.len() as u64) as usize;
            let address = segment.address.get().checked_add(skip).ok_or(ScatterError::Protection)?;
            let (head, rest) = data.split_at(n);
            mrs.of(self.domain)
                .write(segment.lkey.get(), address, head, Use::LocalWrite)
                .map_err(|_| ScatterError::Protection)?;
            data = rest;
            skip = 0;
        }
        if data.is_empty() { Ok(()) } else { Err(ScatterError::Length) }
    }
}
