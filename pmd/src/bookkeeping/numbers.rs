//! Lookup of queue pairs by the number in a completion.

use crate::hca::{RcSlot, UdSlot};

/// A queue pair's slot in a worker's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Slot of a datagram queue pair.
    Ud(UdSlot),
    /// Slot of a connected queue pair, and the datagram queue pair of its link.
    Rc(RcSlot, UdSlot),
}

impl Place {
    /// Returns the datagram queue pair, or the one of the connection's link.
    pub(crate) const fn ud(self) -> UdSlot {
        match self {
            Self::Ud(slot) | Self::Rc(_, slot) => slot,
        }
    }

    /// Returns the slot of a connection.
    pub(crate) const fn rc(self) -> Option<RcSlot> {
        match self {
            Self::Ud(_) => None,
            Self::Rc(slot, _) => Some(slot),
        }
    }
}

/// Hash table from queue pair number to slot.
///
/// Devices assign adjacent numbers, so the low bits are nearly always a perfect hash. Collisions use linear
/// probing.
#[derive(Debug)]
pub(crate) struct Numbers {
    entries: Box<[(u32, Option<Place>)]>,
    used: usize,
}

impl Numbers {
    /// Creates an empty table for up to `most` queue pairs.
    pub(crate) fn new(most: usize) -> Self {
        // At most half full, so that a search always ends, and soon.
        let entries = vec![(0, None); (2 * most + 2).next_power_of_two()].into();
        Self { entries, used: 0 }
    }

    /// Number of queue pairs in the table.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.used
    }

    const fn next(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    const fn home(&self, qpn: u32) -> usize {
        qpn as usize & (self.entries.len() - 1)
    }

    /// Looks up a queue pair.
    #[inline]
    pub(crate) fn find(&self, qpn: u32) -> Option<Place> {
        match self.entries.get(self.home(qpn)) {
            // A free entry, where a search ends, holds `None`.
            Some((number, place)) if *number == qpn => *place,
            _ => self.find_further(qpn),
        }
    }

    /// Continues the search after the home entry.
    #[cold]
    fn find_further(&self, qpn: u32) -> Option<Place> {
        let mut at = self.home(qpn);
        while let Some(&(number, Some(place))) = self.entries.get(at) {
            if number == qpn {
                return Some(place);
            }
            at = self.next(at);
        }
        None
    }

    /// Inserts a queue pair. Returns false if the table is full.
    pub(crate) fn insert(&mut self, qpn: u32, place: Place) -> bool {
        let mut at = self.home(qpn);
        while let Some((number, Some(old))) = self.entries.get_mut(at) {
            if *number == qpn {
                *old = place;
                return true;
            }
            at = self.next(at);
        }
        if 2 * (self.used + 1) > self.entries.len() {
            return false;
        }
        if let Some(entry) = self.entries.get_mut(at) {
            *entry = (qpn, Some(place));
            self.used += 1;
        }
        true
    }

    /// Removes a queue pair.
    pub(crate) fn remove(&mut self, qpn: u32) {
        let mut hole = self.home(qpn);
        while let Some(&(number, Some(_))) = self.entries.get(hole) {
            if number == qpn {
                break;
            }
            hole = self.next(hole);
        }
        if !matches!(self.entries.get(hole), Some((_, Some(_)))) {
            return;
        }
        self.used -= 1;
        // Later entries move up, unless that would move them in front of their home.
        let mut at = self.next(hole);
        while let Some(&entry @ (number, Some(_))) = self.entries.get(at) {
            let mask = self.entries.len() - 1;
            let from_home = at.wrapping_sub(self.home(number)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                if let Some(place) = self.entries.get_mut(hole) {
                    *place = entry;
                }
                hole = at;
            }
            at = self.next(at);
        }
        if let Some(place) = self.entries.get_mut(hole) {
            *place = (0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_finds_what_a_map_finds_whatever_comes_and_goes() {
        let (mut numbers, mut map) = (Numbers::new(40), HashMap::new());
        let mut x = 0x9e37_79b9_u32;
        for round in 0..20_000_u32 {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            // Few home entries, so that many collide. The highest ones wrap around.
            let qpn = (x >> 8) % 7 * 128 + 120 + x % 9;
            let place = Place::Rc(RcSlot(round as u16), UdSlot(round as u8));
            if x & 0x1000 == 0 {
                numbers.remove(qpn);
                map.remove(&qpn);
            } else if map.len() < 40 || map.contains_key(&qpn) {
                assert!(numbers.insert(qpn, place));
                map.insert(qpn, place);
            }
            for base in 0..7 * 128 + 130 {
                assert_eq!(numbers.find(base), map.get(&base).copied(), "{base} in round {round}");
            }
        }
    }

    #[test]
    fn a_full_table_takes_no_more_and_a_search_ends() {
        let mut numbers = Numbers::new(1);
        assert!(numbers.insert(1, Place::Ud(UdSlot(0))) && numbers.insert(5, Place::Ud(UdSlot(1))));
        assert!(!numbers.insert(9, Place::Ud(UdSlot(2))));
        assert_eq!((numbers.find(5), numbers.find(9)), (Some(Place::Ud(UdSlot(1))), None));
        numbers.remove(5);
        assert_eq!(numbers.find(5), None);
    }
}
