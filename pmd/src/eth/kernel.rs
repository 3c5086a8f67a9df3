//! The kernel's view of the interface below a port, for drivers that do not report it.
//!
//! DPDK's drivers on kernel interfaces always report their link as up. Only the TAP driver provides a
//! descriptor to wait on for frames.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::descriptor::Descriptor;
use super::driver_of;
use dpdk_sys as sys;

/// Drivers on a kernel interface, named by `iface=`, that do not monitor its link.
const BLIND: [&str; 3] = [AF_PACKET, AF_XDP, "net_pcap"];
/// A driver that claims to report link changes but does not.
pub(super) const TAP: &str = "net_tap";
/// Drivers whose sockets become readable when a frame arrives.
const AF_PACKET: &str = "net_af_packet";
const AF_XDP: &str = "net_af_xdp";

/// Default length of a frame in the packet ring, in bytes.
const DEFAULT_FRAME: u32 = 2048;
/// Bytes of a ring frame that hold no payload: the kernel's header and the packet's link-layer header,
/// rounded up together (packet_mmap), and room for a VLAN tag.
const FRAME_OVERHEAD: u32 = 88;

/// False for a driver that is known to have no receive interrupts.
pub(super) fn may_interrupt(driver: &str) -> bool {
    !BLIND.contains(&driver)
}

/// The kernel's interface below a port.
#[derive(Debug)]
pub(super) struct Interface {
    /// Interface index. It stays the same when the interface is renamed.
    index: u32,
    /// True once the index no longer exists. The state is final: the driver's sockets are bound to that
    /// interface and never to a later one, whatever its name or index.
    gone: AtomicBool,
}

impl Interface {
    /// Returns the interface below a port whose driver does not report its state. Returns `None` also if it
    /// is not in this namespace.
    pub(super) fn below(id: u16, info: &sys::rte_eth_dev_info) -> Option<Self> {
        BLIND.contains(&driver_of(info).as_str()).then_some(())?;
        Self::named_by(id)
    }

    /// Returns the interface below a bond member whose driver does not report its state to the bond.
    pub(super) fn below_member(id: u16, info: &sys::rte_eth_dev_info) -> Option<Self> {
        let driver = driver_of(info);
        (BLIND.contains(&driver.as_str()) || driver == TAP).then_some(())?;
        Self::named_by(id)
    }

    /// Returns the interface below a port whose queues are AF_PACKET sockets.
    pub(super) fn below_packets(id: u16, info: &sys::rte_eth_dev_info) -> Option<Self> {
        (driver_of(info) == AF_PACKET).then(|| Self::named_by(id))?
    }

    fn named_by(id: u16) -> Option<Self> {
        interface::index(named(&arguments(id)?)?).ok().map(Self::new)
    }

    const fn new(index: u32) -> Self {
        Self { index, gone: AtomicBool::new(false) }
    }

    /// True if the interface is up and has a carrier. False also once it is gone.
    pub(super) fn is_running(&self) -> bool {
        let running = interface::is_running(self.index);
        if running.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENODEV)) {
            self.gone.store(true, Ordering::Relaxed);
        }
        !self.is_gone() && running.unwrap_or(true)
    }

    /// True if [`Self::is_running`] found that it was deleted or moved to another network namespace.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

/// The sockets of a driver's queues. A socket is readable while a frame is available.
#[derive(Debug)]
pub(super) enum Sockets {
    /// AF_PACKET sockets, which are bound to the interface.
    Packet,
    /// AF_XDP sockets, whose interface is unknown. The list contains those that existed before the setup.
    Xdp(Vec<RawFd>),
    /// The driver has no sockets to wait on.
    None,
}

impl Sockets {
    /// Records the state before the port is set up.
    pub(super) fn before(driver: &str) -> Self {
        match driver {
            AF_PACKET => Self::Packet,
            AF_XDP => Self::Xdp(descriptors(is_xdp_socket)),
            _ => Self::None,
        }
    }

