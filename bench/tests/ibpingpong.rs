//! Two of the program play with each other, over a pair of Ethernet interfaces in a network namespace of their own.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test")]
use std::process::Command;

/// Both sides, the server first; `$1` is the program, `$2` the words of both, `$3` what is behind the client's link.
const GAME: &str = r#"
set -e
ip link set lo up
ip link add p0 type veth peer name p1
for i in 0 1; do
    sysctl -qw net.ipv6.conf.p$i.disable_ipv6=1
    ip link set p$i mtu 4500 up
done
"$1" $2 --link roce:p0 --address 10.9.0.1 --echo >/dev/null &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
for i in $(seq 1200); do
    ss -Hltn 'sport = :18515' | grep -q . && break
    sleep 0.05
done
"$1" $2 --link "roce:p1$3" --address 10.9.0.2 127.0.0.1
wait $server
"#;

/// What the client printed; `None` if there may be no namespaces here.
fn game(words: &str, faults: &str) -> Option<String> {
    let sandbox = Command::new("unshare").args(["-n", "true"]).status();
    if !sandbox.is_ok_and(|status| status.success()) {
        println!("skipped: cannot make a network namespace");
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
        // The connections of a shared queue go on until all of them together have had enough.
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
