//! Doorbell path from the driver to a device: a posted write of eight bytes to a register.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::barrier;
use super::rings::Register;

/// A bus that carries doorbells.
pub trait Bus: Send + 'static {
    /// Writes the first eight bytes of a send to its queue pair's register. All earlier stores of this thread
    /// to memory are ordered before it.
    fn ring(&mut self, register: &mut Register, doorbell: [u8; 8]);

    /// Lets a device in this process make progress. Returns true if the device did any work.
    fn turn(&mut self) -> bool;

    /// Writes to the register that arms a completion queue. Returns false if the bus cannot deliver events.
    fn arm(&mut self, _doorbell: [u8; 8]) -> bool {
        false
    }

    /// Returns a descriptor that is readable while completion queue events are pending.
    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Waits up to `at_most` for completion queue events. Returns the number of events.
    fn wait(&mut self, at_most: Duration) -> u32 {
        std::thread::sleep(at_most);
        0
    }
}

/// Source of completion queue events.
pub trait EventSource: Send + Debug {
    /// Returns a descriptor that is readable while events are pending.
    fn events(&self) -> Option<BorrowedFd<'_>>;

    /// Waits up to `at_most` for events and consumes all pending ones. Returns their number.
    fn wait(&self, at_most: Duration) -> u32;
}

/// The bus of a real device: its registers are mapped into this process.
#[derive(Debug)]
pub struct PciBus {
    arm_register: u64,
    events: Box<dyn EventSource>,
}

impl PciBus {
    /// Creates the bus.
    ///
    /// # Safety
    ///
    /// Each [`Register`] of a queue on this bus has the address of a mapped doorbell register (`bf.reg` and
    /// `bf.size` of `mlx5dv_init_obj`). The register stays mapped as long as the queue lives. If it is
    /// write-combining, no other thread writes to it. `arm_register` is the address of the register that arms
    /// completion queues. It also stays mapped, and all threads share it.
    #[must_use]
    pub const unsafe fn new(arm_register: u64, events: Box<dyn EventSource>) -> Self {
        Self { arm_register, events }
    }
}

impl Bus for PciBus {
    #[inline]
    fn ring(&mut self, register: &mut Register, doorbell: [u8; 8]) {
        let at = register.turn_over() as usize as *mut u64;
        barrier::mmio_wc_start();
        // SAFETY: a mapped register by the contract of `new`; registers are aligned to 256 bytes.
        unsafe { at.write_volatile(u64::from_ne_bytes(doorbell)) };
        barrier::mmio_flush_writes();
    }

    #[inline]
    fn turn(&mut self) -> bool {
        false
    }

    fn arm(&mut self, doorbell: [u8; 8]) -> bool {
        let at = self.arm_register as usize as *mut u64;
        barrier::mmio_wc_start();
        // SAFETY: a mapped register by the contract of `new`, aligned to eight bytes. One store of eight
        // bytes is atomic, even if other threads store there.
        unsafe { at.write_volatile(u64::from_ne_bytes(doorbell)) };
        barrier::mmio_flush_writes();
        true
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.events()
    }

    fn wait(&mut self, at_most: Duration) -> u32 {
        self.events.wait(at_most)
    }
}

/// A bus without a device that records doorbells, for tests.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Address and bytes of each doorbell.
    pub(crate) rung: Vec<(u64, [u8; 8])>,
}

#[cfg(test)]
impl Bus for Recorder {
    fn ring(&mut self, register: &mut Register, doorbell: [u8; 8]) {
        self.rung.push((register.turn_over(), doorbell));
    }

    fn turn(&mut self) -> bool {
        false
    }
}
