//! The two forwarding tables (IBA 14.2.5.10, 14.2.5.12).

use ib_wire::Lid;
use ib_wire::smp::{
    LFT_BLOCK_LEN, LFT_NO_PORT, LinearForwardingBlock, MFT_BLOCK_LEN, MFT_PORTS, MulticastForwardingBlock,
};

/// Entries of the linear table: every unicast LID.
pub(super) const LINEAR_CAP: u16 = Lid::FIRST_MULTICAST.0;
/// Entries of the multicast table.
pub(super) const MULTICAST_CAP: u16 = 1024;
/// Positions of 16 ports each: all ports that a switch can have.
pub(super) const POSITIONS: usize = 16;

/// Port of each unicast LID.
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

/// Ports of each multicast LID, one bit each.
#[derive(Debug)]
pub(super) struct MulticastTable(Box<[[u16; POSITIONS]]>);

/// Ports that a multicast packet leaves by.
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

    /// Port numbers, ascending.
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

    /// The entries of a block and the position that `modifier` names.
    fn place(&mut self, modifier: u32) -> Option<(&mut [[u16; POSITIONS]], usize)> {
        let (block, position) = MulticastForwardingBlock::place(modifier);
        let start = usize::from(block) * MFT_BLOCK_LEN;
        Some((self.0.get_mut(start..start + MFT_BLOCK_LEN)?, usize::from(position)))
    }

    pub(super) fn get(&mut self, modifier: u32) -> Option<MulticastForwardingBlock> {
        let (entries, position) = self.place(modifier)?;
        let mut block = MulticastForwardingBlock::default();
        for (mask, entry) in block.masks.iter_mut().zip(entries) {
            *mask = *entry.get(position)?;
        }
        Some(block)
    }

    pub(super) fn set(&mut self, modifier: u32, block: &MulticastForwardingBlock) -> Option<()> {
        let (entries, position) = self.place(modifier)?;
        for (mask, entry) in block.masks.iter().zip(entries) {
            *entry.get_mut(position)? = *mask;
        }
        Some(())
    }
}
