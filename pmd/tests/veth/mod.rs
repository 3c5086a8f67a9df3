//! Shared parts of tests with ports on veth pairs: a private network namespace, EAL, and frames of a private
//! EtherType.
#![allow(clippy::unwrap_used, dead_code, reason = "a test; not each of them uses all of it")]

use std::process::Command;
use std::time::{Duration, Instant};

use pmd::eal::Eal;
use pmd::eth::EthConfig;
use pmd::mem::{Pool, PoolConfig};

/// The EtherType of the frames.
pub(crate) const PRIVATE: [u8; 2] = [0x88, 0xb5];

/// One queue, frames of 1,500 bytes, all features of the port.
pub(crate) const CONFIG: EthConfig = EthConfig {
    queues: 1,
    rx_descriptors: 64,
    tx_descriptors: 64,
    mtu: 1500,
    promiscuous: true,
    offloads: true,
};

pub(crate) fn run(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{line}");
}

/// Gives this thread, its children and its sockets a network namespace. Prints a message and returns false if
/// that is not permitted.
pub(crate) fn own_namespace() -> bool {
    // SAFETY: no memory is involved.
    let own = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !own {
        eprintln!("skipped: a network namespace needs root ({})", std::io::Error::last_os_error());
    }
    own
}

/// Creates two connected interfaces that are up, on which the kernel itself sends nothing.
pub(crate) fn veth(left: &str, right: &str, mtu: u16) {
    run(&format!("ip link add {left} mtu {mtu} type veth peer name {right} mtu {mtu}"));
    for name in [left, right] {
        run(&format!("ip link set {name} addrgenmode none up"));
    }
}

/// Starts EAL with these ports.
pub(crate) fn eal(vdevs: &[&str]) -> Eal {
    let words = "test --no-huge --no-shconf --no-pci -m 256 --no-telemetry --log-level=error --lcores 0@0";
    let ports = vdevs.iter().flat_map(|vdev| ["--vdev", vdev]);
    Eal::init(words.split(' ').chain(ports).map(str::to_owned)).unwrap()
}

pub(crate) fn pool(name: &str, count: u32, data_room: u16) -> Pool {
    Pool::create(name, &PoolConfig { count, data_room, cache: 0, socket: -1 }).unwrap()
}

/// Time limit of a required event, on a machine that may be busy.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until a condition holds, for at most [`DEADLINE`].
pub(crate) fn until(is: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a frame through the kernel on this interface: a broadcast from 02:00:00:00:00:09 with this content
/// after its addresses.
pub(crate) fn kernel_sends(interface: &str, behind: &[u8]) {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 9]);
    bytes.extend(behind);
    bytes.resize(60, 0);
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: a C string, and a socket owned here; the address is zeroed and then filled.
    unsafe {
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        assert!(socket >= 0);
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        let sent = libc::sendto(
            socket,
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
            (&raw const to).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        );
        assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
        libc::close(socket);
    }
}
