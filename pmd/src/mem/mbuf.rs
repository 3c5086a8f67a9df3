//! A packet buffer or a chain of them, with one owner.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use dpdk_sys as sys;

use super::{FrameFacts, HEADROOM};

/// A packet: a chain of one or more segments. Dropping it returns it to its pool.
///
/// Every segment has its own buffer, with headroom and tailroom around its data. Lengths are in bytes.
#[repr(transparent)]
pub struct Mbuf(NonNull<sys::rte_mbuf>);

// SAFETY: an `Mbuf` is the only owner of its segments, and pools take buffers back from any thread.
unsafe impl Send for Mbuf {}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: `self` owns the chain, and nobody uses it after this.
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
        // SAFETY: the segment is valid and owned; the offset is that of a field of this type (offsets come
        // from DPDK's headers).
        unsafe { at.byte_add(sys::$offset as usize).cast::<$ty>().read() }
    }};
}

/// Writes a field of a segment.
macro_rules! set_field {
    ($raw:expr, $offset:ident, $ty:ty, $value:expr) => {{
        let at: *mut sys::rte_mbuf = $raw;
        // SAFETY: as for reading; the segment is owned exclusively.
        unsafe { at.byte_add(sys::$offset as usize).cast::<$ty>().write($value) }
    }};
}

/// Raw access to the fields of a segment.
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

/// A single-segment packet with its data range in registers.
///
/// The range is written back to the buffer only on conversion to an [`Mbuf`]. A packet that is sent returns
/// to its pool directly and never needs the write.
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
    /// Returns the data.
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

    /// Returns the buffer of a packet that is sent from its current location. The data range stored in the
    /// buffer stays outdated.
    #[inline(always)]
    pub(crate) fn into_sent(self) -> Mbuf {
        self.buf
    }

    /// Returns address and length of the data, or `None` if it is empty.
    #[inline(always)]
    #[must_use]
    pub(crate) fn piece(&self) -> Option<(u64, u32)> {
        (self.len > 0).then_some((self.data.as_ptr() as u64, self.len))
    }

    /// Removes `off` bytes from the front, truncates the rest to `length` bytes, and puts `header` in front,
    /// like [`Mbuf::reframe`].
    ///
    /// `header` must not be longer than `off`. Returns `None`, and frees the packet, if it is shorter.
    #[inline(always)]
    #[must_use]
    pub fn reframe<const N: usize>(self, off: usize, length: u16, header: [u8; N]) -> Option<Self> {
        let Self { buf, data, len } = self;
        let (front, length) = (off.checked_sub(N)?, usize::from(length));
        if (len as usize).checked_sub(off)? < length {
            return None;
        }
        // SAFETY: the data has `len` bytes, and `front + N`, which is `off`, is not greater; the buffer is
        // owned.
        let data = unsafe { data.add(front) };
        // SAFETY: as above.
        unsafe { data.cast::<[u8; N]>().write_unaligned(header) };
        Some(Self { buf, data, len: (N + length) as u32 })
    }
}

impl Mbuf {
    /// Converts the packet if it has one segment.
    #[inline(always)]
    pub fn single(self) -> Result<Single, Self> {
        let m = self.head();
        if raw::nb_segs(m) != 1 {
            return Err(self);
        }
        // SAFETY: the data lies within the segment's buffer, which is initialized memory that is owned here.
        let data = unsafe { NonNull::new_unchecked(raw::buf_addr(m).add(raw::data_off(m))) };
        let len = raw::data_len(m) as u32;
        Ok(Single { buf: self, data, len })
    }

    /// Takes ownership of a chain.
    ///
    /// # Safety
    ///
    /// `raw` is the head of a valid chain without another owner. Every segment is direct and has a reference
    /// count of 1.
    pub(crate) const unsafe fn from_raw(raw: NonNull<sys::rte_mbuf>) -> Self {
        Self(raw)
    }

    /// Gives up ownership of the chain, for a port's queue or a later [`Mbuf::from_raw`].
    pub(crate) fn into_raw(self) -> NonNull<sys::rte_mbuf> {
        ManuallyDrop::new(self).0
    }

