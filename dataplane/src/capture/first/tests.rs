use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;
use std::process::Command;

use tap::{FrameKind, TapDirection};

use super::super::tests::{Folder, names};
use super::super::{Bounds, Capture, LINKTYPE_ERF, LINKTYPE_ETHERNET, header};
use super::{OpenOptions, left, open_file, written_over};

/// A user other than root and this one.
const SOMEBODY: u32 = 65_534;

const SMALL: Bounds = Bounds { files: 2, size: Bounds::LEAST_SIZE };

/// Creates a leftover of an earlier capture.
fn leave(path: &Path, link_type: u32) {
    fs::write(path, [&header(link_type)[..], b"of before"].concat()).unwrap();
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Returns the reason why a capture is rejected. The message must contain a remedy.
fn refusal(path: &Path) -> (std::path::PathBuf, io::ErrorKind) {
    let error = Capture::create(path, SMALL).unwrap_err();
    assert!(error.source.to_string().contains(": "), "no remedy in {}", error.source);
    (error.path, error.source.kind())
}

fn we_are_root(what: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can give {what} to another user");
    }
    is_root
}

#[test]
fn next_to_a_pipe_the_other_kind_is_bounded_over_restarts_too() {
    let folder = Folder::new("half-a-pipe");
    let path = folder.0.join("c");
    pipe(&path);
    let _reader = File::options().read(true).write(true).open(&path).unwrap();
    fs::write(folder.0.join("c.1"), "mine").unwrap();
    for run in 0..2 {
        let mut capture = Capture::create(&path, SMALL).unwrap();
        assert_eq!(names(&folder), ["c", "c.1"], "run {run}");
        let mut tap = capture.tap();
        (0..100).for_each(|_| tap.offer(FrameKind::Ethernet, TapDirection::Sent, &[0xff; 2000]));
        while capture.drain().unwrap() > 0 {}
        assert_eq!(capture.progress().counts(), [100, 100, 0], "run {run}");
        assert_eq!(names(&folder), ["c", "c.1", "c.2.eth.pcap", "c.3.eth.pcap"], "run {run}");
    }
    // The other way round.
    let path = folder.0.join("d");
    pipe(&folder.0.join("d.eth.pcap"));
    leave(&folder.0.join("d.7"), LINKTYPE_ERF);
    fs::write(folder.0.join("d.7.eth.pcap"), "mine").unwrap();
    drop(Capture::create(&path, SMALL).unwrap());
    assert_eq!(names(&folder)[4..], ["d", "d.7.eth.pcap", "d.eth.pcap"]);
}

#[test]
fn nothing_goes_before_both_kinds_are_known_to_be_a_captures() {
    let folder = Folder::new("both-kinds");
    let path = folder.0.join("c");
    leave(&path, LINKTYPE_ERF);
    leave(&folder.0.join("c.1"), LINKTYPE_ERF);
    leave(&folder.0.join("c.1.eth.pcap"), LINKTYPE_ETHERNET);
    for foreign in ["c.2", "c.2.eth.pcap", "c.eth.pcap"].map(|name| folder.0.join(name)) {
        fs::write(&foreign, "mine").unwrap();
        let before = names(&folder);
        assert_eq!(refusal(&path), (foreign.clone(), io::ErrorKind::AlreadyExists));
        assert_eq!(names(&folder), before);
        assert!(fs::read(&path).unwrap().ends_with(b"of before"), "it is not overwritten either");
        fs::remove_file(&foreign).unwrap();
    }
    drop(Capture::create(&path, SMALL).unwrap());
    assert_eq!(names(&folder), ["c"]);
}

