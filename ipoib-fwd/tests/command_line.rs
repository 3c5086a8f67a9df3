//! Command lines of the program that its start refuses, and what it prints then.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
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

/// A configuration that is right, for an EAL without hugepages and files.
struct Configuration(PathBuf);

impl Configuration {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("command-line-{name}-{}.toml", std::process::id()));
        let text =
            "[gateway]\ncontrol-socket = \"\"\n[infiniband.soft]\nports = [{ link = \"shm:/no/socket\" }]\n";
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    /// The program with these arguments for EAL.
    fn start(&self, eal: &str) -> Output {
        let path = self.0.to_str().unwrap();
        program(&words(&format!("--no-huge --no-pci --vdev net_null0 {eal} -- --config {path}")))
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn an_option_that_eal_does_not_know_is_an_error_of_one_line() {
    let done = Configuration::new("unknown").start("--no-shconfg");
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!((done.status.code(), said.lines().count(), done.stdout.len()), (Some(1), 1, 0), "{said}");
    assert!(said.contains("EAL has no option --no-shconfg; did you mean --no-shconf?"), "{said}");
}

/// No option of the installed EAL is refused.
#[test]
fn the_table_has_each_option_that_eal_prints() {
    let configuration = Configuration::new("known");
    let usage = String::from_utf8(configuration.start("-l 0-1 --help").stdout).unwrap();
    let mut options: Vec<&str> = usage
        .lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| line.starts_with('-')))
        .flat_map(|line| line.split_whitespace().take_while(|word| word.starts_with('-')))
        .filter_map(|word| word.split(['=', ',', '[']).next())
        .collect();
    options.dedup();
    assert!(options.len() > 40 && options.contains(&"--file-prefix") && options.contains(&"-S"), "{usage}");
    for option in options {
        let value = match option {
            "-h" | "-v" => "",
            long if long.starts_with("--") => "=1",
            _ => "1",
        };
        let line = format!("-n 4 {option}{value} -- --check --json --config {}", configuration.0.display());
        let said = String::from_utf8(program(&words(&line)).stdout).unwrap();
        assert!(!said.contains("EAL has no option") && said.contains("findings"), "{option}: {said}");
    }
}
