//! Keys that are registered, used and invalidated repeatedly, without system calls and allocations. Driver
//! and device share one thread, so the device's part is covered too.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod allocations;
mod link;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use allocations::Counting;
use link::{Link, list};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One piece, a class of keys, the maximum of a work request, and more.
const PIECES: [usize; 4] = [1, 16, 52, 100];
const CYCLES: u64 = 1500;
/// Number of cycles until nothing grows any more: more than the number of tags of a key.
const WARM_UP: u64 = 300;

/// Work of a separate process between its preparation and its end.
const TRAPPED: &str = "STEADY_TEST_TRAPPED";

/// A link, with lists that are kept, so that a cycle creates nothing.
struct Run {
    link: Link,
    lists: [Option<pmd::mem::key::PageList>; PIECES.len()],
    number: u64,
}

impl Run {
    fn new() -> Self {
        let link = Link::new(&PIECES);
        let lists = PIECES.map(|pieces| Some(list(link.pool(), pieces)));
        let mut run = Self { link, lists, number: 0 };
        run.cycles(WARM_UP);
        run
    }

    fn cycles(&mut self, count: u64) {
        for _ in 0..count {
            for (pieces, list) in PIECES.into_iter().zip(&mut self.lists) {
                self.number += 1;
                *list = Some(self.link.cycle(list.take().unwrap(), pieces, self.number / 3));
            }
        }
    }
}

#[test]
fn cycles_allocate_nothing() {
    let mut run = Run::new();
    let (driver, devices) = (run.link.allocations(), run.link.allocations_by_devices());
    run.cycles(CYCLES);
    assert_eq!(run.link.allocations() - driver, 0, "by the driver");
    assert_eq!(run.link.allocations_by_devices() - devices, 0, "by the devices");
}

/// From here on this thread may only exit the process. Any other system call kills it.
fn trap() {
    let rules = [(libc::SYS_exit_group, Vec::new())].into_iter().collect();
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

/// Exits the process without output.
fn end() -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(0) }
}

/// Runs `what` of this test in a child process and returns its exit status.
fn child(test: &str, what: &str) -> ExitStatus {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["--exact", test]).env(TRAPPED, what).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

#[test]
fn cycles_make_no_system_call() {
    if std::env::var_os(TRAPPED).is_none() {
        let status = child("cycles_make_no_system_call", "cycles");
        return assert!(status.success(), "{status}; use strace to find the call");
    }
    let mut run = Run::new();
    trap();
    run.cycles(CYCLES);
    end();
}

#[test]
fn a_system_call_is_not_overlooked() {
    let Some(what) = std::env::var_os(TRAPPED) else {
        let ends = ["none", "call"].map(|what| child("a_system_call_is_not_overlooked", what));
        return assert_eq!(ends.map(|end| end.signal()), [None, Some(libc::SIGSYS)]);
    };
    trap();
    if what == "call" {
        std::hint::black_box(rustix::process::getppid());
    }
    end();
}
