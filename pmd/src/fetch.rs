//! Hints to the processor: what will be touched soon, and lies in no near cache.
//!
//! Whoever goes over many packets looks ahead: it asks for what each of them needs first, and then does its work, by which time much has
//! come. A hint changes nothing but the time, and one that is not followed costs an instruction.

/// Has the processor fetch the first cache line of a value.
#[inline(always)]
pub fn fetch<T>(value: &T) {
    fetch_at(&raw const *value);
}

/// Has it fetch the cache line at an address, whatever lies there.
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