    /// Returns the sockets of the port's queues in queue order, after the setup. Returns none if their number
    /// is wrong.
    pub(super) fn of(&self, interface: Option<&Interface>, queues: u16) -> Vec<Descriptor> {
        let found = match (self, interface) {
            (Self::Packet, Some(interface)) => {
                descriptors(|fd| packet_socket_of(fd) == Some(interface.index))
            }
            (Self::Xdp(before), _) => descriptors(|fd| is_xdp_socket(fd) && !before.contains(&fd)),
            (Self::Packet, None) | (Self::None, _) => Vec::new(),
        };
        // With an extra or missing socket the assignment is unknown. No worker is then woken, which only adds
        // latency.
        if found.len() == usize::from(queues) {
            found.into_iter().map(Descriptor).collect()
        } else {
            Vec::new()
        }
    }
}

/// Frames that the kernel dropped because the AF_PACKET rings of a port, or of a bond's members, were full.
/// No other counter includes them.
#[derive(Debug, Default)]
pub(super) struct RingLosses {
    sockets: Vec<Descriptor>,
    /// Sum so far. The kernel resets its counter with each query.
    lost: AtomicU64,
}

impl RingLosses {
    /// Finds the sockets bound to these interfaces, once their ports are set up.
    pub(super) fn below(interfaces: &[Interface]) -> Self {
        let is_bound = |fd| {
            packet_socket_of(fd).is_some_and(|index| interfaces.iter().any(|below| below.index == index))
        };
        let found = if interfaces.is_empty() { Vec::new() } else { descriptors(is_bound) };
        Self { sockets: found.into_iter().map(Descriptor).collect(), lost: AtomicU64::new(0) }
    }

    /// Returns the number of frames lost since the port was started. Makes system calls.
    pub(super) fn total(&self) -> u64 {
        let new: u64 = self.sockets.iter().filter_map(lost_since_last).map(u64::from).sum();
        self.lost.fetch_add(new, Ordering::Relaxed) + new
    }
}

/// Returns the frames that a socket's ring has lost since the last query (packet(7), PACKET_STATISTICS).
fn lost_since_last(socket: &Descriptor) -> Option<u32> {
    let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of_val(&counts) as libc::socklen_t;
    // SAFETY: the driver has the descriptor open (see `Descriptor`). Address and length of the answer match,
    // and the kernel writes no more than the length.
    let rc = unsafe {
        libc::getsockopt(
            socket.0,
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut counts).cast(),
            &raw mut len,
        )
    };
    (rc == 0).then_some(counts.tp_drops)
}

/// Returns the matching descriptors of this process in numerical order, which is the order of opening.
fn descriptors(wanted: impl Fn(RawFd) -> bool) -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let fds = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut found: Vec<RawFd> = fds.filter(|fd| wanted(*fd)).collect();
    found.sort_unstable();
    found
}

/// Returns the arguments of a port after its name.
pub(super) fn arguments(id: u16) -> Option<String> {
    // SAFETY: the port exists; the answer is a C string that lives as long as the port does, or NULL.
    let text = unsafe { sys::shim_eth_arguments(id) };
    if text.is_null() {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Checks an MTU that the driver rejects.
///
/// The AF_PACKET driver reports a limit of 1,500 bytes regardless of its frames and its interface. `room` is
/// the data room of a buffer in bytes. An error contains the reason if it is more specific than the driver's.
pub(super) fn takes_mtu(
    id: u16,
    info: &sys::rte_eth_dev_info,
    mtu: u16,
    room: usize,
) -> Result<(), Option<String>> {
    let given = arguments(id).unwrap_or_default();
    let Some(name) = named(&given).filter(|_| driver_of(info) == AF_PACKET) else { return Err(None) };
    frames_hold(&given, mtu, room).map_err(Some)?;
    match interface::mtu(name) {
        Ok(below) if below >= usize::from(mtu) => Ok(()),
        Ok(below) => {
            Err(Some(format!("interface {name} has an MTU of {below} bytes: ip link set {name} mtu {mtu}")))
        }
        Err(e) => Err(Some(format!("interface {name}: {e}"))),
    }
}

/// Checks that ring frames with these arguments hold packets of this MTU. Sizes that are not given follow
/// `room`.
fn frames_hold(given: &str, mtu: u16, room: usize) -> Result<(), String> {
    let size = option(given, "framesz=").and_then(|size| size.parse().ok());
    let frame = size.unwrap_or(DEFAULT_FRAME);
    let most = frame.saturating_sub(FRAME_OVERHEAD);
    if u32::from(mtu) <= most {
        return Ok(());
    }
    let needed = (u32::from(mtu) + FRAME_OVERHEAD).next_power_of_two();
    let follows = match size {
        Some(size) => room.checked_ilog2().is_some_and(|log| size == 1 << log),
        None => ["blocksz=", "framecnt="].iter().all(|name| option(given, name).is_none()),
    };
    let remedy = if follows {
        format!("set [buffers] data-room = {needed}, which makes them longer")
    } else {
        format!(
            "set [buffers] data-room = {needed}, which makes them longer, and leave framesz=, blocksz= and framecnt= out of its \
             --vdev, or have framesz={needed} there and a multiple of that as blocksz="
        )
    };
    Err(format!("the port's ring frames of {frame} bytes hold at most {most}: {remedy}"))
}

fn option<'a>(arguments: &'a str, name: &str) -> Option<&'a str> {
    arguments.split(',').find_map(|word| word.strip_prefix(name))
}

