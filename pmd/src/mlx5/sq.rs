//! The send queue. Entries consist of whole WQEBBs, wrap at the end of the ring, and are handed to the device
//! by one doorbell.

use zerocopy::{Immutable, IntoBytes};

use super::barrier;
use super::bus::Bus;
use super::rings::{DoorbellRecord, QpRings, Register, RingMemory};
use prm::{
    ControlSegment, DBREC_SEND, DS_UNIT, DataSegment, DatagramAddress, INLINE_DATA, InlineHeader, MAX_DS,
    SendOpcode, WQEBB, fm_ce_se,
};

/// Fields of an entry's control segment.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Opcode.
    pub opcode: SendOpcode,
    /// Bits of [`fm_ce_se`].
    pub flags: u8,
    /// Immediate, key to invalidate, or key of a UMR.
    pub imm: u32,
}

/// The send queue is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the send queue is full")]
pub struct Full;

/// Location of a posted entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posted {
    /// Index of its first WQEBB, modulo 2^16. Its completion carries this index.
    pub index: u16,
    /// Length in WQEBBs.
    pub wqebbs: u16,
}

/// A send queue. Indices count WQEBBs modulo 2^16.
// The fields that each message touches come first: see `RcQp`.
#[derive(Debug)]
#[repr(C)]
pub struct SendQueue {
    dirty: bool,
    next_fence: u8,
    posted: u16,
    retired: u16,
    /// Number of WQEBBs of the ring minus one.
    mask: u16,
    last: [u8; 8],
    /// Constant part of the first eight bytes of each plain send: the opcode and the queue pair number.
    plain: u64,
    buf: RingMemory,
    dbrec: DoorbellRecord,
    register: Register,
    qpn: u32,
    /// True if an entry did not lie within the ring or exceeded its reservation. Nothing more is then handed
    /// to the device.
    broken: bool,
}

impl SendQueue {
    /// Creates the send queue of a new queue pair. The ring in `rings.sq_buf` has 1 to 32,768 WQEBBs, a power
    /// of two. With any other description the queue is always full.
    #[must_use]
    pub fn new(rings: &QpRings) -> Self {
        let fits = rings.sq_wqebbs.is_power_of_two()
            && rings.sq_wqebbs <= 1 << 15
            && rings.sq_buf.len() >= rings.sq_wqebbs as usize * WQEBB
            && rings.dbrec.has(DBREC_SEND);
        debug_assert!(fits, "{rings:?}");
        Self {
            buf: rings.sq_buf,
            mask: if fits { rings.sq_wqebbs as u16 } else { 0 }.wrapping_sub(1),
            qpn: rings.qpn,
            plain: u64::from(SendOpcode::Send.code()) << 32 | u64::from(rings.qpn << 8),
            dbrec: rings.dbrec,
            register: rings.register,
            posted: 0,
            retired: 0,
            next_fence: 0,
            last: [0; 8],
            dirty: false,
            broken: false,
        }
    }

    /// True if an entry could not be written completely. Such a queue no longer rings its doorbell, and its
    /// queue pair has failed.
    #[inline]
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    #[cold]
    const fn note_broken(&mut self) {
        self.broken = true;
    }

    /// Queue pair number.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Number of WQEBBs of the ring.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }

    /// Producer index: the index after the last posted entry.
    #[must_use]
    pub const fn posted(&self) -> u16 {
        self.posted
    }

    /// Consumer index: the index of the oldest WQEBB in use.
    #[must_use]
    pub const fn retired(&self) -> u16 {
        self.retired
    }

    /// Number of WQEBBs in use.
    #[must_use]
    pub const fn used(&self) -> u16 {
        self.posted.wrapping_sub(self.retired)
    }

