//! Named barriers between the driver and a device that accesses memory by DMA.
//!
//! On x86, stores stay in order and loads stay in order, for devices too. Only write-combining stores to a
//! register need an instruction. Arm guarantees neither order. Language fences order threads and do not cover
//! devices. An architecture without an implementation in this module is therefore not supported.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "the mlx5 driver has barriers for x86-64 and 64-bit Arm only; add those of this architecture here"
);

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::fence;

/// Orders filled queue entries before the doorbell record that hands them to the device.
#[inline]
pub fn udma_to_device() {
    fence(Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction touches neither registers nor memory.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Orders the read of an entry's ownership bit before reads of the rest of the entry.
#[inline]
pub fn udma_from_device() {
    fence(Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction touches neither registers nor memory.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Orders memory that the device must see first (doorbell records) before a store to a write-combining
/// register.
#[inline]
pub fn mmio_wc_start() {
    store_fence();
}

/// Flushes a store to a write-combining register and orders it before later stores.
#[inline]
pub fn mmio_flush_writes() {
    store_fence();
}

#[inline]
fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE, and the instruction only orders stores.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction touches neither registers nor memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}
