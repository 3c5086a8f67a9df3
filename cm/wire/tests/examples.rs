//! The example of this crate reads the captures of the tests.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};

/// The example, which is built with the tests.
fn decode(path: &str) -> Output {
    let test = std::env::current_exe().unwrap();
    let example = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples/decode");
    Command::new(example).arg(path).output().unwrap()
}

#[test]
fn a_capture_is_decoded() {
    let output = decode(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/generated-packets.erf.pcap"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 18);
    assert!(lines.iter().all(|line| line.contains("  LID ") && line.contains("  PSN ")), "{text}");
    // The last packet has wrong CRCs on purpose.
    let wrong: Vec<bool> = lines.iter().map(|line| line.ends_with("wrong ICRC")).collect();
    assert_eq!(wrong.iter().position(|wrong| *wrong), Some(17), "{text}");
}

#[test]
fn other_files_are_refused_by_name() {
    let other = decode(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/soft-roce-pingpong-ipv4.pcap"));
    assert!(!other.status.success());
    assert!(String::from_utf8_lossy(&other.stderr).contains("link type 1"), "{other:?}");
    let none = decode(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    assert!(String::from_utf8_lossy(&none.stderr).contains("not a pcap file"), "{none:?}");
}
