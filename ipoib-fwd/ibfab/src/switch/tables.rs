//! The two forwarding tables of a switch (IBA 14.2.5.10, 14.2.5.12), and the P_Key table of a port
//! (14.2.5.7).

use ib_wire::smp::{
    LFT_BLOCK_LEN, LFT_NO_PORT, LinearForwardingBlock, MFT_BLOCK_LEN, MFT_PORTS, MulticastForwardingBlock,
    PKEY_BLOCK_LEN, PKeyBlock,
};
use ib_wire::{Lid, PKey};

/// Entries of the linear table: all unicast LIDs.
pub(super) const LINEAR_CAP: u16 = Lid::FIRST_MULTICAST.0;
/// Entries of the multicast table.
pub(super) const MULTICAST_CAP: u16 = 511 * MFT_BLOCK_LEN as u16;
/// Entries of a port's P_Key table.
pub(super) const PARTITION_CAP: u16 = (PARTITION_BLOCKS * PKEY_BLOCK_LEN) as u16;
const PARTITION_BLOCKS: usize = 4;
/// Positions of 16 ports each: all ports of the largest switch.
pub(super) const POSITIONS: usize = 16;

/// The port of each unicast LID.
#[derive(Debug)]
pub(super) struct LinearTable(Box<[u8]>);

impl LinearTable {
    pub(super) fn new() -> Self {
        Self(vec![LFT_NO_PORT; usize::from(LINEAR_CAP)].into())
    }

    pub(super) fn port(&self, lid: Lid) -> Option<u8> {
        self.0.get(usize::from(lid.0)).copied().filter(|&port| port != LFT_NO_PORT)
    }

    pub(super) fn block(&mut self, number: u32) -> Option<&mut [u8]> {
        let start = usize::try_from(number).ok()?.checked_mul(LFT_BLOCK_LEN)?;
        self.0.get_mut(start..start.checked_add(LFT_BLOCK_LEN)?)
    }

    pub(super) fn get(&mut self, number: u32) -> Option<LinearForwardingBlock> {
        let mut block = LinearForwardingBlock { ports: [LFT_NO_PORT; LFT_BLOCK_LEN] };
        block.ports.copy_from_slice(self.block(number)?);
        Some(block)
    }

    pub(super) fn set(&mut self, number: u32, block: &LinearForwardingBlock) -> Option<()> {
        self.block(number)?.copy_from_slice(&block.ports);
        Some(())
    }
}

/// The ports of each multicast LID, one bit each.
#[derive(Debug)]
pub(super) struct MulticastTable(Box<[[u16; POSITIONS]]>);

/// The ports by which a multicast packet leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PortSet([u16; POSITIONS]);

impl PortSet {
    pub(super) const fn is_empty(&self) -> bool {
        let mut i = 0;
        while i < POSITIONS {
            if self.0[i] != 0 {
                return false;
            }
            i += 1;
        }
        true
    }

    pub(super) fn has(&self, port: u8) -> bool {
        self.0.get(usize::from(port / 16)).is_some_and(|mask| mask >> (port % 16) & 1 != 0)
    }

    pub(super) fn insert(&mut self, port: u8) {
        if let Some(mask) = self.0.get_mut(usize::from(port / 16)) {
            *mask |= 1 << (port % 16);
        }
    }

    pub(super) fn remove(&mut self, port: u8) {
        if let Some(mask) = self.0.get_mut(usize::from(port / 16)) {
            *mask &= !(1 << (port % 16));
        }
    }

    /// Returns the port numbers, ascending.
    pub(super) fn iter(self) -> impl Iterator<Item = u8> {
        self.0.into_iter().zip(0u8..).flat_map(|(mask, position)| {
            (0..MFT_PORTS as u8).filter(move |bit| mask >> bit & 1 != 0).map(move |bit| position * 16 + bit)
        })
    }
}

impl MulticastTable {
    pub(super) fn new() -> Self {
        Self(vec![[0; POSITIONS]; usize::from(MULTICAST_CAP)].into())
    }

    pub(super) fn ports(&self, lid: Lid) -> PortSet {
        let at = usize::from(lid.0).checked_sub(usize::from(Lid::FIRST_MULTICAST.0));
        at.and_then(|at| self.0.get(at)).copied().map(PortSet).unwrap_or_default()
    }

    /// Returns the entries of a block, and the position, that `modifier` names.
    fn entries(&mut self, modifier: u32) -> Option<(&mut [[u16; POSITIONS]], usize)> {
        let (block, position) = MulticastForwardingBlock::place(modifier);
        let start = usize::from(block) * MFT_BLOCK_LEN;
        Some((self.0.get_mut(start..start + MFT_BLOCK_LEN)?, usize::from(position)))
    }

    pub(super) fn get(&mut self, modifier: u32) -> Option<MulticastForwardingBlock> {
        let (entries, position) = self.entries(modifier)?;
        let mut block = MulticastForwardingBlock::default();
        for (mask, entry) in block.masks.iter_mut().zip(entries) {
            *mask = *entry.get(position)?;
        }
        Some(block)
    }

    pub(super) fn set(&mut self, modifier: u32, block: &MulticastForwardingBlock) -> Option<()> {
        let (entries, position) = self.entries(modifier)?;
        for (mask, entry) in block.masks.iter().zip(entries) {
            *entry.get_mut(position)? = *mask;
        }
        Some(())
    }
}

/// P_Keys that a port passes.
#[derive(Debug, Default)]
pub(super) struct PartitionTable {
    blocks: [PKeyBlock; PARTITION_BLOCKS],
    /// The keys of all blocks, without free entries.
    keys: Vec<PKey>,
}

impl PartitionTable {
    pub(super) fn get(&self, block: u16) -> Option<PKeyBlock> {
        self.blocks.get(usize::from(block)).copied()
    }

    pub(super) fn set(&mut self, block: u16, to: &PKeyBlock) -> Option<()> {
        *self.blocks.get_mut(usize::from(block))? = *to;
        self.keys = self.blocks.iter().flat_map(|b| b.keys).filter(|k| k.base() != 0).collect();
        Some(())
    }

    /// True if a port with this table may send the key: a limited member cannot pass as a full one.
    pub(super) fn lets_in(&self, pkey: PKey) -> bool {
        self.keys.iter().any(|own| own.base() == pkey.base() && (own.is_full() || !pkey.is_full()))
    }

    /// True if a port with this table may receive the key (IBA 10.9.3).
    pub(super) fn lets_out(&self, pkey: PKey) -> bool {
        self.keys.iter().any(|own| own.matches(pkey))
    }
}
