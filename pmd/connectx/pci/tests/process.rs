//! The program: clients that go in the middle of something, and its end by signal.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A program, ended with its test.
struct Program {
    child: Child,
    folder: PathBuf,
}

impl Program {
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("softhca-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_softhca"))
            .args(["--socket"])
            .arg(folder.join("socket"))
            .args(["--cable", "udp:127.0.0.1:0-127.0.0.1:9"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    fn connect(&self) -> UnixStream {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match UnixStream::connect(self.socket()) {
                Ok(socket) => {
                    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    return socket;
                }
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Time from the signal to the end, and whether it went well.
    fn terminate(&mut self) -> (Duration, bool) {
        let begin = Instant::now();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (begin.elapsed(), status.success());
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "it does not end");
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

fn message(id: u16, command: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = [id.to_le_bytes(), command.to_le_bytes()].concat();
    for word in [16 + body.len() as u32, 0, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Asks, and takes the whole answer.
fn ask(socket: &mut UnixStream, command: u16, body: &[u8]) -> Vec<u8> {
    socket.write_all(&message(7, command, body)).unwrap();
    let mut header = [0; 16];
    socket.read_exact(&mut header).unwrap();
    assert_eq!(header[8..12], [1, 0, 0, 0], "an answer, and no error");
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
    // In the middle of a write to a register; with a question whose answer it does not wait for; with a thousand of them.
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

#[test]
fn a_signal_ends_it_at_once_with_a_client_or_without_and_its_socket_goes() {
    for with_client in [false, true] {
        let mut program = Program::start(if with_client { "ended-with" } else { "ended-without" });
        let mut client = serves(&program);
        // Half a message is no reason to wait.
        client.write_all(&message(1, 9, &identity())[..20]).unwrap();
        if !with_client {
            client.shutdown(std::net::Shutdown::Both).unwrap();
        }
        // It has come to rest.
        std::thread::sleep(Duration::from_millis(200));
        let (time, well) = program.terminate();
        assert!(well && time < Duration::from_secs(2), "{time:?}");
        assert!(!program.socket().exists());
        if with_client {
            // What the monitor sees is a connection that ends: a device that was pulled out.
            assert_eq!(client.read(&mut [0; 64]).unwrap(), 0);
        }
    }
}
