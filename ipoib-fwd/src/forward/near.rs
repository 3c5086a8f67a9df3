//! Directly indexed table of a subnet's hosts: no hash and no key comparison.
//!
//! The table is copy on write. A block holds eight consecutive addresses, a page 512 blocks. Blocks and pages
//! without hosts are not allocated. A change replaces one block. It copies a page or the page list only if
//! another version of the table shares them.
//!
//! A page takes 4 KiB however few hosts it has, and hosts choose their addresses. The number of pages is
//! therefore limited by the number of expected hosts. The table refuses hosts that need one page too many,
//! and the caller must store them elsewhere.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use pmd::fetch::fetch;

use super::NeighbourIndex;

/// Addresses in a block.
const WIDTH: usize = 8;
/// Blocks in a page.
const BLOCKS: usize = 512;
/// Addresses in a page.
const PAGE: usize = WIDTH * BLOCKS;
/// Largest subnet in addresses: the size of 10.0.0.0/8.
const MOST: u64 = 1 << 24;
/// One page for each `PER_PAGE` expected hosts, and `PAGES` more for few hosts in a large subnet.
const PER_PAGE: usize = 64;
const PAGES: usize = 16;

/// The fields that a lookup reads first are on one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Block<N> {
    numbers: [NeighbourIndex; WIDTH],
    /// A bit for each slot with a host.
    present: u8,
    hosts: [Option<N>; WIDTH],
}

impl<N> Default for Block<N> {
    fn default() -> Self {
        Self { numbers: [NeighbourIndex(0); WIDTH], present: 0, hosts: [const { None }; WIDTH] }
    }
}

#[derive(Clone, Debug)]
struct Page<N> {
    blocks: [Option<Arc<Block<N>>>; BLOCKS],
    /// Number of hosts.
    len: usize,
}

/// Hosts by address. The fields that a lookup reads come first.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Near<N> {
    /// Pages from the first that ever had a host to the last. Addresses outside need no memory access. The
    /// first page is stored inline: with few hosts it is the only one. With many segments, separate page
    /// lists would not stay in the near caches.
    head: Option<Arc<Page<N>>>,
    tail: Box<[Option<Arc<Page<N>>>]>,
    /// The first address of the first page, or of the range while there is no page.
    begin: u32,
    /// The subnet's first address and its number of addresses; 0 if the table holds no hosts.
    first: u32,
    span: u32,
    /// Maximum and current number of pages.
    most: u32,
    used: usize,
    /// Number of hosts.
    len: usize,
}

/// The page at an index.
fn page_mut<'n, N>(
    head: &'n mut Option<Arc<Page<N>>>,
    tail: &'n mut [Option<Arc<Page<N>>>],
    at: usize,
) -> Option<&'n mut Option<Arc<Page<N>>>> {
    if at == 0 { Some(head) } else { tail.get_mut(at - 1) }
}

impl<N: Clone> Near<N> {
    /// Creates a table for about `expected` hosts of this range. If the range is too large, the table accepts
    /// no host.
    pub(super) fn new(addresses: &Range<u64>, expected: usize) -> Self {
        let span = addresses.end.saturating_sub(addresses.start);
        let span = if span <= MOST { span } else { 0 };
        let first = addresses.start as u32;
        Self {
            head: None,
            tail: Box::default(),
            begin: first,
            first,
            span: span as u32,
            used: 0,
            most: (PAGES + expected / PER_PAGE) as u32,
            len: 0,
        }
    }

    /// Index of the page, of the block in it, and of the slot in the block.
    #[inline(always)]
    const fn position(&self, key: u32) -> (usize, usize, usize) {
        let offset = key.wrapping_sub(self.begin) as usize;
        (offset / PAGE, offset / WIDTH % BLOCKS, offset % WIDTH)
    }

    /// True if the address is in the range.
    #[inline(always)]
    pub(super) const fn covers(&self, key: u32) -> bool {
        key.wrapping_sub(self.first) < self.span
    }

