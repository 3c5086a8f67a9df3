//! A table shared by two processes whose maintainer is killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gidcache::table::words_needed;
use gidcache::{DeviceTable, NoProvider, PortKind, PortSetup, Query, Reader};
use ib_wire::{Gid, Guid, PortNumber};
use pmd::shm::{Maintained, ReadOnly, ShmError};
use rustix::fs::{FlockOperation, flock};

const PORT: PortNumber = PortNumber(1);
const CHILD: &str = "PMD_TEST_SHM_MAINTAINER";

fn setup(len: u16) -> [PortSetup; 1] {
    [PortSetup { number: PORT, len, kind: PortKind::InfiniBand }]
}

fn gids(version: u64) -> Vec<Gid> {
    (0..8).map(|id| Gid::new(version, Guid(id))).collect()
}

fn maintain(path: &Path, len: u16) -> Result<DeviceTable<Maintained>, ShmError> {
    let memory = Maintained::open(path, words_needed(&setup(len)).unwrap())?;
    Ok(DeviceTable::publish_in(memory, &setup(len), NoProvider, 5, std::process::id()).unwrap())
}

/// Changes the table as fast as possible until the process is killed.
fn child(path: &Path) -> ! {
    let table = maintain(path, 8).unwrap();
    let mut version = 1;
    loop {
        table.set_infiniband(PORT, &gids(version)).unwrap();
        if version == 1 {
            println!("\nready");
        }
        version += 1;
    }
}

fn start(path: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_maintainer_leaves_a_whole_table_and_is_noticed", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    assert!(said.lines().any(|line| line.unwrap() == "ready"));
    child
}

fn whole(reader: &Reader<ReadOnly>) -> Option<u64> {
    let mut entries = Vec::new();
    reader.entries(&mut entries).ok()?;
    let version = entries.first().unwrap().gid().prefix();
    assert_eq!(entries.iter().map(|entry| entry.gid()).collect::<Vec<_>>(), gids(version));
    Some(version)
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/pmd-test-{name}-{}", std::process::id()))
}

#[test]
fn a_killed_maintainer_leaves_a_whole_table_and_is_noticed() {
    if let Some(path) = std::env::var_os(CHILD) {
        child(Path::new(&path));
    }
    let path = file("killed");
    for round in 1..=5 {
        let mut child = start(&path);
        let reader = Reader::attach(ReadOnly::open(&path).unwrap()).unwrap();
        let maintainer = reader.maintainer();
        assert_eq!((maintainer.process, maintainer.epoch), (child.id(), round));
        assert!(reader.memory().is_maintained().unwrap());
        assert!(matches!(maintain(&path, 8), Err(ShmError::Maintained { .. })));
        let seen = (0..2000).filter_map(|_| whole(&reader)).count();
        assert!(seen > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!reader.memory().is_maintained().unwrap());
        // It died in the middle of an operation; its published table is complete and stays.
        let last = whole(&reader).unwrap();
        let found = reader.find(&Query::new(Gid::new(last, Guid(7)))).unwrap().unwrap();
        assert_eq!(found.index, 7);
    }
    // This process takes over. An existing reader sees it without reopening anything.
    let reader = Reader::attach(ReadOnly::open(&path).unwrap()).unwrap();
    let table = maintain(&path, 8).unwrap();
    table.heartbeat(77);
    table.set_infiniband(PORT, &gids(4)).unwrap();
    assert_eq!(whole(&reader), Some(4));
    assert_eq!(reader.maintainer().process, std::process::id());
    assert_eq!(reader.maintainer().heartbeat, 77);
    assert!(reader.memory().is_maintained().unwrap());
    // A successor with a longer table creates another file.
    drop(table);
    let longer = maintain(&path, 16).unwrap();
    assert!(!reader.memory().is_maintained().unwrap());
    let reader = Reader::attach(ReadOnly::open(&path).unwrap()).unwrap();
    assert!(reader.memory().is_maintained().unwrap());
    assert_eq!(reader.ports().next(), Some((PORT, 16)));
    drop(longer);
    remove(&path);
}

fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(path.with_added_extension("lock")).unwrap();
}

