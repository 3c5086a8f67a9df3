//! Named barriers between a driver and a device that reads and writes memory by itself.
//!
//! x86 keeps stores in order, and loads, for devices too: only write-combining stores to a register need an instruction.
//! Arm keeps neither. Fences of the language order threads and say nothing of devices, so an architecture whose instructions are
//! not named here is not supported.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "the mlx5 driver knows the barriers of x86-64 and of 64-bit Arm; name those of this architecture here"
);

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::fence;

/// Between filling queue entries and the doorbell record that gives them to the device.
#[inline]
pub fn udma_to_device() {
    fence(Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction touches neither registers nor memory.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Between finding that the device has given an entry away and reading the rest of it.
#[inline]
pub fn udma_from_device() {
    fence(Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier instruction touches neither registers nor memory.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}

/// Between memory that the device must see first (doorbell records) and a store to a write-combining register.
#[inline]
pub fn mmio_wc_start() {
    store_fence();
}

/// After a store to a write-combining register: sends it now, and keeps it ahead of later ones.
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
