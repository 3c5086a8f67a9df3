//! One packet buffer, or a chain of them, with one owner.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use dpdk_sys as sys;

use super::{FrameFacts, HEADROOM};

/// A packet: a chain of one or more segments. Dropping it gives it back to its pool.
///
/// Every segment has a buffer of its own, with room in front of and behind its data; lengths are bytes.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an `Mbuf` is the only owner of its segments, and pools take buffers back from any thread.
unsafe impl Send for Mbuf {}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: we own the chain, and nobody uses it after this.
        unsafe { sys::shim_mbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mbuf({} bytes in {} segments)", self.len(), self.segment_count())
    }
}

/// Reads a field of a segment.
macro_rules! field {
    ($raw:expr, $offset:ident, $ty:ty) => {{
        let at: *mut sys::rte_mbuf = $raw;
        // SAFETY: the segment is valid and ours; the offset is of a field of this type (offsets come from DPDK's headers).
        unsafe { at.byte_add(sys::$offset as usize).cast::<$ty>().read() }
    }};
}

/// Writes a field of a segment.
macro_rules! set_field {
    ($raw:expr, $offset:ident, $ty:ty, $value:expr) => {{
        let at: *mut sys::rte_mbuf = $raw;
        // SAFETY: as for reading; we own the segment exclusively.
        unsafe { at.byte_add(sys::$offset as usize).cast::<$ty>().write($value) }
    }};
}

/// Raw access to one segment's fields.
pub(super) mod raw {
    use super::sys;

    pub(in crate::mem) fn buf_addr(m: *mut sys::rte_mbuf) -> *mut u8 {
        field!(m, SHIM_MBUF_BUF_ADDR, *mut u8)
    }
    pub(in crate::mem) fn buf_len(m: *mut sys::rte_mbuf) -> usize {
        field!(m, SHIM_MBUF_BUF_LEN, u16).into()
    }
    pub(in crate::mem) fn data_off(m: *mut sys::rte_mbuf) -> usize {
        field!(m, SHIM_MBUF_DATA_OFF, u16).into()
    }
    pub(in crate::mem) fn data_len(m: *mut sys::rte_mbuf) -> usize {
        field!(m, SHIM_MBUF_DATA_LEN, u16).into()
    }
    pub(in crate::mem) fn pkt_len(m: *mut sys::rte_mbuf) -> usize {
        field!(m, SHIM_MBUF_PKT_LEN, u32) as usize
    }
    pub(in crate::mem) fn nb_segs(m: *mut sys::rte_mbuf) -> usize {
        field!(m, SHIM_MBUF_NB_SEGS, u16).into()
    }
    pub(in crate::mem) fn next(m: *mut sys::rte_mbuf) -> *mut sys::rte_mbuf {
        field!(m, SHIM_MBUF_NEXT, *mut sys::rte_mbuf)
    }
    pub(in crate::mem) fn pool(m: *mut sys::rte_mbuf) -> *mut sys::rte_mempool {
        field!(m, SHIM_MBUF_POOL, *mut sys::rte_mempool)
    }
    pub(in crate::mem) fn ol_flags(m: *mut sys::rte_mbuf) -> u64 {
        field!(m, SHIM_MBUF_OL_FLAGS, u64)
    }
    pub(in crate::mem) fn refcnt(m: *mut sys::rte_mbuf) -> u16 {
        field!(m, SHIM_MBUF_REFCNT, u16)
    }
    pub(in crate::mem) fn packet_type(m: *mut sys::rte_mbuf) -> u32 {
        field!(m, SHIM_MBUF_PACKET_TYPE, u32)
    }
    pub(in crate::mem) fn vlan_tci(m: *mut sys::rte_mbuf) -> u16 {
        field!(m, SHIM_MBUF_VLAN_TCI, u16)
    }
    #[cfg(test)]
    pub(in crate::mem) fn set_packet_type(m: *mut sys::rte_mbuf, value: u32) {
        set_field!(m, SHIM_MBUF_PACKET_TYPE, u32, value);
    }
    pub(in crate::mem) fn set_ol_flags(m: *mut sys::rte_mbuf, value: u64) {
        set_field!(m, SHIM_MBUF_OL_FLAGS, u64, value);
    }
    pub(in crate::mem) fn set_vlan_tci(m: *mut sys::rte_mbuf, value: u16) {
        set_field!(m, SHIM_MBUF_VLAN_TCI, u16, value);
    }
    /// `value` must be within the buffer, which has at most 65,535 bytes.
    pub(in crate::mem) fn set_data_off(m: *mut sys::rte_mbuf, value: usize) {
        set_field!(m, SHIM_MBUF_DATA_OFF, u16, value as u16);
    }
    /// `value` must be within the buffer.
    pub(in crate::mem) fn set_data_len(m: *mut sys::rte_mbuf, value: usize) {
        set_field!(m, SHIM_MBUF_DATA_LEN, u16, value as u16);
    }
    pub(in crate::mem) fn set_pkt_len(m: *mut sys::rte_mbuf, value: usize) {
        set_field!(m, SHIM_MBUF_PKT_LEN, u32, value as u32);
    }
    pub(in crate::mem) fn set_nb_segs(m: *mut sys::rte_mbuf, value: usize) {
        set_field!(m, SHIM_MBUF_NB_SEGS, u16, value as u16);
    }
    pub(in crate::mem) fn set_next(m: *mut sys::rte_mbuf, value: *mut sys::rte_mbuf) {
        set_field!(m, SHIM_MBUF_NEXT, *mut sys::rte_mbuf, value);
    }
}

