use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use dataplane::capture::Bounds;
use tap::{FrameKind, TapDirection};

use super::*;

/// Packets of 1,000 bytes that a pipe holds.
const PIPE: u64 = 65;

/// Time limit of the thread's work, on a host that may be busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// A folder of this test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("writer-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn writer(capture: Option<Capture>) -> Writer {
    let writer = Writer::start(capture, Some(own_cpus())).unwrap();
    writer.settle(None).unwrap();
    writer
}

fn begin(writer: &Writer, folder: &Path, order: &str) -> News {
    let order = Order::parse(order).unwrap();
    assert!(writer.order(Instant::now(), Task::Begin(folder.to_owned(), order, 2)));
    next(writer)
}

fn next(writer: &Writer) -> News {
    writer.news_until(Instant::now() + DEADLINE).unwrap().expect("no news in time")
}

fn offer(tap: &mut Tap, n: usize) {
    (0..n).for_each(|_| tap.offer(FrameKind::Ethernet, TapDirection::Sent, &[0xff; 1000]));
}

#[test]
fn what_was_taken_when_it_is_stopped_is_written() {
    let folder = Folder::new("stopped");
    let writer = writer(None);
    for name in ["one", "two"] {
        let News::Begun(mut taps, progress) = begin(&writer, &folder.0, name) else { panic!("not begun") };
        assert_eq!(taps.len(), 2);
        taps.iter_mut().for_each(|tap| offer(tap, 1000));
        assert!(writer.order(Instant::now(), Task::Stop));
        // The last packets arrive while the capture ends.
        taps.iter_mut().for_each(|tap| offer(tap, 100));
        drop(taps);
        assert!(matches!(next(&writer), News::Ended(End::Stopped)));
        assert_eq!(progress.counts(), [2200, 2200, 0]);
        let files = progress.files();
        assert_eq!(files, [folder.0.join(format!("{name}.0.pcap"))]);
        assert_eq!(fs::metadata(&files[0]).unwrap().len(), 24 + 2200 * 1016);
    }
    let again = begin(&writer, &folder.0, "two");
    assert!(matches!(again, News::Refused(e) if e.source.kind() == std::io::ErrorKind::AlreadyExists));
    assert!(matches!(begin(&writer, &folder.0.join("gone"), "x"), News::Refused(_)));
    assert!(writer.order(Instant::now(), Task::Finish));
    assert!(writer.news_until(Instant::now() + DEADLINE).is_err(), "it has ended");
}

#[test]
fn it_ends_with_what_was_ordered_and_when_its_directory_goes() {
    let folder = Folder::new("ends");
    let writer = writer(None);
    let News::Begun(mut taps, progress) = begin(&writer, &folder.0, "few,packets=5") else {
        panic!("not begun")
    };
    offer(&mut taps[1], 9);
    assert!(matches!(next(&writer), News::Ended(End::Ordered)));
    assert_eq!(progress.counts()[0], 5);
    // A late order does not affect the next capture.
    assert!(writer.order(Instant::now(), Task::Stop));
    drop(taps);
    let News::Begun(mut taps, progress) = begin(&writer, &folder.0, "lost,size=65536") else {
        panic!("not begun")
    };
    fs::remove_dir_all(&folder.0).unwrap();
    offer(&mut taps[0], 500);
    let News::Ended(End::Failed(error)) = next(&writer) else { panic!("it goes on") };
    assert!(error.to_string().contains("lost.1.pcap"), "{error}");
    // The packets that fit into the first file; the packet that needed the second one is seen, and later ones
    // may not have arrived.
    let [written, seen, missing] = progress.counts();
    assert!(written == 64 && seen > written && written + missing <= 500, "{written} {seen} {missing}");
}

#[test]
fn a_disk_that_takes_nothing_costs_packets_and_holds_nobody_up() {
    let folder = Folder::new("hangs");
    let pipe = folder.0.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // A reader has it open and does not read: the writer blocks forever.
    let mut reader = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let mut capture = Capture::create(&pipe, Bounds::default()).unwrap();
    let mut tap = capture.tap();
    let progress = capture.progress();
    let writer = writer(Some(capture));
    let until = Instant::now() + DEADLINE;
    let mut offered = 0;
    while writer.silence(Instant::now()) < Duration::from_millis(300) || progress.counts()[2] == 0 {
        tap.offer(FrameKind::InfiniBand, TapDirection::Sent, &[0; 1000]);
        offered += 1;
        assert!(Instant::now() < until, "it does not wait: {:?}", progress.counts());
    }
    // The owner of the thread is not blocked.
    let begin = Instant::now();
    assert!(writer.order(begin, Task::Finish));
    assert!(writer.news().unwrap().is_none());
    assert!(writer.news_until(begin + Duration::from_millis(100)).unwrap().is_none());
    // When the disk accepts data again, waiting packets are written until the time limit; the rest is
    // counted.
    drop(tap);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while reader.read(&mut bytes).is_ok() {}
    });
    assert!(matches!(next(&writer), News::Ended(End::Stopped)));
    let [written, _, missing] = progress.counts();
    assert!(written > PIPE && written + missing == offered, "{written} {missing} {offered}");
}

#[test]
fn it_keeps_off_workers_processors() {
    let set = |cpus: &[usize]| {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        set
    };
    let workers = [set(&[2]), set(&[3])];
    assert_eq!(spare_cpus(&set(&[0, 1, 2, 3]), &set(&[1]), &workers), Some(set(&[0])));
    assert_eq!(spare_cpus(&set(&[1, 2, 3]), &set(&[1]), &workers), Some(set(&[1])));
    // There is no other CPU: the CPUs of the control lcore, which started the thread.
    assert_eq!(spare_cpus(&set(&[2, 3]), &set(&[2]), &workers), None);
    assert!(own_cpus().count() > 0);
}
