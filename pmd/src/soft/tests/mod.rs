mod driver;
mod management;
mod memory;
mod resting;
mod roce;

use ib_wire::{Lid, PortNumber, Rate, ServiceLevel};

use crate::hca::AddressVector;
use memory::Memory;

const PORT: PortNumber = PortNumber(1);

fn local(dlid: Lid) -> AddressVector {
    AddressVector { dlid, sl: ServiceLevel::new(0), src_path_bits: 0, rate: Rate::new(0), grh: None }
}

/// Returns bytes that identify their origin.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}
