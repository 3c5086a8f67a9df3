//! Privileges of a multithreaded process, given up in children of this test, cannot be regained.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};
use std::sync::mpsc;

use privileges::{
    CapabilitySet, Cores, GroupId, Keep, PrivilegeError, UserId, leave_out_of_cores, own_threads, set_cores,
};

/// Task of a child process.
const TASK: &str = "PRIVILEGES_TEST_TASK";
const NOBODY: UserId = UserId(65_534);

fn child(test: &str, task: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", test, "--nocapture", "--test-threads=1"];
    Command::new(program).args(arguments).env(TASK, task).output().unwrap()
}

/// Runs a task in a child. Returns false without the required permission.
fn passes(test: &str, task: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not root");
        return false;
    }
    let output = child(test, task);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{task}: {said}");
    true
}

/// Starts threads that wait in a system call, in a loop and for a lock, until the process exits.
fn bystanders() {
    let (ready, all) = mpsc::channel();
    for kind in 0..3 {
        let ready = ready.clone();
        std::thread::spawn(move || {
            ready.send(()).unwrap();
            match kind {
                0 => drop(std::os::unix::net::UnixListener::bind_addr(&abstract_name()).unwrap().accept()),
                1 => loop {
                    std::hint::spin_loop();
                },
                _ => std::thread::park(),
            }
        });
    }
    for _ in 0..3 {
        all.recv().unwrap();
    }
}

fn abstract_name() -> std::os::unix::net::SocketAddr {
    use std::os::linux::net::SocketAddrExt as _;
    let name = format!("privileges-test-{}", std::process::id());
    std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap()
}

/// Returns the values of a field in every thread's status, with the number of threads.
fn field(name: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        *found.entry(words.join(" ")).or_default() += 1;
    }
    found
}

fn only(name: &str) -> String {
    let found = field(name);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found.into_keys().next().unwrap()
}

#[test]
fn no_thread_keeps_what_is_not_on_its_list() {
    let me = "no_thread_keeps_what_is_not_on_its_list";
    let Ok(task) = std::env::var(TASK) else {
        for task in ["none", "raw", "nobody"] {
            passes(me, task);
        }
        return;
    };
    bystanders();
    let threads = own_threads().unwrap().len();
    assert!(
        threads >= 4 && own_threads().unwrap().iter().all(|t| t.permitted.contains(CapabilitySet::NET_RAW))
    );
    let kept = if task == "none" { CapabilitySet::empty() } else { CapabilitySet::NET_RAW };
    let (user, group) = if task == "nobody" { (Some(NOBODY), Some(GroupId(65_533))) } else { (None, None) };
    Keep { capabilities: kept, user, group }.in_all_threads().unwrap();

    let mut by_count: Vec<_> = field("CapPrm").into_iter().map(|(set, count)| (count, set)).collect();
    by_count.sort();
    let none = (threads - 1, format!("{:016x}", 0));
    if kept.is_empty() {
        assert_eq!(by_count, [(threads, none.1)]);
    } else {
        assert_eq!(by_count, [(1, format!("{:016x}", kept.bits())), none]);
    }
    assert_eq!(field("CapEff"), field("CapPrm"));
    for (name, value) in [("CapInh", 0), ("CapBnd", 0), ("CapAmb", 0)] {
        assert_eq!(only(name), format!("{value:016x}"), "{name}");
    }
    assert_eq!(only("NoNewPrivs"), "1");
    if task == "nobody" {
        assert_eq!(only("Uid"), "65534 65534 65534 65534");
        assert_eq!(only("Gid"), "65533 65533 65533 65533");
        assert_eq!(only("Groups"), "");
        // The privileges cannot be regained.
        assert!(rustix::thread::set_thread_uid(rustix::process::Uid::ROOT).is_err());
        fs::write("/proc/1/oom_score_adj", "0").unwrap_err();
    }
    // A new thread has no more than its creator, and an executed program has none.
    let of_program = Command::new("/bin/grep").args(["CapEff", "/proc/self/status"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&of_program.stdout).trim(), format!("CapEff:\t{:016x}", 0));
    Keep { capabilities: CapabilitySet::all(), user: None, group: None }.in_all_threads().unwrap();
    assert!(
        own_threads().unwrap().iter().all(|t| kept.contains(t.permitted)),
        "requesting more grants no more"
    );
}

#[test]
fn a_thread_that_does_not_answer_is_an_error() {
    let me = "a_thread_that_does_not_answer_is_an_error";
    if std::env::var_os(TASK).is_none() {
        passes(me, "deaf");
        return;
    }
    let (ready, blocked) = mpsc::channel();
    std::thread::spawn(move || {
        // SAFETY: a set of signals on this stack.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        }
        ready.send(()).unwrap();
        std::thread::park();
    });
    blocked.recv().unwrap();
    let keep = Keep { capabilities: CapabilitySet::empty(), user: None, group: None };
    assert!(matches!(keep.in_all_threads(), Err(PrivilegeError::Silent { .. })));
}

#[test]
fn a_process_that_cannot_see_its_threads_does_not_go_on() {
    let me = "a_process_that_cannot_see_its_threads_does_not_go_on";
    if std::env::var_os(TASK).is_none() {
        passes(me, "blind");
        return;
    }
    bystanders();
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // No descriptor is left for reading a directory.
    let none = rustix::process::Rlimit { current: Some(0), ..before };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
    let keep = Keep { capabilities: CapabilitySet::empty(), user: None, group: None };
    let (dropped, seen) = (keep.in_all_threads(), own_threads());
    rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
    assert!(matches!(dropped, Err(PrivilegeError::Unknown { .. })), "{dropped:?}");
    assert!(matches!(seen, Err(PrivilegeError::Unknown { .. })), "{seen:?}");
}

#[test]
fn a_core_dump_is_what_was_said() {
    let me = "a_core_dump_is_what_was_said";
    let Ok(task) = std::env::var(TASK) else {
        for task in ["none", "lean"] {
            let program = std::env::current_exe().unwrap();
            let output =
                Command::new(program).args(["--exact", me, "--nocapture"]).env(TASK, task).output().unwrap();
            assert!(output.status.success(), "{task}: {}", String::from_utf8_lossy(&output.stdout));
        }
        passes(me, "lean as nobody");
        return;
    };
    if task == "none" {
        set_cores(Cores::None).unwrap();
        let behaviour = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(behaviour, rustix::process::DumpableBehavior::NotDumpable);
    } else {
        leave_out_of_cores(Cores::Lean).unwrap();
        if task == "lean as nobody" {
            let (user, group) = (Some(NOBODY), Some(GroupId(65_533)));
            Keep { capabilities: CapabilitySet::empty(), user, group }.in_all_threads().unwrap();
        }
        set_cores(Cores::Lean).unwrap();
        let behaviour = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(behaviour, rustix::process::DumpableBehavior::Dumpable);
        let filter = fs::read_to_string("/proc/self/coredump_filter").unwrap();
        assert_eq!(u32::from_str_radix(filter.trim(), 16).unwrap(), 0x11);
    }
}
