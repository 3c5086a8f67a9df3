//! RDMA devices that are added or removed, from kernel events (kobject_uevent). The events only trigger a
//! query of the existing devices.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_KOBJECT_UEVENT;

use super::monitor::MonitorError;

/// Multicast group of the kernel's own events. Events of udev use another group.
const KERNEL: u32 = 1;
/// Maximum length of a kernel event (UEVENT_BUFFER_SIZE, and the line before it).
const EVENT: usize = 4096;
/// `infiniband` and `infiniband_verbs`: the device, and its device file.
const SUBSYSTEM: &[u8] = b"SUBSYSTEM=infiniband";
/// Maximum number of events per call, so that a storm of them does not block other work.
const EVENTS_PER_LOOK: usize = 256;

/// Reports RDMA devices of this network namespace that are added or removed.
#[derive(Debug)]
pub struct Plugs {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Plugs {
    /// Subscribes to events.
    pub fn new() -> Result<Self, MonitorError> {
        let error = |what| move |source| MonitorError::new(what, source);
        let mut socket = Socket::new(NETLINK_KOBJECT_UEVENT).map_err(error("create"))?;
        socket.bind_auto().map_err(error("bind"))?;
        socket.set_non_blocking(true).map_err(error("set up"))?;
        socket.add_membership(KERNEL).map_err(error("subscribe"))?;
        Ok(Self { socket, buffer: vec![0; EVENT] })
    }

    /// Consumes the pending events without waiting. Returns true if an RDMA device may have been added or
    /// removed.
    pub fn take(&mut self) -> Result<bool, MonitorError> {
        let mut concerned = false;
        for _ in 0..EVENTS_PER_LOOK {
            let mut room: &mut [u8] = &mut self.buffer;
            match self.socket.recv_from(&mut room, libc::MSG_DONTWAIT) {
                Ok((length, from)) => {
                    let event = self.buffer.get(..length).unwrap_or_default();
                    concerned |= from.port_number() == 0 && is_of_rdma(event);
                }
                // Events were lost, and their devices are unknown.
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
    /// Readable when any device was added or removed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// True for an event of an RDMA device. An event is a line `ACTION@PATH` with variables, each
/// null-terminated.
#[must_use]
pub fn is_of_rdma(event: &[u8]) -> bool {
    event.split(|byte| *byte == 0).any(|variable| variable.starts_with(SUBSYSTEM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevant_devices_are_recognized_by_their_subsystem() {
        let event = |subsystem: &str| {
            format!("add@/devices/virtual/x\0ACTION=add\0SUBSYSTEM={subsystem}\0SEQNUM=7\0").into_bytes()
        };
        assert!(is_of_rdma(&event("infiniband")) && is_of_rdma(&event("infiniband_verbs")));
        assert!(!is_of_rdma(&event("net")) && !is_of_rdma(b"") && !is_of_rdma(b"\0\0"));
        // A device name is not a subsystem.
        assert!(!is_of_rdma(b"add@/devices/SUBSYSTEM=infiniband\0SUBSYSTEM=net\0"));
    }

    #[test]
    fn take_does_not_wait() {
        let mut plugs = Plugs::new().unwrap();
        // Other events of the host are not errors.
        plugs.take().unwrap();
    }
}
