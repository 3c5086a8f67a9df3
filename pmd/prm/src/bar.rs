//! The device's registers: offsets in its one memory region, whose words are big endian.

/// Bytes of a doorbell page.
pub const UAR_PAGE: usize = 4096;

/// The number of a doorbell page in the word of a context that has it, 24 bits.
pub(crate) const UAR_PAGE_MASK: u32 = 0xff_ffff;

/// The initialization segment.
pub mod segment {
    /// Firmware's minor and major number, two bytes each.
    pub const FIRMWARE: usize = 0x0;
    /// Revision of the command interface, and the firmware's third number, two bytes each.
    pub const INTERFACE: usize = 0x4;
    /// The revision that drivers know.
    pub const INTERFACE_REVISION: u16 = 5;
    /// Address of the command queue, upper word.
    pub const QUEUE_HIGH: usize = 0x10;
    /// Its bits 12 to 31; below them the interface's state (bits 8 and 9), the binary logarithms of the number of entries
    /// (4 to 7) and of their size (0 to 3).
    pub const QUEUE_LOW: usize = 0x14;
    /// A bit for each entry that the device is to look at.
    pub const DOORBELL: usize = 0x18;
    /// Bit 31: the device is not ready yet.
    pub const INITIALIZING: usize = 0x1fc;
    /// The health buffer, 64 bytes.
    pub const HEALTH: usize = 0x200;
    /// Within the health buffer: how bad it is, a byte (bits 0 to 2 as kernels' logs have it, bit 3: they are valid, bit 7: only a reset
    /// helps).
    pub const HEALTH_SEVERITY: usize = 0x38;
    /// Within the health buffer: what ails the device, a byte ([`HealthSyndrome`](super::HealthSyndrome)), and more about it, two bytes.
    pub const HEALTH_SYNDROME: usize = 0x3d;
    /// The device's clock, two words; completions have its time, too.
    pub const TIMER: usize = 0x1000;
    /// Lower three bytes: goes on as long as the device lives.
    pub const HEALTH_COUNTER: usize = 0x1010;
    /// Bytes of all that.
    pub const LEN: usize = 0x2000;
}

/// What ails a device, as its health buffer has it; 0 is well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum HealthSyndrome {
    /// Contexts or commands in the host's memory cannot be read.
    MemoryUnreadable = 0xa,
    /// A queue of asynchronous events was full: events are lost, and it takes none any more.
    AsyncEqOverrun = 0xc,
    /// The same of another event queue.
    EqError = 0xd,
}

/// Registers of a doorbell page.
pub mod uar {
    /// Asks for an event of a completion queue: the second word of its doorbell record, and its number.
    pub const CQ_ARM: usize = 0x20;
    /// Consumer index of an event queue (24 bits) below its number (8), and asks for an interrupt.
    pub const EQ_ARM: usize = 0x40;
    /// The same, without asking.
    pub const EQ_UPDATE: usize = 0x48;
    /// From here on: the first eight bytes of send work queue entries.
    pub const SEND: usize = 0x800;
}
