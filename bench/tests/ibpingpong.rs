//! Two instances of the program, over a pair of Ethernet interfaces in their own network namespace.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pmd::gids::SharedGids;

/// Runs both sides, the server first; `$1` is the program, `$2` the arguments of both, `$3` further
/// parameters of the client's link.
const GAME: &str = r#"
set -e
ip link set lo up
ip link add p0 type veth peer name p1
for i in 0 1; do
    sysctl -qw net.ipv6.conf.p$i.disable_ipv6=1
    ip link set p$i mtu 4500 up
done
"$1" $2 --patience 600 --link roce:p0 --address 10.9.0.1 --echo >/dev/null &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
for i in $(seq 2400); do
    ss -Hltn 'sport = :18515' | grep -q . && break
    sleep 0.05
done
"$1" $2 --patience 600 --link "roce:p1$3" --address 10.9.0.2 127.0.0.1
wait $server
"#;

fn may_have_namespaces() -> bool {
    let sandbox = Command::new("unshare").args(["-n", "true"]).status();
    let may = sandbox.is_ok_and(|status| status.success());
    if !may {
        eprintln!("skipped: cannot make a network namespace");
    }
    may
}

/// Returns the client's output; `None` without permission to create namespaces.
fn game(words: &str, faults: &str) -> Option<String> {
    if !may_have_namespaces() {
        return None;
    }
    let output = Command::new("unshare")
        .args(["-n", "bash", "-c", GAME, "game", env!("CARGO_BIN_EXE_ibpingpong"), words, faults])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

fn compared(text: &str) -> u64 {
    let line = text.lines().find(|line| line.contains("compared byte for byte")).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn every_message_comes_back() {
    for (words, messages) in [
        ("rc -s 65536 -n 20 -g 0 -m 4096", 20),
        ("rc -s 1 -n 50 -g 1", 50),
        ("srq -s 3000 -n 100 -g 1 -q 5", 100),
        ("ud -s 4096 -n 50 -g 1", 50),
        ("ud -s 64 -n 50 -g 0", 50),
    ] {
        let Some(text) = game(&format!("{words} --linger 50"), "") else { return };
        // The connections of a shared queue run until their total is reached.
        assert!(compared(&text) >= messages, "{words}: {text}");
    }
}

#[test]
fn a_bad_wire_costs_time_only() {
    let words = "rc -s 20000 -n 60 -g 1";
    let Some(text) = game(words, "?loss=0.02&corrupt=0.02&duplicate=0.02&reorder=0.02&seed=3") else {
        return;
    };
    assert_eq!(compared(&text), 60);
    assert!(text.contains("retransmitted") && text.contains("icrc"), "{text}");
}

/// As [`GAME`], with the addresses at the kernel's interfaces, `$4` a program that serves GID tables in `$5`.
const SERVED: &str = r#"
set -e
ip link set lo up
ip link add p0 type veth peer name p1
for i in 0 1; do
    sysctl -qw net.ipv6.conf.p$i.disable_ipv6=1
    ip addr add 10.9.0.$((i + 1))/24 dev p$i
    ip link set p$i mtu 4500 up
done
SERVE="$5" "$4" --exact gids_come_from_a_service --nocapture &
service=$!
trap 'kill $service $server 2>/dev/null || true' EXIT
AWAIT="$5" "$4" --exact gids_come_from_a_service
"$1" $2 --patience 600 --link roce:p0 --gids-from "$5" --echo >/dev/null &
server=$!
for i in $(seq 2400); do
    ss -Hltn 'sport = :18515' | grep -q . && break
    sleep 0.05
done
"$1" $2 --patience 600 --link roce:p1 --gids-from "$5" 127.0.0.1
wait $server
"#;

#[test]
fn gids_come_from_a_service() {
    if let Some(directory) = std::env::var_os("SERVE") {
        let roce = vec!["p0".to_owned(), "p1".to_owned()];
        let options = ipoib_fwd::gids::serve::ServeOptions { serve: true, roce, dir: Some(directory.into()) };
        return ipoib_fwd::gids::serve::run(&options).unwrap();
    }
    if let Some(directory) = std::env::var_os("AWAIT") {
        return ["roce:p0", "roce:p1"].iter().for_each(|name| await_gids(&Path::new(&directory).join(name)));
    }
    let directory = std::env::temp_dir().join(format!("ibpingpong-gids-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let service = std::env::current_exe().unwrap();
    for words in ["rc -s 65536 -n 20 -g 1 -m 4096 --linger 50", "ud -s 64 -n 50 -g 0 --linger 50"] {
        let Some(text) = served_game(words, &service, &directory) else { return };
        assert!(compared(&text) >= 20, "{words}: {text}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Waits until a served table has its first two entries.
fn await_gids(table: &Path) {
    let end = Instant::now() + Duration::from_secs(120);
    let has_two = || {
        let mut entries = Vec::new();
        let read = SharedGids::open(table).map(|shared| shared.reader().entries(&mut entries).is_ok());
        read.is_ok_and(|read| read && [0, 1].iter().all(|at| entries.iter().any(|entry| entry.index == *at)))
    };
    while !has_two() {
        assert!(Instant::now() < end, "{} is not served", table.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn served_game(words: &str, service: &Path, directory: &Path) -> Option<String> {
    if !may_have_namespaces() {
        return None;
    }
    let output = Command::new("unshare")
        .args(["-n", "bash", "-c", SERVED, "game", env!("CARGO_BIN_EXE_ibpingpong"), words, ""])
        .args([service, directory])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{words}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}
