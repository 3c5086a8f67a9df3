//! The device as a PCI function: regions, memory, interrupts, reset.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tracing::debug;

use super::Hca;
use crate::bar::Registers;
use crate::pci::{BAR, ConfigurationSpace, LEN, VECTORS};
use crate::vfio_user::{BAR0, CONFIGURATION, Device, DmaMap, Interrupts, MSIX};

impl Device for Hca {
    fn region_len(&self, index: u32) -> u64 {
        match index {
            BAR0 => BAR,
            CONFIGURATION => LEN as u64,
            _ => 0,
        }
    }

    fn vectors(&self, index: u32) -> u32 {
        if index == MSIX { VECTORS.into() } else { 0 }
    }

    fn map(&mut self, map: &DmaMap, file: Option<OwnedFd>) -> Result<(), Errno> {
        debug!(address = format_args!("{:#x}", map.address), len = format_args!("{:#x}", map.len), "memory");
        self.memory.map(map, file)?;
        self.refresh_whole_keys();
        Ok(())
    }

    fn unmap(&mut self, range: Option<(u64, u64)>) -> Result<(), Errno> {
        self.memory.unmap(range)?;
        self.refresh_whole_keys();
        Ok(())
    }

    fn set_interrupts(&mut self, how: Interrupts) -> Result<(), Errno> {
        self.vectors.set(how)?;
        // Raise interrupts that were due while no client was listening.
        self.interrupt_all();
        Ok(())
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        match region {
            CONFIGURATION => self.space.read(offset, out),
            _ => self.registers.read(offset, out, self.begin.elapsed(), self.illness()),
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        if region == CONFIGURATION {
            let was_master = self.space.is_master();
            if self.space.write(offset, data) {
                self.reset();
            } else if !was_master && self.space.is_master() {
                self.resume();
            }
        } else {
            let effect = self.registers.write(offset, data);
            self.apply(effect);
        }
    }

    fn reset(&mut self) {
        debug!("reset");
        self.restart();
        self.space = ConfigurationSpace::new();
        self.registers = Registers::new();
        self.rung = 0;
        self.deaf = false;
    }
}
