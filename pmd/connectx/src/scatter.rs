//! Writes received bytes to the memory that a receive names.

use arrayvec::ArrayVec;

use super::object::mr::{Keys, Member, MrTable, Use};
use super::object::receive::MAX_STRIDE;
use prm::DataSegment;

/// Why a receive cannot hold the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScatterError {
    /// It is too short.
    Length,
    /// A key does not allow it.
    Protection,
}

/// Fill position of a receive: the next bytes continue here, and earlier segments are not read again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Spot {
    /// The current segment.
    pub(crate) segment: u16,
    /// Total bytes of the segments before it.
    before: u64,
}

impl Spot {
    const fn pass(&mut self, size: u64) {
        self.segment = self.segment.saturating_add(1);
        self.before += size;
    }
}

/// A copy of a receive's data segments, for callers that read them more than once.
#[derive(Debug, Default)]
pub(crate) struct ReceiveWqe {
    segments: Box<ArrayVec<DataSegment, { MAX_STRIDE / size_of::<DataSegment>() }>>,
    domain: Member,
}

impl ReceiveWqe {
    /// Copies the segments. Their keys belong to `domain`.
    pub(crate) fn load(&mut self, domain: Member, segments: impl Iterator<Item = DataSegment>) {
        self.domain = domain;
        self.segments.clear();
        self.segments.extend(segments);
    }

    /// Capacity in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.byte_count.get())).sum()
    }

    /// Writes `data` from byte `offset` of the receive on, as [`scatter`] does.
    pub(crate) fn write(&self, mrs: &MrTable, offset: u64, data: &[u8]) -> Result<(), ScatterError> {
        scatter(mrs.of(self.domain), &mut Spot::default(), self.segments.iter().copied(), offset, data)
    }
}

/// As [`scatter`], if all bytes go into one contiguous range of the segment at `spot`. Otherwise, or if
/// access is denied, it returns false and writes nothing.
#[inline]
pub(crate) fn put(keys: Keys<'_>, spot: &mut Spot, segment: &DataSegment, offset: u64, data: &[u8]) -> bool {
    let size = u64::from(segment.byte_count.get());
    let skip = offset.saturating_sub(spot.before);
    let end = skip.saturating_add(data.len() as u64);
    let address = segment.address.get().checked_add(skip).filter(|_| end <= size && !data.is_empty());
    let memory =
        address.and_then(|at| keys.translate(segment.lkey.get(), at, data.len(), Use::LocalWrite).ok());
    let Some(memory) = memory.filter(|memory| memory.len() == data.len()) else { return false };
    memory.write(data);
    if end == size {
        spot.pass(size);
    }
    true
}

/// Writes `data` to a receive from byte `offset` on. `segments` are those from the one at `spot` on; the
/// receive is filled up to `spot` at most. Bytes that fit are written even if the rest does not fit.
#[inline]
pub(crate) fn scatter(
    keys: Keys<'_>,
    spot: &mut Spot,
    segments: impl IntoIterator<Item = DataSegment>,
    offset: u64,
    mut data: &[u8],
) -> Result<(), ScatterError> {
    if data.is_empty() {
        return Ok(());
    }
    let mut skip = offset.saturating_sub(spot.before);
    for segment in segments {
        let size = u64::from(segment.byte_count.get());
        if skip >= size {
            skip -= size;
            spot.pass(size);
            continue;
        }
        let n = (size - skip).min(data.len() as u64) as usize;
        let address = segment.address.get().checked_add(skip).ok_or(ScatterError::Protection)?;
        let (head, rest) = data.split_at(n);
        keys.write(segment.lkey.get(), address, head, Use::LocalWrite)
            .map_err(|_| ScatterError::Protection)?;
        if skip + n as u64 == size {
            spot.pass(size);
        }
        if rest.is_empty() {
            return Ok(());
        }
        data = rest;
        skip = 0;
    }
    Err(ScatterError::Length)
}