    /// The block of an address and its slot there.
    #[inline(always)]
    fn block(&self, key: u32) -> Option<(&Block<N>, usize)> {
        let (page, block, at) = self.position(key);
        // The first page is recognized by the distance alone.
        let is_first = (key.wrapping_sub(self.begin) as usize) < PAGE;
        let page = if is_first { &self.head } else { self.tail.get(page.wrapping_sub(1))? };
        let page = page.as_deref()?;
        Some((page.blocks.get(block)?.as_deref()?, at))
    }

    #[inline(always)]
    pub(super) fn get(&self, key: u32) -> Option<(NeighbourIndex, &N)> {
        let (block, at) = self.block(key)?;
        Some((*block.numbers.get(at)?, block.hosts.get(at)?.as_ref()?))
    }

    #[inline(always)]
    pub(super) fn has(&self, key: u32) -> bool {
        self.block(key).is_some_and(|(block, at)| block.present >> at & 1 != 0)
    }

    /// Prefetches the row that shows whether there is a host.
    #[inline(always)]
    pub(super) fn fetch_row(&self, key: u32) {
        if let Some((block, _)) = self.block(key) {
            fetch(block);
        }
    }

    /// Prefetches the row and the host, whose location is known without a memory access.
    #[inline(always)]
    pub(super) fn fetch(&self, key: u32) {
        if let Some((block, at)) = self.block(key)
            && let Some(host) = block.hosts.get(at)
        {
            fetch(block);
            fetch(host);
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds or changes a host. Returns false if the table has no slot for it.
    pub(super) fn set(&mut self, key: u32, index: NeighbourIndex, host: N) -> bool {
        // The last page may have more slots than the subnet has addresses.
        if !self.covers(key) {
            return false;
        }
        if self.used < self.most as usize {
            self.extend_to(key);
        }
        let (at_page, at_block, at) = self.position(key);
        let Some(page) = page_mut(&mut self.head, &mut self.tail, at_page) else { return false };
        if page.is_none() {
            if self.used >= self.most as usize {
                return false;
            }
            self.used += 1;
            *page = Some(Arc::new(Page { blocks: [const { None }; BLOCKS], len: 0 }));
        }
        let Some(page) = page.as_mut().map(Arc::make_mut) else { return false };
        let Some(position) = page.blocks.get_mut(at_block) else { return false };
        let block = Arc::make_mut(position.get_or_insert_default());
        if let (Some(number), Some(position)) = (block.numbers.get_mut(at), block.hosts.get_mut(at)) {
            *number = index;
            if position.replace(host).is_none() {
                block.present |= 1 << at;
                page.len += 1;
                self.len += 1;
            }
        }
        true
    }

    /// Extends the page list to the page of an address of the range.
    fn extend_to(&mut self, key: u32) {
        let number = |address: u32| address.wrapping_sub(self.first) as usize / PAGE;
        if self.used == 0 {
            self.begin = self.first.wrapping_add((number(key) * PAGE) as u32);
            self.tail = Box::default();
            return;
        }
        let (page, begin) = (number(key), number(self.begin));
        let more = begin.saturating_sub(page);
        if more == 0 && page - begin <= self.tail.len() {
            return;
        }
        let all = std::iter::once(self.head.take()).chain(std::mem::take(&mut self.tail));
        let mut pages = std::iter::repeat_n(None, more).chain(all).collect::<VecDeque<_>>();
        pages.resize(pages.len().max((page + 1).saturating_sub(begin)), None);
        self.head = pages.pop_front().flatten();
        self.tail = pages.into_iter().collect();
        self.begin = self.begin.wrapping_sub((more * PAGE) as u32);
    }

    /// Removes a host. Returns false if it is not in the table.
    pub(super) fn remove(&mut self, key: u32) -> bool {
        if !self.has(key) {
            return false;
        }
        let (at_page, at_block, at) = self.position(key);
        let Some(position) = page_mut(&mut self.head, &mut self.tail, at_page) else { return false };
        let Some(page) = position.as_mut().map(Arc::make_mut) else { return false };
        let Some(slot) = page.blocks.get_mut(at_block) else { return false };
        let Some(block) = slot.as_mut().map(Arc::make_mut) else { return false };
        if let Some(host) = block.hosts.get_mut(at) {
            *host = None;
        }
        block.present &= !(1 << at);
        if block.present == 0 {
            *slot = None;
        }
        page.len -= 1;
        if page.len == 0 {
            *position = None;
            self.used -= 1;
        }
        self.len -= 1;
        true
    }

    /// All hosts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, NeighbourIndex, &N)> {
        let pages = std::iter::once(&self.head).chain(&self.tail);
        let pages = (0..).zip(pages).filter_map(|(n, page)| Some((n, page.as_deref()?)));
        let blocks = pages.flat_map(|(n, page): (u32, _)| {
            let blocks = (0..).zip(&page.blocks);
            blocks.filter_map(move |(m, block)| Some((n * BLOCKS as u32 + m, block.as_deref()?)))
        });
        blocks.flat_map(move |(n, block): (u32, _)| {
            let hosts = (0..).zip(block.numbers.iter().zip(&block.hosts));
            hosts.filter_map(move |(at, (index, host)): (u32, _)| {
                Some((self.begin.wrapping_add(n * WIDTH as u32 + at), *index, host.as_ref()?))
            })
        })
    }

    /// Number of blocks that this table shares with another.
    #[cfg(test)]
    fn shared_with(&self, other: &Self) -> usize {
        let blocks = |map: &Self| {
            let pages = std::iter::once(&map.head).chain(&map.tail).map(Option::as_deref);
            pages.flat_map(|page| (0..BLOCKS).map(move |n| page?.blocks[n].clone())).collect::<Vec<_>>()
        };
        let same = |(a, b): &(Option<Arc<_>>, Option<Arc<_>>)| {
            a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b))
        };
        blocks(self).into_iter().zip(blocks(other)).filter(same).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_leaves_all_other_blocks_shared() {
        let mut map = Near::new(&(0x0a4d_0000..0x0a4e_0000), 4096);
        for n in 0..4096 {
            assert!(map.set(0x0a4d_0000 + n, NeighbourIndex(n), n));
        }
        let before = map.clone();
        assert_eq!(map.shared_with(&before), 512);
        assert!(map.set(0x0a4d_0011, NeighbourIndex(17), 18));
        assert_eq!(map.shared_with(&before), 511);
        assert!(map.remove(0x0a4d_0011) && !map.remove(0x0a4d_0011));
        assert_eq!((before.get(0x0a4d_0011), map.get(0x0a4d_0011)), (Some((NeighbourIndex(17), &17)), None));
        assert_eq!((map.len(), map.iter().count(), before.len()), (4095, 4095, 4096));
    }

