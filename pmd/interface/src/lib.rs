//! Network interfaces of this namespace: attributes and settings available through `ioctl` (netdevice(7));
//! [`tun`], interfaces whose other end is a program.

pub mod tun;

use std::ffi::CString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Longest name of an interface (`IFNAMSIZ` without its final zero).
pub(crate) const MAX_NAME: usize = 15;

/// `struct ifreq`.
pub(crate) struct Request(libc::ifreq);

impl Request {
    pub(crate) fn new(name: &str) -> Self {
        // SAFETY: a structure of bytes, numbers and pointers, for which all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = CString::new(name).unwrap_or_default();
        for (to, from) in request.ifr_name.iter_mut().take(MAX_NAME).zip(name.as_bytes()) {
            *to = *from as libc::c_char;
        }
        Self(request)
    }

    pub(crate) const fn set_flags(&mut self, flags: libc::c_short) {
        self.0.ifr_ifru.ifru_flags = flags;
    }

    pub(crate) const fn set_number(&mut self, number: libc::c_int) {
        self.0.ifr_ifru.ifru_mtu = number;
    }

    pub(crate) fn set_address(&mut self, address: Ipv4Addr) {
        let [a, b, c, d] = address.octets();
        let family = libc::AF_INET as libc::sa_family_t;
        // `struct sockaddr_in`: port, then the address in network byte order.
        let bytes = [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
        let sa_data = bytes.map(|b: u8| b as libc::c_char);
        self.0.ifr_ifru.ifru_addr = libc::sockaddr { sa_family: family, sa_data };
    }

    pub(crate) fn call(&mut self, file: &OwnedFd, number: libc::Ioctl) -> io::Result<()> {
        // SAFETY: all these calls take a `struct ifreq`, which lives until after the call.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), number, &raw mut self.0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn query(name: &str, number: libc::Ioctl) -> io::Result<Request> {
    if name.len() > MAX_NAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut request = Request::new(name);
    request.call(&socket()?, number)?;
    Ok(request)
}

/// Sets an interface up or down.
pub fn set_up(name: &str, up: bool) -> io::Result<()> {
    if name.len() > MAX_NAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut request = Request::new(name);
    request.set_flags(if up { libc::IFF_UP | libc::IFF_RUNNING } else { 0 } as libc::c_short);
    request.call(&socket()?, libc::SIOCSIFFLAGS)
}

/// The index of an interface.
pub fn index(name: &str) -> io::Result<u32> {
    let request = query(name, libc::SIOCGIFINDEX)?;
    // SAFETY: the call has filled in a number, and every field of the union is plain data.
    Ok(unsafe { request.0.ifr_ifru.ifru_ifindex } as u32)
}

/// The current name of the interface with this index; `ENODEV` if there is none.
pub fn name(index: u32) -> io::Result<String> {
    let mut request = Request::new("");
    request.0.ifr_ifru.ifru_ifindex = index as libc::c_int;
    request.call(&socket()?, libc::SIOCGIFNAME)?;
    let name = request.0.ifr_name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    String::from_utf8(name).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// True if the interface with this index is up and has a carrier; `ENODEV` if it is gone. The index survives
/// a rename.
pub fn is_running(index: u32) -> io::Result<bool> {
    loop {
        let name = name(index)?;
        match query(&name, libc::SIOCGIFFLAGS) {
            Ok(request) if self::index(&name).is_ok_and(|same| same == index) => {
                return Ok(flags_are_running(&request));
            }
            Err(e) if e.raw_os_error() != Some(libc::ENODEV) => return Err(e),
            // Renamed in between, or gone.
            Ok(_) | Err(_) => {}
        }
    }
}

fn flags_are_running(request: &Request) -> bool {
    // SAFETY: the call has filled in the flags, and every field of the union is plain data.
    let flags = libc::c_int::from(unsafe { request.0.ifr_ifru.ifru_flags });
    flags & (libc::IFF_UP | libc::IFF_RUNNING) == libc::IFF_UP | libc::IFF_RUNNING
}

/// The MAC address of an interface; an error if it is not an Ethernet interface.
pub fn mac(name: &str) -> io::Result<[u8; 6]> {
    let request = query(name, libc::SIOCGIFHWADDR)?;
    // SAFETY: the call has filled in an address, and every field of the union is plain data.
    let address = unsafe { request.0.ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "not an Ethernet interface"));
    }
    let [a, b, c, d, e, f, ..] = address.sa_data.map(|b| b as u8);
    Ok([a, b, c, d, e, f])
}

/// The MTU of an interface in bytes: the longest IP packet.
pub fn mtu(name: &str) -> io::Result<usize> {
    let request = query(name, libc::SIOCGIFMTU)?;
    // SAFETY: the call has filled in a number, and every field of the union is plain data.
    let mtu = unsafe { request.0.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// Commands of `SIOCETHTOOL` (linux/ethtool.h): one that returns true or false, and one that returns flags.
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_GFLAGS: u32 = 0x25;
/// The flag of large receive offload in the adapter.
const ETH_FLAG_LRO: u32 = 1 << 15;

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// The offloads that merge packets of one connection before a program sees them: `gro`, `lro`.
pub fn joins_packets(name: &str) -> io::Result<Vec<&'static str>> {
    let get = |command| {
        if name.len() > MAX_NAME {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut value = EthtoolValue { command, data: 0 };
        let mut request = Request::new(name);
        request.0.ifr_ifru.ifru_data = (&raw mut value).cast();
        // The value, which the call fills in, lives until after the call.
        request.call(&socket()?, libc::SIOCETHTOOL as libc::Ioctl)?;
        Ok::<u32, io::Error>(value.data)
    };
    let gro = get(ETHTOOL_GGRO)? != 0;
    let lro = get(ETHTOOL_GFLAGS)? & ETH_FLAG_LRO != 0;
    Ok([(gro, "gro"), (lro, "lro")].into_iter().filter_map(|(on, what)| on.then_some(what)).collect())
}

/// The command that returns the driver (linux/ethtool.h).
const ETHTOOL_GDRVINFO: u32 = 0x3;

/// `struct ethtool_drvinfo`: the command, the driver's name, and fields that are not used here.
#[repr(C)]
struct EthtoolDriver {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

const _: () = assert!(size_of::<EthtoolDriver>() == 196);

/// The name of an interface's driver, for example `veth`.
pub fn driver(name: &str) -> io::Result<String> {
    if name.len() > MAX_NAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut answer = EthtoolDriver { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
    let mut request = Request::new(name);
    request.0.ifr_ifru.ifru_data = (&raw mut answer).cast();
    // The reply, which the call fills in, lives until after the call.
    request.call(&socket()?, libc::SIOCETHTOOL as libc::Ioctl)?;
    let end = answer.driver.iter().position(|byte| *byte == 0).unwrap_or(answer.driver.len());
    Ok(String::from_utf8_lossy(answer.driver.get(..end).unwrap_or_default()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_names_its_driver() {
        assert!(driver("lo").is_err() || driver("lo").is_ok_and(|name| name != "veth"));
        assert_eq!(driver("nosuch0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert!(driver("way-too-long-for-an-interface").is_err());
    }

    #[test]
    fn only_ethernet_has_a_mac_address() {
        let error = mac("lo").unwrap_err();
        assert!(error.to_string().contains("not an Ethernet interface"), "{error}");
        assert!(mtu("lo").unwrap() > 0);
        assert!(mtu("way-too-long-for-an-interface").is_err());
    }

    #[test]
    fn an_interface_reports_the_offloads_that_merge_packets() {
        assert!(joins_packets("lo").unwrap().iter().all(|what| ["gro", "lro"].contains(what)));
        assert_eq!(joins_packets("nosuch0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert!(joins_packets("way-too-long-for-an-interface").is_err());
    }
}