#[test]
fn what_another_capture_has_open_stays() {
    let folder = Folder::new("locked");
    let path = folder.0.join("c");
    let mut running = Capture::create(&path, SMALL).unwrap();
    let mut tap = running.tap();
    assert_eq!(refusal(&path), (path.clone(), io::ErrorKind::ResourceBusy), "its first file");
    for kind in [FrameKind::Ethernet, FrameKind::InfiniBand] {
        (0..100).for_each(|_| tap.offer(kind, TapDirection::Sent, &[0; 2000]));
        while running.drain().unwrap() > 0 {}
        let before = names(&folder);
        assert_eq!(refusal(&path).1, io::ErrorKind::ResourceBusy, "{before:?}");
        assert_eq!(names(&folder), before);
    }
    // The first file of another capture looks like a numbered one; its full files belong to it too.
    let mut other = Capture::create(&folder.0.join("d.1"), Bounds { files: 3, ..SMALL }).unwrap();
    let mut tap = other.tap();
    (0..50).for_each(|_| tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 2000]));
    while other.drain().unwrap() > 0 {}
    assert!(folder.0.join("d.1.1").exists());
    assert_eq!(refusal(&folder.0.join("d")), (folder.0.join("d.1"), io::ErrorKind::ResourceBusy));
    assert!(folder.0.join("d.1").exists() && !folder.0.join("d").exists());
    // After both have ended, all files may be taken over.
    drop((running, other));
    drop(Capture::create(&path, SMALL).unwrap());
    drop(Capture::create(&folder.0.join("d"), SMALL).unwrap());
    assert_eq!(names(&folder), ["c", "d", "d.1.1"]);
}

#[test]
fn an_empty_file_is_a_captures_only_as_one_would_have_left_it() {
    let folder = Folder::new("empty");
    let (path, empty) = (folder.0.join("c"), folder.0.join("c.1"));
    let make = |mode, owner| {
        fs::write(&empty, "").unwrap();
        fs::set_permissions(&empty, Permissions::from_mode(mode)).unwrap();
        chown(&empty, owner, None).unwrap();
    };
    make(0o644, None);
    assert_eq!(refusal(&path), (empty.clone(), io::ErrorKind::AlreadyExists));
    if we_are_root("a file") {
        make(0o600, Some(SOMEBODY));
        assert_eq!(refusal(&path), (empty.clone(), io::ErrorKind::AlreadyExists));
        // The directory belongs to the user that the gateway switches to.
        chown(&folder.0, Some(SOMEBODY), None).unwrap();
        drop(Capture::create(&path, SMALL).unwrap());
        assert!(!empty.exists());
        chown(&folder.0, Some(0), None).unwrap();
    }
    make(0o600, None);
    drop(Capture::create(&path, SMALL).unwrap());
    assert_eq!(names(&folder), ["c"]);
}

#[test]
fn what_a_link_leads_to_is_not_taken_away_and_links_of_others_lead_nowhere() {
    let folder = Folder::new("links");
    let (path, link) = (folder.0.join("c"), folder.0.join("c.eth.pcap"));
    let target = folder.0.join("target");
    leave(&target, LINKTYPE_ETHERNET);
    symlink("target", &link).unwrap();
    let mut capture = Capture::create(&path, SMALL).unwrap();
    // It is in use and contains only the header.
    assert_eq!(fs::read(&target).unwrap(), header(LINKTYPE_ETHERNET));
    let mut tap = capture.tap();
    tap.offer(FrameKind::Ethernet, TapDirection::Sent, &[0xff; 60]);
    assert_eq!(capture.drain().unwrap(), 1);
    assert_eq!(fs::read(&target).unwrap().len(), 24 + 16 + 60);
    drop(capture);
    // A numbered symbolic link is not a leftover of a capture.
    symlink("target", folder.0.join("c.1.eth.pcap")).unwrap();
    assert_eq!(refusal(&path), (folder.0.join("c.1.eth.pcap"), io::ErrorKind::AlreadyExists));
    fs::remove_file(folder.0.join("c.1.eth.pcap")).unwrap();
    // Links are not followed endlessly.
    let round = folder.0.join("round");
    symlink("round", &round).unwrap();
    assert!(Capture::create(&round, SMALL).is_err());
    if !we_are_root("a link") {
        return;
    }
    leave(&target, LINKTYPE_ETHERNET);
    for name in ["c", "c.eth.pcap"] {
        let foreign = folder.0.join(name);
        let _ = fs::remove_file(&foreign);
        symlink("target", &foreign).unwrap();
        lchown(&foreign, Some(SOMEBODY), None).unwrap();
        assert_eq!(refusal(&path), (foreign.clone(), io::ErrorKind::PermissionDenied));
        symlink(name, folder.0.join("own")).unwrap();
        assert_eq!(refusal(&folder.0.join("own")).1, io::ErrorKind::PermissionDenied);
        fs::remove_file(folder.0.join("own")).unwrap();
        fs::remove_file(&foreign).unwrap();
    }
    assert!(fs::read(&target).unwrap().ends_with(b"of before"));
}

