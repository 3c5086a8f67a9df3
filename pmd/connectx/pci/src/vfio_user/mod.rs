//! vfio-user, the server's side: a PCI device behind a UNIX socket, for a virtual machine monitor that attaches it to its guest.
//!
//! Of the protocol what such a client needs of one PCI device. [`message`] takes messages apart, [`session`] answers them and
//! asks the [`Device`]; neither does I/O. [`socket`] moves bytes and descriptors. All integers are little endian.

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
/// Kinds of interrupts of a PCI device.
pub const INTERRUPTS: u32 = 5;

/// Memory of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmaMap {
    /// Where it begins in the file.
    pub offset: u64,
    /// Address by which the device calls it.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// The device may write.
    pub writable: bool,
}

/// What is done with interrupts.
#[derive(Debug)]
pub enum Interrupts {
    /// These vectors are signalled by these descriptors from now on; `None` for not at all.
    Signal {
        /// First vector.
        first: u32,
        /// One for each.
        eventfds: Vec<Option<OwnedFd>>,
    },
    /// No vector is signalled any more.
    Off,
    /// These vectors are raised at once.
    Raise {
        /// First vector.
        first: u32,
        /// How many.
        count: u32,
    },
}

/// What is behind the socket. Refusals are told to the client; they do not end the session.
pub trait Device {
    /// Bytes of a region, 0 for one that is not there.
    fn region_len(&self, index: u32) -> u64;
    /// Interrupt vectors of a kind.
    fn vectors(&self, index: u32) -> u32;
    /// The guest has this memory; without a file the device cannot reach it.
    fn map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno>;
    /// The guest has no memory in this range any more; `None` for nowhere.
    fn unmap(&mut self, range: Option<(u64, u64)>) -> Result<(), Errno>;
    /// Interrupts of MSI-X.
    fn set_interrupts(&mut self, how: Interrupts) -> Result<(), Errno>;
    /// Reads a region; all of it lies within.
    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]);
    /// Writes a region; all of it lies within.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]);
    /// As after power-on, but for memory and interrupts, which the client has its own words for.
    fn reset(&mut self);
}
