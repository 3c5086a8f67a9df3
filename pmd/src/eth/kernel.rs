//! What the kernel knows of the interface below a port, where its driver does not tell.
//!
//! DPDK's drivers on interfaces of the kernel call their link up whatever becomes of the interface, and none of them wakes who
//! waits for frames.

use std::os::fd::{BorrowedFd, RawFd};

use super::driver_of;
use dpdk_sys as sys;

/// Drivers on an interface of the kernel, named by `iface=`, that do not look after its link.
const BLIND: [&str; 3] = ["net_af_packet", "net_af_xdp", "net_pcap"];
/// The driver whose sockets are known to be readable when there is a frame.
const AF_PACKET: &str = "net_af_packet";

/// The kernel's interface below a port: its index, which stays when it is renamed.
#[derive(Debug)]
pub(super) struct Interface(u32);

impl Interface {
    /// That of a port whose driver does not tell what becomes of it; `None` as well if it is not in this namespace.
    pub(super) fn below(id: u16, info: &sys::rte_eth_dev_info) -> Option<Self> {
        BLIND.contains(&driver_of(info).as_str()).then_some(())?;
        interface::index(named(&arguments(id)?)?).ok().map(Self)
    }

    /// True if it is up and has a carrier; false as well once it is gone.
    pub(super) fn is_running(&self) -> bool {
        interface::is_running(self.0).unwrap_or_else(|e| e.raw_os_error() != Some(libc::ENODEV))
    }

    /// The sockets of the driver's queues, in their order; empty where they are not what they should be.
    pub(super) fn sockets(&self, info: &sys::rte_eth_dev_info, queues: u16) -> Vec<Socket> {
        if driver_of(info) != AF_PACKET {
            return Vec::new();
        }
        let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
        let mut found: Vec<RawFd> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|fd| packet_socket_of(*fd) == Some(self.0))
            .collect();
        found.sort_unstable();
        // One more, or one less, is not the driver's: then nobody is woken, which costs time and nothing else.
        if found.len() == usize::from(queues) { found.into_iter().map(Socket).collect() } else { Vec::new() }
    }
}

/// A socket of a driver. The driver has it open as long as the port is not closed.
#[derive(Debug)]
pub(super) struct Socket(RawFd);

impl Socket {
    /// To be waited for, while the port is open.
    pub(super) const fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: the driver keeps it open until the port is closed, which who has this socket prevents (`Running`).
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// What a port was given behind its name.
fn arguments(id: u16) -> Option<String> {
    // SAFETY: the port exists; the answer is a C string that lives as long as the port does, or NULL.
    let text = unsafe { sys::shim_eth_arguments(id) };
    if text.is_null() {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn named(arguments: &str) -> Option<&str> {
    arguments.split(',').find_map(|word| word.strip_prefix("iface="))
}

/// Index of the interface that an AF_PACKET socket is bound to; `None` for anything else.
fn packet_socket_of(fd: RawFd) -> Option<u32> {
    // SAFETY: an address is bytes and numbers; all zeros is one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: asks what a descriptor is bound to, whatever it is; the answer is at most `len` bytes.
    let rc = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    let is_packet = rc == 0 && i32::from(address.sll_family) == libc::AF_PACKET;
    is_packet.then_some(address.sll_ifindex as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_is_found_among_the_arguments() {
        assert_eq!(named("iface=eth1,blocksz=4096"), Some("eth1"));
        assert_eq!(named("qpairs=2,iface=eth1"), Some("eth1"));
        assert_eq!(named("rx_pcap=a,tx_pcap=b"), None);
        assert_eq!(named(""), None);
    }
}
