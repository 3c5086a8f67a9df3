use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};

use dataplane::capture::Recording;
use tokio::sync::oneshot::error::TryRecvError;

use super::*;

/// A folder of this test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("recordings-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The report of the thread about a capture that starts.
    fn begun(&self, name: &str) -> (Recording, News) {
        let mut recording = Recording::begin(&self.0, Order::parse(name).unwrap(), Instant::now()).unwrap();
        let taps = vec![recording.tap(), recording.tap()];
        let progress = recording.progress();
        (recording, News::Begun(taps, progress))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn played() -> (Recordings, Receiver<Task>, Sender<News>) {
    let (writer, tasks, news) = Writer::played();
    (Recordings { writer: Some(writer), ..Recordings::default() }, tasks, news)
}

fn start(recordings: &mut Recordings, now: Instant, name: &str) -> Result<oneshot::Receiver<Answer>, String> {
    recordings.begin(now, Some(Path::new("/captures")), name, 2).map(later)
}

fn later(reply: Reply) -> oneshot::Receiver<Answer> {
    let Reply::Later(answer) = reply else { panic!("answered at once") };
    answer
}

fn failed(errno: i32) -> CaptureError {
    CaptureError { path: PathBuf::from("/captures/one.1.pcap"), source: io::Error::from_raw_os_error(errno) }
}

#[test]
fn a_capture_that_failed_says_why_and_what_to_do() {
    let (now, folder) = (Instant::now(), Folder::new("failed"));
    // EEXIST, EACCES, EROFS, ENOSPC, ENOENT
    for (n, (errno, hint)) in [
        (17, "choose another name"),
        (13, "user"),
        (30, "ReadWritePaths"),
        (28, "make room"),
        (2, "gateway.captures"),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut recordings, _tasks, news) = played();
        let mut answer = start(&mut recordings, now, "one").unwrap();
        news.send(News::Refused(failed(errno))).unwrap();
        assert!(recordings.look(now).alarm.is_none(), "the client gets the error");
        let said = answer.try_recv().unwrap().unwrap_err();
        assert!(said.contains("one.1.pcap") && said.contains(hint), "{said}");
        assert_eq!(recordings.facts(now)["state"], "nothing was captured");
        // While a capture runs.
        let mut answer = start(&mut recordings, now, "one").unwrap();
        let (_recording, begun) = folder.begun(&format!("one-{n}"));
        news.send(begun).unwrap();
        assert!(matches!(recordings.look(now).watch, Some(Watch::Begin(taps)) if taps.len() == 2));
        assert_eq!(answer.try_recv().unwrap().unwrap()["state"], "captures");
        news.send(News::Ended(End::Failed(failed(errno)))).unwrap();
        let step = recordings.look(now);
        assert!(matches!(step.watch, Some(Watch::End)));
        assert!(matches!(step.alarm, Some((What::CaptureFailed, text)) if text.contains(hint)));
        let facts = recordings.facts(now);
        assert_eq!(facts["state"], "failed");
        assert!(facts["why"].as_str().unwrap().contains(hint));
    }
}

