//! A counting allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system allocator with a per-thread count of allocations.
pub(crate) struct Counting;

fn count() {
    COUNT.with(|count| count.set(count.get() + 1));
}

/// Returns the number of allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    COUNT.with(Cell::get)
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: by the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: by the contract of this function.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: by the contract of this function.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the contract of this function.
        unsafe { System.dealloc(at, layout) }
    }
}

#[test]
fn an_allocation_is_counted() {
    let before = allocations();
    let boxed = std::hint::black_box(Box::new(1_u64));
    assert_eq!((allocations() - before, *boxed), (1, 1));
}
