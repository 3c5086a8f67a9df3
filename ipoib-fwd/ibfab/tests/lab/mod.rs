//! A testbed: network namespaces, a fabric on a thread, and the kernels' own programs.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ibfab::config::FabricConfig;
use ibfab::host::HostCounters;
use ibfab::program::{Options, Program};

/// Limit for any wait, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Network namespaces, removed on drop.
pub(crate) struct Namespaces(pub(crate) Vec<String>);

impl Namespaces {
    /// Creates namespaces, or returns why that failed.
    pub(crate) fn new(count: usize) -> Result<Self, String> {
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

pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
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

/// Results of the fabric after it stopped.
pub(crate) struct Outcome {
    pub(crate) hosts: Vec<HostCounters>,
    pub(crate) lost_buffers: u32,
}

/// An operation on the running fabric.
type Errand = Box<dyn FnOnce(&mut Program) + Send>;

/// A fabric on a thread of its own.
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    errands: mpsc::Sender<Errand>,
    thread: std::thread::JoinHandle<Outcome>,
}

impl Running {
    /// Starts the fabric and waits until all links are up.
    pub(crate) fn start(config: FabricConfig, options: Options) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (up, is_up) = mpsc::channel();
        let (errands, inbox) = mpsc::channel::<Errand>();
        let thread = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut program = Program::start(&config, options).unwrap();
                let start = Instant::now();
                let mut told = false;
                while !stop.load(Ordering::Relaxed) {
                    if !program.turn(Instant::now()) {
                        std::thread::sleep(Duration::from_micros(20));
                    }
                    if !told && program.hosts().iter_mut().all(|h| h.is_up()) {
                        told = true;
                        up.send(start.elapsed()).unwrap();
                    }
                    inbox.try_iter().for_each(|errand| errand(&mut program));
                }
                let hosts: Vec<HostCounters> = program.hosts().iter().map(|h| *h.counters()).collect();
                let now = Instant::now();
                program.hosts().iter_mut().for_each(|h| h.shutdown(now));
                while !program.hosts().iter_mut().all(|h| h.is_stopped()) && now.elapsed() < PATIENCE {
                    program.turn(Instant::now());
                }
                Outcome { hosts, lost_buffers: program.end().unwrap() }
            })
        };
        let took = is_up.recv_timeout(PATIENCE).expect("the links come up");
        println!("links up after {took:?}");
        Self { stop, errands, thread }
    }

    /// Runs an operation between two iterations and returns its result.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        errand: impl FnOnce(&mut Program) -> T + Send + 'static,
    ) -> T {
        let (answer, is_answered) = mpsc::channel();
        self.errands.send(Box::new(move |program| answer.send(errand(program)).unwrap())).unwrap();
        is_answered.recv_timeout(PATIENCE).unwrap()
    }

    /// Waits until a condition is true.
    pub(crate) fn wait(&self, what: &str, until: impl Fn(&mut Program) -> bool + Clone + Send + 'static) {
        let start = Instant::now();
        while !self.ask(until.clone()) {
            assert!(start.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("{what} after {:?}", start.elapsed());
    }

    pub(crate) fn stop(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// True if one ping is answered within `seconds`. It sends a single ping: after a first answer, `ping` waits
/// for others for two round trips only.
fn answered(netns: &str, to: &str, size: &str, seconds: &str) -> bool {
    let arguments = ["netns", "exec", netns, "ping", "-n", "-c", "1", "-W", seconds, "-s", size, to];
    run("ip", &arguments).status.success()
}

/// True if all of `count` pings are answered, including the first, however slow the machine is.
pub(crate) fn pings(netns: &str, to: &str, size: &str, count: u32) -> bool {
    (0..count).all(|_| answered(netns, to, size, "60"))
}

/// True if a ping is not answered.
pub(crate) fn is_silent(netns: &str, to: &str) -> bool {
    !answered(netns, to, "56", "1")
}

/// Pings until `count` in a row are answered; earlier losses do not matter.
pub(crate) fn comes_back(netns: &str, to: &str, size: &str, count: u32) {
    let start = Instant::now();
    while !(0..count).all(|_| answered(netns, to, size, "2")) {
        assert!(start.elapsed() < PATIENCE, "{to} does not come back");
    }
    println!("{to} is back after {:?}", start.elapsed());
}

pub(crate) fn ping(netns: &str, to: &str, size: &str) {
    assert!(pings(netns, to, size, 5), "ping -s {size} {to}");
}

/// Sends `bytes` bytes by TCP and compares them at the other end; returns bits per second.
pub(crate) fn stream(from: &str, to: &str, address: &'static str, bytes: usize) -> f64 {
    let (ready, is_ready) = mpsc::channel();
    let receiver = inside(to, move || {
        let listener = TcpListener::bind(address).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut all = Vec::with_capacity(bytes);
        stream.read_to_end(&mut all).unwrap();
        all
    });
    is_ready.recv_timeout(PATIENCE).unwrap();
    let data: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0]).collect();
    let sent = data.clone();
    let start = Instant::now();
    let sender = inside(from, move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
    });
    sender.join().unwrap();
    let all = receiver.join().unwrap();
    assert!(all == data, "{} bytes of {bytes} arrived, or others", all.len());
    bytes as f64 * 8.0 / start.elapsed().as_secs_f64()
}