/// A packet of one segment, looked at: where its data is and how long, is not asked again, and is written into the buffer when it is an
/// [`Mbuf`] again. Nobody asks it of one that is sent, which goes home from there: six instructions less.
#[derive(Debug)]
pub struct Single {
    buf: Mbuf,
    data: NonNull<u8>,
    len: u32,
}

// SAFETY: as an `Mbuf`; the pointer is into its buffer.
unsafe impl Send for Single {}

impl From<Single> for Mbuf {
    #[inline(always)]
    fn from(Single { buf, data, len }: Single) -> Self {
        let m = buf.head();
        let offset = data.as_ptr() as usize - raw::buf_addr(m) as usize;
        raw::set_data_off(m, offset);
        raw::set_data_len(m, len as usize);
        raw::set_pkt_len(m, len as usize);
        buf
    }
}

impl Single {
    /// The data.
    #[inline(always)]
    #[must_use]
    pub const fn data(&self) -> &[u8] {
        // SAFETY: as in `Mbuf::single`, and nobody changes the buffer while this has it.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len as usize) }
    }

    /// See [`Mbuf::frame_facts`].
    #[inline(always)]
    #[must_use]
    pub fn facts(&self) -> FrameFacts {
        self.buf.frame_facts()
    }

    /// The buffer of a packet that is sent from where it lies: what is in the buffer of its place and length is of the packet that it was.
    #[inline(always)]
    pub(crate) fn into_sent(self) -> Mbuf {
        self.buf
    }

    /// Address and bytes of the data, unless there is none.
    #[inline(always)]
    #[must_use]
    pub(crate) fn piece(&self) -> Option<(u64, u32)> {
        (self.len > 0).then_some((self.data.as_ptr() as u64, self.len))
    }

    /// Takes `off` bytes off the front, cuts the packet to the `length` bytes behind them, and puts `header`, which is no longer than what went,
    /// in front of those, as [`Mbuf::reframe`] does. `None`, and the packet is gone, if it is shorter.
    #[inline(always)]
    #[must_use]
    pub fn reframe<const N: usize>(self, off: usize, length: u16, header: [u8; N]) -> Option<Self> {
        let Self { buf, data, len } = self;
        let (front, length) = (off.checked_sub(N)?, usize::from(length));
        if (len as usize).checked_sub(off)? < length {
            return None;
        }
        // SAFETY: the data has `len` bytes, and `front + N`, which is `off`, is no more; it is our buffer.
        let data = unsafe { data.add(front) };
        // SAFETY: as above.
        unsafe { data.cast::<[u8; N]>().write_unaligned(header) };
        Some(Self { buf, data, len: (N + length) as u32 })
    }
}

