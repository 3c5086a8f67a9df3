//! Where a published table lies in its words.
//!
//! The words are a header and two buffers; publication `n` is in buffer `n & 1`. A buffer is four words a slot, then four words a row
//! of the index: for each GID a copy of the best record with it, at the first row free from that of its hash on. A quarter of these is
//! taken at most, so that a lookup mostly reads one cache line, and learns all that there is to know from it. Further records of the
//! GID are a chain from there, through the slots. Everything that a word may say is checked when it is read, for the memory may be
//! another process's.

use ib_wire::{Gid, PortNumber};

use crate::entry::{Attributes, Entry, GidType, IfIndex, Key, VlanId};
use crate::sync::{AtomicU64, Ordering, fence};

/// "gidcache" and the version of this layout.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"gidc\0\0\0\x02");
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

/// Words of a record, in its slot and in its row. Records lie at multiples of as many words, so that none is in two cache lines of memory
/// that begins with one.
pub(crate) const RECORD: usize = 4;
/// Rows of the index for each slot, that a search may begin at.
pub(crate) const HOMES_PER_SLOT: usize = 4;

/// Words of memory that can be read while another writes them.
pub trait Words {
    /// How many there are.
    fn count(&self) -> usize;

    /// A relaxed load of one; 0 if it does not exist.
    fn load(&self, at: usize) -> u64;

    /// Relaxed loads of the four from `4 * quad` on; `None` if one does not exist.
    fn load_quad(&self, quad: usize) -> Option<[u64; 4]>;
}

/// What [`Words::load_quad`] says of words in a slice.
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
        self.buffer_records() * RECORD
    }

    #[inline]
    const fn buffer_records(&self) -> usize {
        self.slots.wrapping_add(self.rows())
    }

    /// The record that the buffer of a publication begins with, counted from the first word of all.
    #[inline]
    pub(crate) const fn first_record(&self, publication: u64) -> usize {
        const FIRST: usize = HEADER / RECORD;
        if publication & 1 == 0 { FIRST } else { FIRST.wrapping_add(self.buffer_records()) }
    }

    /// The first word of the buffer of a publication.
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

    /// Rows that a search may begin at.
    #[inline]
    pub(crate) const fn homes(&self) -> usize {
        self.homes
    }

    /// All rows: behind the last home there is room for as many as there can be, and one that is always empty, so that searches end.
    #[inline]
    pub(crate) const fn rows(&self) -> usize {
        self.homes.wrapping_add(self.slots).wrapping_add(1)
    }

    /// Which record of a buffer a row is.
    #[inline]
    pub(crate) const fn row_record(&self, row: usize) -> usize {
        self.slots.wrapping_add(row)
    }
}

/// A GID as the two words of its record: its bytes, in the order that they have in memory.
#[inline]
pub(crate) const fn halves(gid: Gid) -> (u64, u64) {
    let words = u128::from_le_bytes(gid.0);
    (words as u64, (words >> 64) as u64)
}

/// The GID of its two words.
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
    /// State, type, default, tagged, VLAN in bits 20 to 31, interface in the upper half.
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

    /// True if it is of no entry.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.facts == 0
    }

    /// The next slot of its chain plus one; 0 at the end.
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

    /// The entry; `None` if it is not valid.
    #[inline]
    pub(crate) const fn entry(&self) -> Option<Entry> {
        if self.is_valid() { self.valid_entry() } else { None }
    }

    /// The entry of a record that is valid.
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