fn named(arguments: &str) -> Option<&str> {
    option(arguments, "iface=")
}

/// Returns the index of the interface that an AF_PACKET socket is bound to, or `None` for any other
/// descriptor.
fn packet_socket_of(fd: RawFd) -> Option<u32> {
    // SAFETY: an address is bytes and numbers; all zeros is one.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: queries the address that a descriptor of any type is bound to; the result has at most `len`
    // bytes.
    let rc = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    let is_packet = rc == 0 && i32::from(address.sll_family) == libc::AF_PACKET;
    is_packet.then_some(address.sll_ifindex as u32)
}

fn is_xdp_socket(fd: RawFd) -> bool {
    let (mut domain, mut len) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: queries an option of a descriptor of any type; the result is a number.
    let rc = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &raw mut len)
    };
    rc == 0 && domain == libc::AF_XDP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_deleted_is_gone_and_one_without_a_carrier_is_not() {
        let there = Interface::new(interface::index("lo").unwrap());
        let deleted = Interface::new(i32::MAX as u32);
        assert!(!deleted.is_gone(), "not checked yet");
        there.is_running();
        assert!(!there.is_gone() && !deleted.is_running() && deleted.is_gone());
        // An interface that reuses the index later is a different one.
        there.gone.store(true, Ordering::Relaxed);
        assert!(!there.is_running());
    }

    #[test]
    fn the_interface_is_found_among_the_arguments() {
        assert_eq!(named("iface=eth1,blocksz=4096"), Some("eth1"));
        assert_eq!(named("qpairs=2,iface=eth1"), Some("eth1"));
        assert_eq!(named("rx_pcap=a,tx_pcap=b"), None);
        assert_eq!(named(""), None);
    }

    #[test]
    fn sizes_that_are_given_stand_in_the_way_of_longer_frames() {
        let ours = "iface=a,framesz=4096,blocksz=65536,framecnt=512";
        assert_eq!(frames_hold(ours, 4008, 5000), Ok(()));
        for (given, room) in [("iface=a", 2048), (ours, 5000)] {
            let error = frames_hold(given, 9000, room).unwrap_err();
            assert!(error.contains("data-room = 16384") && !error.contains("--vdev"), "{given}: {error}");
        }
        // A user who only follows "set data-room" would get the same frames again.
        for given in [
            "framecnt=64",
            "blocksz=4096",
            "framesz=2048",
            "framesz=4096,blocksz=65536",
            "framesz=x,blocksz=1",
        ] {
            let error = frames_hold(&format!("iface=a,{given}"), 9000, 16_384).unwrap_err();
            assert!(
                error.contains("leave framesz=, blocksz= and framecnt= out of its --vdev"),
                "{given}: {error}"
            );
            assert!(
                error.contains("data-room = 16384") && error.contains("framesz=16384"),
                "{given}: {error}"
            );
        }
    }
}
