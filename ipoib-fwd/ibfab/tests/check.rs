//! `ibfab --check` finds errors that prevent a start, with the same messages, and starts nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory with a configuration; removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ibfab-check-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.0.join("fabric.toml");
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs ibfab with these arguments before `--config FILE`, and these after it.
fn ibfab(before: &[&str], file: &Path, behind: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ibfab"));
    command.args(before).arg("--config").arg(file).args(behind).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_valid_configuration_passes_and_nothing_is_started() {
    let folder = Folder::new("right");
    let socket = folder.0.join("link.sock");
    let file = folder.file(&format!("[[link]]\nname = \"x\"\nurl = \"shm:{}\"\n", socket.display()));
    let done = ibfab(&["-l", "0-1", "--no-huge", "--"], &file, &["--check"]);
    assert_eq!((done.status.code(), text(&done.stderr).as_str()), (Some(0), ""));
    assert_eq!(text(&done.stdout), "ibfab: 0 errors, 0 warnings\n");
    assert!(!socket.exists());
}

#[test]
fn warnings_are_printed_and_have_an_exit_code_of_their_own() {
    let folder = Folder::new("warnings");
    let host = "[[host]]\nname = \"h\"\ntun = \"ib0\"\naddress = \"10.0.0.1/24\"\ngrh_required = true\n";
    let done = ibfab(&[], &folder.file(host), &["--check"]);
    let out = text(&done.stdout);
    assert_eq!(done.status.code(), Some(3), "{out}");
    assert!(out.starts_with("warning: no port can send to host h:"), "{out}");
    assert!(out.ends_with("ibfab: 0 errors, 1 warning\n"), "{out}");
    let done = ibfab(&[], &folder.file("[fabric]\nhop_limit = 1\n"), &["--check", "--sm", "none"]);
    assert!(text(&done.stdout).contains("--sm none"), "{done:?}");
}

#[test]
fn an_error_is_the_same_as_at_the_start() {
    let folder = Folder::new("errors");
    let file = folder.file("[[link]]\nname = \"x\"\nulr = \"y\"\n");
    let cases: [(&[&str], &str); 2] = [(&[], "ulr"), (&["links", "--"], "`links` is neither an option")];
    for (before, expected) in cases {
        let [check, start] = [&["--check"][..], &[]].map(|behind| ibfab(before, &file, behind));
        let said = text(&check.stderr);
        assert!(said.contains(expected), "{said}");
        assert_eq!((check.status.code(), said), (Some(1), text(&start.stderr)));
        assert_eq!((start.status.code(), text(&check.stdout).as_str()), (Some(1), ""));
    }
    // Among its own options, too.
    let done = ibfab(&[], &file, &["--check", "links"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("'links'"));
}
