//! Reads send work queue entries and gathers their data. Everything in them may be hostile. An entry is
//! copied out of the ring once and read from the copy. Every address is looked up under its key.

use arrayvec::ArrayVec;
use ib_wire::packet::XrcEth;
use ib_wire::{Gid, Lid, QKey, Qpn, Rate, ServiceLevel, XrcSrqn};
use zerocopy::{FromBytes, IntoBytes};

use super::memory::HostMemory;
use super::object::mr::{Denied, Keys, Use};
use super::object::send::SendQueue;
use hca::{AddressVector, GlobalRoute, WcStatus};
use prm::{
    AtomicSegment, ControlSegment, DS_UNIT, DataSegment, DatagramAddress, INLINE_DATA, MAX_DS,
    RemoteAddressSegment, SendOpcode, WQEBB, XrcSegment, fm_ce_se,
};

/// Largest size of one entry in bytes, in whole WQEBBs.
const MAX_WQE: usize = (MAX_DS * DS_UNIT).next_multiple_of(WQEBB);
/// Largest number of memory ranges in one packet: each segment may cross a page boundary.
const MAX_PIECES: usize = 2 * MAX_DS;

/// Fields of the control segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Control {
    /// Index of the first WQEBB.
    pub(crate) index: u16,
    /// Number of WQEBBs.
    pub(crate) blocks: u16,
    /// Opcode.
    pub(crate) opcode: u8,
    /// A completion is requested.
    pub(crate) signalled: bool,
    /// The receiver's completion is solicited.
    pub(crate) solicited: bool,
    /// Waits until all earlier RDMA READs and atomic operations have completed.
    pub(crate) fenced: bool,
    /// Waits until all earlier requests have completed.
    pub(crate) ordered: bool,
    /// Immediate data or key.
    pub(crate) imm: [u8; 4],
    bytes: usize,
}

impl Control {
    pub(crate) fn operation(&self) -> Option<SendOpcode> {
        SendOpcode::from_code(self.opcode)
    }
}

/// Reads the control segment of the next entry, without validation, so that an entry can also be flushed or
/// skipped. The result has at least one block, and at most the pending ones.
#[inline(always)]
pub(crate) fn peek(sq: &SendQueue) -> Option<Control> {
    let pending = sq.pending();
    if pending == 0 {
        return None;
    }
    let mut bytes = [0; size_of::<ControlSegment>()];
    sq.read(sq.head, &mut bytes);
    let control: ControlSegment = zerocopy::transmute!(bytes);
    let len = control.ds() * DS_UNIT;
    let blocks = (len.div_ceil(WQEBB).max(1) as u16).min(pending);
    Some(Control {
        index: sq.head,
        blocks,
        opcode: control.opcode(),
        signalled: control.fm_ce_se & fm_ce_se::CQ_UPDATE != 0,
        solicited: control.fm_ce_se & fm_ce_se::SOLICITED != 0,
        fenced: fm_ce_se::is_fence(control.fm_ce_se),
        ordered: fm_ce_se::is_strong(control.fm_ce_se),
        imm: control.imm.to_bytes(),
        bytes: len,
    })
}

/// The private copy of one entry. A message of many packets is read once and its segments are walked once,
/// unless another queue pair is served in between.
#[derive(Debug)]
pub(crate) struct Wqe {
    bytes: Box<[u8; MAX_WQE]>,
    len: usize,
    /// Queue pair and first WQEBB of the entry, after [`Wqe::load`] has validated it.
    entry: Option<(Qpn, u16)>,
    place: Place,
}

/// The data segment at which the last gather stopped.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Offset of the first data segment.
    base: usize,
    /// Offset of this data segment.
    at: usize,
    /// Total bytes of the segments before it.
    before: u64,
}

impl Default for Wqe {
    fn default() -> Self {
        Self { bytes: Box::new([0; MAX_WQE]), len: 0, entry: None, place: Place::default() }
    }
}

/// A range of the data to send: host memory, or bytes of the entry itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    Host(HostMemory),
    Inline(usize, usize),
}

/// The ranges of one packet's payload.
pub(crate) type Pieces = ArrayVec<Piece, MAX_PIECES>;

