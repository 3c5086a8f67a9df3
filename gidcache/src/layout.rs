//! Memory layout of a published table.
//!
//! The memory contains a header and two buffers. Publication `n` is in buffer `n & 1`. A buffer contains
//! records of four words: one for each slot, followed by the rows of the index.
//!
//! The index has one row for each GID, with a copy of its best record. It is in the first free row from the
//! GID's hash on. At most a quarter of the rows is in use, so a lookup usually reads one cache line with the
//! complete result. Further records of the GID form a chain from there through the slots.
//!
//! All words are validated when they are read, because another process may write the memory.

use ib_wire::{Gid, PortNumber};

use crate::entry::{Attributes, Entry, GidType, IfIndex, Key, VlanId};
use crate::sync::{AtomicU64, Ordering, fence};

/// "gidcache" and the version of this layout.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"gidc\0\0\0\x02");
/// Maximum number of ports of a device.
pub const MAX_PORTS: usize = 32;
/// Maximum number of slots of a device, over all ports.
pub const MAX_SLOTS: usize = 1 << 20;

pub(crate) const W_MAGIC: usize = 0;
pub(crate) const W_SLOTS: usize = 1;
pub(crate) const W_PORTS: usize = 2;
pub(crate) const W_SEED: usize = 3;
pub(crate) const W_EPOCH: usize = 4;
pub(crate) const W_PROCESS: usize = 5;
pub(crate) const W_HEARTBEAT: usize = 6;
// The two words that each lookup reads have a separate cache line.
pub(crate) const W_PUBLISHED: usize = 8;
pub(crate) const W_BEGUN: usize = 9;
pub(crate) const W_PORT_TABLE: usize = 16;
const HEADER: usize = W_PORT_TABLE + MAX_PORTS;

/// Words of a record, in a slot or a row. Records are aligned to their size. In memory that starts on a cache
/// line, no record spans two cache lines.
pub(crate) const RECORD: usize = 4;
/// Number of possible home rows of the index per slot.
pub(crate) const HOMES_PER_SLOT: usize = 4;

/// Memory that can be read while another thread or process writes it.
pub trait Words {
    /// Number of words.
    fn count(&self) -> usize;

    /// Loads one word with relaxed ordering, or returns 0 if it does not exist.
    fn load(&self, at: usize) -> u64;

    /// Loads the four words from `4 * quad` with relaxed ordering, or returns `None` if one does not exist.
    fn load_quad(&self, quad: usize) -> Option<[u64; 4]>;
}

/// Implements [`Words::load_quad`] for a slice.
#[inline]
#[must_use]
pub fn quad_of(words: &[AtomicU64], quad: usize) -> Option<[u64; 4]> {
    let (quads, _) = words.as_chunks::<4>();
    let [a, b, c, d] = quads.get(quad)?;
    Some([a, b, c, d].map(|word| word.load(Ordering::Relaxed)))
}

impl<T: AsRef<[AtomicU64]>> Words for T {
    fn count(&self) -> usize {
        self.as_ref().len()
    }

    #[inline]
    fn load(&self, at: usize) -> u64 {
        self.as_ref().get(at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn load_quad(&self, quad: usize) -> Option<[u64; 4]> {
        quad_of(self.as_ref(), quad)
    }
}

/// Reason why memory does not contain a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The memory is too small for the table.
    #[error("the table needs {needed} words of memory, but there are {words}")]
    TooSmall {
        /// Available words.
        words: usize,
        /// Required words.
        needed: usize,
    },
    /// There is no table, or one of another version.
    #[error("no table of this version is published here")]
    NoTable,
    /// There are no ports, too many ports or duplicate ports, or their tables are empty or too long.
    #[error("{0}")]
    Ports(&'static str),
    /// The memory contains another device's table.
    #[error("the memory contains a table of other ports")]
    OtherPorts,
}

/// Ports of a device and the locations of their slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// Port number, first slot, number of slots.
    ports: Vec<(PortNumber, usize, u16)>,
    slots: usize,
    homes: usize,
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
        Ok(Self { ports: placed, slots, homes: slots * HOMES_PER_SLOT })
    }

