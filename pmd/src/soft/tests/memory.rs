//! Host memory.

use std::ptr::NonNull;

use connectx::HostMemory;

/// Host memory, never accessed through references.
pub(super) struct Memory {
    base: NonNull<u8>,
    words: usize,
}

impl Memory {
    pub(super) fn new(len: usize) -> Self {
        let words = len.div_ceil(64) * 8;
        let words_box: Box<[u64]> = vec![0u64; words].into_boxed_slice();
        let base = NonNull::new(Box::into_raw(words_box).cast::<u8>()).unwrap();
        Self { base, words }
    }

    pub(super) fn host(&self) -> HostMemory {
        // SAFETY: freed only on drop, and the tests drop it after the device.
        unsafe { HostMemory::new(self.base, self.words * 8) }
    }

    pub(super) fn part(&self, at: usize, len: usize) -> HostMemory {
        self.host().part(at, len).unwrap()
    }

    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(self.part(at, bytes.len()).write(bytes));
    }

    pub(super) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        assert!(self.part(at, len).read(&mut out));
        out
    }

    pub(super) fn address(&self) -> u64 {
        self.host().address()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr().cast::<u64>(), self.words);
        // SAFETY: made by `Box::into_raw` with this length.
        drop(unsafe { Box::from_raw(slice) });
    }
}