/// Address of a datagram from its entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    pub(crate) av: AddressVector,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: QKey,
    /// Offset of the data segments.
    pub(crate) data_at: usize,
}

impl Wqe {
    /// Copies the entry that `peek` found and validates it.
    #[inline]
    pub(crate) fn load(&mut self, sq: &SendQueue, control: &Control, qpn: Qpn) -> Result<(), WcStatus> {
        self.read(sq, control.index, control.bytes)?;
        let segment = self.get::<ControlSegment>(0).ok_or(WcStatus::LocalQpOperation)?;
        let whole = control.bytes.div_ceil(WQEBB) == usize::from(control.blocks);
        if !whole || segment.index() != control.index || segment.qpn() != qpn.get() {
            return Err(WcStatus::LocalQpOperation);
        }
        self.entry = Some((qpn, control.index));
        Ok(())
    }

    /// Copies an entry that `load` validated before, if the copy is of another entry.
    #[inline]
    pub(crate) fn reload(&mut self, sq: &SendQueue, control: &Control, qpn: Qpn) -> Result<(), WcStatus> {
        if self.entry == Some((qpn, control.index)) {
            return Ok(());
        }
        self.read(sq, control.index, control.bytes)?;
        self.entry = Some((qpn, control.index));
        Ok(())
    }

    fn read(&mut self, sq: &SendQueue, index: u16, bytes: usize) -> Result<(), WcStatus> {
        self.len = 0;
        self.entry = None;
        self.place = Place::default();
        let out = self.bytes.get_mut(..bytes.next_multiple_of(WQEBB)).filter(|_| bytes >= DS_UNIT);
        let (blocks, _) = out.ok_or(WcStatus::LocalQpOperation)?.as_chunks_mut::<WQEBB>();
        for (n, block) in blocks.iter_mut().enumerate() {
            if !sq.read(index.wrapping_add(n as u16), block) {
                return Err(WcStatus::LocalQpOperation);
            }
        }
        self.len = bytes;
        Ok(())
    }

    /// All bytes of the entry.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    #[inline]
    fn get<T: FromBytes>(&self, at: usize) -> Option<T> {
        let bytes = self.bytes.get(at..at + size_of::<T>())?;
        (at + size_of::<T>() <= self.len).then(|| T::read_from_bytes(bytes).ok())?
    }

    /// The address segment of a datagram.
    pub(crate) fn datagram(&self) -> Result<Datagram, WcStatus> {
        const AT: usize = size_of::<ControlSegment>();
        let base = self.get::<[u8; DatagramAddress::BASE]>(AT).ok_or(WcStatus::LocalQpOperation)?;
        let mut a = DatagramAddress::default();
        if let Some(front) = a.as_mut_bytes().first_chunk_mut() {
            *front = base;
        }
        let mut data_at = AT + DatagramAddress::BASE;
        if a.dqp.get() & DatagramAddress::EXTENDED != 0 {
            a = self.get::<DatagramAddress>(AT).ok_or(WcStatus::LocalQpOperation)?;
            data_at = AT + size_of::<DatagramAddress>();
        }
        let word = a.gid_flow.get();
        let grh = (word & DatagramAddress::GRH != 0).then_some(GlobalRoute {
            dgid: Gid(a.rgid),
            sgid_index: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: a.hop_limit,
            traffic_class: a.traffic_class,
        });
        let av = AddressVector {
            dlid: Lid(a.rlid.get()),
            sl: ServiceLevel::new(a.rate_sl),
            src_path_bits: a.path_bits & 0x7f,
            rate: Rate::new(a.rate_sl >> 4),
            grh,
        };
        Ok(Datagram { av, qpn: Qpn::new(a.dqp.get()), qkey: QKey(a.qkey.get()), data_at })
    }

    /// The shared receive queue that a request on an extended reliable connection addresses.
    pub(crate) fn xrc(&self) -> Result<XrcEth, WcStatus> {
        let segment: XrcSegment = self.get(size_of::<ControlSegment>()).ok_or(WcStatus::LocalQpOperation)?;
        Ok(XrcEth { srqn: XrcSrqn::new(segment.srqn.get()) })
    }