    pub(super) const fn head(&self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    /// Returns many packets to their pools at once.
    ///
    /// Runs of single-segment packets of one pool go directly to the pool's cache. DPDK's own function would
    /// check each of them again.
    pub fn free_bulk<const N: usize>(batch: &mut arrayvec::ArrayVec<Self, N>) {
        let count = batch.len();
        let first = batch.as_mut_ptr().cast::<*mut sys::rte_mbuf>();
        // SAFETY: an `Mbuf` is a pointer to a chain. All are owned, and because the length is 0, nobody else
        // uses them after this.
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
                // SAFETY: the buffers belong to this pool and have one segment each. They are direct and have
                // one reference: drivers deliver them so, `Mbuf::from_raw` requires it, and nothing here
                // attaches a buffer to another or adds a reference.
                unsafe { sys::shim_mbuf_raw_free_bulk(pool, now.as_ptr(), run as u32) };
            } else {
                // SAFETY: a chain that was owned here.
                unsafe { sys::shim_mbuf_free(head) };
            }
        }
    }

    /// Total length of all segments in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        raw::pkt_len(self.head())
    }

    /// True if it contains no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of segments, at least 1.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        raw::nb_segs(self.head())
    }

    /// Returns the data of the first segment.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let m = self.head();
        // SAFETY: the data lies within the segment's buffer, which is initialized memory that is owned here.
        unsafe { std::slice::from_raw_parts(raw::buf_addr(m).add(raw::data_off(m)), raw::data_len(m)) }
    }

    /// Returns the data of the first segment, mutably.
    pub fn data_mut(&mut self) -> &mut [u8] {
        let m = self.head();
        // SAFETY: as for `data`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(raw::buf_addr(m).add(raw::data_off(m)), raw::data_len(m)) }
    }

    /// Headroom of the first segment in bytes.
    #[must_use]
    pub fn headroom(&self) -> usize {
        raw::data_off(self.head())
    }

    /// Tailroom of the first segment in bytes.
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let m = self.head();
        raw::buf_len(m).saturating_sub(raw::data_off(m) + raw::data_len(m))
    }

    /// Returns the `n` bytes directly in front of the data.
    #[must_use]
    pub fn before_data(&self, n: usize) -> Option<&[u8]> {
        let m = self.head();
        let offset = raw::data_off(m).checked_sub(n)?;
        // SAFETY: `offset` to `offset + n` lies within the buffer.
        Some(unsafe { std::slice::from_raw_parts(raw::buf_addr(m).add(offset), n) })
    }

    /// Extends the data by `n` bytes at the front and returns these bytes, with unspecified contents. Returns
    /// `None` if there is no room.
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        let m = self.head();
        let offset = raw::data_off(m).checked_sub(n)?;
        raw::set_data_off(m, offset);
        raw::set_data_len(m, raw::data_len(m) + n);
        raw::set_pkt_len(m, raw::pkt_len(m) + n);
        self.data_mut().get_mut(..n)
    }

    /// Removes `n` bytes from the front. Returns false, without changes, if the first segment is shorter.
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

    /// Removes `off` bytes from the front, truncates the rest to `length` bytes, and puts `N` bytes with
    /// unspecified contents in front.
    ///
    /// It combines [`Mbuf::trim_front`], [`Mbuf::truncate`] and [`Mbuf::prepend`]. Returns `None`, with the
    /// packet possibly partly changed, if it is shorter or there is no room.
    #[inline]
    pub fn reframe<const N: usize>(&mut self, off: usize, length: usize) -> Option<&mut [u8; N]> {
        let m = self.head();
        // The `next` pointer lies on the buffer's second cache line. Do not read it for a single segment.
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
        // SAFETY: the packet ends no later in its buffer than before and begins with these `N` bytes. The
        // buffer is owned and is initialized memory, and the borrow is exclusive. No buffer is at address 0,
        // so that callers need not check the result.
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

    /// Extends the data of a single-segment packet by `n` bytes at the end and returns these bytes,
    /// with unspecified contents. Returns `None` if there is no room.
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

    /// Sets the data range of a single-segment packet, for receive queues.
    ///
    /// The device has written the data, so the offload flags of the previous packet are cleared. Returns
    /// false, without changes, if the range exceeds the buffer or the packet has several segments.
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

    /// Sets a fresh single-segment buffer to `length` bytes after the headroom, without offload flags.
    /// Returns false, without changes, if they exceed the buffer.
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

    /// Returns address and length of the first segment's buffer, including headroom.
    #[must_use]
    pub fn buffer(&self) -> (u64, usize) {
        let m = self.head();
        (raw::buf_addr(m) as u64, raw::buf_len(m))
    }
}
