//! System call filters, applied in children of this test: other calls kill the process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::mpsc;

use privileges::{Call, Filter, Violation};

/// Task of a child process.
const TASK: &str = "PRIVILEGES_TEST_TASK";

macro_rules! calls {
    ($($name:ident)*) => {
        &[$(Call { name: stringify!($name), number: libc::$name, why: "a test" }),*]
    };
}

/// System calls of a standard library thread.
const RUN: &[Call] = calls![
    SYS_futex SYS_write SYS_munmap SYS_madvise SYS_brk SYS_sigaltstack SYS_rt_sigprocmask SYS_exit SYS_exit_group SYS_gettid
];
const MAP: &[Call] = calls![SYS_mmap SYS_mprotect];
const PARENT: &[Call] = calls![SYS_getppid];

fn child(task: &str) -> ExitStatus {
    let me = "a_call_that_is_not_on_the_list_ends_the_process";
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", me, "--test-threads=1"]).env(TASK, task).output().unwrap().status
}

/// Maps memory with this protection.
fn map(protection: libc::c_int) -> bool {
    // SAFETY: fresh memory at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    at != libc::MAP_FAILED
}

#[test]
fn a_call_that_is_not_on_the_list_ends_the_process() {
    let Ok(task) = std::env::var(TASK) else {
        for task in ["allowed", "logged", "data"] {
            assert!(child(task).success(), "{task}");
        }
        for task in ["call", "others", "code", "made-code", "narrower"] {
            assert_eq!(child(task).signal(), Some(libc::SIGSYS), "{task}");
        }
        return;
    };
    let filter = |lists: &[&[Call]], violation| Filter::new(lists, violation).unwrap();
    let plain = filter(&[RUN, MAP], Violation::Kill);
    // The process exits here if nothing kills it, because the test's normal exit needs other calls.
    match task.as_str() {
        "allowed" => {
            filter(&[RUN, MAP, PARENT], Violation::Kill).apply().unwrap();
            assert_ne!(std::os::unix::process::parent_id(), 0);
        }
        "call" => {
            plain.apply().unwrap();
            std::hint::black_box(std::os::unix::process::parent_id());
        }
        "logged" => {
            filter(&[RUN, MAP], Violation::Log).apply().unwrap();
            assert_ne!(std::os::unix::process::parent_id(), 0);
        }
        "others" => {
            // An existing thread.
            let (go, wait) = mpsc::channel::<()>();
            let other = std::thread::spawn(move || {
                wait.recv().unwrap();
                std::hint::black_box(std::os::unix::process::parent_id());
            });
            plain.apply_to_all().unwrap();
            go.send(()).unwrap();
            let _ = other.join();
        }
        "narrower" => {
            // A second filter restricts the first one and never extends it.
            let wide: &[Call] = calls![SYS_seccomp SYS_prctl];
            filter(&[RUN, MAP, wide], Violation::Kill).apply().unwrap();
            filter(&[RUN, MAP, PARENT], Violation::Kill).apply().unwrap();
            std::hint::black_box(std::os::unix::process::parent_id());
        }
        "data" => {
            plain.apply().unwrap();
            assert!(map(libc::PROT_READ | libc::PROT_WRITE));
        }
        "code" => {
            plain.apply().unwrap();
            map(libc::PROT_READ | libc::PROT_EXEC);
        }
        _ => {
            // SAFETY: a page that nothing else uses.
            unsafe {
                let at = libc::mmap(
                    std::ptr::null_mut(),
                    4096,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                plain.apply().unwrap();
                libc::mprotect(at, 4096, libc::PROT_READ | libc::PROT_EXEC);
            }
        }
    }
    // SAFETY: no preconditions.
    unsafe { libc::_exit(0) }
}
