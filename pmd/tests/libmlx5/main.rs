//! The real, unmodified libibverbs and libmlx5 on a fake kernel.
//!
//! Behind it, on the rings that the library allocates, is the engine of the software ConnectX. A separate
//! program, because its `open`, `ioctl` and `mmap` are not libc's.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

// The conformance suite, otherwise a separate program, on these devices.
#[path = "../conformance/bench.rs"]
mod bench;
#[path = "../conformance/checks/mod.rs"]
mod checks;
mod conformance;
mod fakekernel;
mod faults;
mod keys;
#[path = "../conformance/lab.rs"]
mod lab;
mod rig;
mod rings;
mod traffic;