impl Mbuf {
    /// The packet, looked at, if it has one segment.
    #[inline(always)]
    pub fn single(self) -> Result<Single, Self> {
        let m = self.head();
        if raw::nb_segs(m) != 1 {
            return Err(self);
        }
        // SAFETY: the data lies within the segment's buffer, which is initialised memory that we own.
        let data = unsafe { NonNull::new_unchecked(raw::buf_addr(m).add(raw::data_off(m))) };
        let len = raw::data_len(m) as u32;
        Ok(Single { buf: self, data, len })
    }

    /// Takes over a chain.
    ///
    /// # Safety
    ///
    /// `raw` is the head of a valid chain that nobody else owns, and every segment is direct, with a reference count of 1.
    pub(crate) const unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    /// Gives the chain away: to a port's queue, or to be taken over again.
    pub(crate) fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        ManuallyDrop::new(self).0
    }

    pub(super) const fn head(&self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    /// Gives many back to their pools at once. Those of one segment go straight into their pool's cache, as many of one pool as lie
    /// one behind the other: DPDK's own call looks at each of them again.
    pub fn free_bulk<const N: usize>(batch: &mut arrayvec::ArrayVec<Self, N>) {
        let count = batch.len();
        let first = batch.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: an `Mbuf` is a pointer to a chain; all are ours, and with the length at 0 nobody else uses them after this.
        let mut left = unsafe {
            batch.set_len(0);
            std::slice::from_raw_parts(first, count)
        };
        while let Some(&head) = left.first() {
            let pool = raw::pool(head);
            let single = |m: *mut sys::rte_mbuf| raw::nb_segs(m) == 1 && raw::pool(m) == pool;
            let run = left.iter().take_while(|&&m| single(m)).count();
            let (now, later) = left.split_at(run.max(1));
            left = later;
            if run > 0 {
                let is_whole = |&m: &*mut sys::rte_mbuf| {
                    raw::next(m).is_null()
                        && raw::ol_flags(m) & sys::SHIM_ATTACHED == 0
                        && raw::refcnt(m) == 1
                };
                debug_assert!(now.iter().all(is_whole));
                // SAFETY: of this pool, and of one segment each. They are direct and have one reference, as drivers give them and
                // `Mbuf::from_raw` demands of whoever makes one, and nothing here attaches a buffer to another or adds a reference.
                unsafe { sys::shim_mbuf_raw_free_bulk(pool, now.as_ptr(), run as u32) };
            } else {
                // SAFETY: a chain that was ours.
                unsafe { sys::shim_mbuf_free(head) };
            }
        }
    }

    /// Bytes of the packet, all segments together.
    #[must_use]
    pub fn len(&self) -> usize {
        raw::pkt_len(self.head())
    }

    /// True if it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of segments, at least 1.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        raw::nb_segs(self.head())
    }

    /// Data of the first segment.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let m = self.head();
        // SAFETY: the data lies within the segment's buffer, which is initialised memory that we own.
        unsafe { std::slice::from_raw_parts(raw::buf_addr(m).add(raw::data_off(m)), raw::data_len(m)) }
    }

    /// Data of the first segment, to be changed.
    pub fn data_mut(&mut self) -> &mut [u8] {
        let m = self.head();
        // SAFETY: as for `data`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(raw::buf_addr(m).add(raw::data_off(m)), raw::data_len(m)) }
    }

    /// Room in front of the first segment's data.
    #[must_use]
    pub fn headroom(&self) -> usize {
        raw::data_off(self.head())
    }

    /// Room behind the first segment's data.
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let m = self.head();
        raw::buf_len(m).saturating_sub(raw::data_off(m) + raw::data_len(m))
    }

    /// The `n` bytes right in front of the data.
    #[must_use]
    pub fn before_data(&self, n: usize) -> Option<&[u8]> {
        let m = self.head();
        let offset = raw::data_off(m).checked_sub(n)?;
        // SAFETY: `offset` to `offset + n` lies within the buffer.
        Some(unsafe { std::slice::from_raw_parts(raw::buf_addr(m).add(offset), n) })
    }

    /// Puts `n` bytes in front of the data and returns them, whatever they hold; `None` if there is no room.
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let m = self.head();
        let offset = raw::data_off(m).checked_sub(n)?;
        raw::set_data_off(m, offset);
        raw::set_data_len(m, raw::data_len(m) + n);
        raw::set_pkt_len(m, raw::pkt_len(m) + n);
        self.data_mut().get_mut(..n)
    }

    /// Takes `n` bytes off the front; false, and nothing changed, if the first segment has fewer.
    #[must_use]
    pub fn trim_front(&mut self, n: usize) -> bool {
        let m = self.head();
        if raw::data_len(m) < n {
            return false;
        }
        raw::set_data_off(m, raw::data_off(m) + n);
        raw::set_data_len(m, raw::data_len(m) - n);
        raw::set_pkt_len(m, raw::pkt_len(m) - n);
        true
    }

    /// Takes `off` bytes off the front, cuts the packet to the `length` bytes behind them, and puts `N` bytes in front of
    /// those, whatever they hold: [`Mbuf::trim_front`], [`Mbuf::truncate`] and [`Mbuf::prepend`] at once. `None`, and the
    /// packet perhaps half done, if it is shorter or there is no room.
    #[inline]
    pub fn reframe<const N: usize>(&mut self, off: usize, length: usize) -> Option<&mut [u8; N]> {
        let m = self.head();
        // The pointer to a next segment lies on the buffer's second cache line: of a single one it is not looked at.
        if raw::nb_segs(m) != 1 {
            return self.reframe_chain(off, length);
        }
        let start = (raw::data_off(m) + off).checked_sub(N)?;
        if raw::data_len(m).checked_sub(off)? < length {
            return None;
        }
        raw::set_data_off(m, start);
        raw::set_data_len(m, N + length);
        raw::set_pkt_len(m, N + length);
        // SAFETY: the packet ends no further back in its buffer than before, and begins with these `N` bytes; we own the buffer, which is
        // initialised memory, and the borrow is exclusive. No buffer lies at 0: a caller that looks at the result need not ask.
        unsafe {
            let at = raw::buf_addr(m).add(start);
            std::hint::assert_unchecked(!at.is_null());
            Some(&mut *at.cast::<[u8; N]>())
        }
    }

    #[cold]
    fn reframe_chain<const N: usize>(&mut self, off: usize, length: usize) -> Option<&mut [u8; N]> {
        if !self.trim_front(off) || !self.truncate(length) {
            return None;
        }
        self.prepend(N)?.first_chunk_mut()
    }

    /// Adds `n` bytes behind the data of a packet of one segment and returns them, whatever they hold; `None` if there is
    /// no room.
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if self.segment_count() != 1 || self.tailroom() < n {
            return None;
        }
        let m = self.head();
        let before = raw::data_len(m);
        raw::set_data_len(m, before + n);
        raw::set_pkt_len(m, raw::pkt_len(m) + n);
        self.data_mut().get_mut(before..)
    }

    /// Where a single segment's data begins in its buffer, and how long it is. For receive queues: the device has
    /// written there, and what its last owner wished or was told of it is of another packet. False, and nothing changed, if that is not
    /// within the buffer or the packet has several segments.
    #[must_use]
    pub fn set_data(&mut self, offset: usize, length: usize) -> bool {
        let m = self.head();
        let inside = offset.checked_add(length).is_some_and(|end| end <= raw::buf_len(m));
        if self.segment_count() != 1 || !inside {
            return false;
        }
        raw::set_data_off(m, offset);
        raw::set_data_len(m, length);
        raw::set_pkt_len(m, length);
        raw::set_ol_flags(m, 0);
        true
    }

    /// A buffer as it came from its pool, of one segment, holds `length` bytes behind its headroom, of which nothing is told. False, and nothing
    /// changed, if they are not within the buffer.
    #[inline(always)]
    pub(super) fn set_received(&mut self, length: usize) -> bool {
        let m = self.head();
        let inside = HEADROOM + length <= raw::buf_len(m);
        if inside {
            raw::set_data_off(m, HEADROOM);
            raw::set_data_len(m, length);
            raw::set_pkt_len(m, length);
            raw::set_ol_flags(m, 0);
        }
        inside
    }

    /// Address of the first segment's buffer, and its length with headroom.
    #[must_use]
    pub fn buffer(&self) -> (u64, usize) {
        let m = self.head();
        (raw::buf_addr(m) as u64, raw::buf_len(m))
    }
}
