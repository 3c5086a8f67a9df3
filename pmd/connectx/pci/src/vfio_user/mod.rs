//! vfio-user, server side: a PCI device behind a UNIX socket, for a virtual machine monitor that attaches it
//! to its guest.
//!
//! It implements what such a client needs for one PCI device. [`message`] parses messages, and [`session`]
//! answers them with the help of the [`Device`]; neither does I/O. [`socket`] transfers bytes and
//! descriptors. All integers are little endian.

pub mod message;
pub mod session;
pub mod socket;

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Region index of BAR 0.
pub const BAR0: u32 = 0;
/// Region index of the configuration space.
pub const CONFIGURATION: u32 = 7;
/// Regions of a PCI device.
pub const REGIONS: u32 = 9;
/// Interrupt index of MSI-X.
pub const MSIX: u32 = 2;
/// Interrupt types of a PCI device.
pub const INTERRUPTS: u32 = 5;

/// A mapping of guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaMap {
    /// Offset in the file.
    pub offset: u64,
    /// Address used by the device.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// The device may write.
    pub writable: bool,
}

/// A change of interrupts.
#[derive(Debug)]
pub enum Interrupts {
    /// Signals these vectors through these eventfds from now on; `None` disables a vector.
    Signal {
        /// First vector.
        first: u32,
        /// One for each vector.
        eventfds: Vec<Option<OwnedFd>>,
    },
    /// Disables all vectors.
    Off,
    /// Raises these vectors once.
    Raise {
        /// First vector.
        first: u32,
        /// Number of vectors.
        count: u32,
    },
}

/// The device behind the socket. Errors are returned to the client and do not end the session.
pub trait Device {
    /// Size of a region in bytes; 0 if it does not exist.
    fn region_len(&self, index: u32) -> u64;
    /// Number of interrupt vectors of a type.
    fn vectors(&self, index: u32) -> u32;
    /// Maps guest memory. Without a file the device cannot access it.
    fn map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno>;
    /// Unmaps guest memory in a range; `None` for all memory.
    fn unmap(&mut self, range: Option<(u64, u64)>) -> Result<(), Errno>;
    /// Changes the MSI-X interrupts.
    fn set_interrupts(&mut self, how: Interrupts) -> Result<(), Errno>;
    /// Reads a region; the caller has checked the bounds.
    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]);
    /// Writes a region; the caller has checked the bounds.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);
    /// Resets to the power-on state, except memory and interrupts, for which the client has separate
    /// requests.
    fn reset(&mut self);
}