#[test]
fn a_reader_cannot_block_or_pose_as_a_maintainer() {
    let path = file("blocked");
    let first = maintain(&path, 8).unwrap();
    first.set_infiniband(PORT, &gids(2)).unwrap();
    drop(first);
    // All locks that are possible on readable files.
    let evil = std::fs::File::open(&path).unwrap();
    flock(&evil, FlockOperation::NonBlockingLockExclusive).unwrap();
    // SAFETY: numbers only; all zeros is the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_RDLCK as libc::c_short;
    // SAFETY: the call reads the structure.
    assert_eq!(unsafe { libc::fcntl(evil.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
    let reader = Reader::attach(ReadOnly::open(&path).unwrap()).unwrap();
    assert!(!reader.memory().is_maintained().unwrap(), "it poses as a maintainer");
    let table = maintain(&path, 8).unwrap();
    assert!(!reader.memory().is_at(&path), "the file could be locked");
    let left: Vec<_> = table.entries().iter().map(|entry| (entry.index, entry.gid())).collect();
    assert_eq!(left, (0..).zip(gids(2)).collect::<Vec<_>>(), "the successor lost the table");
    table.set_infiniband(PORT, &gids(3)).unwrap();
    let reader = Reader::attach(ReadOnly::open(&path).unwrap()).unwrap();
    assert!(reader.memory().is_maintained().unwrap());
    assert_eq!(whole(&reader), Some(3));
    assert!(matches!(maintain(&path, 8), Err(ShmError::Maintained { .. })), "there is one maintainer");
    // The other lock is on a file that other users may not open.
    let lock = path.with_added_extension("lock");
    assert_eq!(std::fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
    if rustix::process::geteuid().is_root() {
        let mut nobody = Command::new("cat");
        assert!(!nobody.uid(65_534).arg(&lock).stderr(Stdio::null()).status().unwrap().success());
        let mut nobody = Command::new("cat");
        assert!(nobody.uid(65_534).arg(&path).stdout(Stdio::null()).status().unwrap().success());
    }
    drop(table);
    remove(&path);
}

#[test]
fn a_file_of_another_user_is_not_maintained() {
    let path = file("foreign");
    std::fs::write(&path, [0; 64]).unwrap();
    // Only root can change the owner of a file.
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
        assert!(matches!(Maintained::open(&path, 8), Err(ShmError::Foreign(_))));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 64);
        std::fs::remove_file(path.with_added_extension("lock")).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn all_its_pages_are_there_before_one_is_written() {
    let path = file("room");
    let length = 1 << 20;
    for round in 0..2 {
        drop(Maintained::open(&path, length / 8).unwrap());
        let found = std::fs::metadata(&path).unwrap();
        assert!(found.len() == length as u64 && found.blocks() * 512 >= found.len(), "{round}: {found:?}");
        // A predecessor's file may have unallocated pages.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(0).and_then(|()| file.set_len(length as u64)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 0);
    }
    // More than available: the file system reports an error, instead of killing the process on a write.
    let error = Maintained::open(&path, 1 << 50).unwrap_err();
    assert!(matches!(error, ShmError::Full { .. } | ShmError::Call { .. }), "{error}");
    assert!(!path.with_added_extension("new").exists());
    remove(&path);
}

#[test]
fn files_that_hold_no_words_are_refused() {
    let path = file("bad");
    assert!(matches!(ReadOnly::open(&path), Err(ShmError::Call { .. })));
    for bytes in [0, 7, 12] {
        std::fs::write(&path, vec![0; bytes]).unwrap();
        assert!(matches!(ReadOnly::open(&path), Err(ShmError::Length(_))));
    }
    assert!(matches!(ReadOnly::open(Path::new("/dev")), Err(ShmError::Length(_))));
    let pipe = path.with_added_extension("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(matches!(ReadOnly::open(&pipe), Err(ShmError::Length(_))), "the pipe has no writer");
    std::fs::remove_file(&pipe).unwrap();
    std::fs::write(&path, vec![0xff; 4096]).unwrap();
    assert!(Reader::attach(ReadOnly::open(&path).unwrap()).is_err());
    std::fs::remove_file(&path).unwrap();
}
