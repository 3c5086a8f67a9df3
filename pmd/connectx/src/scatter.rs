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

/// How far a receive's segments are filled: what comes next goes on here, and those before are not looked at again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Spot {
    /// The segment to go on in.
    pub(crate) segment: u16,
    /// Bytes of those before it.
    before: u64,
}

impl Spot {
    const fn pass(&mut self, size: u64) {
        self.segment = self.segment.saturating_add(1);
        self.before += size;
    }
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
        scatter(mrs.of(self.domain), &mut Spot::default(), self.segments.iter().copied(), offset, data)
    }
}

/// As [`scatter`], where all of it goes into one piece of memory of the segment at `spot`. False if it does not, or may not; nothing is done then.
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

/// Writes `data` from byte `offset` of a receive on, which has these segments from that at `spot` on and is filled up to there at most. What
/// fits is written even where the rest does not.
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
