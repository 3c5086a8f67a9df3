//! Bounded, non-blocking reads of kernel files, whose contents are not trusted.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

/// Maximum bytes read from a file; files of `sys` have at most a page.
const MOST: u64 = 1 << 20;
const MOST_OF_SYS: u64 = 4096;
/// Maximum entries read from a directory.
const MOST_ENTRIES: usize = 4096;

/// The directory with `proc` and `sys`.
#[derive(Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// A file's text without surrounding white space; `None` if it is not a regular file or cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        // Opening a FIFO does not block; its type is checked afterwards.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = std::fs::File::from(open(self.0.join(path), flags, Mode::empty()).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        let most = if path.starts_with("sys/") { MOST_OF_SYS } else { MOST };
        file.take(most).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A decimal number.
    pub(super) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Names in a directory, sorted.
    pub(super) fn entries(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.take(MOST_ENTRIES).filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The last component of a symbolic link's target.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.0.join(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// The last PCI device in a path.
    pub(super) fn pci_address(&self, path: &str) -> Option<String> {
        let target = std::fs::canonicalize(self.0.join(path)).ok()?;
        let names = target.components().rev().filter_map(|part| part.as_os_str().to_str());
        names.map(str::to_owned).find(|name| is_pci_address(name))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }
}

/// The directory of a path; the current directory for a bare name.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// True for an address such as `0000:3b:00.0`.
pub(super) fn is_pci_address(name: &str) -> bool {
    let mut parts = name.split([':', '.']).map(|part| (part.len(), u32::from_str_radix(part, 16).is_ok()));
    let first = parts.next().is_some_and(|(length, hex)| (4..=8).contains(&length) && hex);
    first
        && [2, 2, 1].into_iter().all(|wanted| parts.next() == Some((wanted, true)))
        && parts.next().is_none()
}
