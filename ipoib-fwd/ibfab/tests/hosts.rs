//! Two virtual hosts over one switch, each in a network namespace of its own: the kernels' own ping and TCP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ibfab::config::FabricConfig;
use ibfab::host::HostCounters;
use ibfab::program::{Options, Program};

/// Network namespaces that go with the test.
struct Namespaces(Vec<String>);

impl Namespaces {
    /// Makes some, or says why not.
    fn new(count: usize) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("not root".to_owned());
        }
        let mut this = Self(Vec::new());
        for n in 0..count {
            let name = format!("ibfab-{}-{n}", std::process::id());
            let out = run("ip", &["netns", "add", &name]);
            if !out.status.success() {
                return Err(format!("ip netns add: {}", String::from_utf8_lossy(&out.stderr)));
            }
            this.0.push(name.clone());
            run("ip", &["-n", &name, "link", "set", "lo", "up"]);
        }
        Ok(this)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            run("ip", &["netns", "del", name]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().expect(program)
}

/// Runs `work` on a thread inside a namespace.
fn inside<T: Send + 'static>(
    netns: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    let file = std::fs::File::open(format!("/run/netns/{netns}")).unwrap();
    std::thread::spawn(move || {
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind)).unwrap();
        work()
    })
}

/// What the fabric saw, after it ended.
struct Outcome {
    hosts: Vec<HostCounters>,
    lost_buffers: u32,
}

/// A fabric on a thread of its own.
struct Running {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Outcome>,
}

impl Running {
    fn start(config: FabricConfig) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (up, is_up) = mpsc::channel();
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut program = Program::start(&config, Options::default()).unwrap();
                let start = Instant::now();
                let mut told = false;
                while !stop.load(Ordering::Relaxed) {
                    if !program.turn(Instant::now()).unwrap() {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    if !told && program.hosts().iter_mut().all(|h| h.is_up()) {
                        told = true;
                        up.send(start.elapsed()).unwrap();
                    }
                }
                let hosts: Vec<HostCounters> = program.hosts().iter().map(|h| *h.counters()).collect();
                let now = Instant::now();
                program.hosts().iter_mut().for_each(|h| h.shutdown(now));
                while !program.hosts().iter_mut().all(|h| h.is_stopped())
                    && now.elapsed() < Duration::from_secs(5)
                {
                    program.turn(Instant::now()).unwrap();
                }
                Outcome { hosts, lost_buffers: program.end().unwrap() }
            })
        };
        let took = is_up.recv_timeout(Duration::from_secs(10)).expect("the links come up");
        println!("links up after {took:?}");
        Self { stop, thread }
    }

    fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn ping(netns: &str, to: &str, size: &str) {
    let arguments =
        ["netns", "exec", netns, "ping", "-n", "-c", "5", "-i", "0.05", "-W", "2", "-s", size, to];
    let out = run("ip", &arguments);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains(" 0% packet loss"), "ping -s {size}: {text}");
}

/// Sends `bytes` bytes by TCP and compares them at the other end; returns bits per second.
fn stream(from: &str, to: &str, address: &'static str, bytes: usize) -> f64 {
    let (ready, is_ready) = mpsc::channel();
    let receiver = inside(to, move || {
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut all = Vec::with_capacity(bytes);
        stream.read_to_end(&mut all).unwrap();
        all
    });
    is_ready.recv_timeout(Duration::from_secs(5)).unwrap();
    let data: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0]).collect();
    let sent = data.clone();
    let start = Instant::now();
    let sender = inside(from, move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&sent).unwrap();
    });
    sender.join().unwrap();
    let all = receiver.join().unwrap();
    assert!(all == data, "{} bytes of {bytes} arrived, or others", all.len());
    bytes as f64 * 8.0 / start.elapsed().as_secs_f64()
}

fn config(namespaces: &Namespaces, mode: &str) -> FabricConfig {
    let mut text = String::from("[fabric]\nmtu = 4096\n");
    for (netns, n) in namespaces.0.iter().zip(1..) {
        text += &format!(
            "[[host]]\nname = \"h{n}\"\nnetns = \"{netns}\"\ntun = \"ib0\"\naddress = \"10.98.0.{n}/24\"\n\
             mtu = {}\nmode = \"{mode}\"\n",
            if mode == "connected" { 65520 } else { 4092 }
        );
    }
    FabricConfig::parse(Path::new("test.toml"), &text).unwrap()
}

/// One test, since EAL starts once in a process.
#[test]
fn hosts_talk_in_both_modes() {
    let namespaces = match Namespaces::new(3) {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let config = FabricConfig {
        hosts: {
            let mut hosts = config(&namespaces, "connected").hosts;
            let datagram = config(&namespaces, "datagram").hosts;
            hosts.truncate(2);
            hosts.extend(datagram.into_iter().skip(2));
            hosts
        },
        ..config(&namespaces, "connected")
    };
    let fabric = Running::start(config);
    let [one, two, three] = &namespaces.0[..] else { panic!() };
    // Connected mode, both ways, small and as large as an IP packet can be.
    ping(one, "10.98.0.2", "56");
    ping(two, "10.98.0.1", "65000");
    let rate = stream(one, two, "10.98.0.2:5000", 16 << 20);
    println!("connected: {:.2} Gbit/s", rate / 1e9);
    // To and from a host that speaks datagram only.
    ping(one, "10.98.0.3", "56");
    ping(three, "10.98.0.2", "4000");
    let rate = stream(three, one, "10.98.0.1:5000", 4 << 20);
    println!("datagram: {:.2} Gbit/s", rate / 1e9);
    let rate = stream(one, three, "10.98.0.3:5000", 4 << 20);
    println!("connected to datagram: {:.2} Gbit/s", rate / 1e9);

    let outcome = fabric.stop();
    let [one, two, three] = &outcome.hosts[..] else { panic!() };
    assert!(one.rc_sent.bytes > 16 << 20 && two.rc_received.bytes > 16 << 20, "{one:?} {two:?}");
    assert!(two.rc_sent.packets > 5 && one.rc_received.packets > 5, "a connection in each direction");
    assert_eq!((three.rc_sent.packets, three.rc_received.packets), (0, 0), "datagram only");
    assert!(three.ud_sent.bytes > 4 << 20, "{three:?}");
    assert_eq!(outcome.lost_buffers, 0);
}
