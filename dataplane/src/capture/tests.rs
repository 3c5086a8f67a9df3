use std::process::Command;

use tap::TapDirection;

use super::*;

/// A temporary directory, removed after the test.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ib-capture-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An RC acknowledge, LRH to VCRC.
const ACK: [u8; 30] = [
    0x00, 0x02, 0x00, 0x04, 0x00, 0x07, 0x00, 0x01, 0x11, 0x40, 0xff, 0xff, 0x00, 0x12, 0x34, 0x56, 0x00,
    0x00, 0x00, 0x2a, 0x1f, 0x00, 0x00, 0x01, 0xde, 0xad, 0xbe, 0xef, 0xab, 0xcd,
];

/// An Ethernet broadcast with an unassigned EtherType.
pub(super) fn ethernet() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend([0; 46]);
    frame
}

#[test]
fn files_have_the_records_in_order_of_time() {
    let folder = Folder::new("order");
    let path = folder.0.join("c.pcap");
    let mut capture = Capture::create(&path, Bounds::default()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), PCAP_HEADER, "before the first packet");
    let (mut a, mut b) = (capture.tap(), capture.tap());
    for i in 0..10u8 {
        let mut packet = ACK;
        packet[19] = i;
        let tap = if i % 2 == 0 { &mut a } else { &mut b };
        tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &packet);
    }
    assert_eq!(capture.drain().unwrap(), 10);
    assert!(!folder.0.join("c.pcap.eth.pcap").exists());
    drop((a, b));
    assert_eq!(capture.drain().unwrap(), 0);
    assert!(capture.taps.is_empty());
    let bytes = std::fs::read(&path).unwrap();
    let (record, erf) = (16 + ERF_HEADER + ACK.len(), 24 + 16);
    assert_eq!(bytes.len(), 24 + 10 * record);
    for i in 0..10 {
        let at = erf + i * record;
        assert_eq!(bytes[at + 8..at + ERF_HEADER], [21, 4, 0, 46, 0, 0, 0, 30]);
        assert_eq!(bytes[at + ERF_HEADER + 19], i as u8);
    }
}

#[test]
fn erf_time_is_fixed_point() {
    let header = erf_header(5_500_000_000, 30);
    assert_eq!(header[..8], [0, 0, 0, 0x80, 5, 0, 0, 0]);
}

#[test]
fn tshark_reads_both_files() {
    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("skipped: no tshark");
        return;
    }
    let folder = Folder::new("tshark");
    let path = folder.0.join("c.pcap");
    let mut capture = Capture::create(&path, Bounds::default()).unwrap();
    let mut tap = capture.tap();
    tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &ACK);
    tap.offer(FrameKind::Ethernet, TapDirection::Received, &ethernet());
    capture.drain().unwrap();
    let fields = |path: &Path, fields: &[&str]| {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(path).args(["-T", "fields"]);
        for field in fields {
            command.args(["-e", field]);
        }
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let ib = fields(
        &path,
        &[
            "infiniband.lrh.dlid",
            "infiniband.bth.destqp",
            "infiniband.bth.psn",
            "infiniband.aeth.msn",
            "_ws.malformed",
        ],
    );
    assert_eq!(ib.trim_end(), "4\t0x123456\t42\t1");
    let eth = fields(&folder.0.join("c.pcap.eth.pcap"), &["eth.dst", "eth.type", "frame.len"]);
    assert_eq!(eth.trim_end(), "ff:ff:ff:ff:ff:ff\t0x88b5\t60");
}

#[test]
fn a_file_that_cannot_be_made_is_named() {
    let error = Capture::create(Path::new("/nonexistent/c.pcap"), Bounds::default()).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/c.pcap"));
}

