//! Hugepages.

use std::path::PathBuf;

use super::files::Root;
use super::processors::number_of;

/// Hugepages of one size, on one NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    /// Bytes of a page.
    pub size: u64,
    /// The node; `None` if the kernel reports none.
    pub node: Option<u16>,
    /// Number of reserved pages.
    pub reserved: u64,
    /// Number of free pages.
    pub free: u64,
}

/// The hugepages of a host.
#[derive(Clone, Default, Debug)]
pub struct Memory {
    /// By size and node.
    pub pages: Vec<Pages>,
    /// Mount points of hugetlbfs.
    pub mounts: Vec<PathBuf>,
    /// True if EAL's files exist. A killed EAL leaves its files, and the next one removes them.
    pub has_files: bool,
}

impl Memory {
    /// Bytes of free pages, of one node or in total.
    #[must_use]
    pub fn free(&self, node: Option<u16>) -> u64 {
        let pages = self.pages.iter().filter(|pages| node.is_none() || pages.node == node);
        pages.fold(0, |sum, pages| sum.saturating_add(pages.free.saturating_mul(pages.size)))
    }

    /// Size of the smallest hugepages, reserved or not, in bytes.
    #[must_use]
    pub fn smallest(&self) -> u64 {
        self.pages.iter().map(|pages| pages.size).filter(|size| *size > 0).min().unwrap_or(2 << 20)
    }

    /// Number of pages of a size that are in use, on one node or in total.
    #[must_use]
    pub fn taken(&self, node: Option<u16>, size: u64) -> u64 {
        let pages = self.pages.iter().filter(|p| p.size == size && (node.is_none() || p.node == node));
        pages.fold(0, |sum, pages| sum.saturating_add(pages.reserved.saturating_sub(pages.free)))
    }

    /// Bytes of reserved pages.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.pages.iter().fold(0, |sum, pages| sum.saturating_add(pages.reserved.saturating_mul(pages.size)))
    }
}

fn sizes(root: &Root, directory: &str, node: Option<u16>, into: &mut Vec<Pages>) {
    for name in root.entries(directory) {
        let kib =
            name.strip_prefix("hugepages-").and_then(|size| size.strip_suffix("kB")?.parse::<u64>().ok());
        let Some(size) = kib.and_then(|kib| kib.checked_mul(1024)) else { continue };
        let number = |what: &str| root.number(&format!("{directory}/{name}/{what}")).unwrap_or(0);
        into.push(Pages { size, node, reserved: number("nr_hugepages"), free: number("free_hugepages") });
    }
}

pub(super) fn read(root: &Root) -> Memory {
    let mut pages = Vec::new();
    for name in root.entries("sys/devices/system/node") {
        if let Some((node, name)) = number_of(&name, "node") {
            sizes(root, &format!("sys/devices/system/node/{name}/hugepages"), Some(node), &mut pages);
        }
    }
    if pages.is_empty() {
        sizes(root, "sys/kernel/mm/hugepages", None, &mut pages);
    }
    let mounts = root.text("proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "hugetlbfs").then_some(path)
    });
    let is_file_of_eal = |name: &String| name.contains("map_");
    let has_files = mounts.clone().any(|mount| {
        let mount = mount.trim_start_matches('/');
        let entries = root.entries(mount);
        // `--huge-dir` may name a subdirectory.
        entries.iter().any(is_file_of_eal)
            || entries.iter().any(|name| root.entries(&format!("{mount}/{name}")).iter().any(is_file_of_eal))
    });
    Memory { pages, mounts: mounts.map(PathBuf::from).collect(), has_files }
}
