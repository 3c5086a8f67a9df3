//! Partitions, which define the ports that may communicate (IBA 10.9), and the P_Key tables that follow from
//! them.

use ib_wire::smp::PKEY_BLOCK_LEN;
use ib_wire::{Guid, Mtu, PKey, QKey, Rate, ServiceLevel};

use super::PortId;

/// One partition.
#[derive(Clone, PartialEq, Debug)]
pub struct Partition {
    /// Its name in reports.
    pub name: String,
    /// Key; its membership bit is ignored.
    pub pkey: PKey,
    /// Its broadcast group exists from the start.
    pub ipoib: bool,
    /// Q_Key of the broadcast group.
    pub qkey: QKey,
    /// MTU of the broadcast group.
    pub mtu: Mtu,
    /// Rate of the broadcast group.
    pub rate: Rate,
    /// Service level of the broadcast group.
    pub sl: ServiceLevel,
    /// Its members.
    pub members: Members,
}

/// Membership of a port in a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Membership {
    /// Communicates with full members only.
    Limited,
    /// Communicates with every member.
    Full,
}

/// Reference of a partition to a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Member {
    /// The port with this GUID, at any switch port.
    Guid(Guid),
    /// The port at the other end of this switch port.
    At(PortId),
}

/// The ports of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Members {
    /// Ports by reference; they take precedence over `others`.
    pub named: Vec<(Member, Membership)>,
    /// Membership of all other ports; `None`: no members.
    pub others: Option<Membership>,
}

impl Members {
    /// All ports as full members.
    pub const ALL: Self = Self { named: Vec::new(), others: Some(Membership::Full) };

    /// Returns the membership of a port that is connected to port `at` of a switch.
    fn of(&self, port: Guid, at: Option<PortId>) -> Option<Membership> {
        let is = |m: &Member| match *m {
            Member::Guid(guid) => guid == port,
            Member::At(place) => at == Some(place),
        };
        self.named.iter().find(|(m, _)| is(m)).map(|&(_, membership)| membership).or(self.others)
    }
}

impl Partition {
    /// The default partition with all ports as full members: Q_Key 0x0b1b, MTU 4096, 10 Gb/s, SL 0.
    #[must_use]
    pub fn default_ipoib() -> Self {
        Self {
            name: "default".to_owned(),
            pkey: PKey::DEFAULT,
            ipoib: true,
            qkey: QKey(0x0b1b),
            mtu: Mtu::B4096,
            rate: Rate::new(3),
            sl: ServiceLevel::new(0),
            members: Members::ALL,
        }
    }

    /// Returns its key with full membership.
    #[must_use]
    pub const fn full_key(&self) -> PKey {
        PKey(self.pkey.0 | 0x8000)
    }

    /// Returns the key for the table of `port`, which is connected to port `at` of a switch. `None` if it is
    /// not a member.
    #[must_use]
    pub fn key_of(&self, port: Guid, at: Option<PortId>) -> Option<PKey> {
        self.members.of(port, at).map(|membership| match membership {
            Membership::Full => self.full_key(),
            Membership::Limited => PKey(self.pkey.base()),
        })
    }
}

/// The P_Key table of a port. A key keeps its index as long as it exists, since queue pairs refer to it by
/// index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct KeyTable(Vec<PKey>);

impl KeyTable {
    /// Applies `wanted`: a key that is no longer wanted leaves a hole, a new one fills a hole. At most
    /// `capacity` keys; returns the number of keys for which there was no room.
    pub(crate) fn follow(&mut self, wanted: &[PKey], capacity: usize) -> usize {
        let with_base = |base: u16| wanted.iter().copied().find(|k| base != 0 && k.base() == base);
        for key in &mut self.0 {
            *key = with_base(key.base()).unwrap_or(PKey(0));
        }
        let mut left_out = 0;
        for &key in wanted {
            if self.key(key).is_some() {
                continue;
            }
            let hole = self.0.iter_mut().find(|k| k.base() == 0);
            if let Some(hole) = hole {
                *hole = key;
            } else if self.0.len() < capacity {
                self.0.push(key);
            } else {
                left_out += 1;
            }
        }
        // Management datagrams use the first key.
        if self.0.first().is_some_and(|k| k.base() == 0)
            && let Some(other) = self.0.iter().position(|k| k.base() != 0)
        {
            self.0.swap(0, other);
        }
        left_out
    }

    /// Returns the keys without the holes.
    pub(crate) fn keys(&self) -> impl Iterator<Item = PKey> + '_ {
        self.0.iter().copied().filter(|k| k.base() != 0)
    }

    /// Returns the key of this partition, with either membership.
    pub(crate) fn key(&self, pkey: PKey) -> Option<PKey> {
        self.keys().find(|k| k.base() == pkey.base())
    }

    /// Returns the index of the first key that matches one of `other`'s.
    pub(crate) fn shared_index(&self, other: &Self) -> Option<u16> {
        let at = self.0.iter().position(|a| other.keys().any(|b| a.matches(b)))?;
        u16::try_from(at).ok()
    }

    /// Returns the number of entries, including holes, that a port needs for it.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns a block as it is written to the port.
    pub(crate) fn block(&self, number: u16) -> [PKey; PKEY_BLOCK_LEN] {
        let mut keys = [PKey(0); PKEY_BLOCK_LEN];
        let from = self.0.iter().skip(usize::from(number) * PKEY_BLOCK_LEN);
        for (to, key) in keys.iter_mut().zip(from) {
            *to = *key;
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_indexes() {
        let keys = |list: &[u16]| list.iter().map(|&k| PKey(k)).collect::<Vec<_>>();
        let mut table = KeyTable::default();
        assert_eq!(table.follow(&keys(&[0xffff, 0x8001, 0x8002]), 4), 0);
        assert_eq!(table.follow(&keys(&[0xffff, 0x8002]), 4), 0);
        assert_eq!(table.block(0)[..4], keys(&[0xffff, 0, 0x8002, 0]));
        assert_eq!(table.keys().count(), 2);
        assert_eq!(table.key(PKey(0x8000)), None, "a hole is not a partition");
        // Another membership at the same index, a new key in the hole.
        assert_eq!(table.follow(&keys(&[0xffff, 0x8003, 0x0002]), 4), 0);
        assert_eq!(table.block(0)[..4], keys(&[0xffff, 0x8003, 0x0002, 0]));
        assert_eq!(table.follow(&keys(&[0xffff, 0x8003, 2, 0x8004, 0x8005, 0x8006]), 4), 2);
        assert_eq!(table.block(0)[..5], keys(&[0xffff, 0x8003, 0x0002, 0x8004, 0]));
        // Index 0 is never a hole.
        assert_eq!(table.follow(&keys(&[0x8003, 2]), 4), 0);
        assert_eq!(table.block(0)[..4], keys(&[0x8003, 0, 0x0002, 0]));
        let many: Vec<PKey> = (1..=100).map(|n| PKey(0x8000 | n)).collect();
        assert_eq!((table.follow(&many, 128), table.len()), (0, 100));
        assert_eq!(table.keys().count(), 100);
    }
}
