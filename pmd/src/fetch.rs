//! Software prefetch of data that is needed soon and is not in a near cache.
//!
//! A loop over many packets first prefetches the data that each of them needs and then processes them. By
//! then most of the data has arrived. A prefetch changes only the timing; an unneeded one costs one
//! instruction.

/// Prefetches the first cache line of a value.
#[inline(always)]
pub fn fetch<T>(value: &T) {
    fetch_at(&raw const *value);
}

/// Prefetches the cache line at an address, which may be invalid.
#[inline(always)]
pub fn fetch_at<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint reads nothing that the program sees, and faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
