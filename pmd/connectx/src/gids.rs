//! The GID table of a port in the hardware. On an InfiniBand port the subnet manager sets the prefix and the
//! GUIDs behind the port's own (IBA 4.1.1, 14.2.5.5). On an Ethernet port the host writes every entry (IBA
//! annex A17).

use gidcache::{Attributes, GidType, Key};
use ib_wire::smp::{GUID_BLOCK_LEN, GuidBlock};
use ib_wire::{Gid, Guid};

use hca::LinkLayer;

/// Default number of entries.
pub const DEFAULT_GIDS: u16 = 128;
/// Largest number of entries: an address vector has 8 bits for the index, PortInfo's GUIDCap for the count.
pub const MAX_GIDS: u16 = 255;

/// The table of one port.
#[derive(Debug)]
pub(crate) struct GidTable {
    slots: Slots,
    /// No slot from here on is used.
    used: usize,
}

#[derive(Debug)]
enum Slots {
    InfiniBand { prefix: u64, guids: Box<[Guid]> },
    Ethernet(Box<[Option<Attributes>]>),
}

/// Why an entry was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// The table has no such index.
    Index,
    /// The subnet manager writes this table, or a port of this kind has no GIDs of this type.
    Kind,
}

impl GidTable {
    /// Creates a table of `len` entries, 1 to [`MAX_GIDS`]. The table of an InfiniBand port begins with the
    /// port's own GID.
    pub(crate) fn new(link_layer: LinkLayer, own: Guid, len: u16) -> Self {
        let len = usize::from(len.clamp(1, MAX_GIDS));
        match link_layer {
            LinkLayer::InfiniBand => {
                let mut guids = vec![Guid(0); len].into_boxed_slice();
                if let Some(first) = guids.first_mut() {
                    *first = own;
                }
                Self { slots: Slots::InfiniBand { prefix: Gid::DEFAULT_PREFIX, guids }, used: 1 }
            }
            LinkLayer::Ethernet => {
                Self { slots: Slots::Ethernet(vec![None; len].into_boxed_slice()), used: 0 }
            }
        }
    }

    /// Number of entries of the table.
    pub(crate) fn len(&self) -> u16 {
        match &self.slots {
            Slots::InfiniBand { guids, .. } => guids.len() as u16,
            Slots::Ethernet(slots) => slots.len() as u16,
        }
    }

    /// An entry, if it is set.
    pub(crate) fn entry(&self, index: usize) -> Option<Attributes> {
        match &self.slots {
            Slots::InfiniBand { prefix, guids } => {
                let guid = guids.get(index).filter(|guid| guid.0 != 0)?;
                let key = Key { gid: Gid::new(*prefix, *guid), gid_type: GidType::Ib, ifindex: None };
                Some(Attributes { key, vlan: None })
            }
            Slots::Ethernet(slots) => *slots.get(index)?,
        }
    }

