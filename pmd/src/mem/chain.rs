//! Packets with several segments.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::ptr::NonNull;

use dpdk_sys as sys;

use super::mbuf::{Mbuf, raw};

/// Data of one segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'m> {
    /// The data.
    pub bytes: &'m [u8],
}

impl Segment<'_> {
    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}

/// Iterates over the segments of a chain.
#[derive(Clone, Debug)]
pub struct Segments<'m> {
    next: *mut sys::rte_mbuf,
    owner: PhantomData<&'m Mbuf>,
}

impl<'m> Iterator for Segments<'m> {
    type Item = Segment<'m>;

    fn next(&mut self) -> Option<Segment<'m>> {
        let m = self.next;
        if m.is_null() {
            return None;
        }
        self.next = raw::next(m);
        // SAFETY: the data lies within the segment's buffer; the chain is borrowed for 'm.
        let bytes =
            unsafe { std::slice::from_raw_parts(raw::buf_addr(m).add(raw::data_off(m)), raw::data_len(m)) };
        Some(Segment { bytes })
    }
}

impl Mbuf {
    /// Returns the segments in order.
    #[must_use]
    pub fn segments(&self) -> Segments<'_> {
        Segments { next: self.head(), owner: PhantomData }
    }

    /// Returns slices for writing the packet with one system call.
    pub fn io_slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        self.segments().map(|s| IoSlice::new(s.bytes))
    }

    /// Returns slices for reading into the packet with one system call.
    pub fn io_slices_mut(&mut self) -> impl Iterator<Item = IoSliceMut<'_>> {
        let head = self.head();
        let chain = std::iter::successors(NonNull::new(head), |m| NonNull::new(raw::next(m.as_ptr())));
        chain.map(|m| {
            let m = m.as_ptr();
            // SAFETY: the data lies within the segment's buffer. The packet is borrowed exclusively as long
            // as the slices live, and the segments of a chain do not overlap.
            let bytes = unsafe {
                std::slice::from_raw_parts_mut(raw::buf_addr(m).add(raw::data_off(m)), raw::data_len(m))
            };
            IoSliceMut::new(bytes)
        })
    }

    /// Appends another packet to this one.
    pub fn append_chain(&mut self, tail: Self) {
        let head = self.head();
        let mut last = head;
        while !raw::next(last).is_null() {
            last = raw::next(last);
        }
        raw::set_pkt_len(head, raw::pkt_len(head) + tail.len());
        raw::set_nb_segs(head, raw::nb_segs(head) + tail.segment_count());
        raw::set_next(last, tail.into_raw().as_ptr());
    }

    /// Truncates the packet to `length` bytes. Segments without data return to the pool. Returns false,
    /// without changes, if the packet is shorter.
    #[must_use]
    pub fn truncate(&mut self, length: usize) -> bool {
        let head = self.head();
        if length > self.len() {
            return false;
        }
        let (mut last, mut left, mut count) = (head, length, 1);
        while left > raw::data_len(last) {
            left -= raw::data_len(last);
            let next = raw::next(last);
            if next.is_null() {
                // The segment lengths are inconsistent. Keep the packet unchanged.
                return false;
            }
            last = next;
            count += 1;
        }
        raw::set_data_len(last, left);
        let rest = raw::next(last);
        raw::set_next(last, std::ptr::null_mut());
        raw::set_nb_segs(head, count);
        raw::set_pkt_len(head, length);
        if let Some(rest) = NonNull::new(rest) {
            // SAFETY: just unlinked, so that nobody else owns it.
            drop(unsafe { Self::from_raw(rest) });
        }
        true
    }

    /// Copies bytes from `offset` into `into`, as far as both reach. Returns the number of bytes.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let (mut skip, mut done) = (offset, 0);
        for segment in self.segments() {
            let Some(part) = segment.bytes.get(skip..) else {
                skip -= segment.bytes.len();
                continue;
            };
            skip = 0;
            let Some(room) = into.get_mut(done..) else { break };
            let n = part.len().min(room.len());
            if let (Some(to), Some(from)) = (room.get_mut(..n), part.get(..n)) {
                to.copy_from_slice(from);
            }
            done += n;
            if done == into.len() {
                break;
            }
        }
        done
    }
}
