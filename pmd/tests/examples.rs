//! The examples of this crate run as documented.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;
use std::process::Command;

/// Returns the path of an example, which is built with the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name)
}

fn lines_of(name: &str, arguments: &str) -> Vec<String> {
    let output = Command::new(example(name)).args(arguments.split_whitespace()).output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {arguments}: {}\n{out}\n{error}", output.status);
    out.lines().map(str::to_owned).collect()
}

#[test]
fn frames_are_forwarded_between_two_ports() {
    let eal = "--no-huge --no-shconf --no-pci -m 64 --no-telemetry --log-level=error --lcores 0@0,1@0 --vdev net_null0 --vdev net_null1";
    let lines = lines_of("forward", &format!("{eal} -- net_null0 net_null1 1000"));
    assert_eq!(lines.len(), 3, "{lines:?}");
    // A burst may exceed the requested number.
    let words: Vec<&str> = lines[0].split_whitespace().collect();
    let ["lcore", "1:", forwarded, "forwarded,", "0", "dropped"] = words[..] else { panic!("{lines:?}") };
    let forwarded: u64 = forwarded.parse().unwrap();
    assert!((1000..1200).contains(&forwarded), "{lines:?}");
    let sent = |line: &str| line.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap();
    assert_eq!(sent(&lines[1]) + sent(&lines[2]), forwarded, "{lines:?}");
}

#[test]
fn a_message_passes_between_two_software_adapters() {
    let lines = lines_of("send", "seventeen-letters");
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with("received 17 bytes: seventeen-letters"), "{lines:?}");
    assert_eq!(lines[1], "0 buffers are in use at the end");
}

#[test]
fn wrong_arguments_are_answered_with_the_right_ones() {
    let output = Command::new(example("forward")).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("usage: forward EAL-ARGUMENTS -- PORT PORT [FRAMES]"), "{error}");
}
