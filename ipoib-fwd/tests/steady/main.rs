//! The worker's loop with packets in every iteration makes no allocation and no system call. It is tested in
//! both directions, on connections and with datagrams, on the mlx5 driver. EAL starts only once per process,
//! and a system call kills the process, so each run has a separate process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "../../../pmd/tests/steady/allocations.rs"]
mod allocations;
mod packets;
mod rig;

use std::cell::Cell;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

use privileges::{Call, Filter, Violation};

use allocations::{Counting, allocations};
use rig::{CASES, Case, Outcome, TURNS, forward};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Environment variable with the name of the child process's case.
const CASE: &str = "STEADY_TEST_CASE";
/// Environment variable that adds a system call to the loop, to show that it is detected.
const BROKEN: &str = "STEADY_TEST_BROKEN";

/// The case of this process, if it is a child.
fn own_case() -> Option<Case> {
    let name = std::env::var(CASE).ok()?;
    CASES.into_iter().find(|(known, _)| *known == name).map(|(_, case)| case)
}

/// Runs a case in a child process, and returns its exit status and output.
fn child(test: &str, case: &str, broken: bool) -> (ExitStatus, String) {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CASE, case);
    if broken {
        program.env(BROKEN, "1");
    }
    let output = program.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status, said.into_owned())
}

fn check(outcome: &Outcome) {
    // Every iteration had a burst or a part of one.
    assert!(outcome.busy_turns >= TURNS && outcome.packets >= TURNS, "{} iterations", outcome.busy_turns);
    println!("{} packets in {} busy iterations", outcome.packets, outcome.busy_turns);
}

/// From here on this thread may only exit its process.
fn trap() {
    let end = Call { name: "SYS_exit_group", number: libc::SYS_exit_group, why: "the end" };
    Filter::new(&[&[end]], Violation::Kill).unwrap().apply().unwrap();
}

/// Exits the process immediately.
fn end() -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(0) }
}

#[test]
fn forwarding_allocates_nothing() {
    let me = "forwarding_allocates_nothing";
    let Some(case) = own_case() else {
        for (name, _) in CASES {
            let (status, said) = child(me, name, false);
            assert!(status.success(), "{name}: {said}");
        }
        return;
    };
    let (before, after) = (Cell::new(0), Cell::new(0));
    let outcome = forward(case, || before.set(allocations()), || after.set(allocations()));
    assert_eq!(after.get() - before.get(), 0, "allocations");
    check(&outcome);
}

#[test]
fn forwarding_makes_no_system_call() {
    let me = "forwarding_makes_no_system_call";
    let Some(case) = own_case() else {
        for (name, _) in CASES {
            let (status, said) = child(me, name, false);
            assert!(status.success(), "{name}: {status}; strace shows the call; {said}");
            let (status, said) = child(me, name, true);
            assert_eq!(status.signal(), Some(libc::SIGSYS), "{name}: the call was not detected: {said}");
        }
        return;
    };
    let begin = || {
        trap();
        if std::env::var_os(BROKEN).is_some() {
            std::hint::black_box(std::os::unix::process::parent_id());
        }
    };
    forward(case, begin, || end());
}