    /// Reads and validates the header of published memory.
    pub(crate) fn read(words: &impl Words) -> Result<Self, LayoutError> {
        let word = |at: usize| words.load(at);
        if words.count() < HEADER {
            return Err(LayoutError::TooSmall { words: words.count(), needed: HEADER });
        }
        if word(W_MAGIC) != MAGIC {
            return Err(LayoutError::NoTable);
        }
        // Relaxed loads and a fence: only relaxed loads are allowed on read-only pages.
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

    /// Writes the header for [`Geometry::read`], with the magic number last.
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

    /// Total number of words.
    pub(crate) const fn words(&self) -> usize {
        HEADER + 2 * self.buffer_words()
    }

    /// Number of words of a buffer.
    pub(crate) const fn buffer_words(&self) -> usize {
        self.buffer_records() * RECORD
    }

    #[inline]
    const fn buffer_records(&self) -> usize {
        self.slots.wrapping_add(self.rows())
    }

    /// Index of the first record of a publication's buffer.
    #[inline]
    pub(crate) const fn first_record(&self, publication: u64) -> usize {
        const FIRST: usize = HEADER / RECORD;
        if publication & 1 == 0 { FIRST } else { FIRST.wrapping_add(self.buffer_records()) }
    }

    /// Index of the first word of a publication's buffer.
    pub(crate) const fn buffer_start(&self, publication: u64) -> usize {
        self.first_record(publication) * RECORD
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

    /// Number of home rows.
    #[inline]
    pub(crate) const fn homes(&self) -> usize {
        self.homes
    }

    /// Number of all rows. After the last home row there is room for all records, and one row that is always
    /// empty and ends searches.
    #[inline]
    pub(crate) const fn rows(&self) -> usize {
        self.homes.wrapping_add(self.slots).wrapping_add(1)
    }

    /// Returns the record number of a row in its buffer.
    #[inline]
    pub(crate) const fn row_record(&self, row: usize) -> usize {
        self.slots.wrapping_add(row)
    }
}

/// Converts a GID to the two words of its record, in memory order.
#[inline]
pub(crate) const fn halves(gid: Gid) -> (u64, u64) {
    let words = u128::from_le_bytes(gid.0);
    (words as u64, (words >> 64) as u64)
}

/// Converts two words to a GID.
#[inline]
pub(crate) const fn gid_of(first: u64, second: u64) -> Gid {
    Gid(((second as u128) << 64 | first as u128).to_le_bytes())
}

const STATE_INVALID: u64 = 1;
pub(crate) const STATE_VALID: u64 = 2;
pub(crate) const STATE: u64 = 0xff;
pub(crate) const TYPE_SHIFT: u32 = 8;
pub(crate) const TYPE: u64 = 0xff << TYPE_SHIFT;
const DEFAULT: u64 = 1 << 16;
pub(crate) const TAGGED: u64 = 1 << 17;
pub(crate) const VLAN_SHIFT: u32 = 20;
pub(crate) const VLAN: u64 = 0xfff << VLAN_SHIFT;
pub(crate) const IFINDEX_SHIFT: u32 = 32;
pub(crate) const IFINDEX: u64 = 0xffff_ffff << IFINDEX_SHIFT;
const NEXT: u64 = 0xffff_ffff;
pub(crate) const PORT_SHIFT: u32 = 32;
pub(crate) const PORT: u64 = 0xff << PORT_SHIFT;
const INDEX_SHIFT: u32 = 40;

/// The four words of a slot or a row.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Record {
    pub(crate) first: u64,
    pub(crate) second: u64,
    /// State, type, default flag, tagged flag, VLAN in bits 20 to 31, interface in the upper half.
    pub(crate) facts: u64,
    /// Next slot of the chain plus one, port in bits 32 to 39, index in bits 40 to 55.
    pub(crate) place: u64,
}

impl Record {
    pub(crate) fn new(entry: &Entry, valid: bool) -> Self {
        let (first, second) = halves(entry.gid());
        let ifindex = entry.attributes.key.ifindex.map_or(0, IfIndex::get);
        let vlan = entry.attributes.vlan.map_or(0, |vlan| TAGGED | u64::from(vlan.get()) << VLAN_SHIFT);
        let facts = if valid { STATE_VALID } else { STATE_INVALID }
            | (entry.gid_type() as u64) << TYPE_SHIFT
            | if entry.default { DEFAULT } else { 0 }
            | vlan
            | u64::from(ifindex) << IFINDEX_SHIFT;
        let place = u64::from(entry.port.0) << PORT_SHIFT | u64::from(entry.index) << INDEX_SHIFT;
        Self { first, second, facts, place }
    }

    #[inline]
    pub(crate) const fn of_words([first, second, facts, place]: [u64; 4]) -> Self {
        Self { first, second, facts, place }
    }

    pub(crate) const fn words(&self) -> [u64; 4] {
        [self.first, self.second, self.facts, self.place]
    }

    #[inline]
    pub(crate) const fn gid(&self) -> Gid {
        gid_of(self.first, self.second)
    }

    pub(crate) const fn is_valid(&self) -> bool {
        self.facts & STATE == STATE_VALID
    }

    pub(crate) const fn is_invalid(&self) -> bool {
        self.facts & STATE == STATE_INVALID
    }

    /// True if it contains no entry.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.facts == 0
    }

    /// Next slot of its chain plus one; 0 at the end.
    #[inline]
    pub(crate) const fn next(&self) -> u32 {
        self.place as u32
    }

    pub(crate) const fn with_next(self, next: u32) -> Self {
        Self { place: self.place & !NEXT | next as u64, ..self }
    }

    #[inline]
    pub(crate) const fn port(&self) -> PortNumber {
        PortNumber((self.place >> PORT_SHIFT) as u8)
    }

    #[inline]
    pub(crate) const fn index(&self) -> u16 {
        (self.place >> INDEX_SHIFT) as u16
    }

    /// Returns the entry, or `None` if it is not valid.
    #[inline]
    pub(crate) const fn entry(&self) -> Option<Entry> {
        if self.is_valid() { self.valid_entry() } else { None }
    }

    /// Returns the entry of a valid record.
    #[inline]
    pub(crate) const fn valid_entry(&self) -> Option<Entry> {
        let Some(gid_type) = GidType::from_u8((self.facts >> TYPE_SHIFT) as u8) else { return None };
        let vlan = if self.facts & TAGGED == 0 {
            None
        } else {
            VlanId::new(((self.facts & VLAN) >> VLAN_SHIFT) as u16)
        };
        let ifindex = IfIndex::new((self.facts >> IFINDEX_SHIFT) as u32);
        Some(Entry {
            port: self.port(),
            index: self.index(),
            attributes: Attributes { key: Key { gid: self.gid(), gid_type, ifindex }, vlan },
            default: self.facts & DEFAULT != 0,
        })
    }
}
