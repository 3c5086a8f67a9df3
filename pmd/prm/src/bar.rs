//! The device's registers: offsets in its single memory region, whose words are big endian.

/// Bytes of a doorbell page.
pub const UAR_PAGE: usize = 4096;

/// The doorbell page number in a context word, 24 bits.
pub(crate) const UAR_PAGE_MASK: u32 = 0xff_ffff;

/// The initialization segment.
pub mod segment {
    /// Firmware's minor and major number, two bytes each.
    pub const FIRMWARE: usize = 0x0;
    /// Revision of the command interface, and the firmware's third number, two bytes each.
    pub const INTERFACE: usize = 0x4;
    /// The revision that drivers expect.
    pub const INTERFACE_REVISION: u16 = 5;
    /// Address of the command queue, upper word.
    pub const QUEUE_HIGH: usize = 0x10;
    /// Its bits 12 to 31; below them the interface's state (bits 8 and 9), the binary logarithms of the
    /// number of entries (4 to 7) and of their size (0 to 3).
    pub const QUEUE_LOW: usize = 0x14;
    /// A bit for each entry that the device must process.
    pub const DOORBELL: usize = 0x18;
    /// Bit 31: the device is not ready yet.
    pub const INITIALIZING: usize = 0x1fc;
    /// The health buffer, 64 bytes.
    pub const HEALTH: usize = 0x200;
    /// Within the health buffer: severity, a byte (bits 0 to 2 as in kernel logs, bit 3: valid, bit 7: a
    /// reset is required).
    pub const HEALTH_SEVERITY: usize = 0x38;
    /// Within the health buffer: error syndrome, a byte ([`HealthSyndrome`](super::HealthSyndrome)), and its
    /// detail, two bytes.
    pub const HEALTH_SYNDROME: usize = 0x3d;
    /// The device's clock, two words, which also timestamps completions.
    pub const TIMER: usize = 0x1000;
    /// Lower three bytes: it advances as long as the device is alive.
    pub const HEALTH_COUNTER: usize = 0x1010;
    /// Length of the segment in bytes.
    pub const LEN: usize = 0x2000;
}

/// Error syndrome in the health buffer; 0 means no error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum HealthSyndrome {
    /// Contexts or commands in the host's memory cannot be read.
    MemoryUnreadable = 0xa,
    /// A queue of asynchronous events was full: events are lost, and it accepts no more.
    AsyncEqOverrun = 0xc,
    /// The same for another event queue.
    EqError = 0xd,
}

/// Registers of a doorbell page.
pub mod uar {
    /// Arms a completion queue: the second word of its doorbell record, and its number.
    pub const CQ_ARM: usize = 0x20;
    /// Consumer index of an event queue (24 bits) below its number (8); arms the queue.
    pub const EQ_ARM: usize = 0x40;
    /// The same, without arming.
    pub const EQ_UPDATE: usize = 0x48;
    /// From here on: the first eight bytes of send work queue entries.
    pub const SEND: usize = 0x800;
}
