//! Guest memory other than one file on small pages.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use connectx::RegionMemory;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use softhca::memory::{GuestMemory, PAGE, Unreachable};
use softhca::vfio_user::DmaMap;

const HUGE: u64 = 2 << 20;
const AT: u64 = 1 << 32;

fn file(name: &str, len: u64, flags: MemfdFlags) -> File {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | flags).unwrap();
    rustix::fs::ftruncate(&file, len).unwrap();
    file.into()
}

fn map(memory: &mut GuestMemory, file: &File, offset: u64, address: u64, len: u64) -> Result<(), Errno> {
    let file: OwnedFd = file.as_fd().try_clone_to_owned().unwrap();
    memory.map(&DmaMap { offset, address, len, writable: true }, Some(file))
}

/// Two huge pages, if the host has any.
fn huge(name: &str) -> Option<(GuestMemory, File)> {
    let file = file(name, 2 * HUGE, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB);
    let mut memory = GuestMemory::new();
    match map(&mut memory, &file, 0, AT, 2 * HUGE) {
        Ok(()) => Some((memory, file)),
        Err(error) => {
            eprintln!("skipped: no two huge pages: {error}");
            None
        }
    }
}

fn mappings(name: &str) -> usize {
    let all = std::fs::read_to_string("/proc/self/maps").unwrap();
    all.lines().filter(|line| line.contains(name)).count()
}

/// All entries of 64 bytes of a ring on `pages`.
fn entries(memory: &GuestMemory, pages: &[u64], page: u64) -> Vec<u64> {
    let len = pages.len() as u64 * page;
    let (pieces, _lease) = memory.pieces(pages, page, 0, len).unwrap();
    let ring = RegionMemory::from(pieces);
    assert_eq!(ring.len(), len);
    let entry = |at: u64| {
        let mut bytes = [0; 8];
        assert!(ring.slot(at as usize, 64).unwrap().read(&mut bytes));
        u64::from_le_bytes(bytes)
    };
    (0..len / 64).map(|n| entry(n * 64)).collect()
}

#[test]
fn pages_of_a_guest_on_huge_pages_may_be_scattered() {
    let Some((memory, _file)) = huge("scattered") else { return };
    let before = mappings("memfd:scattered");
    // Every entry contains its address.
    for address in (AT..AT + 2 * HUGE).step_by(64) {
        assert!(memory.write(address, &address.to_le_bytes()));
    }
    for pages in
        [vec![AT, AT + PAGE], vec![AT, AT + 5 * PAGE], vec![AT + HUGE - PAGE, AT + 7 * PAGE, AT + HUGE]]
    {
        let wanted: Vec<u64> = pages.iter().flat_map(|page| (*page..page + PAGE).step_by(64)).collect();
        assert_eq!(entries(&memory, &pages, PAGE), wanted);
    }
    assert_eq!(mappings("memfd:scattered"), before, "rings add no mappings");
}

#[test]
fn parts_of_huge_pages_can_be_mapped_and_unmapped() {
    let Some((mut memory, file)) = huge("parts") else { return };
    memory.unmap(None).unwrap();
    // The parts below 1 MiB, as a virtual machine's firmware makes the monitor split them.
    let parts = [(0, 0xa_0000), (0xc_0000, 0x8000), (0xf_0000, 0x1_0000), (0x10_0000, 2 * HUGE - 0x10_0000)];
    for round in 0..50u8 {
        for (at, len) in parts {
            map(&mut memory, &file, at, AT + at, len).unwrap();
        }
        for (at, len) in parts {
            assert!(memory.write(AT + at, &[round]) && memory.write(AT + at + len - 1, &[round]));
            assert!(!memory.write(AT + at + len - 1, &[9; 2]), "beyond the mapped part");
        }
        for (other, _) in parts {
            let mut byte = [0];
            assert!(memory.read(AT + other, &mut byte));
            assert_eq!(byte, [round]);
        }
        for (at, len) in parts {
            memory.unmap(Some((AT + at, len))).unwrap();
        }
        assert_eq!(mappings("memfd:parts"), 0, "unmapped memory is still mapped");
    }
}

#[test]
fn a_page_may_span_several_regions() {
    let file = file("pieces", 8 * PAGE, MemfdFlags::empty());
    let mut memory = GuestMemory::new();
    // The file's pages in reverse order.
    for n in 0..8 {
        map(&mut memory, &file, (7 - n) * PAGE, AT + n * PAGE, PAGE).unwrap();
        file.write_all_at(&n.to_le_bytes(), (7 - n) * PAGE).unwrap();
    }
    let first: Vec<u64> = entries(&memory, &[AT + 4 * PAGE, AT], 4 * PAGE);
    assert_eq!(first.iter().step_by(64).copied().collect::<Vec<_>>(), [4, 5, 6, 7, 0, 1, 2, 3]);
    // Only the requested part of a page must exist.
    assert!(memory.pieces(&[AT], 16 * PAGE, PAGE, 7 * PAGE).is_ok());
    let gone = memory.pieces(&[AT], 16 * PAGE, PAGE, 7 * PAGE + 1).map(drop);
    assert_eq!(gone, Err(Unreachable::NoMemory));
    memory.unmap(Some((AT + 2 * PAGE, PAGE))).unwrap();
    let gone = memory.pieces(&[AT], 4 * PAGE, 0, 4 * PAGE).map(drop);
    assert_eq!(gone, Err(Unreachable::NoMemory));
}
