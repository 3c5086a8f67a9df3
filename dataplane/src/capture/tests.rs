use std::process::Command;

use tap::TapDirection;

use super::*;

/// A folder of our own, gone with the test.
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

/// An Ethernet broadcast of a made-up type.
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
    let mut capture = Capture::create(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), PCAP_HEADER, "before the first packet");
    let (mut a, mut b) = (capture.tap(), capture.tap());
    for i in 0..10u8 {
        let mut packet = ACK;
        packet[19] = i;
        let tap = if i % 2 == 0 { &mut a } else { &mut b };
        tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &packet);
    }
    assert_eq!(capture.drain().unwrap(), 10);
    assert!(!Capture::ethernet_path(&path).exists());
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
        println!("skipped: no tshark");
        return;
    }
    let folder = Folder::new("tshark");
    let path = folder.0.join("c.pcap");
    let mut capture = Capture::create(&path).unwrap();
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
    let eth = fields(&Capture::ethernet_path(&path), &["eth.dst", "eth.type", "frame.len"]);
    assert_eq!(eth.trim_end(), "ff:ff:ff:ff:ff:ff\t0x88b5\t60");
}

#[test]
fn a_file_that_cannot_be_made_is_named() {
    let error = Capture::create(Path::new("/nonexistent/c.pcap")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/c.pcap"));
}