    /// The remote address segment of an RDMA operation, at offset `at`.
    pub(crate) fn remote(&self, at: usize) -> Result<RemoteAddressSegment, WcStatus> {
        self.get(at).ok_or(WcStatus::LocalQpOperation)
    }

    /// The operands of an atomic operation whose remote address segment is at offset `at`.
    pub(crate) fn atomic(&self, at: usize) -> Result<AtomicSegment, WcStatus> {
        self.get(at + size_of::<RemoteAddressSegment>()).ok_or(WcStatus::LocalQpOperation)
    }

    /// Total bytes of the data segments from `at` on, if [`Wqe::scatter`] may write to all of them.
    pub(crate) fn writable(&self, keys: Keys<'_>, at: usize) -> Result<u64, WcStatus> {
        let mut total = 0;
        self.walk(at, |segment, _| {
            let Segment::Host(s) = segment else { return Err(WcStatus::LocalQpOperation) };
            let len = s.byte_count.get();
            total += u64::from(len);
            if len > 0 {
                keys.translate(s.lkey.get(), s.address.get(), len as usize, Use::LocalWrite)
                    .map_err(|_| WcStatus::LocalProtection)?;
            }
            Ok(true)
        })?;
        Ok(total)
    }

    /// Total bytes of the data segments from `at` on. The next gather starts at the first of them.
    #[inline]
    pub(crate) fn data_len(&mut self, at: usize) -> Result<u64, WcStatus> {
        self.place = Place { base: at, at, before: 0 };
        let mut total = 0;
        self.walk(at, |segment, _| {
            total += segment.len();
            Ok(true)
        })?;
        Ok(total)
    }

    /// As [`Wqe::gather`], if all bytes are contiguous in the segment at which the last gather stopped or the
    /// next one.
    #[inline]
    pub(crate) fn whole(&mut self, keys: Keys<'_>, at: usize, offset: u64, len: usize) -> Option<HostMemory> {
        let mut place = Some(self.place).filter(|place| place.base == at && place.before <= offset)?;
        let host = |at| self.get::<DataSegment>(at).filter(|s| s.byte_count.get() & INLINE_DATA == 0);
        let mut segment = host(place.at)?;
        let mut skip = offset - place.before;
        if skip == u64::from(segment.byte_count.get()) {
            place = Place { at: place.at + DS_UNIT, before: offset, ..place };
            (segment, skip) = (host(place.at)?, 0);
        }
        if len == 0 || skip + len as u64 > u64::from(segment.byte_count.get()) {
            return None;
        }
        let address = segment.address.get().checked_add(skip)?;
        let memory = keys.translate(segment.lkey.get(), address, len, Use::LocalRead).ok()?;
        self.place = place;
        (memory.len() == len).then_some(memory)
    }

    /// Gathers `len` bytes of the data from `offset` on. The data segments begin at `at`.
    pub(crate) fn gather(
        &mut self,
        keys: Keys<'_>,
        at: usize,
        offset: u64,
        len: usize,
        out: &mut Pieces,
    ) -> Result<(), WcStatus> {
        out.clear();
        // Packets come in order, except retransmissions.
        let known = Some(self.place).filter(|place| place.base == at && place.before <= offset);
        let mut place = known.unwrap_or(Place { base: at, at, before: 0 });
        let mut skip = offset - place.before;
        let mut passed = place.before;
        let mut left = len;
        self.walk(place.at, |segment, here| {
            if left == 0 {
                return Ok(false);
            }
            let size = segment.len();
            let before = passed;
            passed += size;
            if skip >= size {
                skip -= size;
                return Ok(true);
            }
            place = Place { at: here, before, ..place };
            let n = (size - skip).min(left as u64) as usize;
            match segment {
                Segment::Inline(at, _) => push(out, Piece::Inline(at + skip as usize, n))?,
                Segment::Host(s) => {
                    let mut address = s.address.get().checked_add(skip).ok_or(WcStatus::LocalProtection)?;
                    let mut missing = n;
                    while missing > 0 {
                        let memory = keys
                            .translate(s.lkey.get(), address, missing, Use::LocalRead)
                            .map_err(|_| WcStatus::LocalProtection)?;
                        missing -= memory.len();
                        address = address.wrapping_add(memory.len() as u64);
                        push(out, Piece::Host(memory))?;
                    }
                }
            }
            skip = 0;
            left -= n;
            Ok(true)
        })?;
        self.place = place;
        if left == 0 { Ok(()) } else { Err(WcStatus::LocalLength) }
    }

