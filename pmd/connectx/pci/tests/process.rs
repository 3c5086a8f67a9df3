//! The program: clients that disconnect at any point, and exit by signal.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Upper bound for every wait, generous because the host may be busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// A program, stopped with its test.
struct Program {
    child: Child,
    folder: PathBuf,
}

impl Program {
    fn start(name: &str) -> Self {
        Self::start_with(name, &["--cable", "udp:127.0.0.1:0-127.0.0.1:9"])
    }

    fn start_with(name: &str, options: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("softhca-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_softhca"))
            .args(["--socket"])
            .arg(folder.join("socket"))
            .args(options)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    fn connect(&self) -> UnixStream {
        let end = Instant::now() + DEADLINE;
        loop {
            match UnixStream::connect(self.socket()) {
                Ok(socket) => {
                    socket.set_read_timeout(Some(DEADLINE)).unwrap();
                    return socket;
                }
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Time from the signal to the exit, and whether it succeeded.
    fn terminate(&mut self) -> (Duration, bool) {
        let begin = Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (begin.elapsed(), status.success());
            }
            assert!(begin.elapsed() < DEADLINE, "it does not exit");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Voluntary context switches of a process, and its CPU time.
fn wear(child: &Child) -> (u64, Duration) {
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", child.id())).unwrap();
    let status = read("status");
    let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let stat = read("stat");
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let tick = Duration::from_secs(1) / rustix::param::clock_ticks_per_second() as u32;
    (switches.unwrap().trim().parse().unwrap(), tick * ticks as u32)
}

/// Waits until the process sleeps for long periods: at most eight times in a quarter of a second.
fn wait_until_idle(child: &Child) {
    let end = Instant::now() + DEADLINE;
    let mut before = wear(child).0;
    loop {
        std::thread::sleep(Duration::from_millis(250));
        let now = wear(child).0;
        if now - before <= 8 {
            return;
        }
        before = now;
        assert!(Instant::now() < end, "it does not become idle");
    }
}

fn message(id: u16, command: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
    for word in [16 + body.len() as u32, 0, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Sends a request and reads the whole reply.
fn ask(socket: &mut UnixStream, command: u16, body: &[u8]) -> Vec<u8> {
    socket.write_all(&message(7, command, body)).unwrap();
    let mut header = [0; 16];
    socket.read_exact(&mut header).unwrap();
    assert_eq!(header[8..12], [1, 0, 0, 0], "a reply, and no error");
    let len = u32::from_le_bytes(header[4..8].try_into().unwrap());
    let mut body = vec![0; len as usize - 16];
    socket.read_exact(&mut body).unwrap();
    body
}

const VERSION: [u8; 4] = [0, 0, 3, 0];

/// The body of a read of the configuration space's first bytes.
fn identity() -> Vec<u8> {
    [&0u64.to_le_bytes()[..], &7u32.to_le_bytes(), &4u32.to_le_bytes()].concat()
}

fn serves(program: &Program) -> UnixStream {
    let mut socket = program.connect();
    assert!(ask(&mut socket, 1, &VERSION).ends_with(b"}\0"));
    assert_eq!(ask(&mut socket, 9, &identity())[16..], [0xb3, 0x15, 0x17, 0x10]);
    socket
}

#[test]
fn a_client_may_go_in_the_middle_of_anything() {
    let mut program = Program::start("midst");
    let whole = message(1, 1, &VERSION);
    for len in [0, 1, 15, 16, 19] {
        program.connect().write_all(&whole[..len]).unwrap();
    }
    // In the middle of a register write; with a request whose reply it does not await; with a thousand of
    // them.
    let write = message(2, 10, &[&0x14u64.to_le_bytes()[..], &[0, 0, 0, 0, 4, 0, 0, 0, 0]].concat());
    let mut socket = serves(&program);
    socket.write_all(&write).unwrap();
    drop(socket);
    for count in [1, 1000] {
        let mut socket = serves(&program);
        let _ = socket.write_all(&message(3, 9, &identity()).repeat(count));
        drop(socket);
    }
    drop(serves(&program));
    assert!(program.child.try_wait().unwrap().is_none());
    let (_, well) = program.terminate();
    assert!(well);
}

/// Terminates the idle program, with a client or without. Returns the time to exit.
fn exit_by_signal(with_client: bool) -> Duration {
    let mut program = Program::start(if with_client { "ended-with" } else { "ended-without" });
    let mut client = serves(&program);
    // Half a message does not delay the exit.
    client.write_all(&message(1, 9, &identity())[..20]).unwrap();
    if !with_client {
        client.shutdown(std::net::Shutdown::Both).unwrap();
    }
    wait_until_idle(&program.child);
    let (time, well) = program.terminate();
    assert!(well);
    assert!(!program.socket().exists());
    if with_client {
        // The monitor sees a closed connection: a device that was unplugged.
        assert_eq!(client.read(&mut [0; 64]).unwrap(), 0);
    }
    time
}

#[test]
fn a_signal_ends_it_with_a_client_or_without_and_its_socket_goes() {
    exit_by_signal(false);
    exit_by_signal(true);
}

#[test]
fn a_reset_at_any_moment_leaves_the_cable_plugged_in() {
    // A loopback address that no other process's tests use.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = std::net::SocketAddr::from(([127, 128 | high, middle, low], 0));
    let local = std::net::UdpSocket::bind(own).unwrap().local_addr().unwrap();
    let program = Program::start_with("replug", &["--cable", &format!("udp:{local}-127.0.0.1:9")]);
    let mut client = serves(&program);
    for round in 0..3000_u32 {
        // Also while it is about to sleep.
        for _ in 0..round % 97 * 20 {
            std::hint::spin_loop();
        }
        ask(&mut client, 13, &[]);
        ask(&mut client, 9, &identity());
        let bound = std::net::UdpSocket::bind(local);
        assert!(bound.is_err(), "round {round}: the device has no cable");
    }
}

/// Measurements, each of which an idle host must pass.
mod timing {
    use connectx::cable::CableEnd;

    use super::*;

    #[test]
    #[ignore = "timing: measured by scripts/test --full timing"]
    fn a_signal_ends_it_at_once() {
        for with_client in [false, true] {
            let time = exit_by_signal(with_client);
            assert!(time < Duration::from_secs(2), "{time:?}");
        }
    }

    #[test]
    #[ignore = "timing: measured by scripts/test --full timing"]
    fn an_idle_device_sleeps_with_a_cable_that_is_up_or_down_or_without_one() {
        const LONG: Duration = Duration::from_millis(1000);
        for cable in ["none", "down", "up", "udp"] {
            let name = format!("softhca-sleep-{cable}-{}.sock", std::process::id());
            let url = format!("shm:{}", std::env::temp_dir().join(name).display());
            let mut other = (cable == "up").then(|| CableEnd::listen(&url.parse().unwrap()).unwrap());
            let options = match cable {
                "none" => vec![],
                "udp" => vec!["--cable", "udp:127.0.0.1:0-127.0.0.1:9"],
                _ => vec!["--cable", url.as_str()],
            };
            let program = Program::start_with(&format!("sleep-{cable}"), &options);
            let _client = serves(&program);
            let mut run_for = |time| {
                let end = Instant::now() + time;
                while Instant::now() < end {
                    if let Some(other) = &mut other {
                        other.poll(Instant::now());
                        other.receive(64, |_| {});
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                other.as_ref().is_none_or(CableEnd::is_up)
            };
            assert!(run_for(Duration::from_millis(500)));
            let before = wear(&program.child);
            assert!(run_for(LONG));
            let after = wear(&program.child);
            let (sleeps, used) = (after.0 - before.0, after.1 - before.1);
            println!("cable {cable}: {sleeps} sleeps, {used:?} of CPU time in {LONG:?}");
            assert!(sleeps < 100, "cable {cable}: {sleeps} sleeps in {LONG:?}");
            assert!(used < LONG * 3 / 100, "cable {cable}: {used:?} of {LONG:?}");
        }
    }
}

#[test]
fn a_cable_that_comes_up_wakes_a_sleeping_device() {
    use connectx::cable::CableEnd;
    let place = std::env::temp_dir().join(format!("softhca-late-{}.sock", std::process::id()));
    let url = format!("shm:{}", place.display());
    let program = Program::start_with("late", &["--cable", &url]);
    let _client = serves(&program);
    wait_until_idle(&program.child);
    let mut other = CableEnd::listen(&url.parse().unwrap()).unwrap();
    let begin = Instant::now();
    while !other.is_up() {
        other.poll(Instant::now());
        assert!(begin.elapsed() < DEADLINE, "it does not wake up");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn all_threads_stay_on_the_configured_core() {
    let allowed = softhca::lcore::Allowed::now().unwrap();
    for core in [allowed.list().next().unwrap(), allowed.list().last().unwrap()] {
        let core = core.to_string();
        let program = Program::start_with("core", &["--lcore", &core]);
        let _client = serves(&program);
        for task in std::fs::read_dir(format!("/proc/{}/task", program.child.id())).unwrap() {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            assert_eq!(cores.unwrap().trim(), core);
        }
    }
}

#[test]
fn it_serves_as_configured_or_reports_the_error() {
    let folder = std::env::temp_dir().join(format!("softhca-file-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, socket) = (folder.join("softhca.toml"), folder.join("elsewhere"));
    let text = format!("socket = '{}'\nqueue-pairs = 100\n", socket.display());
    std::fs::write(&file, &text).unwrap();
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softhca"));
        command.arg("--config").arg(&file).stdout(Stdio::null());
        command
    };
    let output = run().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let place = format!("softhca: {}:2: queue-pairs: ", file.display());
    assert!(!output.status.success() && said.contains(&place) && said.contains("from 16 to 8192"), "{said}");
    std::fs::write(&file, text.replace("100", "128")).unwrap();
    let child = run().stderr(Stdio::null()).spawn().unwrap();
    let mut program = Program { child, folder: folder.clone() };
    let end = Instant::now() + DEADLINE;
    while UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < end, "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(program.terminate().1 && !socket.exists());
}

#[test]
fn it_reports_when_asked_and_at_its_end() {
    let file = std::env::temp_dir().join(format!("softhca-report-{}.json", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let mut program = Program::start_with("report", &["--report", file.to_str().unwrap()]);
    let pid = rustix::process::Pid::from_child(&program.child);
    let report = || {
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
        let end = Instant::now() + DEADLINE;
        while !file.exists() {
            assert!(Instant::now() < end, "no report");
            std::thread::sleep(Duration::from_millis(5));
        }
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        std::fs::remove_file(&file).unwrap();
        json
    };
    let client = serves(&program);
    let first = report();
    assert_eq!((&first["device"]["resets"], &first["objects"]["queue_pairs"]), (&0.into(), &0.into()));
    drop(client);
    drop(serves(&program));
    // A report before the program has noticed the disconnect must be requested again.
    let end = Instant::now() + DEADLINE;
    while report()["device"]["resets"] != 2 {
        assert!(Instant::now() < end);
    }
    assert!(program.terminate().1);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(json["device"]["resets"], 2);
    assert_eq!(json["ports"].as_array().unwrap().len(), 1);
}
