//! Where a published table lies in its words.
//!
//! The words are a header and two buffers; publication `n` is in buffer `n & 1`. A buffer is four words a slot, then one word a
//! bucket: chains of slots whose GIDs have the same hash. Everything that a word may say is checked when it is read, for the
//! memory may be another process's.

use ib_wire::{Gid, Guid, PortNumber};

use crate::entry::{Attributes, Entry, GidType, IfIndex, Key, VlanId};
use crate::sync::{AtomicU64, Ordering, fence};

/// "gidcache" and the version of this layout.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"gidc\0\0\0\x01");
/// Most ports of a device.
pub const MAX_PORTS: usize = 32;
/// Most slots of a device, over all ports.
pub const MAX_SLOTS: usize = 1 << 20;

pub(crate) const W_MAGIC: usize = 0;
pub(crate) const W_SLOTS: usize = 1;
pub(crate) const W_PORTS: usize = 2;
pub(crate) const W_SEED: usize = 3;
pub(crate) const W_EPOCH: usize = 4;
pub(crate) const W_PROCESS: usize = 5;
pub(crate) const W_HEARTBEAT: usize = 6;
// The two words that each lookup reads have a cache line of their own.
pub(crate) const W_PUBLISHED: usize = 8;
pub(crate) const W_BEGUN: usize = 9;
pub(crate) const W_PORT_TABLE: usize = 16;
const HEADER: usize = W_PORT_TABLE + MAX_PORTS;

pub(crate) const WORDS_PER_SLOT: usize = 4;

/// Words of memory that can be read while another writes them.
pub trait Words {
    /// How many there are.
    fn count(&self) -> usize;

    /// A relaxed load of one; 0 if it does not exist.
    fn load(&self, at: usize) -> u64;
}

impl<T: AsRef<[AtomicU64]>> Words for T {
    fn count(&self) -> usize {
        self.as_ref().len()
    }

    fn load(&self, at: usize) -> u64 {
        self.as_ref().get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

/// Why memory does not hold a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// Too few words for the table.
    #[error("{words} words of memory; the table needs {needed}")]
    TooSmall {
        /// Words that are there.
        words: usize,
        /// Words that are needed.
        needed: usize,
    },
    /// No table, or one of another version.
    #[error("no table of this version is published here")]
    NoTable,
    /// The ports are none, too many, or twice the same, or their tables are too long or empty.
    #[error("{0}")]
    Ports(&'static str),
    /// The memory holds another device's table.
    #[error("the memory holds a table of other ports")]
    OtherPorts,
}

/// Ports of a device and where their slots lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// Number, first slot, slots.
    ports: Vec<(PortNumber, usize, u16)>,
    slots: usize,
    buckets: usize,
}

impl Geometry {
    pub(crate) fn new(ports: &[(PortNumber, u16)]) -> Result<Self, LayoutError> {
        if ports.is_empty() {
            return Err(LayoutError::Ports("a device has at least one port"));
        }
        if ports.len() > MAX_PORTS {
            return Err(LayoutError::Ports("a device has at most 32 ports"));
        }
        let mut placed: Vec<(PortNumber, usize, u16)> = Vec::with_capacity(ports.len());
        let mut slots = 0;
        for &(number, len) in ports {
            if len == 0 {
                return Err(LayoutError::Ports("a port's table has at least one slot"));
            }
            if placed.iter().any(|&(other, ..)| other == number) {
                return Err(LayoutError::Ports("two ports have the same number"));
            }
            placed.push((number, slots, len));
            slots += usize::from(len);
        }
        if slots > MAX_SLOTS {
            return Err(LayoutError::Ports("a device has at most 1,048,576 slots"));
        }
        Ok(Self { ports: placed, slots, buckets: slots.next_power_of_two() })
    }

    /// What the header of published memory says, checked.
    pub(crate) fn read(words: &impl Words) -> Result<Self, LayoutError> {
        let word = |at: usize| words.load(at);
        if words.count() < HEADER {
            return Err(LayoutError::TooSmall { words: words.count(), needed: HEADER });
        }
        if word(W_MAGIC) != MAGIC {
            return Err(LayoutError::NoTable);
        }
        // Relaxed and a fence: the only loads that may be done on read-only pages are relaxed ones.
        fence(Ordering::Acquire);
        let count = word(W_PORTS);
        if count > MAX_PORTS as u64 {
            return Err(LayoutError::NoTable);
        }
        let mut ports = Vec::with_capacity(MAX_PORTS);
        for at in 0..count as usize {
            let [.., number, high, low] = word(W_PORT_TABLE + at).to_be_bytes();
            ports.push((PortNumber(number), u16::from_be_bytes([high, low])));
        }
        let geometry = Self::new(&ports)?;
        if word(W_SLOTS) != geometry.slots as u64 {
            return Err(LayoutError::NoTable);
        }
        geometry.fits(words.count())?;
        Ok(geometry)
    }

