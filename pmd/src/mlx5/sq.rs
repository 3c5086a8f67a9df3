//! The send queue: entries of whole WQEBBs, written around the end of the ring, given to the device by one doorbell.

use zerocopy::{Immutable, IntoBytes};

use super::barrier;
use super::bus::Bus;
use super::rings::{DoorbellRecord, QpRings, Register, RingMemory};
use prm::{
    ControlSegment, DBREC_SEND, DS_UNIT, DataSegment, DatagramAddress, INLINE_DATA, InlineHeader, MAX_DS,
    SendOpcode, WQEBB, fm_ce_se,
};

/// What the control segment of an entry says.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Operation.
    pub opcode: SendOpcode,
    /// Bits of [`fm_ce_se`].
    pub flags: u8,
    /// Immediate, key to invalidate, or key of an UMR.
    pub imm: u32,
}

/// The send queue is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the send queue is full")]
pub struct Full;

/// Where an entry went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posted {
    /// Index of its first WQEBB, modulo 2^16; its completion names it.
    pub index: u16,
    /// Its length in WQEBBs.
    pub wqebbs: u16,
}

/// A send queue. Indices count WQEBBs modulo 2^16.
// In this order, what each message touches comes first: see `RcQp`.
#[derive(Debug)]
#[repr(C)]
pub struct SendQueue {
    dirty: bool,
    next_fence: u8,
    posted: u16,
    retired: u16,
    /// WQEBBs of the ring less one.
    mask: u16,
    last: [u8; 8],
    /// What the first eight bytes of each plain send have in common: its opcode, and the queue pair's number.
    plain: u64,
    buf: RingMemory,
    dbrec: DoorbellRecord,
    register: Register,
    qpn: u32,
    /// An entry did not lie within the ring, or not within what was reserved for it: nothing more is given to the device.
    broken: bool,
}

impl SendQueue {
    /// The send queue of a new queue pair. The ring has 1 to 32,768 WQEBBs, a power of two, and lies in `rings.sq_buf`; a
    /// description that does not hold this makes a queue that is always full.
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

    /// True if an entry could not be written as a whole. Such a queue rings for nothing any more; its queue pair has failed.
    #[inline]
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    #[cold]
    const fn note_broken(&mut self) {
        self.broken = true;
    }

    /// Number of the queue pair.
    #[must_use]
    pub const fn qpn(&self) -> u32 {
        self.qpn
    }

    /// WQEBBs of the ring.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.mask.wrapping_add(1)
    }

    /// Index behind the last posted entry.
    #[must_use]
    pub const fn posted(&self) -> u16 {
        self.posted
    }

    /// Index of the oldest WQEBB that is not free.
    #[must_use]
    pub const fn retired(&self) -> u16 {
        self.retired
    }

    /// WQEBBs in use.
    #[must_use]
    pub const fn used(&self) -> u16 {
        self.posted.wrapping_sub(self.retired)
    }

    /// True if entries wait for [`SendQueue::ring`].
    #[must_use]
    pub const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Writes an entry of at most `units` units of 16 bytes, control segment included; `fill` writes what follows the
    /// control segment. If it fails nothing has been posted.
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

    /// Posts an entry of a control segment and one data segment, which is not empty: what [`SendQueue::post`] would post,
    /// with less ado.
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

    /// True if the next entry has to wait for the one before it.
    pub(super) const fn is_fenced(&self) -> bool {
        self.next_fence != 0
    }

    /// Posts a SEND of one piece, which is not empty; with an address it is a datagram. The entry is what
    /// [`SendQueue::post`] writes of it, put together in whole words: 60 instructions less. There is room for it and no fence is due:
    /// the caller has seen to that. Returns its place in the ring, in WQEBBs.
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

    /// Has the processor fetch a WQEBB of the ring, and the doorbell record.
    #[inline(always)]
    pub(super) fn fetch(&self, at: usize) {
        self.buf.fetch(at * WQEBB);
        self.dbrec.fetch();
    }

    #[inline]
    fn control(&mut self, request: Request, ds: usize) -> ControlSegment {
        // A fence that the caller asks for is stronger than the one an UMR leaves behind.
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

    /// Gives all posted entries to the device: the doorbell record, then the first eight bytes of the last entry. Does
    /// nothing if there is none.
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

    /// Begins again at the first WQEBB, as the device does after RESET. Nothing may be in use.
    pub fn restart(&mut self) {
        self.posted = 0;
        self.retired = 0;
        self.next_fence = 0;
        self.dirty = false;
        self.dbrec.store(DBREC_SEND, 0);
    }

    /// True if `index` lies among the entries in use.
    #[inline]
    #[must_use]
    pub const fn is_in_use(&self, index: u16) -> bool {
        index.wrapping_sub(self.retired) < self.used()
    }

    /// Frees all WQEBBs in front of `behind`, which is at most [`SendQueue::posted`].
    #[inline]
    pub fn retire(&mut self, behind: u16) {
        if behind.wrapping_sub(self.retired) <= self.used() {
            self.retired = behind;
        }
    }
}

/// Writes the segments behind a control segment; goes on at slot 0 where the ring ends.
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

    /// A segment that does not cross the end of the ring: one of 16 bytes anywhere, a longer one where WQEBBs begin or
    /// behind the control segment.
    #[inline]
    pub fn segment<T: IntoBytes + Immutable>(&mut self, segment: &T) {
        let len = size_of::<T>();
        if self.claim(len) {
            self.broken |= !self.buf.write(self.at, segment);
            self.at += len;
            self.written += len;
        }
    }

    /// A piece of memory; an empty one is left out.
    #[inline]
    pub fn data(&mut self, data: DataSegment) {
        if data.byte_count != 0 {
            self.segment(&data);
        }
    }

    /// Bytes as they are, around the end of the ring.
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

    /// Data in the entry itself: all the pieces as one segment.
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

    /// Goes on at the next unit of 16 bytes; what lies between is not written.
    pub fn pad(&mut self) {
        let rest = self.written.next_multiple_of(DS_UNIT) - self.written;
        self.at += rest;
        self.written += rest;
    }
}

/// Units of 16 bytes of inline data of `len` bytes.
#[must_use]
pub const fn inline_units(len: usize) -> usize {
    if len == 0 { 0 } else { (size_of::<InlineHeader>() + len).div_ceil(DS_UNIT) }
}
