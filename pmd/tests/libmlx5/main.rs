//! The real libibverbs and libmlx5, unmodified, in front of a kernel that the tests play; behind it, on the rings that the library
//! allocates, the engine of the software ConnectX. A program of its own: its `open`, `ioctl` and `mmap` are not libc's.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

// The conformance suite, which is a program of its own, on these devices.
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
