//! Command lines of the program that its start refuses, and what it prints then.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output};

fn program(arguments: &[&OsStr]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ipoib-fwd")).args(arguments).output().unwrap()
}

fn words(line: &str) -> Vec<&OsStr> {
    line.split(' ').map(OsStr::new).collect()
}

/// The lines of an error of the program, which it ends with.
fn refused(arguments: &[&OsStr]) -> String {
    let done = program(arguments);
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(done.stdout.is_empty(), "{}", String::from_utf8_lossy(&done.stdout));
    said
}

#[test]
fn an_argument_that_is_not_utf_8_is_refused_by_number() {
    let name = OsStr::from_bytes(b"/tmp/\xff.toml");
    let said = refused(&[words("-l 0-1 -- --config"), vec![name]].concat());
    assert!(said.contains(r#"argument 5, "/tmp/\xFF.toml", is not UTF-8"#), "{said}");
    let said = refused(&[words("init --output"), vec![name]].concat());
    assert!(said.contains("is not UTF-8") && said.contains("name another file after --output"), "{said}");
    assert!(!std::path::Path::new(name).exists());
}