#[test]
fn a_stop_is_answered_when_all_is_written() {
    let (now, folder) = (Instant::now(), Folder::new("stops"));
    let (mut recordings, tasks, news) = played();
    assert!(later_or(recordings.stop(now, &mut Step::default())).contains("nothing is captured"));
    let mut answer = start(&mut recordings, now, "one").unwrap();
    assert!(start(&mut recordings, now, "two").unwrap_err().contains("is starting"));
    assert!(later_or(recordings.stop(now, &mut Step::default())).contains("is starting"));
    let (mut recording, begun) = folder.begun("one");
    news.send(begun).unwrap();
    let Some(Watch::Begin(mut taps)) = recordings.look(now).watch else { panic!("no taps") };
    assert!(answer.try_recv().unwrap().is_ok());
    assert!(start(&mut recordings, now, "two").unwrap_err().contains("stop it first"));
    taps[0].offer(tap::FrameKind::Ethernet, tap::TapDirection::Sent, &[0; 60]);
    let mut step = Step::default();
    let mut answer = later(recordings.stop(now, &mut step).unwrap());
    assert!(matches!(step.watch, Some(Watch::End)));
    assert!(matches!(tasks.try_recv(), Ok(Task::Begin(..))) && matches!(tasks.try_recv(), Ok(Task::Stop)));
    assert_eq!(answer.try_recv().unwrap_err(), TryRecvError::Empty);
    assert_eq!(recordings.facts(now)["state"], "stops");
    assert!(start(&mut recordings, now, "two").unwrap_err().contains("still being written"));
    drop(taps);
    recording.drain_all(Duration::from_secs(120)).unwrap();
    news.send(News::Ended(End::Stopped)).unwrap();
    assert!(recordings.look(now).alarm.is_none());
    let outcome = answer.try_recv().unwrap().unwrap();
    assert_eq!(
        (&outcome["state"], &outcome["packets"], &outcome["missing"]),
        (&json!("stopped"), &json!(1), &json!(0))
    );
    assert_eq!(recordings.facts(now), outcome);
    assert_eq!(recordings.totals(), [1, 0]);
    assert!(start(&mut recordings, now, "two").is_ok());
}

fn later_or(reply: Result<Reply, String>) -> String {
    reply.map(drop).unwrap_err()
}

#[test]
fn nobody_waits_for_a_disk_that_does_not_answer() {
    let (begin, folder) = (Instant::now(), Folder::new("silent"));
    let late = begin + PATIENCE;
    let (mut recordings, tasks, news) = played();
    let mut answer = start(&mut recordings, begin, "one").unwrap();
    recordings.look(late - Duration::from_millis(1));
    assert_eq!(answer.try_recv().unwrap_err(), TryRecvError::Empty);
    recordings.look(late);
    assert!(answer.try_recv().unwrap().unwrap_err().contains("nothing is captured"));
    assert!(start(&mut recordings, late, "two").is_err());
    assert!(recordings.facts(late)["disk_silent_ms"].as_u64().unwrap() >= 2000);
    // The disk accepts it in the end; the client is gone.
    let (_recording, begun) = folder.begun("one");
    news.send(begun).unwrap();
    let step = recordings.look(late);
    assert!(matches!(step.watch, Some(Watch::End)));
    assert!(matches!(tasks.try_recv(), Ok(Task::Begin(..))) && matches!(tasks.try_recv(), Ok(Task::Stop)));
    news.send(News::Ended(End::Stopped)).unwrap();
    recordings.look(late);
    assert_eq!(recordings.facts(late)["state"], "stopped");
    // The same for a client that stops a capture.
    let mut answer = start(&mut recordings, late, "two").unwrap();
    let (_recording, begun) = folder.begun("two");
    news.send(begun).unwrap();
    recordings.look(late);
    assert!(answer.try_recv().unwrap().is_ok());
    let mut answer = later(recordings.stop(late, &mut Step::default()).unwrap());
    recordings.look(late + PATIENCE);
    assert!(answer.try_recv().unwrap().unwrap_err().contains("has not taken"));
    // Reported once until the disk accepts data again.
    let stalled = |recordings: &mut Recordings, now| recordings.look(now).alarm.map(|(alarm, _)| alarm);
    recordings.is_stalled = false;
    assert_eq!(stalled(&mut recordings, late + SILENCE), Some(What::CaptureStalls));
    assert_eq!(stalled(&mut recordings, late + 2 * SILENCE), None);
    // The gateway exits all the same.
    let end = Instant::now();
    recordings.finish().unwrap();
    assert!(end.elapsed() >= LAST_PATIENCE);
}

