//! Laying received bytes down in the memory that a receive names.

use arrayvec::ArrayVec;

use super::object::mr::{Keys, Member, MrTable, Use};
use super::object::receive::MAX_STRIDE;
use prm::DataSegment;

/// Why a receive cannot take the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScatterError {
    /// It is too short.
    Length,
    /// A key does not allow it.
    Protection,
}

/// A copy of a receive's data segments, for who looks at them more than once.
#[derive(Debug, Default)]
pub(crate) struct ReceiveWqe {
    segments: Box<ArrayVec<DataSegment, { MAX_STRIDE / size_of::<DataSegment>() }>>,
    domain: Member,
}

impl ReceiveWqe {
    /// Copies the segments, whose keys are of a domain.
    pub(crate) fn load(&mut self, domain: Member, segments: impl Iterator<Item = DataSegment>) {
        self.domain = domain;
        self.segments.clear();
        self.segments.extend(segments);
    }

    /// Bytes it can take.
    pub(crate) fn capacity(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.byte_count.get())).sum()
    }

    /// Writes `data` from byte `offset` of the receive on, as [`scatter`] does.
    pub(crate) fn write(&self, mrs: &MrTable, offset: u64, data: &[u8]) -> Result<(), ScatterError> {
        scatter(mrs.of(self.domain), self.segments.iter().copied(), offset, data)
    }
}

/// Writes `data` from byte `offset` of a receive on, which has these segments. What fits is written even where the rest does not.
#[inline]
pub(crate) fn scatter(
    keys: Keys<'_>,
    segments: impl IntoIterator<Item = DataSegment>,
    offset: u64,
    mut data: &[u8],
) -> Result<(), ScatterError> {
    if data.is_empty() {
        return Ok(());
    }
    let mut skip = offset;
    for segment in segments {
        let size = u64::from(segment.byte_count.get());
        if skip >= size {
            skip -= size;
            continue;
        }
        let n = (size - skip).min(data.len() as u64) as usize;
        let address = segment.address.get().checked_add(skip).ok_or(ScatterError::Protection)?;
        let (head, rest) = data.split_at(n);
        keys.write(segment.lkey.get(), address, head, Use::LocalWrite)
            .map_err(|_| ScatterError::Protection)?;
        if rest.is_empty() {
            return Ok(());
        }
        data = rest;
        skip = 0;
    }
    Err(ScatterError::Length)
}