    /// Writes what [`Geometry::read`] reads, the magic number last.
    pub(crate) fn write(&self, words: &[AtomicU64]) {
        let set = |at: usize, value: u64| {
            if let Some(word) = words.get(at) {
                word.store(value, Ordering::Relaxed);
            }
        };
        set(W_SLOTS, self.slots as u64);
        set(W_PORTS, self.ports.len() as u64);
        for (at, &(number, _, len)) in self.ports.iter().enumerate() {
            set(W_PORT_TABLE + at, u64::from(number.0) << 16 | u64::from(len));
        }
        fence(Ordering::Release);
        set(W_MAGIC, MAGIC);
    }

    pub(crate) fn fits(&self, words: usize) -> Result<(), LayoutError> {
        let needed = self.words();
        if words < needed { Err(LayoutError::TooSmall { words, needed }) } else { Ok(()) }
    }

    /// Words of the whole.
    pub(crate) const fn words(&self) -> usize {
        HEADER + 2 * self.buffer_words()
    }

    /// Words of one buffer.
    pub(crate) const fn buffer_words(&self) -> usize {
        self.slots * WORDS_PER_SLOT + self.buckets
    }

    /// First word of the buffer of a publication.
    pub(crate) const fn buffer_start(&self, publication: u64) -> usize {
        HEADER + (publication & 1) as usize * self.buffer_words()
    }

    pub(crate) const fn slots(&self) -> usize {
        self.slots
    }

    pub(crate) fn slot(&self, port: PortNumber, index: u16) -> Option<usize> {
        let (_, first, len) = self.ports.iter().find(|(number, ..)| *number == port)?;
        (index < *len).then_some(first + usize::from(index))
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = (PortNumber, u16)> + '_ {
        self.ports.iter().map(|&(number, _, len)| (number, len))
    }

    /// Where in a buffer the chain of a GID starts.
    pub(crate) const fn head(&self, seed: u64, gid: Gid) -> usize {
        // Two rounds of multiply and fold; addresses are the host's own, so that spread is all that is asked.
        let (high, low) = halves(gid);
        let one = fold(high ^ seed, 0x9e37_79b9_7f4a_7c15);
        let two = fold(one ^ low, 0xd6e8_feb8_6659_fd93);
        self.slots * WORDS_PER_SLOT + (two as usize & (self.buckets - 1))
    }
}

const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// A GID as the two words of its slot.
pub(crate) const fn halves(gid: Gid) -> (u64, u64) {
    (gid.prefix(), gid.id().0)
}

const STATE_INVALID: u64 = 1;
const STATE_VALID: u64 = 2;
const STATE: u64 = 0xff;
const DEFAULT: u64 = 1 << 16;
const TAGGED: u64 = 1 << 17;

/// The four words of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Record {
    pub(crate) high: u64,
    pub(crate) low: u64,
    /// State, type, default, tagged, VLAN in bits 20 to 31, interface in the upper half.
    pub(crate) facts: u64,
    /// Next slot of the chain plus one, port in bits 32 to 39, index in bits 40 to 55.
    pub(crate) place: u64,
}

impl Record {
    pub(crate) fn new(entry: &Entry, valid: bool) -> Self {
        let (high, low) = halves(entry.gid());
        let ifindex = entry.attributes.key.ifindex.map_or(0, IfIndex::get);
        let vlan = entry.attributes.vlan.map_or(0, |vlan| TAGGED | u64::from(vlan.get()) << 20);
        let facts = if valid { STATE_VALID } else { STATE_INVALID }
            | (entry.gid_type() as u64) << 8
            | if entry.default { DEFAULT } else { 0 }
            | vlan
            | u64::from(ifindex) << 32;
        Self { high, low, facts, place: u64::from(entry.port.0) << 32 | u64::from(entry.index) << 40 }
    }

    pub(crate) const fn gid(&self) -> Gid {
        Gid::new(self.high, Guid(self.low))
    }

    pub(crate) const fn is_valid(&self) -> bool {
        self.facts & STATE == STATE_VALID
    }

    pub(crate) const fn is_invalid(&self) -> bool {
        self.facts & STATE == STATE_INVALID
    }

    /// The next slot of its chain plus one; 0 at the end.
    pub(crate) const fn next(&self) -> u32 {
        self.place as u32
    }

    pub(crate) const fn with_next(self, next: u32) -> Self {
        Self { place: self.place & !0xffff_ffff | next as u64, ..self }
    }

    /// The entry; `None` if it is not valid.
    pub(crate) const fn entry(&self) -> Option<Entry> {
        if !self.is_valid() {
            return None;
        }
        let Some(gid_type) = GidType::from_u8((self.facts >> 8) as u8) else { return None };
        let vlan =
            if self.facts & TAGGED == 0 { None } else { VlanId::new((self.facts >> 20) as u16 & 0xfff) };
        let ifindex = IfIndex::new((self.facts >> 32) as u32);
        Some(Entry {
            port: PortNumber((self.place >> 32) as u8),
            index: (self.place >> 40) as u16,
            attributes: Attributes { key: Key { gid: self.gid(), gid_type, ifindex }, vlan },
            default: self.facts & DEFAULT != 0,
        })
    }
}
