//! DPDK processes that run, by the lock that EAL keeps on its shared configuration.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::files::Root;

/// A DPDK process with a shared configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DpdkProcess {
    /// Its `--file-prefix`.
    pub prefix: String,
    /// Its number, unless it is in another PID namespace.
    pub pid: Option<u32>,
    /// The name of its program.
    pub name: Option<String>,
}

/// The directory where EAL keeps its files while it runs, for this user and environment.
pub(super) fn runtime_directory() -> PathBuf {
    let parent = std::env::var_os("RUNTIME_DIRECTORY").unwrap_or_else(|| {
        if rustix::process::getuid().is_root() {
            "/var/run".into()
        } else {
            std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(|| "/tmp".into())
        }
    });
    Path::new(&parent).join("dpdk")
}

/// The processes whose files are in `directory`.
pub(super) fn read(directory: &Path) -> Vec<DpdkProcess> {
    let prefixes = Root::new(directory).entries("");
    prefixes.into_iter().filter_map(|prefix| holder(directory, prefix)).collect()
}

fn holder(directory: &Path, prefix: String) -> Option<DpdkProcess> {
    let file = directory.join(&prefix).join("config");
    if !file.symlink_metadata().is_ok_and(|about| about.is_file()) {
        return None;
    }
    let lock = fcntl_getlk(File::open(file).ok()?, &Flock::from(FlockType::WriteLock)).ok()??;
    let pid = lock.pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    let name = pid.and_then(|pid| Root::new(Path::new("/")).text(&format!("proc/{pid}/comm")));
    Some(DpdkProcess { prefix, pid, name })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// The file that a process of its own locks.
    const LOCKED: &str = "PREFLIGHT_LOCKED";

    #[test]
    fn a_prefix_is_taken_as_long_as_its_configuration_is_locked() {
        if let Some(path) = std::env::var_os(LOCKED) {
            let file = File::options().write(true).open(path).unwrap();
            rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
            println!("locked");
            // Until the other end is closed.
            let _ = std::io::stdin().read_line(&mut String::new());
            return;
        }
        let directory = std::env::temp_dir().join(format!("preflight-dpdk-{}", std::process::id()));
        for prefix in ["rte", "other"] {
            std::fs::create_dir_all(directory.join(prefix)).unwrap();
            std::fs::write(directory.join(prefix).join("config"), "x").unwrap();
        }
        std::fs::create_dir_all(directory.join("empty")).unwrap();
        assert_eq!(read(&directory), [], "nobody has a lock");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--nocapture",
                "--exact",
                "machine::dpdk::tests::a_prefix_is_taken_as_long_as_its_configuration_is_locked",
            ])
            .env(LOCKED, directory.join("rte/config"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("locked")));
        let found = read(&directory);
        drop(child.stdin.take());
        let pid = child.id();
        child.wait().unwrap();
        let name = found.first().and_then(|process| process.name.clone());
        assert_eq!(found, [DpdkProcess { prefix: "rte".to_owned(), pid: Some(pid), name: name.clone() }]);
        assert!(name.is_some_and(|name| name.starts_with("preflight")));
        assert_eq!(read(&directory), [], "its lock is gone with it");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