/// Total length of all files in a directory.
fn on_disk(folder: &Folder) -> u64 {
    let files = std::fs::read_dir(&folder.0).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

pub(super) fn names(folder: &Folder) -> Vec<String> {
    let files = std::fs::read_dir(&folder.0).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_capture_from_the_start_on_never_takes_more_disk_than_its_bounds_also_over_restarts() {
    let folder = Folder::new("bounded");
    let path = folder.0.join("c.pcap");
    let bounds = Bounds { files: 3, size: Bounds::LEAST_SIZE };
    let most = 2 * u64::from(bounds.files) * bounds.size;
    let mut offered = 0;
    for run in 0..3 {
        let mut capture = Capture::create(&path, bounds).unwrap();
        assert_eq!(names(&folder), ["c.pcap"], "the files of the previous run are removed");
        let mut tap = capture.tap();
        let mut numbers = 0;
        for round in 0..300usize {
            // All lengths: some fill a file to its last byte, and one exceeds the maximum file length.
            for len in [60, 1500, 4200, 9000 + round, if round == 7 { 70_000 } else { 100 }] {
                tap.offer(FrameKind::Ethernet, TapDirection::Sent, &vec![0xff; len]);
                tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &vec![0; len.min(4300)]);
                numbers += 2;
            }
            while capture.drain().unwrap() > 0 {
                assert!(on_disk(&folder) <= most, "{run} {round}");
            }
        }
        let [written, seen, missing] = capture.progress().counts();
        assert_eq!((seen, missing, written), (numbers, 1, numbers - 1), "run {run}");
        let mut reported: Vec<_> = capture.progress().files();
        reported.sort();
        let there: Vec<_> = names(&folder).iter().map(|name| folder.0.join(name)).collect();
        assert_eq!((reported, there.len()), (there, 6), "the maximum of each kind, and all are reported");
        assert!(on_disk(&folder) > most / 2 && !path.exists());
        for file in capture.progress().files() {
            assert!(std::fs::metadata(&file).unwrap().len() <= bounds.size);
        }
        offered += seen;
    }
    assert_eq!(offered, 9000);
}

#[test]
fn what_is_no_capture_is_not_taken_away() {
    let folder = Folder::new("mine");
    let path = folder.0.join("c");
    std::fs::write(&path, "of before").unwrap();
    for name in ["c.7", "c.7.eth.pcap"] {
        let mine = folder.0.join(name);
        std::fs::write(&mine, "mine").unwrap();
        let error = Capture::create(&path, Bounds::default()).unwrap_err();
        assert_eq!((&error.path, error.source.kind()), (&mine, io::ErrorKind::AlreadyExists));
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of before");
        std::fs::remove_file(&mine).unwrap();
        // Nor through a symbolic link.
        std::os::unix::fs::symlink(&path, &mine).unwrap();
        assert!(Capture::create(&path, Bounds::default()).is_err());
        std::fs::remove_file(&mine).unwrap();
    }
    for other in ["c.x", "c.7.pcap", "cc.7", "c.7.eth"] {
        std::fs::write(folder.0.join(other), "").unwrap();
    }
    drop(Capture::create(&path, Bounds::default()).unwrap());
    assert_eq!(names(&folder), ["c", "c.7.eth", "c.7.pcap", "c.x", "cc.7"]);
}

#[test]
fn where_the_oldest_file_cannot_go_the_capture_ends() {
    let folder = Folder::new("stays");
    let path = folder.0.join("c");
    let mut capture = Capture::create(&path, Bounds { files: 1, size: Bounds::LEAST_SIZE }).unwrap();
    let mut tap = capture.tap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    (0..50).for_each(|_| tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 2000]));
    // On a busy machine one call may end before the error.
    let error = (0..100).find_map(|_| capture.drain().err()).unwrap();
    assert_eq!(error.path, path);
    let [written, seen, missing] = capture.progress().counts();
    assert_eq!((written, seen, missing), (32, 33, 1));
    capture.leave_rest();
}

#[test]
fn a_link_is_followed_to_what_takes_place_on_disk() {
    let folder = Folder::new("link");
    let (path, target) = (folder.0.join("c"), folder.0.join("target"));
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let bounds = Bounds { files: 2, size: Bounds::LEAST_SIZE };
    let mut capture = Capture::create(&path, bounds).unwrap();
    let mut tap = capture.tap();
    assert!(target.exists());
    (0..150).for_each(|_| tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 2000]));
    while capture.drain().unwrap() > 0 {}
    assert!(!target.exists() && on_disk(&folder) <= u64::from(bounds.files) * bounds.size + 100);
}

#[test]
fn a_pipe_takes_all_and_no_other_file_is_touched() {
    let folder = Folder::new("pipe");
    let path = folder.0.join("c");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    std::fs::write(folder.0.join("c.1"), "mine").unwrap();
    let mut reader = File::options().read(true).write(true).open(&path).unwrap();
    let mut capture = Capture::create(&path, Bounds { files: 1, size: Bounds::LEAST_SIZE }).unwrap();
    let mut tap = capture.tap();
    let read = std::thread::spawn(move || {
        let mut bytes = vec![0; 24 + 100 * 2032];
        io::Read::read_exact(&mut reader, &mut bytes).unwrap();
        bytes.len()
    });
    (0..100).for_each(|_| tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 2000]));
    while capture.drain().unwrap() > 0 {}
    assert_eq!(
        (read.join().unwrap(), names(&folder)),
        (24 + 100 * 2032, vec!["c".to_owned(), "c.1".to_owned()])
    );
}
