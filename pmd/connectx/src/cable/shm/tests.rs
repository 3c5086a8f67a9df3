use std::os::unix::process::parent_id;
use std::process::{Child, Command};

use super::super::{CableEnd, CableUrl, Transport};
use super::*;

const CHILD: &str = "IB_LINK_TEST_CHILD";
/// Upper bound for every wait, generous because the host may be busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// A temporary directory, removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ib-cable-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn url(&self) -> CableUrl {
        let path = self.0.join("l.sock");
        CableUrl {
            transport: Transport::SharedMemory { path },
            keeps_crcs: false,
            key_file: None,
            faults: Default::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.0.join("l.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The other process of a test.
struct Process(Child);

impl Process {
    /// Starts `echo_process` of this test program.
    fn start(role: &str, url: &CableUrl) -> Self {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program)
            .args(["--exact", "cable::shm::tests::echo_process", "--ignored", "--nocapture"])
            .env(CHILD, format!("{role} {url}"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "the other process of the tests below"]
fn echo_process() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let (role, url) = order.split_once(' ').unwrap();
    let url: CableUrl = url.parse().unwrap();
    let mut end = if role == "listen" { CableEnd::listen(&url) } else { CableEnd::connect(&url) }.unwrap();
    // Killed by the test, or orphaned.
    let parent = parent_id();
    while parent_id() == parent {
        end.poll(Instant::now());
        let mut packets = Vec::new();
        if end.receive(32, |p| packets.push(p.to_vec())) == 0 {
            std::thread::yield_now();
        }
        for p in packets {
            while end.send_with(p.len(), |out| out.copy_from_slice(&p)).is_err() {
                end.poll(Instant::now());
                std::thread::yield_now();
            }
        }
    }
}

/// Polls until `done`, for at most [`DEADLINE`].
fn wait(ends: &mut [&mut CableEnd], mut done: impl FnMut(&mut [&mut CableEnd]) -> bool) {
    let start = Instant::now();
    loop {
        for end in ends.iter_mut() {
            end.poll(Instant::now());
        }
        if done(ends) {
            return;
        }
        let trouble = || ends.iter().map(|end| (end.trouble(), end.counters())).collect::<Vec<_>>();
        assert!(start.elapsed() < DEADLINE, "not done in {DEADLINE:?}: {:?}", trouble());
        std::thread::yield_now();
    }
}

fn up(ends: &mut [&mut CableEnd]) -> bool {
    ends.iter().all(|e| e.is_up())
}

/// Sends packets through the other process and expects them back in order.
fn echo(end: &mut CableEnd, packets: u32) {
    let packet = |i: u32| {
        let mut p = vec![i as u8; 4 + (i as usize * 61) % (MAX_PACKET - 4)];
        p[..4].copy_from_slice(&i.to_be_bytes());
        p
    };
    let (mut sent, mut back) = (0, 0);
    wait(&mut [end], |ends| {
        while sent < packets && sent - back < 64 {
            let p = packet(sent);
            if ends[0].send_with(p.len(), |out| out.copy_from_slice(&p)).is_err() {
                break;
            }
            sent += 1;
        }
        ends[0].receive(32, |p| {
            assert_eq!(p, packet(back));
            back += 1;
        });
        back == packets
    });
}

#[test]
fn two_processes_and_a_killed_partner() {
    let folder = Folder::new("killed");
    let mut end = CableEnd::listen(&folder.url()).unwrap();
    for life in 1..=2 {
        let mut other = Process::start("connect", &folder.url());
        wait(&mut [&mut end], up);
        echo(&mut end, 3_000);
        other.kill();
        // No process reads this any more.
        end.send_with(100, |_| {}).unwrap();
        end.poll(Instant::now() + CHECK);
        assert!(!end.is_up(), "noticed at the next check");
        assert_eq!(end.trouble(), Some(CableTrouble::Gone));
        let c = end.counters();
        assert_eq!((c.ups, c.downs, c.lost_going_down, c.violations), (life, life, life, 0));
    }
}

#[test]
fn a_killed_listener_leaves_a_socket_that_the_next_one_replaces() {
    let folder = Folder::new("stale");
    let mut end = CableEnd::connect(&folder.url()).unwrap();
    end.poll(Instant::now());
    assert_eq!(end.trouble(), Some(CableTrouble::NoListener));
    for life in 1..=2 {
        let mut other = Process::start("listen", &folder.url());
        wait(&mut [&mut end], up);
        echo(&mut end, 500);
        other.kill();
        assert!(folder.path().exists(), "stale");
        wait(&mut [&mut end], |ends| !ends[0].is_up());
        assert_eq!(end.counters().ups, life);
    }
}

#[test]
fn one_listener_one_connector() {
    let folder = Folder::new("busy");
    let mut listener = CableEnd::listen(&folder.url()).unwrap();
    assert!(matches!(CableEnd::listen(&folder.url()), Err(CableError::InUse(_))));
    let mut first = CableEnd::connect(&folder.url()).unwrap();
    wait(&mut [&mut listener, &mut first], up);
    let mut second = CableEnd::connect(&folder.url()).unwrap();
    wait(&mut [&mut listener, &mut first, &mut second], |ends| ends[2].trouble() == Some(CableTrouble::Busy));
    assert!(listener.is_up() && first.is_up());
    drop(first);
    wait(&mut [&mut listener, &mut second], up);
    drop(listener);
    assert!(!folder.path().exists(), "a listener that stops removes its socket");
}

#[test]
fn a_file_that_is_not_a_socket_is_kept() {
    let folder = Folder::new("file");
    std::fs::write(folder.path(), "precious").unwrap();
    assert!(matches!(CableEnd::listen(&folder.url()), Err(CableError::InUse(_))));
    assert_eq!(std::fs::read(folder.path()).unwrap(), b"precious");
}

/// A raw connection to the listener, to misbehave on.
fn raw(folder: &Folder) -> OwnedFd {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(folder.path()).unwrap()).unwrap();
    socket
}

#[test]
fn hostile_connectors_are_cut_off() {
    let folder = Folder::new("hostile");
    let mut listener = CableEnd::listen(&folder.url()).unwrap();
    // An invalid message instead of an answer.
    let socket = raw(&folder);
    rustix::net::send(&socket, b"ibfablnk nonsense", SendFlags::empty()).unwrap();
    wait(&mut [&mut listener], |ends| ends[0].counters().violations == 1);
    // Attached, then an impossible index in the ring towards the listener.
    let socket = raw(&folder);
    let mut hello = None;
    wait(&mut [&mut listener], |_| {
        hello = handover::receive_hello(&socket).unwrap();
        hello.is_some()
    });
    let Some(Hello::Memory { file, ring }) = hello else { panic!("{hello:?}") };
    handover::send_word(&socket, Word::Attached);
    wait(&mut [&mut listener], up);
    let head = (RING_HEADER + ring as usize) as u64;
    rustix::io::pwrite(&file, &0xdead_beefu32.to_ne_bytes(), head).unwrap();
    assert_eq!(listener.receive(8, |_| {}), 0);
    assert!(!listener.is_up(), "at once");
    wait(&mut [&mut listener], |ends| ends[0].counters().violations == 2);
    assert_eq!(rustix::fs::ftruncate(&file, 0), Err(Errno::PERM), "the memory cannot be truncated");
    // It still serves correct connectors.
    let mut honest = CableEnd::connect(&folder.url()).unwrap();
    wait(&mut [&mut listener, &mut honest], up);
}

#[test]
fn hostile_listeners_are_refused() {
    let folder = Folder::new("liar");
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(folder.path()).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    let mut end = CableEnd::connect(&folder.url()).unwrap();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Not sealed; sealed but too small; a size that is not a power of two.
    for (n, (seal, size, ring)) in
        [(false, memory_size(RING), RING), (true, 4096, RING), (true, memory_size(RING + 8), RING + 8)]
            .into_iter()
            .enumerate()
    {
        let file = rustix::fs::memfd_create("lie", flags).unwrap();
        rustix::fs::ftruncate(&file, size as u64).unwrap();
        if seal {
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        }
        let mut taken = None;
        wait(&mut [&mut end], |ends| {
            if let Ok(socket) = rustix::net::accept_with(&listener, SOCKET) {
                handover::send_hello(&socket, &file, ring).unwrap();
                taken = Some(socket);
            }
            ends[0].counters().violations == n as u64 + 1
        });
        assert!(!end.is_up());
    }
}

/// A raw listener with its memory, to misbehave with, or to act as another version.
fn raw_listener(folder: &Folder) -> OwnedFd {
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(folder.path()).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    listener
}

/// An end's answer to a listener that makes this offer.
fn answer_to(offer: u32, keep: bool) -> (Option<Answer>, Crcs) {
    let folder = Folder::new(&format!("offer-{offer:x}-{keep}"));
    let listener = raw_listener(&folder);
    let mut end = CableEnd::connect(&folder.url()).unwrap();
    if keep {
        end.keep_crcs();
    }
    let file = rustix::fs::memfd_create("offer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, memory_size(RING) as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    rustix::io::pwrite(&file, &offer.to_ne_bytes(), 64).unwrap();
    let mut socket = None;
    wait(&mut [&mut end], |_| {
        if let Ok(accepted) = rustix::net::accept_with(&listener, SOCKET) {
            handover::send_hello(&accepted, &file, RING).unwrap();
            socket = Some(accepted);
        }
        socket.is_some()
    });
    let socket = socket.unwrap();
    wait(&mut [&mut end], up);
    // A later change of the offer has no effect.
    rustix::io::pwrite(&file, &(offer ^ 1).to_ne_bytes(), 64).unwrap();
    (handover::receive_answer(&socket).unwrap(), end.crcs())
}

#[test]
fn crcs_are_omitted_only_if_the_listener_offers_it() {
    let agreed = |bare| (Some(Answer::Attached { bare }), if bare { Crcs::Absent } else { Crcs::Present });
    // An older listener leaves a zero.
    assert_eq!(answer_to(0, false), agreed(false));
    assert_eq!(answer_to(1, false), agreed(true));
    assert_eq!(answer_to(1, true), agreed(false));
    // Unknown offers are not accepted.
    for offer in [2, 3, u32::MAX] {
        assert_eq!(answer_to(offer, false), agreed(false));
    }
}

#[test]
fn connectors_that_lie_about_crcs_are_disconnected() {
    // (keep CRCs here, the other end's answer, whether it sends a packet without CRCs, whether it is
    // disconnected)
    for (n, (keep, word, bare, cut)) in [
        (true, Word::AttachedBare, false, true),
        (true, Word::Attached, false, false),
        (true, Word::Attached, true, true),
        (false, Word::Attached, false, false),
        (false, Word::Attached, true, true),
        (false, Word::AttachedBare, false, false),
        (false, Word::AttachedBare, true, false),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = Folder::new(&format!("crcs-{n}"));
        let mut listener = CableEnd::listen(&folder.url()).unwrap();
        if keep {
            listener.keep_crcs();
        }
        let socket = raw(&folder);
        let mut hello = None;
        wait(&mut [&mut listener], |_| {
            hello = handover::receive_hello(&socket).unwrap();
            hello.is_some()
        });
        let Some(Hello::Memory { file, ring }) = hello else { panic!("{hello:?}") };
        handover::send_word(&socket, word);
        wait(&mut [&mut listener], |ends| ends[0].is_up() || ends[0].counters().violations > 0);
        let mut seen = Vec::new();
        if listener.is_up() {
            let at = (RING_HEADER + ring as usize) as u64;
            let length = 40 | if bare { 1 << 31 } else { 0 };
            rustix::io::pwrite(&file, &u32::to_ne_bytes(length), at + RING_HEADER as u64).unwrap();
            rustix::io::pwrite(&file, &48u32.to_ne_bytes(), at).unwrap();
            // All zeros: neither a packet nor correct CRCs. It does no harm.
            listener.receive_as_sent(8, |bytes, crcs| {
                seen.push((bytes.len(), crcs));
                true
            });
            listener.poll(Instant::now() + CHECK);
        }
        assert_eq!(listener.counters().violations, u64::from(cut), "case {n}");
        let crcs = if bare { Crcs::Absent } else { Crcs::Present };
        assert_eq!(seen, if cut { vec![] } else { vec![(40, crcs)] }, "case {n}");
    }
}

#[test]
fn a_crowd_of_connectors_is_rejected_a_few_at_a_time() {
    let folder = Folder::new("crowd");
    let mut listener = CableEnd::listen(&folder.url()).unwrap();
    let mut first = CableEnd::connect(&folder.url()).unwrap();
    wait(&mut [&mut listener, &mut first], up);
    let crowd: Vec<_> = (0..4).map(|_| raw(&folder)).collect();
    let is_rejected = |socket: &OwnedFd| matches!(handover::receive_hello(socket), Ok(Some(Hello::Busy)));
    listener.poll(Instant::now() + CHECK);
    let (now, later): (Vec<_>, Vec<_>) = crowd.iter().partition(|socket| is_rejected(socket));
    assert_eq!((now.len(), later.len()), (ACCEPTS, 4 - ACCEPTS));
    let mut left = later;
    wait(&mut [&mut listener, &mut first], |_| {
        left.retain(|socket| !is_rejected(socket));
        left.is_empty()
    });
    assert!(listener.is_up() && first.is_up());
}

/// True if a message is pending on a descriptor.
fn is_readable(waker: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::from_borrowed_fd(waker, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn a_sleeping_end_is_woken_once_and_one_that_is_awake_never() {
    let folder = Folder::new("wake");
    let mut listener = CableEnd::listen(&folder.url()).unwrap();
    let mut connector = CableEnd::connect(&folder.url()).unwrap();
    assert!(listener.rest().is_none() && connector.waker().is_none(), "nothing would wake it");
    wait(&mut [&mut listener, &mut connector], up);
    let send = |end: &mut CableEnd| {
        end.send_with(100, |out| out.fill(7)).unwrap();
        end.flush();
    };
    send(&mut listener);
    assert!(!is_readable(connector.waker().unwrap()), "it is awake");
    for _ in 0..3 {
        // Earlier packets do not wake it.
        assert!(!is_readable(connector.rest().unwrap()));
        assert!(connector.receive(8, |_| {}) <= 2);
        send(&mut listener);
        assert!(is_readable(connector.waker().unwrap()));
        send(&mut listener);
        let now = Instant::now();
        connector.rest();
        connector.poll(now);
        assert!(!is_readable(connector.waker().unwrap()), "one message, consumed by the next check");
        assert_eq!(connector.receive(8, |_| {}), 2);
    }
    // The wakeup of an earlier packet is reported. Otherwise the thread that consumed it would sleep as if
    // nothing had arrived.
    listener.send_with(100, |_| {}).unwrap();
    assert_eq!(connector.receive(8, |_| {}), 1);
    connector.rest();
    assert!(!connector.poll(Instant::now()));
    listener.flush();
    connector.rest();
    assert!(connector.poll(Instant::now()) && connector.receive(8, |_| {}) == 0);
    // The other direction, with a packet sent before any flush: upkeep flushes it.
    listener.rest();
    connector.send_with(100, |_| {}).unwrap();
    connector.poll(Instant::now());
    assert!(is_readable(listener.waker().unwrap()));
    assert_eq!((listener.counters().violations, connector.counters().violations), (0, 0));
}

#[test]
fn a_flood_of_wakeups_is_consumed_in_parts_and_other_messages_end_the_cable() {
    let folder = Folder::new("flood");
    let mut listener = CableEnd::listen(&folder.url()).unwrap();
    let socket = raw(&folder);
    wait(&mut [&mut listener], |_| {
        matches!(handover::receive_hello(&socket), Ok(Some(Hello::Memory { .. })))
    });
    handover::send_word(&socket, Word::Attached);
    wait(&mut [&mut listener], up);
    let mut sent = 0;
    while sent < 3 * WAKES && rustix::net::send(&socket, &[WAKE], SendFlags::DONTWAIT).is_ok() {
        sent += 1;
    }
    assert!(sent > WAKES, "{sent}");
    let now = Instant::now() + CHECK;
    listener.poll(now);
    assert!(listener.is_up() && is_readable(listener.waker().unwrap()), "some are left");
    wait(&mut [&mut listener], |ends| !is_readable(ends[0].waker().unwrap()));
    rustix::net::send(&socket, &[WAKE, WAKE], SendFlags::empty()).unwrap();
    wait(&mut [&mut listener], |ends| !ends[0].is_up());
    assert_eq!(listener.counters().violations, 1);
}
