//! TUN interfaces: the path of a virtual host's packets to and from a kernel's IP stack.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;

use crate::{MAX_NAME, Request};

/// Configuration of a TUN interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunConfig {
    /// Name of the interface; it must not exist yet.
    pub name: String,
    /// Name of the network namespace (as in `ip netns`); `None` for our own.
    pub netns: Option<String>,
    /// IP MTU, 68 to 65,535.
    pub mtu: u32,
    /// IPv4 address.
    pub address: Ipv4Addr,
    /// Prefix length.
    pub prefix: u8,
}

/// Why a TUN interface could not be created.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// Not a valid name of an interface.
    #[error("`{0}` is not a valid interface name: use 1 to 15 letters, digits, `-`, `_` or `.`")]
    Name(String),
    /// Not a valid prefix length.
    #[error("prefix length {0} is not between 0 and 32")]
    Prefix(u8),
    /// No such namespace.
    #[error("there is no network namespace {name}; create it with: ip netns add {name}")]
    Netns {
        /// Its name.
        name: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A call failed.
    #[error("cannot {what} interface {name}")]
    Call {
        /// The operation.
        what: &'static str,
        /// The interface.
        name: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// Result of handing a packet to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// The kernel accepted it.
    Accepted,
    /// The kernel has no memory for it.
    NoMemory,
    /// The interface is down.
    Down,
}

/// A TUN interface, removed when this is dropped.
#[derive(Debug)]
pub struct Tun {
    device: OwnedFd,
    name: String,
}

impl Tun {
    /// Creates an interface, sets its address and sets it up. Needs CAP_NET_ADMIN.
    pub fn create(config: &TunConfig) -> Result<Self, TunError> {
        let good = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
        let name = config.name.as_str();
        if name.is_empty() || name.len() > MAX_NAME || name == "." || name == ".." || !name.bytes().all(good)
        {
            return Err(TunError::Name(name.to_owned()));
        }
        if config.prefix > 32 {
            return Err(TunError::Prefix(config.prefix));
        }
        let device = match &config.netns {
            None => create_here(config),
            Some(netns) => {
                // In a new thread: a namespace belongs to a thread, and this one stays where it is.
                let create = || enter(netns).and_then(|()| create_here(config));
                std::thread::scope(|scope| scope.spawn(create).join())
                    .unwrap_or_else(|_| Err(call("create", name, io::ErrorKind::Other.into())))
            }
        }?;
        Ok(Self { device, name: config.name.clone() })
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the next packet that the kernel sends on this interface, without a header in front; `None` if
    /// there is none. A packet that does not fit `into` is truncated.
    pub fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        wait_none(rustix::io::readv(&self.device, into))
    }

    /// Passes a packet to the kernel as received on this interface.
    ///
    /// # Errors
    /// `EBADFD` if the interface was deleted.
    pub fn write(&self, packet: &[IoSlice<'_>]) -> io::Result<Delivery> {
        match rustix::io::writev(&self.device, packet) {
            Err(rustix::io::Errno::IO) => Ok(Delivery::Down),
            result => Ok(wait_none(result)?.map_or(Delivery::NoMemory, |_| Delivery::Accepted)),
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

fn wait_none(result: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::NOBUFS) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn call(what: &'static str, name: &str, source: io::Error) -> TunError {
    TunError::Call { what, name: name.to_owned(), source }
}

/// Moves the calling thread into a named network namespace.
fn enter(netns: &str) -> Result<(), TunError> {
    let failed =
        |source: rustix::io::Errno| TunError::Netns { name: netns.to_owned(), source: source.into() };
    if netns.is_empty() || netns.contains('/') {
        return Err(failed(rustix::io::Errno::INVAL));
    }
    let path = PathBuf::from("/run/netns").join(netns);
    let file = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(failed)
}

/// Packets queued in the interface for us. The interface drops the excess, and a TCP sender's window fills
/// the kernel's default of 500 in a few milliseconds.
const QUEUE_LENGTH: libc::c_int = 4096;
/// From `linux/sockios.h`.
const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;

/// Creates the interface in the namespace of the calling thread.
fn create_here(config: &TunConfig) -> Result<OwnedFd, TunError> {
    let name = config.name.as_str();
    let failed = |what| move |e: io::Error| call(what, name, e);
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .map_err(|e| call("open /dev/net/tun for", name, e.into()))?;
    let mut request = Request::new(name);
    request.set_flags((libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as libc::c_short);
    request.call(&device, libc::TUNSETIFF).map_err(failed("create"))?;

    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| call("open a socket for", name, e.into()))?;
    let mut request = Request::new(name);
    request.set_number(libc::c_int::try_from(config.mtu).unwrap_or(libc::c_int::MAX));
    request.call(&socket, libc::SIOCSIFMTU).map_err(failed("set the MTU of"))?;
    let mut request = Request::new(name);
    request.set_number(QUEUE_LENGTH);
    request.call(&socket, SIOCSIFTXQLEN).map_err(failed("set the queue length of"))?;
    let mut request = Request::new(name);
    request.set_address(config.address);
    request.call(&socket, libc::SIOCSIFADDR).map_err(failed("set the address of"))?;
    let mask = u32::MAX.checked_shl(32 - u32::from(config.prefix)).unwrap_or(0);
    request.set_address(mask.into());
    request.call(&socket, libc::SIOCSIFNETMASK).map_err(failed("set the network mask of"))?;
    crate::set_up(name, true).map_err(failed("set up"))?;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> TunConfig {
        TunConfig {
            name: "ibtest0".to_owned(),
            netns: None,
            mtu: 65_520,
            address: Ipv4Addr::new(198, 51, 100, 1),
            prefix: 24,
        }
    }

    #[test]
    fn bad_names_are_refused_before_anything_is_done() {
        for name in ["", "a/b", "way-too-long-for-a-name", "a b", ".."] {
            let error = Tun::create(&TunConfig { name: name.to_owned(), ..config() }).unwrap_err();
            assert!(matches!(error, TunError::Name(_)), "{name}: {error}");
        }
        let error = Tun::create(&TunConfig { prefix: 33, ..config() }).unwrap_err();
        assert!(matches!(error, TunError::Prefix(33)));
        let error =
            Tun::create(&TunConfig { netns: Some("no-such-netns".to_owned()), ..config() }).unwrap_err();
        assert!(error.to_string().contains("ip netns add no-such-netns"), "{error}");
    }

    /// Moves the test's thread to a new namespace.
    fn own_namespace() -> bool {
        // SAFETY: only the network namespace of this thread changes, and nothing else relies on it.
        let result = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
        if let Err(e) = result {
            eprintln!("skipped: cannot create a network namespace: {e}");
        }
        result.is_ok()
    }

    #[test]
    fn packets_cross_the_interface_both_ways() {
        std::thread::spawn(|| {
            if !own_namespace() {
                return;
            }
            let tun = Tun::create(&config()).unwrap();
            let again = Tun::create(&config()).unwrap_err();
            assert!(again.to_string().contains("create interface ibtest0"), "{again}");
            // Out: a packet that the kernel routes to the interface, in two buffers.
            let socket = std::net::UdpSocket::bind("198.51.100.1:5000").unwrap();
            socket.send_to(&[7; 60_000], "198.51.100.2:6000").unwrap();
            let (mut head, mut rest) = ([0; 28], vec![0; 65_535]);
            let len = loop {
                let into = &mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut rest)];
                let len = tun.read(into).unwrap().expect("a packet is there");
                if head[0] == 0x45 {
                    break len; // not one of IPv6's own
                }
            };
            assert_eq!((len, &head[16..20], rest[0]), (60_028, &[198, 51, 100, 2][..], 7));
            // In: the same with source and destination exchanged (the checksums stay valid).
            for i in 0..4 {
                head.swap(12 + i, 16 + i);
            }
            for i in 0..2 {
                head.swap(20 + i, 22 + i);
            }
            let packet = [IoSlice::new(&head), IoSlice::new(&rest[..60_000])];
            assert_eq!(tun.write(&packet).unwrap(), Delivery::Accepted);
            let mut got = vec![0; 65_535];
            let (len, from) = socket.recv_from(&mut got).unwrap();
            assert_eq!((len, from.to_string().as_str()), (60_000, "198.51.100.2:6000"));
            // An interface that is down drops the packet, and there is nothing to read.
            crate::set_up("ibtest0", false).unwrap();
            assert_eq!(tun.write(&packet).unwrap(), Delivery::Down);
            assert_eq!(tun.read(&mut [IoSliceMut::new(&mut got)]).unwrap(), None);
        })
        .join()
        .unwrap();
    }
}