    /// True if posted entries wait for [`SendQueue::ring`].
    #[must_use]
    pub const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Posts an entry of at most `units` units of 16 bytes, including the control segment. `fill` writes the
    /// segments after the control segment. If `fill` fails, nothing is posted.
    #[inline]
    pub fn post<E: From<Full>>(
        &mut self,
        request: Request,
        units: usize,
        fill: impl FnOnce(&mut Writer) -> Result<(), E>,
    ) -> Result<Posted, E> {
        let room = usize::from(self.size() - self.used()) * (WQEBB / DS_UNIT);
        if units > room || units > MAX_DS {
            return Err(Full.into());
        }
        let ring = usize::from(self.size()) * WQEBB;
        let start = usize::from(self.posted & self.mask) * WQEBB;
        let mut writer = Writer {
            buf: self.buf,
            ring,
            at: start + DS_UNIT,
            written: DS_UNIT,
            limit: units.max(1) * DS_UNIT,
            broken: false,
        };
        fill(&mut writer)?;
        let (ds, broken) = (writer.written.div_ceil(DS_UNIT), writer.broken);
        let control = self.control(request, ds);
        if !self.buf.write(start, &control) || broken {
            self.note_broken();
        }
        Ok(self.finish(&control, ds))
    }

    /// Posts an entry of a control segment and one nonempty data segment. Equivalent to [`SendQueue::post`],
    /// but faster.
    #[inline]
    pub fn post_single(&mut self, request: Request, data: DataSegment) -> Result<Posted, Full> {
        if self.used() >= self.size() {
            return Err(Full);
        }
        let start = usize::from(self.posted & self.mask) * WQEBB;
        let control = self.control(request, 2);
        let entry: [[u8; DS_UNIT]; 2] = [zerocopy::transmute!(control), zerocopy::transmute!(data)];
        if !self.buf.write(start, &entry) {
            self.note_broken();
        }
        Ok(self.finish(&control, 2))
    }

    /// True if the next entry must wait for the one before it.
    pub(super) const fn is_fenced(&self) -> bool {
        self.next_fence != 0
    }

    /// Posts a SEND of one nonempty segment; with an address, it is a datagram. Returns its slot in the ring,
    /// in WQEBBs.
    ///
    /// The entry is the same as from [`SendQueue::post`] but is assembled from whole words. The caller
    /// guarantees that there is room and that no fence is due.
    #[inline(always)]
    pub(super) fn post_plain(&mut self, to: Option<&DatagramAddress>, data: DataSegment, flags: u8) -> usize {
        let (index, mask) = (self.posted, self.mask);
        let place = |index: u16| usize::from(index & mask) * WQEBB;
        let at = usize::from(index & mask);
        let ds = if to.is_some() { 5 } else { 2 };
        let first = (u64::from(index) << 40 | self.plain | ds).to_be();
        let second = (u64::from(flags) << 32).to_be();
        let data: [u64; 2] = zerocopy::transmute!(data);
        let written = match to {
            None => self.buf.write(place(index), &[first, second, data[0], data[1]]),
            Some(to) => {
                let to: [u64; 6] = zerocopy::transmute!(*to);
                let [a, b, c, d, e, f] = to;
                self.buf.write(place(index), &[first, second, a, b, c, d, e, f])
                    && self.buf.write(place(index.wrapping_add(1)), &data)
            }
        };
        if !written {
            self.note_broken();
        }
        self.last = first.to_ne_bytes();
        self.posted = index.wrapping_add(if to.is_some() { 2 } else { 1 });
        self.dirty = true;
        at
    }

    /// Prefetches a WQEBB of the ring and the doorbell record.
    #[inline(always)]
    pub(super) fn fetch(&self, at: usize) {
        self.buf.fetch(at * WQEBB);
        self.dbrec.fetch();
    }

    #[inline]
    fn control(&mut self, request: Request, ds: usize) -> ControlSegment {
        // A fence that the caller requests is stronger than the one that a UMR requires.
        let fence = if request.flags & fm_ce_se::FENCE != 0 { 0 } else { self.next_fence };
        self.next_fence = if request.opcode == SendOpcode::Umr { fm_ce_se::SMALL_FENCE } else { 0 };
        ControlSegment::new(request.opcode, self.posted, self.qpn, ds, request.flags | fence, request.imm)
    }

