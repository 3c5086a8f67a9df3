//! Rings in scattered memory.

use super::rig::Memory;
use crate::{MemoryPieces, RegionMemory};

#[test]
fn a_ring_of_pieces_is_read_across_their_borders() {
    let memory = Memory::new(256);
    memory.put(0, &(0..=255).collect::<Vec<_>>());
    // In reverse order, with a hole at the end.
    let pieces = [(0, memory.part(128, 64)), (64, memory.part(0, 64)), (192, memory.part(64, 64))];
    let ring = RegionMemory::from(MemoryPieces::new(pieces).unwrap());
    let mut out = [0; 128];
    assert!(ring.read(0, &mut out));
    assert_eq!(out.to_vec(), (128..192).chain(0..64).collect::<Vec<u8>>());
    assert!(ring.read(60, &mut out[..8]) && out[..8] == [188, 189, 190, 191, 0, 1, 2, 3]);
    assert!(!ring.read(64, &mut out) && !ring.read(250, &mut out[..8]));
    assert!(ring.slot(0, 64).is_some() && ring.slot(192, 64).is_some());
    assert!(ring.slot(32, 64).is_none() && ring.slot(128, 64).is_none());
    // One range behaves like contiguous memory.
    let one = MemoryPieces::new([(0, memory.part(0, 64)), (64, memory.part(64, 64))]).unwrap();
    assert!(matches!(RegionMemory::from(one), RegionMemory::Whole(whole) if whole.len() == 128));
}