#[test]
fn what_takes_a_files_place_after_it_was_looked_at_is_not_waited_for_and_not_followed() {
    let folder = Folder::new("swapped");
    let [fifo, link, target] = ["fifo", "link", "target"].map(|name| folder.0.join(name));
    // The pipe has no reader, so a plain open would block forever.
    pipe(&fifo);
    leave(&target, LINKTYPE_ERF);
    symlink(&target, &link).unwrap();
    assert_eq!(
        open_file(OpenOptions::new().read(true), &fifo).unwrap_err().kind(),
        io::ErrorKind::AlreadyExists
    );
    for path in [&fifo, &link] {
        assert!(open_file(OpenOptions::new().write(true), path).is_err());
        assert!(written_over(path).is_err());
        assert_eq!(left(path, LINKTYPE_ERF).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
    assert!(left(&target, LINKTYPE_ERF).is_ok() && left(&target, LINKTYPE_ETHERNET).is_err());
    assert!(fs::read(&target).unwrap().ends_with(b"of before"));
}

#[test]
fn what_is_there_stays_as_it_is_until_the_capture_begins() {
    let folder = Folder::new("prepared");
    let path = folder.0.join("c");
    leave(&path, LINKTYPE_ERF);
    leave(&folder.0.join("c.1"), LINKTYPE_ERF);
    leave(&folder.0.join("c.eth.pcap"), LINKTYPE_ETHERNET);
    let before = names(&folder);
    // A start that fails later.
    drop(Capture::prepare(&path, SMALL).unwrap());
    let mut capture = Capture::prepare(&path, SMALL).unwrap();
    assert_eq!(refusal(&path).1, io::ErrorKind::ResourceBusy, "a prepared capture holds its locks");
    assert_eq!(names(&folder), before);
    assert!(before.iter().all(|name| fs::read(folder.0.join(name)).unwrap().ends_with(b"of before")));
    capture.begin().unwrap();
    assert_eq!((names(&folder), fs::read(&path).unwrap()), (vec!["c".to_owned()], header(LINKTYPE_ERF)));
    // A directory in place of either file is in the way.
    for name in ["d", "d.eth.pcap"] {
        fs::create_dir(folder.0.join(name)).unwrap();
        assert_eq!(refusal(&folder.0.join("d")), (folder.0.join(name), io::ErrorKind::AlreadyExists));
        fs::remove_dir(folder.0.join(name)).unwrap();
    }
}

#[test]
fn of_two_that_start_at_once_one_begins_and_keeps_its_files() {
    let folder = Folder::new("at-once");
    let path = folder.0.join("c");
    leave(&folder.0.join("c.1"), LINKTYPE_ERF);
    let [mut one, mut two] = [(); 2].map(|()| Capture::prepare(&path, SMALL).unwrap());
    one.begin().unwrap();
    let mut tap = one.tap();
    (0..50).for_each(|_| tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 2000]));
    while one.drain().unwrap() > 0 {}
    let error = two.begin().unwrap_err();
    assert_eq!((error.path, error.source.kind()), (folder.0.join("c.1"), io::ErrorKind::ResourceBusy));
    assert_eq!(names(&folder), ["c", "c.1"]);
}
