//! RDMA devices that come and go, as the kernel tells of all its devices (kobject_uevent). What there is then has to be asked for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_KOBJECT_UEVENT;

use super::monitor::MonitorError;

/// What the kernel tells itself; what udev makes of it is in another group.
const KERNEL: u32 = 1;
/// Longest event of the kernel (UEVENT_BUFFER_SIZE, and the line before it).
const EVENT: usize = 4096;
/// `infiniband` and `infiniband_verbs`: the device, and the file by which it is opened.
const SUBSYSTEM: &[u8] = b"SUBSYSTEM=infiniband";
/// Most events of one look, so that a storm of them leaves time for other things.
const EVENTS_PER_LOOK: usize = 256;

/// Hears of devices of this network namespace that come and go.
#[derive(Debug)]
pub struct Plugs {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Plugs {
    /// Subscribes.
    pub fn new() -> Result<Self, MonitorError> {
        let error = |what| move |source| MonitorError::new(what, source);
        let mut socket = Socket::new(NETLINK_KOBJECT_UEVENT).map_err(error("make"))?;
        socket.bind_auto().map_err(error("bind"))?;
        socket.set_non_blocking(true).map_err(error("set up"))?;
        socket.add_membership(KERNEL).map_err(error("subscribe"))?;
        Ok(Self { socket, buffer: vec![0; EVENT] })
    }

    /// Takes the events that are there, without waiting. True if an RDMA device may have come or gone.
    pub fn take(&mut self) -> Result<bool, MonitorError> {
        let mut concerned = false;
        for _ in 0..EVENTS_PER_LOOK {
            let mut room: &mut [u8] = &mut self.buffer;
            match self.socket.recv_from(&mut room, libc::MSG_DONTWAIT) {
                Ok((length, from)) => {
                    let event = self.buffer.get(..length).unwrap_or_default();
                    concerned |= from.port_number() == 0 && is_of_rdma(event);
                }
                // Events were lost: of what, nobody knows.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => concerned = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(MonitorError::new("read from", error)),
            }
        }
        Ok(concerned)
    }
}

impl AsFd for Plugs {
    /// Readable when any device has come or gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// True for an event of an RDMA device: a line `ACTION@PATH` and variables, each with a zero behind it.
#[must_use]
pub fn is_of_rdma(event: &[u8]) -> bool {
    event.split(|byte| *byte == 0).any(|variable| variable.starts_with(SUBSYSTEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_concern_us_are_told_by_their_subsystem() {
        let event = |subsystem: &str| {
            format!("add@/devices/virtual/x\0ACTION=add\0SUBSYSTEM={subsystem}\0SEQNUM=7\0").into_bytes()
        };
        assert!(is_of_rdma(&event("infiniband")) && is_of_rdma(&event("infiniband_verbs")));
        assert!(!is_of_rdma(&event("net")) && !is_of_rdma(b"") && !is_of_rdma(b"\0\0"));
        // A name is no subsystem.
        assert!(!is_of_rdma(b"add@/devices/SUBSYSTEM=infiniband\0SUBSYSTEM=net\0"));
    }

    #[test]
    fn nothing_is_waited_for() {
        let mut plugs = Plugs::new().unwrap();
        // Whatever the machine does meanwhile is no error.
        plugs.take().unwrap();
    }
}