    /// Writes response bytes to the data segments from `at` on, starting at byte `offset` of them.
    pub(crate) fn scatter(
        &self,
        keys: Keys<'_>,
        at: usize,
        offset: u64,
        mut data: &[u8],
    ) -> Result<(), WcStatus> {
        let mut skip = offset;
        self.walk(at, |segment, _| {
            let Segment::Host(s) = segment else { return Err(WcStatus::LocalQpOperation) };
            let size = u64::from(s.byte_count.get());
            if skip >= size {
                skip -= size;
                return Ok(true);
            }
            let (head, rest) = data.split_at((size - skip).min(data.len() as u64) as usize);
            let address = s.address.get().checked_add(skip).ok_or(WcStatus::LocalProtection)?;
            keys.write(s.lkey.get(), address, head, Use::LocalWrite)
                .map_err(|_| WcStatus::LocalProtection)?;
            skip = 0;
            data = rest;
            Ok(true)
        })?;
        if data.is_empty() { Ok(()) } else { Err(WcStatus::LocalLength) }
    }

    /// Copies gathered ranges to a packet.
    #[inline]
    pub(crate) fn copy(&self, pieces: &Pieces, mut out: &mut [u8]) {
        for piece in pieces {
            let len = match piece {
                Piece::Host(memory) => memory.len(),
                Piece::Inline(_, n) => *n,
            };
            let Some((head, rest)) = out.split_at_mut_checked(len) else { return };
            match piece {
                Piece::Host(memory) => {
                    memory.read(head);
                }
                Piece::Inline(at, n) => {
                    if let Some(bytes) = self.bytes.get(*at..at + n) {
                        head.copy_from_slice(bytes);
                    }
                }
            }
            out = rest;
        }
    }

    /// Passes data segments and their offsets to `each`, from the one at `from` on, until it returns false.
    #[inline]
    fn walk(
        &self,
        from: usize,
        mut each: impl FnMut(Segment, usize) -> Result<bool, WcStatus>,
    ) -> Result<(), WcStatus> {
        let mut at = from;
        while at < self.len {
            let segment: DataSegment = self.get(at).ok_or(WcStatus::LocalQpOperation)?;
            let count = segment.byte_count.get();
            let here = at;
            let goes_on = if count & INLINE_DATA != 0 {
                let n = (count & !INLINE_DATA) as usize;
                let end = at + size_of::<u32>() + n;
                if end > self.len {
                    return Err(WcStatus::LocalQpOperation);
                }
                at = end.next_multiple_of(DS_UNIT);
                each(Segment::Inline(here + size_of::<u32>(), n), here)?
            } else {
                at += DS_UNIT;
                each(Segment::Host(segment), here)?
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }
}

/// Gathers `len` bytes for a read by the peer.
pub(crate) fn gather_remote(
    keys: Keys<'_>,
    rkey: u32,
    mut address: u64,
    len: usize,
    out: &mut Pieces,
) -> Result<(), Denied> {
    out.clear();
    let mut missing = len;
    while missing > 0 {
        let memory = keys.translate(rkey, address, missing, Use::RemoteRead)?;
        missing -= memory.len();
        address = address.wrapping_add(memory.len() as u64);
        out.try_push(Piece::Host(memory)).map_err(|_| Denied)?;
    }
    Ok(())
}

fn push(out: &mut Pieces, piece: Piece) -> Result<(), WcStatus> {
    out.try_push(piece).map_err(|_| WcStatus::LocalQpOperation)
}

enum Segment {
    Inline(usize, usize),
    Host(DataSegment),
}

impl Segment {
    /// Length in bytes.
    fn len(&self) -> u64 {
        match self {
            Self::Inline(_, n) => *n as u64,
            Self::Host(s) => u64::from(s.byte_count.get()),
        }
    }
}

#[cfg(test)]
mod tests;
