//! A subnet's hosts at their addresses' places: no hash, and no key to compare. A packet of `step-eth-ib-rc`, which asks twice, costs 40
//! instructions and 30 cycles less than with a hash: the processor knows earlier where to go on.
//!
//! Eight addresses that follow one another are a block, 512 blocks a page; where there is no host there is neither. A change makes one block anew, and
//! of pages and the list of them what somebody else holds; all else is shared. A page takes 4 KiB however few hosts it
//! has, and hosts choose their addresses: there are no more pages than hosts that are expected can fill to a part, and who finds none
//! has to be put elsewhere.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use pmd::fetch::fetch;

use super::NeighbourIndex;

/// Addresses of a block.
const WIDTH: usize = 8;
/// Blocks of a page.
const BLOCKS: usize = 512;
/// Addresses of a page.
const PAGE: usize = WIDTH * BLOCKS;
/// Most addresses of a subnet: that of 10.0.0.0/8.
const MOST: u64 = 1 << 24;
/// A page for so many hosts that are expected, and some for few hosts in a large subnet.
const PER_PAGE: usize = 64;
const PAGES: usize = 16;

/// What is asked first lies on one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Block<N> {
    numbers: [NeighbourIndex; WIDTH],
    /// A bit for each place with a host.
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
    /// Hosts.
    len: usize,
}

/// Hosts by address. What a lookup asks comes first.
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Near<N> {
    /// From the first page that ever had a host to the last: an address beyond them has none, which takes no look into memory. The first
    /// stands here: with few hosts it is the only one, and of many segments the lists would not stay in the near cache.
    head: Option<Arc<Page<N>>>,
    tail: Box<[Option<Arc<Page<N>>>]>,
    /// The first address of the first page; the range's, while there is none.
    begin: u32,
    /// The subnet's first address, and how many it has; none, if hosts are not kept here.
    first: u32,
    span: u32,
    /// How many pages there may be, and are.
    most: u32,
    used: usize,
    /// Hosts.
    len: usize,
}

/// The page at a place.
fn page_mut<'n, N>(
    head: &'n mut Option<Arc<Page<N>>>,
    tail: &'n mut [Option<Arc<Page<N>>>],
    at: usize,
) -> Option<&'n mut Option<Arc<Page<N>>>> {
    if at == 0 { Some(head) } else { tail.get_mut(at - 1) }
}

impl<N: Clone> Near<N> {
    /// For about `expected` hosts with addresses in this range; for none, if they are too many to have places.
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

    /// Its page, its block there, and its place in that.
    #[inline(always)]
    const fn place(&self, key: u32) -> (usize, usize, usize) {
        let offset = key.wrapping_sub(self.begin) as usize;
        (offset / PAGE, offset / WIDTH % BLOCKS, offset % WIDTH)
    }

    /// True if it is one of the range's addresses.
    #[inline(always)]
    pub(super) const fn covers(&self, key: u32) -> bool {
        key.wrapping_sub(self.first) < self.span
    }

    /// The block of an address, and its place there.
    #[inline(always)]
    fn block(&self, key: u32) -> Option<(&Block<N>, usize)> {
        let (page, block, at) = self.place(key);
        // The first is told by the distance itself.
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

    /// Has the processor fetch what tells whether there is a host.
    #[inline(always)]
    pub(super) fn fetch_row(&self, key: u32) {
        if let Some((block, _)) = self.block(key) {
            fetch(block);
        }
    }

    /// Has it fetch that and the host: where it would be is known without a look.
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

    /// Adds or changes a host; false if it has no place here.
    pub(super) fn set(&mut self, key: u32, index: NeighbourIndex, host: N) -> bool {
        // The last page may have more places than the subnet has addresses.
        if !self.covers(key) {
            return false;
        }
        if self.used < self.most as usize {
            self.extend_to(key);
        }
        let (at_page, at_block, at) = self.place(key);
        let Some(page) = page_mut(&mut self.head, &mut self.tail, at_page) else { return false };
        if page.is_none() {
            if self.used >= self.most as usize {
                return false;
            }
            self.used += 1;
            *page = Some(Arc::new(Page { blocks: [const { None }; BLOCKS], len: 0 }));
        }
        let Some(page) = page.as_mut().map(Arc::make_mut) else { return false };
        let Some(place) = page.blocks.get_mut(at_block) else { return false };
        let block = Arc::make_mut(place.get_or_insert_default());
        if let (Some(number), Some(place)) = (block.numbers.get_mut(at), block.hosts.get_mut(at)) {
            *number = index;
            if place.replace(host).is_none() {
                block.present |= 1 << at;
                page.len += 1;
                self.len += 1;
            }
        }
        true
    }

    /// Has the pages reach to that of an address of the range.
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

    /// Takes a host out; false if it is not here.
    pub(super) fn remove(&mut self, key: u32) -> bool {
        if !self.has(key) {
            return false;
        }
        let (at_page, at_block, at) = self.place(key);
        let Some(place) = page_mut(&mut self.head, &mut self.tail, at_page) else { return false };
        let Some(page) = place.as_mut().map(Arc::make_mut) else { return false };
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
            *place = None;
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

    /// How many blocks this map has that another one has, too.
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
    fn who_chooses_addresses_far_apart_does_not_choose_how_much_memory_there_is() {
        let mut map = Near::new(&(0x0a00_0000..0x0b00_0000), 640);
        let took = (0..4096).filter(|n| map.set(0x0a00_0000 + n * 4096, NeighbourIndex(*n), ())).count();
        assert_eq!((took, map.used), (26, 26));
        // Whoever goes makes room.
        assert!(map.remove(0x0a00_0000) && map.set(0x0aff_ffff, NeighbourIndex(0), ()));
        for n in 0..4096 {
            map.remove(0x0a00_0000 + n * 4096);
        }
        assert_eq!((map.len(), map.used), (1, 1));
    }

    #[test]
    fn addresses_beyond_the_range_have_no_place() {
        let mut map = Near::new(&(0xffff_fff8..0x1_0000_0000), 4);
        assert!(map.set(0xffff_ffff, NeighbourIndex(1), 'a'));
        // They lie on the same page, behind the end.
        assert!(!map.set(0, NeighbourIndex(2), 'b') && !map.set(0xffff_fff7, NeighbourIndex(2), 'b'));
        assert_eq!((map.get(0), map.get(0xffff_ffff)), (None, Some((NeighbourIndex(1), &'a'))));
        let mut large = Near::new(&(0..1 << 32), 4);
        assert!(!large.set(1, NeighbourIndex(1), ()) && !large.has(1));
        assert!(!Near::new(&(0..0), 4).set(0, NeighbourIndex(1), ()));
    }

    #[test]
    fn what_a_lookup_asks_first_is_on_one_cache_line() {
        type Hosts = Block<[u8; 6]>;
        assert_eq!((align_of::<Hosts>(), std::mem::offset_of!(Hosts, present)), (64, 32));
    }
}
