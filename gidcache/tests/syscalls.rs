//! Checks with strace that lookups make no system calls. Prints a message if strace is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::process::Command;

use gidcache::{DeviceTable, NoProvider, PortKind, PortSetup, Query, Slot};
use ib_wire::{Gid, Guid, PortNumber};

const TRACED: &str = "GIDCACHE_TEST_TRACED";
const PORT: PortNumber = PortNumber(1);
/// Files that do not exist. Opening them marks the trace.
const BEGIN: &str = "/lookups-begin";
const END: &str = "/lookups-end";
const ROUNDS: u64 = 20_000;

#[test]
fn lookups_make_no_system_call() {
    if std::env::var_os(TRACED).is_some() {
        return lookups();
    }
    let trace = std::env::temp_dir().join(format!("gidcache-trace-{}", std::process::id()));
    let output = Command::new("strace")
        .args(["-f", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "lookups_make_no_system_call"])
        .env(TRACED, "1")
        .output();
    let text = std::fs::read_to_string(&trace).unwrap_or_default();
    let _ = std::fs::remove_file(&trace);
    let Ok(output) = output.map_err(|_| eprintln!("skipped: there is no strace")) else { return };
    if text.is_empty() {
        eprintln!("skipped: strace may not trace: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    assert!(output.status.success());
    // Each line starts with the thread.
    let begin = text.lines().position(|line| line.contains(BEGIN)).expect("the trace has the beginning");
    let thread = text.lines().nth(begin).unwrap().split_whitespace().next();
    let mine: Vec<&str> = text
        .lines()
        .skip(begin + 1)
        .filter(|line| line.split_whitespace().next() == thread)
        .take_while(|line| !line.contains(END))
        .collect();
    assert!(text.contains(END));
    assert_eq!(mine, Vec::<&str>::new());
    println!("no system call in {} lookups", 4 * ROUNDS);
}

fn lookups() {
    let gids: Vec<Gid> = (1..=256).map(|id| Gid::new(1 << 60, Guid(id))).collect();
    let setup = PortSetup { number: PORT, len: 256, kind: PortKind::InfiniBand };
    let table = DeviceTable::new(&[setup], NoProvider, 3).unwrap();
    table.set_infiniband(PORT, &gids).unwrap();
    let reader = table.reader().unwrap();
    assert!(!std::fs::exists(BEGIN).unwrap());
    for round in 0..ROUNDS {
        let gid = gids[(round % 256) as usize];
        let found = reader.find(&Query::new(gid)).unwrap().unwrap();
        assert!(reader.find(&Query::new(Gid::new(2 << 60, Guid(round)))).unwrap().is_none());
        assert_eq!(reader.slot(PORT, found.index).unwrap(), Some(Slot::Valid(found)));
        assert!(reader.has(&found).unwrap());
    }
    assert!(!std::fs::exists(END).unwrap());
}
