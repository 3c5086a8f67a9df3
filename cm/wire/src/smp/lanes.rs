//! Mapping of service levels to lanes, and arbitration between lanes (IBA 14.2.5.8, 14.2.5.9).

use crate::ServiceLevel;
use crate::layout::Field;
use crate::packet::VirtualLane;

/// Entries of an arbitration block.
const ENTRIES: usize = 32;

/// Lane of each service level; packets mapped to lane 15 are dropped (IBA 7.6.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneMap {
    /// Indexed by service level.
    pub lanes: [VirtualLane; 16],
}

impl LaneMap {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Attribute modifier at a switch: ingress and egress port of the packets. Other nodes have one map and
    /// ignore the modifier.
    #[must_use]
    pub const fn modifier(ingress: u8, egress: u8) -> u32 {
        (ingress as u32) << 8 | egress as u32
    }

    /// The ingress and egress port of a switch that a modifier names.
    #[must_use]
    pub const fn place(modifier: u32) -> (u8, u8) {
        ((modifier >> 8) as u8, modifier as u8)
    }

    /// The lane of a service level.
    #[must_use]
    pub fn lane(&self, sl: ServiceLevel) -> VirtualLane {
        self.lanes.get(usize::from(sl.get())).copied().unwrap_or_default()
    }
}

impl Field for LaneMap {
    fn get(bytes: &[u8], at: usize, _width: usize) -> Self {
        let mut map = Self::default();
        for (n, lane) in map.lanes.iter_mut().enumerate() {
            *lane = VirtualLane::new(Field::get(bytes, at + n * 4, 4));
        }
        map
    }

    fn put(&self, bytes: &mut [u8], at: usize, _width: usize) {
        for (n, lane) in self.lanes.iter().enumerate() {
            lane.get().put(bytes, at + n * 4, 4);
        }
    }
}

/// Share of a lane in one round of the arbitration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArbitrationEntry {
    /// The lane.
    pub lane: VirtualLane,
    /// Weight in units of 64 bytes; 0 skips the entry.
    pub weight: u8,
}

/// Half of a port's low-priority or high-priority table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VlArbitrationBlock {
    /// The entries in round-robin order.
    pub entries: [ArbitrationEntry; ENTRIES],
}

impl VlArbitrationBlock {
    /// Bytes on the wire.
    pub const LEN: usize = 64;

    /// Attribute modifier. Blocks 1 and 2 are the halves of the low-priority table, 3 and 4 those of the
    /// high-priority table. `port` is the port of a switch, 0 on other nodes.
    #[must_use]
    pub const fn modifier(block: u16, port: u8) -> u32 {
        (block as u32) << 16 | port as u32
    }

    /// The block and port that a modifier names.
    #[must_use]
    pub const fn place(modifier: u32) -> (u16, u8) {
        ((modifier >> 16) as u16, modifier as u8)
    }
}

impl Field for VlArbitrationBlock {
    fn get(bytes: &[u8], at: usize, _width: usize) -> Self {
        let mut block = Self::default();
        for (n, entry) in block.entries.iter_mut().enumerate() {
            entry.lane = VirtualLane::new(Field::get(bytes, at + n * 16 + 4, 4));
            entry.weight = Field::get(bytes, at + n * 16 + 8, 8);
        }
        block
    }

    fn put(&self, bytes: &mut [u8], at: usize, _width: usize) {
        for (n, entry) in self.entries.iter().enumerate() {
            entry.lane.get().put(bytes, at + n * 16 + 4, 4);
            entry.weight.put(bytes, at + n * 16 + 8, 8);
        }
    }
}

/// The arbitration tables of a port with one data lane. They are stored as written; one lane needs no
/// arbitration.
#[derive(Clone, Debug, Default)]
pub struct ArbitrationTables([VlArbitrationBlock; 4]);

impl ArbitrationTables {
    /// Entries of each of the two tables, as in PortInfo.
    pub const CAP: u8 = 8;

    /// The block with the number of the attribute modifier.
    pub fn block(&mut self, number: u16) -> Option<&mut VlArbitrationBlock> {
        self.0.get_mut(usize::from(number).checked_sub(1)?)
    }
}