    /// All set entries and their indices.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u16, Attributes)> + '_ {
        (0..self.used).filter_map(|index| Some((index as u16, self.entry(index)?)))
    }

    /// The GID of an entry; [`Gid::ZERO`] if it is not set.
    pub(crate) fn gid(&self, index: usize) -> Gid {
        self.entry(index).map_or(Gid::ZERO, |entry| entry.key.gid)
    }

    /// First index of a GID.
    pub(crate) fn find(&self, gid: Gid) -> Option<u8> {
        (0..self.used).find(|&index| gid != Gid::ZERO && self.gid(index) == gid).map(|index| index as u8)
    }

    /// True if packets to this GID are for the port. An InfiniBand port also accepts the default prefix (IBA
    /// 4.1.1).
    pub(crate) fn has(&self, gid: Gid) -> bool {
        match &self.slots {
            Slots::InfiniBand { prefix, guids } => {
                gid.id().0 != 0
                    && (gid.prefix() == *prefix || gid.prefix() == Gid::DEFAULT_PREFIX)
                    && guids.iter().take(self.used).any(|guid| *guid == gid.id())
            }
            Slots::Ethernet(_) => self.find(gid).is_some(),
        }
    }

    /// The GID of an entry that RoCEv2 packets can be sent from. Entries of VLANs are excluded.
    pub(crate) fn rocev2(&self, index: usize) -> Option<Gid> {
        let entry = self.entry(index)?;
        (entry.key.gid_type == GidType::RoceV2 && entry.vlan.is_none()).then_some(entry.key.gid)
    }

    /// True if RoCEv2 packets to this GID are for the port.
    pub(crate) fn has_rocev2(&self, gid: Gid) -> bool {
        (0..self.used).any(|index| self.rocev2(index) == Some(gid))
    }

    /// Prefix of an InfiniBand port's GIDs.
    pub(crate) const fn prefix(&self) -> u64 {
        match &self.slots {
            Slots::InfiniBand { prefix, .. } => *prefix,
            Slots::Ethernet(_) => Gid::DEFAULT_PREFIX,
        }
    }

    /// Sets the prefix from the subnet manager. Returns true if it changed.
    pub(crate) fn set_prefix(&mut self, to: u64) -> bool {
        match &mut self.slots {
            Slots::InfiniBand { prefix, .. } => std::mem::replace(prefix, to) != to,
            Slots::Ethernet(_) => false,
        }
    }

    /// A block of the table in the format of GUIDInfo, with zeros behind the end of the table. `None` if the
    /// whole block is behind the end.
    pub(crate) fn block(&self, number: u32) -> Option<GuidBlock> {
        let Slots::InfiniBand { guids, .. } = &self.slots else { return None };
        let from = guids.chunks(GUID_BLOCK_LEN).nth(number as usize)?;
        let mut block = GuidBlock::default();
        block.guids.iter_mut().zip(from).for_each(|(to, guid)| *to = *guid);
        Some(block)
    }

    /// Writes a block from the subnet manager; the port's own GUID stays. Returns true if anything changed;
    /// `None` if there is no such block.
    pub(crate) fn set_block(&mut self, number: u32, block: &GuidBlock) -> Option<bool> {
        let Slots::InfiniBand { guids, .. } = &mut self.slots else { return None };
        let slots = guids.chunks_mut(GUID_BLOCK_LEN).nth(number as usize)?;
        // Entry 0 is the port's own and cannot be written (IBA 14.2.5.5).
        let own = usize::from(number == 0);
        let mut changed = false;
        for (slot, guid) in slots.iter_mut().zip(&block.guids).skip(own) {
            changed |= std::mem::replace(slot, *guid) != *guid;
        }
        self.used = guids.iter().rposition(|guid| guid.0 != 0).map_or(0, |last| last + 1);
        Some(changed)
    }

    /// Writes or clears an entry of an Ethernet port for the host. Returns true if the entry changed.
    pub(crate) fn write(&mut self, index: u16, entry: Option<Attributes>) -> Result<bool, Refused> {
        let Slots::Ethernet(slots) = &mut self.slots else { return Err(Refused::Kind) };
        if entry.is_some_and(|entry| entry.key.gid_type == GidType::Ib || entry.key.gid == Gid::ZERO) {
            return Err(Refused::Kind);
        }
        let slot = slots.get_mut(usize::from(index)).ok_or(Refused::Index)?;
        let changed = std::mem::replace(slot, entry) != entry;
        self.used = slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn of(address: &str) -> Attributes {
        let gid = gidcache::gid_of_address(address.parse::<IpAddr>().unwrap());
        Attributes { key: Key { gid, gid_type: GidType::RoceV2, ifindex: None }, vlan: None }
    }

    #[test]
    fn the_host_writes_an_ethernet_ports_entries() {
        let mut table = GidTable::new(LinkLayer::Ethernet, Guid(1), 4);
        assert_eq!((table.len(), table.gid(0), table.has(Gid::ZERO)), (4, Gid::ZERO, false));
        assert_eq!(table.write(2, Some(of("10.0.0.1"))), Ok(true));
        assert_eq!(table.write(2, Some(of("10.0.0.1"))), Ok(false));
        let gid = of("10.0.0.1").key.gid;
        assert_eq!((table.find(gid), table.has(gid)), (Some(2), true));
        assert_eq!(table.entries().collect::<Vec<_>>(), [(2, of("10.0.0.1"))]);
        assert_eq!(table.write(4, Some(of("10.0.0.1"))), Err(Refused::Index));
        let mut wrong = of("10.0.0.2");
        wrong.key.gid_type = GidType::Ib;
        assert_eq!(table.write(0, Some(wrong)), Err(Refused::Kind));
        assert_eq!((table.block(0), table.set_prefix(7)), (None, false));
        assert_eq!(table.write(2, None), Ok(true));
        assert_eq!((table.has(gid), table.entries().count()), (false, 0));
    }

    #[test]
    fn an_infiniband_port_has_its_own_guid_first_and_both_prefixes() {
        let mut table = GidTable::new(LinkLayer::InfiniBand, Guid(1), 2);
        assert_eq!(table.write(1, Some(of("10.0.0.1"))), Err(Refused::Kind));
        assert!(table.set_prefix(0xfec0_0000_0000_0001) && !table.set_prefix(0xfec0_0000_0000_0001));
        let block = GuidBlock { guids: [Guid(9); 8] };
        assert_eq!((table.set_block(0, &block), table.set_block(0, &block)), (Some(true), Some(false)));
        assert_eq!((table.block(1), table.set_block(1, &block)), (None, None));
        assert_eq!(table.gid(0), Gid::new(0xfec0_0000_0000_0001, Guid(1)));
        for (prefix, guid, ours) in [
            (0xfec0_0000_0000_0001, 9, true),
            (Gid::DEFAULT_PREFIX, 1, true),
            (0xfec0_0000_0000_0002, 1, false),
            (Gid::DEFAULT_PREFIX, 2, false),
            (Gid::DEFAULT_PREFIX, 0, false),
        ] {
            assert_eq!(table.has(Gid::new(prefix, Guid(guid))), ours);
        }
    }
}