    #[inline]
    fn finish(&mut self, control: &ControlSegment, ds: usize) -> Posted {
        if let Some(first) = control.as_bytes().first_chunk() {
            self.last = *first;
        }
        let posted = Posted { index: self.posted, wqebbs: ds.div_ceil(WQEBB / DS_UNIT) as u16 };
        self.posted = self.posted.wrapping_add(posted.wqebbs);
        self.dirty = true;
        posted
    }

    /// Hands all posted entries to the device: writes the doorbell record, then the first eight bytes of the
    /// last entry to the register. Does nothing without posted entries.
    #[inline]
    pub fn ring(&mut self, bus: &mut impl Bus) {
        if !self.dirty {
            return;
        }
        self.dirty = false;
        if self.broken {
            return;
        }
        barrier::udma_to_device();
        self.dbrec.store(DBREC_SEND, u32::from(self.posted));
        bus.ring(&mut self.register, self.last);
    }

    /// Restarts at the first WQEBB, as the device does after RESET. Nothing may be in use.
    pub fn restart(&mut self) {
        self.posted = 0;
        self.retired = 0;
        self.next_fence = 0;
        self.dirty = false;
        self.dbrec.store(DBREC_SEND, 0);
    }

    /// True if `index` belongs to an entry in use.
    #[inline]
    #[must_use]
    pub const fn is_in_use(&self, index: u16) -> bool {
        index.wrapping_sub(self.retired) < self.used()
    }

    /// Frees all WQEBBs before `behind`, which is at most [`SendQueue::posted`].
    #[inline]
    pub fn retire(&mut self, behind: u16) {
        if behind.wrapping_sub(self.retired) <= self.used() {
            self.retired = behind;
        }
    }
}

/// Writes the segments after a control segment. Wraps to slot 0 at the end of the ring.
#[derive(Debug)]
pub struct Writer {
    buf: RingMemory,
    ring: usize,
    at: usize,
    written: usize,
    limit: usize,
    broken: bool,
}

impl Writer {
    #[inline]
    fn claim(&mut self, len: usize) -> bool {
        if self.at == self.ring {
            self.at = 0;
        }
        let fits = self.written + len <= self.limit;
        self.broken |= !fits;
        fits
    }

    /// Writes a segment that does not cross the end of the ring. A segment of 16 bytes may start anywhere. A
    /// longer one must start at a WQEBB boundary or directly after the control segment.
    #[inline]
    pub fn segment<T: IntoBytes + Immutable>(&mut self, segment: &T) {
        let len = size_of::<T>();
        if self.claim(len) {
            self.broken |= !self.buf.write(self.at, segment);
            self.at += len;
            self.written += len;
        }
    }

    /// Writes a data segment. An empty one is omitted.
    #[inline]
    pub fn data(&mut self, data: DataSegment) {
        if data.byte_count != 0 {
            self.segment(&data);
        }
    }

    /// Writes raw bytes and wraps at the end of the ring.
    pub fn bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = bytes.len().min(if self.at == self.ring { self.ring } else { self.ring - self.at });
            let (now, later) = bytes.split_at(len);
            if !self.claim(len) {
                return;
            }
            self.broken |= !self.buf.write(self.at, now);
            self.at += len;
            self.written += len;
            bytes = later;
        }
    }

    /// Writes inline data: all pieces as one segment.
    pub fn inline(&mut self, pieces: &[&[u8]]) {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        if len == 0 {
            return;
        }
        let mut header = InlineHeader::default();
        header.byte_count.set(len as u32 | INLINE_DATA);
        self.bytes(header.as_bytes());
        for piece in pieces {
            self.bytes(piece);
        }
        self.pad();
    }

    /// Skips to the next unit of 16 bytes without writing the gap.
    pub fn pad(&mut self) {
        let rest = self.written.next_multiple_of(DS_UNIT) - self.written;
        self.at += rest;
        self.written += rest;
    }
}

/// Length of `len` bytes of inline data, in units of 16 bytes.
#[must_use]
pub const fn inline_units(len: usize) -> usize {
    if len == 0 { 0 } else { (size_of::<InlineHeader>() + len).div_ceil(DS_UNIT) }
}