#[test]
fn an_exit_of_the_thread_is_reported() {
    let (now, folder) = (Instant::now(), Folder::new("gone"));
    let (mut recordings, tasks, news) = played();
    let mut answer = start(&mut recordings, now, "one").unwrap();
    let (_recording, begun) = folder.begun("one");
    news.send(begun).unwrap();
    recordings.look(now);
    assert!(answer.try_recv().unwrap().is_ok());
    drop((tasks, news));
    let step = recordings.look(now);
    assert!(matches!(step.alarm, Some((What::CaptureFailed, _))) && matches!(step.watch, Some(Watch::End)));
    assert!(recordings.facts(now)["why"].as_str().unwrap().contains("restart"));
    assert!(start(&mut recordings, now, "two").is_err());
    recordings.finish().unwrap();
}

#[test]
fn a_client_that_waits_when_the_gateway_exits_is_answered() {
    let (now, folder) = (Instant::now(), Folder::new("waits"));
    let (mut recordings, tasks, news) = played();
    let mut begins = start(&mut recordings, now, "one").unwrap();
    recordings.dismiss();
    assert!(begins.try_recv().unwrap().unwrap_err().contains("before the capture has begun"));
    recordings.dismiss();
    // It starts only now, and no client waits for it.
    let (_one, begun) = folder.begun("one");
    news.send(begun).unwrap();
    assert!(matches!(recordings.look(now).watch, Some(Watch::End)));
    news.send(News::Ended(End::Stopped)).unwrap();
    recordings.look(now);
    while tasks.try_recv().is_ok() {}
    // A capture that is unwritten when the gateway exits, and a written one.
    for is_written in [false, true] {
        let name = if is_written { "three" } else { "two" };
        let mut begins = start(&mut recordings, now, name).unwrap();
        let (_recording, begun) = folder.begun(name);
        news.send(begun).unwrap();
        recordings.look(now);
        assert!(begins.try_recv().unwrap().is_ok());
        let mut stops = later(recordings.stop(now, &mut Step::default()).unwrap());
        if is_written {
            news.send(News::Ended(End::Stopped)).unwrap();
        }
        recordings.look(now);
        recordings.dismiss();
        let outcome = stops.try_recv().unwrap();
        assert_eq!(outcome.is_ok(), is_written, "{outcome:?}");
        if !is_written {
            assert!(outcome.unwrap_err().contains("before the capture is on the disk"));
            news.send(News::Ended(End::Stopped)).unwrap();
            recordings.look(now);
        }
        // Received by the simulated thread.
        while tasks.try_recv().is_ok() {}
    }
    drop(tasks);
    recordings.finish().unwrap();
}

#[test]
fn the_end_of_the_gateway_ends_a_capture() {
    let (now, folder) = (Instant::now(), Folder::new("end"));
    let (mut recordings, tasks, news) = played();
    let mut answer = start(&mut recordings, now, "one").unwrap();
    let (_recording, begun) = folder.begun("one");
    // It starts only now.
    news.send(begun).unwrap();
    news.send(News::Ended(End::Stopped)).unwrap();
    recordings.finish().unwrap();
    assert!(matches!(tasks.recv(), Ok(Task::Begin(..))) && matches!(tasks.recv(), Ok(Task::Finish)));
    assert_eq!(answer.try_recv().unwrap_err(), TryRecvError::Closed);
    // A capture of everything, which fails at the end.
    let (writer, _tasks, news) = Writer::played();
    let (_recording, News::Begun(_, progress)) = folder.begun("all") else { panic!("not begun") };
    let mut recordings = Recordings::new(writer, Some(progress));
    assert_eq!(recordings.facts(now)["state"], "captures");
    assert!(start(&mut recordings, now, "two").unwrap_err().contains("--capture"));
    assert!(later_or(recordings.stop(now, &mut Step::default())).contains("--capture"));
    news.send(News::Ended(End::Failed(failed(28)))).unwrap();
    assert_eq!(recordings.finish().unwrap_err().source.raw_os_error(), Some(28));
}