    #[test]
    fn sparse_addresses_do_not_exceed_the_page_limit() {
        let mut map = Near::new(&(0x0a00_0000..0x0b00_0000), 640);
        let took = (0..4096).filter(|n| map.set(0x0a00_0000 + n * 4096, NeighbourIndex(*n), ())).count();
        assert_eq!((took, map.used), (26, 26));
        // A removed host makes room.
        assert!(map.remove(0x0a00_0000) && map.set(0x0aff_ffff, NeighbourIndex(0), ()));
        for n in 0..4096 {
            map.remove(0x0a00_0000 + n * 4096);
        }
        assert_eq!((map.len(), map.used), (1, 1));
    }

    #[test]
    fn addresses_beyond_the_range_are_refused() {
        let mut map = Near::new(&(0xffff_fff8..0x1_0000_0000), 4);
        assert!(map.set(0xffff_ffff, NeighbourIndex(1), 'a'));
        // They are on the same page, behind the end of the range.
        assert!(!map.set(0, NeighbourIndex(2), 'b') && !map.set(0xffff_fff7, NeighbourIndex(2), 'b'));
        assert_eq!((map.get(0), map.get(0xffff_ffff)), (None, Some((NeighbourIndex(1), &'a'))));
        let mut large = Near::new(&(0..1 << 32), 4);
        assert!(!large.set(1, NeighbourIndex(1), ()) && !large.has(1));
        assert!(!Near::new(&(0..0), 4).set(0, NeighbourIndex(1), ()));
    }

    #[test]
    fn fields_read_first_are_on_one_cache_line() {
        type Hosts = Block<[u8; 6]>;
        assert_eq!((align_of::<Hosts>(), std::mem::offset_of!(Hosts, present)), (64, 32));
    }
}
